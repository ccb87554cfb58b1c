/* user_hooks.h - hooks of the caller's: fsdp_module_add_hooks. */
#pragma once

#include "nn/module.h"

/* One call of a module in whose backward hooks are run. The call holds a reference, and so does each of its ends in the
 * graph. */
typedef struct fsdp__backward_call fsdp__backward_call;

/* Begins such a call, behind the hooks before the forward; it may replace `inputs`. `*out` is NULL if there is nothing
 * to do. */
fsdp_status fsdp__backward_hooks_enter(fsdp_module *module, fsdp_tensor **inputs, int count, int output_count,
                                       fsdp__backward_call **out);
/* Ends it, behind the hooks after the forward. */
fsdp_status fsdp__backward_hooks_leave(fsdp__backward_call *call, fsdp_tensor **outputs, int count);
void fsdp__backward_call_unref(fsdp__backward_call *call);
/* Removes from the module's list hooks that were removed while a call of the module ran, once no call runs. */
void fsdp__module_forget_removed_hooks(fsdp_module *module);
