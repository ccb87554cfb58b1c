/* jinja_operators.h - what signs, dots and brackets do. */
#ifndef CHAT_JINJA_OPERATORS_H
#define CHAT_JINJA_OPERATORS_H

#include "chat/jinja_values.h"

/* Applies + - * / // % ** or ~. */
fsdp_status fsdp__value_operate(fsdp__render *r, fsdp__string sign, const fsdp__value *a, const fsdp__value *b,
                                fsdp__value *out);
/* Applies == != < <= > >= in or "not in". */
fsdp_status fsdp__value_relate(fsdp__render *r, fsdp__string sign, const fsdp__value *a, const fsdp__value *b,
                               bool *out);
fsdp_status fsdp__value_negate(fsdp__render *r, const fsdp__value *a, fsdp__value *out);
/* Gets a.name: a method first, then the key. What is not there is undefined. */
fsdp_status fsdp__value_attribute(fsdp__render *r, const fsdp__value *of, fsdp__string name, fsdp__value *out);
/* Gets a[b]: the key first, then a method. */
fsdp_status fsdp__value_index(fsdp__render *r, const fsdp__value *of, const fsdp__value *index, fsdp__value *out);
/* Fills the '%' places of a text, as Python does. */
fsdp_status fsdp__string_fill(fsdp__render *r, fsdp__string text, const fsdp__list *with, fsdp__value *out);

#endif
