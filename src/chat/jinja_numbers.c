/* jinja_numbers.c - decimal digits stand for what 64 bits do not hold; prefixes, signs and underscores of texts. */
#include "chat/jinja_numbers.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "chat/jinja_strings.h"

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
        *out = fsdp__jinja_value_of_integer(number);
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

int fsdp__jinja_numbers_compare(const fsdp__jinja_value *a, const fsdp__jinja_value *b)
{
    char texts[2][REAL_DIGITS];
    double x, y;

    if (is_beyond(a) && is_beyond(b))
        return compare_digits(digits_of(a, texts[0]), digits_of(b, texts[1]));
    if (a->kind == FSDP__JINJA_VALUE_BIG || b->kind == FSDP__JINJA_VALUE_BIG) {
        const fsdp__jinja_value *other = a->kind == FSDP__JINJA_VALUE_BIG ? b : a;

        if (other->kind == FSDP__JINJA_VALUE_REAL && !isfinite(other->real))
            return isnan(other->real) ? 0 : (other->real < 0) == (other == b) ? 1 : -1;
        return other == b ? side_of(a) : -side_of(b);
    }
    if (a->kind != FSDP__JINJA_VALUE_REAL && b->kind != FSDP__JINJA_VALUE_REAL) {
        int64_t i = fsdp__jinja_value_integer(a), j = fsdp__jinja_value_integer(b);

        return (i > j) - (i < j);
    }
    x = fsdp__jinja_value_real(a);
    y = fsdp__jinja_value_real(b);
    return (x > y) - (x < y);
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

/* ---- texts ---- */

/* Copies a number without the white space around it and without underscores between its digits; NULL: they stand
 * elsewhere. */
static fsdp_status clean(fsdp__render *r, fsdp__jinja_string text, char **out)
{
    size_t n = 0;

    text = fsdp__jinja_string_strip(text, FSDP__STRIP_BOTH, NULL);
    FSDP_TRY(copy(r, text, out));
    for (size_t i = 0; i < text.bytes; i++) {
        if (text.at[i] != '_') {
            (*out)[n++] = text.at[i];
        } else if (i == 0 || i + 1 == text.bytes || !isalnum((unsigned char)text.at[i - 1]) ||
                   !isalnum((unsigned char)text.at[i + 1])) {
            *out = NULL;
            return FSDP_OK;
        }
    }
    (*out)[n] = '\0';
    return FSDP_OK;
}

/* Returns whether float() takes a text that strtod takes: not in base 16, and no NaN with a number. */
static bool is_real(const char *text)
{
    const char *name = text + strspn(text, "+-");

    if (name - text > 1)
        return false;
    return isdigit((unsigned char)*name) || *name == '.'
               ? !strpbrk(text, "xXpP")
               : strcasecmp(name, "inf") == 0 || strcasecmp(name, "infinity") == 0 || strcasecmp(name, "nan") == 0;
}

fsdp_status fsdp__jinja_real_of_text(fsdp__render *r, fsdp__jinja_string text, fsdp__jinja_value *out)
{
    char *number, *end;
    double real;

    FSDP_TRY(clean(r, text, &number));
    if (!number || !is_real(number))
        return FSDP_OK;
    real = strtod(number, &end);
    if (*end == '\0' && end > number)
        *out = fsdp__jinja_value_of_real(real);
    return FSDP_OK;
}

/* Takes the prefix of a base, which base 0 takes its base from. Returns the base; -1: base 0, and zeros before the
 * digits. */
static int take_prefix(const char **at, int64_t base)
{
    static const char letters[] = "xob";
    static const int bases[] = {16, 8, 2};
    const char *letter = (*at)[0] == '0' && (*at)[1] ? strchr(letters, tolower((unsigned char)(*at)[1])) : NULL;

    if (letter && (base == 0 || base == bases[letter - letters]) && (*at)[2]) {
        *at += 2;
        return bases[letter - letters];
    }
    if (base == 0 && (*at)[0] == '0' && (*at)[strspn(*at, "0")] != '\0')
        return -1;
    return base == 0 ? 10 : (int)base;
}

static fsdp_status whole_of_text(fsdp__render *r, char *number, int64_t base, fsdp__jinja_value *out)
{
    char *begin = number + (*number == '+' || *number == '-'), *end;
    const char *digits = begin;
    int64_t whole;
    int in;

    if (base < 0 || base == 1 || base > 36)
        return FSDP_OK;
    in = take_prefix(&digits, base);
    if (in < 0 || !isalnum((unsigned char)*digits))
        return FSDP_OK;
    errno = 0;
    whole = strtoll(digits, &end, in);
    if (*end != '\0' || (in == 16 && tolower((unsigned char)digits[1]) == 'x'))
        return FSDP_OK;
    if (in == 10)
        return fsdp__jinja_integer_of_digits(
            r, (fsdp__jinja_string){*number == '-' ? number : begin, strlen(*number == '-' ? number : begin)}, out);
    if (errno == ERANGE)
        return FSDP__RENDER_FAIL(r, "int: an integer beyond 64 bits that is not in base 10");
    *out = fsdp__jinja_value_of_integer(*number == '-' ? -whole : whole);
    return FSDP_OK;
}

fsdp_status fsdp__jinja_integer_of_text(fsdp__render *r, fsdp__jinja_string text, int64_t base, fsdp__jinja_value *out)
{
    char *number;

    FSDP_TRY(clean(r, text, &number));
    return number ? whole_of_text(r, number, base, out) : FSDP_OK;
}
