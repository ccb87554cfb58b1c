/* jinja_filters.h - filters of lists. */
#pragma once

#include "chat/jinja_call.h"

/* Returns a filter of lists, NULL if there is none of this name. */
const fsdp__callable *fsdp__jinja_list_filter(fsdp__jinja_string name);

typedef fsdp_status (*fsdp__filter)(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                                    const fsdp__arguments *arguments, fsdp__jinja_value *out);
/* Returns whether this is a filter that applies another one, or a test, to each item. */
bool fsdp__maps(fsdp__jinja_string name);
/* Applies map, select, reject, selectattr or rejectattr; `filter` applies a filter by its name. */
fsdp_status fsdp__jinja_map_filter(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                                   const fsdp__arguments *arguments, fsdp__filter filter, fsdp__jinja_value *out);
