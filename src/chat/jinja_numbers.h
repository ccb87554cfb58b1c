/* jinja_numbers.h - integers of any size, and numbers that are read from texts as Python's int() and float() do. */
#ifndef CHAT_JINJA_NUMBERS_H
#define CHAT_JINJA_NUMBERS_H

#include "chat/jinja_values.h"

/* Makes an integer of decimal digits, with '-' before them or not: a big one if 64 bits do not hold it. */
fsdp_status fsdp__jinja_integer_of_digits(fsdp__render *r, fsdp__jinja_string digits, fsdp__jinja_value *out);
/* Makes an integer of the whole part of a finite number. */
fsdp_status fsdp__jinja_integer_of_real(fsdp__render *r, double real, fsdp__jinja_value *out);
/* Compares two numbers exactly, big ones too: negative, 0 or positive; NaN equals everything. */
int fsdp__jinja_numbers_compare(const fsdp__jinja_value *a, const fsdp__jinja_value *b);
/* Returns whether one of two values is NaN, which equals nothing and has no order. */
bool fsdp__jinja_either_is_nan(const fsdp__jinja_value *a, const fsdp__jinja_value *b);
/* Changes the sign of a big integer. */
fsdp_status fsdp__jinja_big_negate(fsdp__render *r, const fsdp__jinja_value *a, fsdp__jinja_value *out);

/* Read a whole text as float(text), and as int(text, base). `*out` stays as it is where Python raises a ValueError. */
fsdp_status fsdp__jinja_real_of_text(fsdp__render *r, fsdp__jinja_string text, fsdp__jinja_value *out);
fsdp_status fsdp__jinja_integer_of_text(fsdp__render *r, fsdp__jinja_string text, int64_t base, fsdp__jinja_value *out);

#endif
