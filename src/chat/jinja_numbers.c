/* jinja_numbers.c - decimal digits stand for what 64 bits do not hold. */
#include "chat/jinja_values.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REAL_DIGITS = 320 /* of the largest double, with its sign */
};

/* Copies a text to the pool, with a NUL behind it. */
static fsdp_status copy(fsdp__render *r, fsdp__jinja_string text, char **out)
{
    char *made = fsdp__render_alloc(r, text.bytes + 1);

    if (!made)
        return fsdp_fail_hop(r->failed, __FILE__, __LINE__);
    if (text.bytes)
        memcpy(made, text.at, text.bytes);
    made[text.bytes] = '\0';
    *out = made;
    return FSDP_OK;
}

/* ---- integers of any size ---- */

fsdp_status fsdp__jinja_integer_of_digits(fsdp__render *r, fsdp__jinja_string digits, fsdp__jinja_value *out)
{
    char *text, *begin;
    bool minus;
    int64_t number;

    FSDP_TRY(copy(r, digits, &text));
    errno = 0;
    number = strtoll(text, NULL, 10);
    if (errno == 0) {
        *out = (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_INTEGER, .integer = number};
        return FSDP_OK;
    }
    minus = text[0] == '-';
    begin = text + minus;
    while (*begin == '0')
        begin++;
    if (minus)
        *--begin = '-';
    *out = (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_BIG, .string = {begin, strlen(begin)}};
    return FSDP_OK;
}

fsdp_status fsdp__jinja_integer_of_real(fsdp__render *r, double real, fsdp__jinja_value *out)
{
    char text[REAL_DIGITS];

    snprintf(text, sizeof text, "%.0f", trunc(real));
    return fsdp__jinja_integer_of_digits(r, (fsdp__jinja_string){text, strlen(text)}, out);
}

/* Returns the digits of a big number, or of a double that is larger than any integer of 64 bits. */
static fsdp__jinja_string digits_of(const fsdp__jinja_value *value, char text[REAL_DIGITS])
{
    if (value->kind == FSDP__JINJA_VALUE_BIG)
        return value->string;
    snprintf(text, REAL_DIGITS, "%.0f", value->real);
    return (fsdp__jinja_string){text, strlen(text)};
}

/* Compares two numbers of which 64 bits hold neither. */
static int compare_digits(fsdp__jinja_string a, fsdp__jinja_string b)
{
    bool minus = a.at[0] == '-';
    int order;

    if (minus != (b.at[0] == '-'))
        return minus ? -1 : 1;
    order = a.bytes != b.bytes ? (a.bytes > b.bytes) - (a.bytes < b.bytes) : memcmp(a.at, b.at, a.bytes);
    return minus ? -order : order;
}

static bool is_beyond(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_BIG ||
           (value->kind == FSDP__JINJA_VALUE_REAL && isfinite(value->real) && fabs(value->real) >= 0x1p63);
}

/* Returns which side of all integers of 64 bits a number is on that is not one of them. */
static int side_of(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_BIG ? (value->string.at[0] == '-' ? -1 : 1) : value->real < 0 ? -1 : 1;
}

/* Read a number of at most 64 bits. */
static int64_t whole_of(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_BOOL ? value->truth : value->integer;
}

static double real_of(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_REAL ? value->real : (double)whole_of(value);
}

int fsdp__jinja_numbers_compare(const fsdp__jinja_value *a, const fsdp__jinja_value *b)
{
    char texts[2][REAL_DIGITS];

    if (is_beyond(a) && is_beyond(b))
        return compare_digits(digits_of(a, texts[0]), digits_of(b, texts[1]));
    if (a->kind == FSDP__JINJA_VALUE_BIG || b->kind == FSDP__JINJA_VALUE_BIG) {
        const fsdp__jinja_value *other = a->kind == FSDP__JINJA_VALUE_BIG ? b : a;

        if (other->kind == FSDP__JINJA_VALUE_REAL && !isfinite(other->real))
            return isnan(other->real) ? 0 : (other->real < 0) == (other == b) ? 1 : -1;
        return other == b ? side_of(a) : -side_of(b);
    }
    if (a->kind == FSDP__JINJA_VALUE_REAL || b->kind == FSDP__JINJA_VALUE_REAL)
        return (real_of(a) > real_of(b)) - (real_of(a) < real_of(b));
    return (whole_of(a) > whole_of(b)) - (whole_of(a) < whole_of(b));
}

bool fsdp__jinja_either_is_nan(const fsdp__jinja_value *a, const fsdp__jinja_value *b)
{
    return (a->kind == FSDP__JINJA_VALUE_REAL && isnan(a->real)) ||
           (b->kind == FSDP__JINJA_VALUE_REAL && isnan(b->real));
}

fsdp_status fsdp__jinja_big_negate(fsdp__render *r, const fsdp__jinja_value *a, fsdp__jinja_value *out)
{
    char *text;

    if (a->string.at[0] == '-')
        return fsdp__jinja_integer_of_digits(r, (fsdp__jinja_string){a->string.at + 1, a->string.bytes - 1}, out);
    FSDP_TRY(copy(r, (fsdp__jinja_string){a->string.at, a->string.bytes}, &text));
    memmove(text + 1, text, a->string.bytes);
    text[0] = '-';
    return fsdp__jinja_integer_of_digits(r, (fsdp__jinja_string){text, a->string.bytes + 1}, out);
}
