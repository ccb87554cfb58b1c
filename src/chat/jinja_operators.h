/* jinja_operators.h - what signs, dots and brackets do. */
#pragma once

#include "chat/jinja_values.h"

/* Applies + - * / // % ** or ~. */
fsdp_status fsdp__jinja_value_operate(fsdp__render *r, fsdp__jinja_string sign, const fsdp__jinja_value *a,
                                      const fsdp__jinja_value *b, fsdp__jinja_value *out);
/* Applies == != < <= > >= in or "not in". */
fsdp_status fsdp__jinja_value_relate(fsdp__render *r, fsdp__jinja_string sign, const fsdp__jinja_value *a,
                                     const fsdp__jinja_value *b, bool *out);
fsdp_status fsdp__jinja_value_negate(fsdp__render *r, const fsdp__jinja_value *a, fsdp__jinja_value *out);
/* Gets a.name: a method first, then the key. What is not there is undefined. */
fsdp_status fsdp__jinja_value_attribute(fsdp__render *r, const fsdp__jinja_value *of, fsdp__jinja_string name,
                                        fsdp__jinja_value *out);
/* Gets a[b]: the key first, then a method. */
fsdp_status fsdp__jinja_value_index(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__jinja_value *index,
                                    fsdp__jinja_value *out);
/* Fills the '%' places of a text, as Python does. */
fsdp_status fsdp__jinja_string_fill(fsdp__render *r, fsdp__jinja_string text, const fsdp__jinja_list *with,
                                    fsdp__jinja_value *out);
