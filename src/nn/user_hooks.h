/* user_hooks.h - hooks of the caller's: fsdp_module_add_hooks. */
#ifndef NN_USER_HOOKS_H
#define NN_USER_HOOKS_H

#include "nn/module.h"

/* One call of a module in whose backward hooks are run. A reference for the call, and one for each end in the graph. */
typedef struct fsdp__backward_call fsdp__backward_call;

/* Behind the hooks before the forward: `inputs` may be replaced. `*out` is NULL where there is nothing to do. */
fsdp_status fsdp__backward_hooks_enter(fsdp_module *module, fsdp_tensor **inputs, int count, int output_count,
                                       fsdp__backward_call **out);
/* Behind those after it. */
fsdp_status fsdp__backward_hooks_leave(fsdp__backward_call *call, fsdp_tensor **outputs, int count);
void fsdp__backward_call_unref(fsdp__backward_call *call);
/* Hooks that were removed while a call of the module ran leave its list, if none does any more. */
void fsdp__module_forget_removed_hooks(fsdp_module *module);

#endif
