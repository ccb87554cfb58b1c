/* jinja_filters.c - what may stand behind '|': of one value here, of lists in jinja_list_filters.c. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "chat/jinja_filters.h"
#include "chat/jinja_operators.h"
#include "chat/jinja_strings.h"
#include "chat/jinja_text.h"

/* ---- JSON ---- */

/* Makes a text of so many spaces, within the bounds of a product. */
static fsdp_status spaces(fsdp__render *r, int64_t count, fsdp__jinja_value *out)
{
    *out = fsdp__jinja_value_of_text(" ", 1);
    return fsdp__jinja_value_operate(r, (fsdp__jinja_string){"*", 1}, out,
                                     &(fsdp__jinja_value){FSDP__JINJA_VALUE_INTEGER, {.integer = FSDP__MAX(count, 0)}},
                                     out);
}

/* Reads the option `indent`: a number of spaces, or a text. */
static fsdp_status read_indent(fsdp__render *r, const fsdp__jinja_value *indent, fsdp__json_style *style)
{
    fsdp__jinja_value text;

    if (!indent || indent->kind == FSDP__JINJA_VALUE_NONE)
        return FSDP_OK;
    style->item = (fsdp__jinja_string){",", 1};
    if (indent->kind == FSDP__JINJA_VALUE_STRING) {
        FSDP_TRY(fsdp__jinja_value_copy_text(r, indent->string.at, indent->string.bytes, &text));
    } else if (fsdp__jinja_value_is_number(indent)) {
        FSDP_TRY(spaces(r, fsdp__jinja_value_integer(indent), &text));
        FSDP_TRY(fsdp__jinja_value_copy_text(r, text.string.at, text.string.bytes, &text));
    } else {
        return FSDP__RENDER_FAIL(r, "tojson: indent has to be a number or a text");
    }
    ((char *)text.string.at)[text.string.bytes] = 0;
    style->indent = text.string.at;
    return FSDP_OK;
}

static fsdp_status read_separators(fsdp__render *r, const fsdp__jinja_value *given, fsdp__json_style *style)
{
    if (!given || given->kind == FSDP__JINJA_VALUE_NONE)
        return FSDP_OK;
    if (!fsdp__jinja_value_is_list(given) || given->list->count != 2 ||
        given->list->items[0].kind != FSDP__JINJA_VALUE_STRING ||
        given->list->items[1].kind != FSDP__JINJA_VALUE_STRING)
        return FSDP__RENDER_FAIL(r, "tojson: separators has to be a pair of strings");
    style->item = given->list->items[0].string;
    style->key = given->list->items[1].string;
    return FSDP_OK;
}

FSDP__CALLABLE(to_json)
{
    fsdp__json_style style = {.item = {", ", 2}, .key = {": ", 2}};
    FSDP__BUILDER text = {0};

    style.ascii = fsdp__argument_truth(arguments, 0, "ensure_ascii");
    FSDP_TRY(read_indent(r, fsdp__argument(arguments, 1, "indent"), &style));
    FSDP_TRY(read_separators(r, fsdp__argument(arguments, 2, "separators"), &style));
    style.sorted = fsdp__argument_truth(arguments, 3, "sort_keys");
    FSDP_TRY(fsdp__jinja_value_json(r, of, &style, &text));
    return fsdp__builder_value(r, &text, out);
}

/* ---- texts ---- */

/* Applies a method of strings to what str() gives. */
static fsdp_status as_string(fsdp__render *r, const fsdp__jinja_value *of, fsdp__jinja_value *out)
{
    fsdp__jinja_string text = {"", 0};

    FSDP_TRY(fsdp__jinja_value_str(r, of, &text));
    *out = fsdp__jinja_value_of_text(text.at, text.bytes);
    return FSDP_OK;
}

static fsdp_status by_method(fsdp__render *r, const char *method, const fsdp__jinja_value *of,
                             const fsdp__arguments *arguments, fsdp__jinja_value *out)
{
    fsdp__jinja_value text;

    FSDP_TRY(as_string(r, of, &text));
    return fsdp__jinja_method(r, (fsdp__jinja_string){method, strlen(method)}, &text, arguments, out);
}

FSDP__CALLABLE_IS(trim, by_method(r, "strip", of, arguments, out))
FSDP__CALLABLE_IS(upper, by_method(r, "upper", of, arguments, out))
FSDP__CALLABLE_IS(lower, by_method(r, "lower", of, arguments, out))
FSDP__CALLABLE_IS(capitalize, by_method(r, "capitalize", of, arguments, out))
FSDP__CALLABLE_IS(replace, by_method(r, "replace", of, arguments, out))

FSDP__CALLABLE(title)
{
    fsdp__jinja_value text;

    FSDP_TRY(as_string(r, of, &text));
    return fsdp__jinja_string_case(r, text.string, FSDP__CASE_TITLE_FILTER, out);
}

FSDP__CALLABLE_IS(string, as_string(r, of, out))

FSDP__CALLABLE(same)
{
    *out = *of;
    return FSDP_OK;
}

FSDP__CALLABLE(format)
{
    const fsdp__jinja_list with = {(fsdp__jinja_value *)arguments->values, arguments->count};
    fsdp__jinja_value text;

    FSDP_TRY(as_string(r, of, &text));
    return fsdp__jinja_string_fill(r, text.string, &with, out);
}

/* Reads what is put before each line: a text, or a number of spaces. */
static fsdp_status read_width(fsdp__render *r, const fsdp__jinja_value *width, fsdp__jinja_value *out)
{
    if (width && width->kind == FSDP__JINJA_VALUE_STRING) {
        *out = *width;
        return FSDP_OK;
    }
    return spaces(r, width && fsdp__jinja_value_is_number(width) ? fsdp__jinja_value_integer(width) : 4, out);
}

FSDP__CALLABLE(indent)
{
    bool first = fsdp__argument_truth(arguments, 1, "first"), blank = fsdp__argument_truth(arguments, 2, "blank");
    fsdp__jinja_value text, lines, width;
    FSDP__BUILDER made = {0};

    FSDP_TRY(as_string(r, of, &text));
    FSDP_TRY(read_width(r, fsdp__argument(arguments, 0, "width"), &width));
    FSDP_TRY(fsdp__jinja_string_lines(r, text.string, false, &lines));
    for (int64_t i = 0; i < lines.list->count; i++) {
        fsdp__jinja_string line = lines.list->items[i].string;

        if (i > 0)
            FSDP_TRY(fsdp__builder_add(r, &made, "\n", 1));
        if (i == 0 ? first : blank || line.bytes > 0)
            FSDP_TRY(fsdp__builder_add(r, &made, width.string.at, width.string.bytes));
        FSDP_TRY(fsdp__builder_add(r, &made, line.at, line.bytes));
    }
    if (text.string.bytes && text.string.at[text.string.bytes - 1] == '\n')
        FSDP_TRY(fsdp__builder_add(r, &made, "\n", 1));
    return fsdp__builder_value(r, &made, out);
}

/* ---- numbers of texts ---- */

/* Copies a number without the white space around it and without underscores between its digits; NULL: they stand
 * elsewhere. */
static fsdp_status clean(fsdp__render *r, fsdp__jinja_string text, char **out)
{
    size_t n = 0;

    text = fsdp__jinja_string_strip(text, FSDP__STRIP_BOTH, NULL);
    *out = fsdp__render_alloc(r, text.bytes + 1);
    if (!*out)
        return fsdp_fail_hop(r->failed, __FILE__, __LINE__);
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

/* Reads a whole text as float(text) does. `*out` stays as it is where Python raises a ValueError. */
static fsdp_status real_of_text(fsdp__render *r, fsdp__jinja_string text, fsdp__jinja_value *out)
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

/* Does the same as int(text, base). */
static fsdp_status integer_of_text(fsdp__render *r, fsdp__jinja_string text, int64_t base, fsdp__jinja_value *out)
{
    char *number;

    FSDP_TRY(clean(r, text, &number));
    return number ? whole_of_text(r, number, base, out) : FSDP_OK;
}

/* ---- numbers ---- */

/* Sets what a filter gives of a value that is no number, and refuses what is undefined. */
static fsdp_status begin_number(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments,
                                fsdp__jinja_value zero, fsdp__jinja_value *out)
{
    const fsdp__jinja_value *otherwise = fsdp__argument(arguments, 0, "default");

    if (of->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", of->string.at);
    *out = otherwise ? *otherwise : zero;
    return FSDP_OK;
}

FSDP__CALLABLE(integer)
{
    fsdp__jinja_value real = fsdp__jinja_value_of_real(NAN), whole = FSDP__NOTHING;
    int64_t base = 10;

    FSDP_TRY(begin_number(r, of, arguments, fsdp__jinja_value_of_integer(0), out));
    FSDP_TRY(fsdp__argument_integer(r, arguments, 1, "base", &base));
    if (of->kind == FSDP__JINJA_VALUE_BIG)
        return same(r, of, arguments, out);
    if (of->kind == FSDP__JINJA_VALUE_REAL && isinf(of->real))
        return FSDP__RENDER_FAIL(r, "cannot convert float infinity to integer");
    if (of->kind == FSDP__JINJA_VALUE_STRING) {
        FSDP_TRY(integer_of_text(r, of->string, base, &whole));
        if (whole.kind != FSDP__JINJA_VALUE_NONE)
            return same(r, &whole, arguments, out);
        FSDP_TRY(real_of_text(r, of->string, &real)); /* "42.23" gives 42 */
    } else if (of->kind == FSDP__JINJA_VALUE_REAL) {
        real = *of;
    } else if (fsdp__jinja_value_is_number(of)) {
        *out = fsdp__jinja_value_of_integer(fsdp__jinja_value_integer(of));
    }
    return isfinite(real.real) ? fsdp__jinja_integer_of_real(r, real.real, out) : FSDP_OK;
}

FSDP__CALLABLE(real)
{
    FSDP_TRY(begin_number(r, of, arguments, fsdp__jinja_value_of_real(0), out));
    if (of->kind == FSDP__JINJA_VALUE_BIG || of->kind == FSDP__JINJA_VALUE_STRING)
        return real_of_text(r, of->string, out);
    if (fsdp__jinja_value_is_number(of))
        *out = fsdp__jinja_value_of_real(fsdp__jinja_value_real(of));
    return FSDP_OK;
}

FSDP__CALLABLE(absolute)
{
    if (!fsdp__jinja_value_is_number(of) && of->kind != FSDP__JINJA_VALUE_BIG)
        return FSDP__RENDER_FAIL(r, "bad operand type for abs(): '%s'", fsdp__jinja_value_type(of));
    *out = *of;
    if (of->kind == FSDP__JINJA_VALUE_BIG ? of->string.at[0] == '-' : fsdp__jinja_value_real(of) < 0)
        return fsdp__jinja_value_negate(r, of, out);
    return FSDP_OK;
}

/* ---- any value ---- */

FSDP__CALLABLE(otherwise)
{
    const fsdp__jinja_value *instead = fsdp__argument(arguments, 0, "default_value");
    bool falsy = fsdp__argument_truth(arguments, 1, "boolean");
    const fsdp__jinja_value empty = fsdp__jinja_value_of_text("", 0);

    *out = of->kind == FSDP__JINJA_VALUE_UNDEFINED || (falsy && !fsdp__jinja_value_truth(of))
               ? (instead ? *instead : empty)
               : *of;
    return FSDP_OK;
}

FSDP__CALLABLE(length)
{
    int64_t count;

    FSDP_TRY(fsdp__jinja_value_length(r, of, &count));
    *out = fsdp__jinja_value_of_integer(count);
    return FSDP_OK;
}

FSDP__CALLABLE(attribute)
{
    fsdp__jinja_string name = {0};

    FSDP_TRY(fsdp__argument_string(r, arguments, 0, "name", &name));
    if (of->kind == FSDP__JINJA_VALUE_MAP && !fsdp__jinja_has_method(of, name))
        return fsdp__jinja_value_undefined(r, out, "'dict object' has no attribute '%s'", FSDP__JINJA_NAME(name));
    return fsdp__jinja_value_attribute(r, of, name, out);
}

static const fsdp__callable filters[] = {
    {"tojson", "ensure_ascii indent separators sort_keys", to_json},
    {"trim", "chars", trim},
    {"upper", "", upper},
    {"lower", "", lower},
    {"capitalize", "", capitalize},
    {"title", "", title},
    {"replace", "old new count", replace},
    {"string", "", string},
    {"safe", "", same},
    {"format", "*", format},
    {"indent", "width first blank", indent},
    {"int", "default base", integer},
    {"float", "default", real},
    {"abs", "", absolute},
    {"default", "default_value boolean", otherwise},
    {"d", "default_value boolean", otherwise},
    {"length", "", length},
    {"count", "", length},
    {"attr", "name", attribute},
};

fsdp_status fsdp__jinja_filter(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                               const fsdp__arguments *arguments, fsdp__jinja_value *out)
{
    const fsdp__callable *filter = fsdp__callable_find(filters, FSDP__COUNT_OF(filters), name);

    if (!filter)
        filter = fsdp__jinja_list_filter(name);
    if (filter)
        return fsdp__callable_call(r, filter, of, arguments, out);
    if (fsdp__maps(name))
        return fsdp__jinja_map_filter(r, name, of, arguments, fsdp__jinja_filter, out);
    return FSDP__RENDER_FAIL(r, "No filter named '%s'.", FSDP__JINJA_NAME(name));
}
