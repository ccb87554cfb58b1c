/* jinja_operators.c - operators with Python's rules and messages. */
#include "chat/jinja_operators.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chat/jinja_call.h"
#include "chat/jinja_strings.h"
#include "chat/jinja_text.h"

/* ---- numbers ---- */

static fsdp_status too_large(fsdp__render *r)
{
    return FSDP__RENDER_FAIL(r, "an integer beyond 64 bits");
}

static fsdp_status power(fsdp__render *r, int64_t base, int64_t exponent, fsdp__jinja_value *out)
{
    int64_t result = 1;

    if (exponent < 0) {
        *out = fsdp__jinja_value_of_real(pow((double)base, (double)exponent));
        return FSDP_OK;
    }
    if (base == 0 || base == 1 || base == -1)
        exponent = base == 0 ? FSDP__MIN(exponent, 1) : 2 - exponent % 2; /* the same, and few steps */
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(result, base, &result))
            return too_large(r);
    *out = fsdp__jinja_value_of_integer(result);
    return FSDP_OK;
}

static fsdp_status integers(fsdp__render *r, fsdp__jinja_string sign, int64_t a, int64_t b, fsdp__jinja_value *out)
{
    int64_t result = 0;
    bool over = false;

    if (fsdp__jinja_string_is(sign, "+"))
        over = __builtin_add_overflow(a, b, &result);
    else if (fsdp__jinja_string_is(sign, "-"))
        over = __builtin_sub_overflow(a, b, &result);
    else if (fsdp__jinja_string_is(sign, "*"))
        over = __builtin_mul_overflow(a, b, &result);
    else if (fsdp__jinja_string_is(sign, "**"))
        return power(r, a, b, out);
    else if (b == 0)
        return FSDP__RENDER_FAIL(r, "integer division or modulo by zero");
    else if (b == -1)
        over = fsdp__jinja_string_is(sign, "//") && __builtin_sub_overflow((int64_t)0, a, &result);
    else if (fsdp__jinja_string_is(sign, "//"))
        result = a / b - (a % b != 0 && (a < 0) != (b < 0));
    else
        result = a % b + ((a % b != 0 && (a < 0) != (b < 0)) ? b : 0);
    *out = fsdp__jinja_value_of_integer(result);
    return over ? too_large(r) : FSDP_OK;
}

static fsdp_status reals(fsdp__render *r, fsdp__jinja_string sign, double a, double b, fsdp__jinja_value *out)
{
    double result = 0;

    if (strchr("/%", sign.at[0]) && b == 0)
        return FSDP__RENDER_FAIL(r, "float division by zero");
    if (fsdp__jinja_string_is(sign, "+"))
        result = a + b;
    else if (fsdp__jinja_string_is(sign, "-"))
        result = a - b;
    else if (fsdp__jinja_string_is(sign, "*"))
        result = a * b;
    else if (fsdp__jinja_string_is(sign, "/"))
        result = a / b;
    else if (fsdp__jinja_string_is(sign, "//"))
        result = floor(a / b);
    else if (fsdp__jinja_string_is(sign, "**"))
        result = pow(a, b);
    else
        result = a - b * floor(a / b);
    *out = fsdp__jinja_value_of_real(result);
    return FSDP_OK;
}

/* ---- strings and lists ---- */

static fsdp_status join_strings(fsdp__render *r, fsdp__jinja_string a, fsdp__jinja_string b, fsdp__jinja_value *out)
{
    char *text = fsdp__render_alloc(r, a.bytes + b.bytes + 1);

    if (!text)
        return fsdp_fail_hop(r->failed, __FILE__, __LINE__);
    if (a.bytes)
        memcpy(text, a.at, a.bytes);
    if (b.bytes)
        memcpy(text + a.bytes, b.at, b.bytes);
    *out = fsdp__jinja_value_of_text(text, a.bytes + b.bytes);
    return FSDP_OK;
}

static fsdp_status join_lists(fsdp__render *r, const fsdp__jinja_value *a, const fsdp__jinja_value *b,
                              fsdp__jinja_value *out)
{
    FSDP_TRY(fsdp__jinja_value_new_list(r, a->kind, a->list->count + b->list->count, out));
    for (int64_t i = 0; i < out->list->count; i++)
        out->list->items[i] = i < a->list->count ? a->list->items[i] : b->list->items[i - a->list->count];
    return FSDP_OK;
}

static fsdp_status repeat(fsdp__render *r, const fsdp__jinja_value *what, int64_t times, fsdp__jinja_value *out)
{
    FSDP__BUILDER text = {0};

    if (what->kind == FSDP__JINJA_VALUE_STRING) {
        for (int64_t i = 0; i < times && what->string.bytes; i++)
            FSDP_TRY(fsdp__builder_add(r, &text, what->string.at, what->string.bytes));
        return fsdp__builder_value(r, &text, out);
    }
    times = times < 0 ? 0 : FSDP__MIN(times, 1 << 24);
    if (what->list->count > 1 << 24)
        return FSDP__RENDER_FAIL(r, "a list that is too long");
    FSDP_TRY(fsdp__jinja_value_new_list(r, what->kind, what->list->count * times, out));
    for (int64_t i = 0; i < out->list->count; i++)
        out->list->items[i] = what->list->items[i % what->list->count];
    return FSDP_OK;
}

static fsdp_status add_mismatch(fsdp__render *r, const fsdp__jinja_value *a, const fsdp__jinja_value *b)
{
    if (a->kind == FSDP__JINJA_VALUE_STRING || fsdp__jinja_value_is_list(a))
        return FSDP__RENDER_FAIL(r, "can only concatenate %s (not \"%s\") to %s", fsdp__jinja_value_type(a),
                                 fsdp__jinja_value_type(b), fsdp__jinja_value_type(a));
    return FSDP__RENDER_FAIL(r, "unsupported operand type(s) for +: '%s' and '%s'", fsdp__jinja_value_type(a),
                             fsdp__jinja_value_type(b));
}

static fsdp_status join_as_text(fsdp__render *r, const fsdp__jinja_value *a, const fsdp__jinja_value *b,
                                fsdp__jinja_value *out)
{
    fsdp__jinja_string x, y;

    FSDP_TRY(fsdp__jinja_value_str(r, a, &x));
    FSDP_TRY(fsdp__jinja_value_str(r, b, &y));
    return join_strings(r, x, y, out);
}

static bool repeats(const fsdp__jinja_value *what, const fsdp__jinja_value *times)
{
    return (what->kind == FSDP__JINJA_VALUE_STRING || fsdp__jinja_value_is_list(what)) &&
           (times->kind == FSDP__JINJA_VALUE_INTEGER || times->kind == FSDP__JINJA_VALUE_BOOL);
}

/* Returns whether a big integer and this value would be computed with. */
static bool computes_with(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_BIG || fsdp__jinja_value_is_number(value);
}

fsdp_status fsdp__jinja_value_operate(fsdp__render *r, fsdp__jinja_string sign, const fsdp__jinja_value *a,
                                      const fsdp__jinja_value *b, fsdp__jinja_value *out)
{
    if (fsdp__jinja_string_is(sign, "~"))
        return join_as_text(r, a, b, out);
    if (a->kind == FSDP__JINJA_VALUE_UNDEFINED || b->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", (a->kind == FSDP__JINJA_VALUE_UNDEFINED ? a : b)->string.at);
    if ((a->kind == FSDP__JINJA_VALUE_BIG && computes_with(b)) ||
        (b->kind == FSDP__JINJA_VALUE_BIG && computes_with(a)))
        return too_large(r);
    if (fsdp__jinja_value_is_number(a) && fsdp__jinja_value_is_number(b)) {
        bool real =
            a->kind == FSDP__JINJA_VALUE_REAL || b->kind == FSDP__JINJA_VALUE_REAL || fsdp__jinja_string_is(sign, "/");

        return real ? reals(r, sign, fsdp__jinja_value_real(a), fsdp__jinja_value_real(b), out)
                    : integers(r, sign, fsdp__jinja_value_integer(a), fsdp__jinja_value_integer(b), out);
    }
    if (fsdp__jinja_string_is(sign, "+")) {
        if (a->kind == FSDP__JINJA_VALUE_STRING && b->kind == FSDP__JINJA_VALUE_STRING)
            return join_strings(r, a->string, b->string, out);
        return fsdp__jinja_value_is_list(a) && a->kind == b->kind ? join_lists(r, a, b, out) : add_mismatch(r, a, b);
    }
    if (fsdp__jinja_string_is(sign, "*") && repeats(a, b))
        return repeat(r, a, fsdp__jinja_value_integer(b), out);
    if (fsdp__jinja_string_is(sign, "*") && repeats(b, a))
        return repeat(r, b, fsdp__jinja_value_integer(a), out);
    if (fsdp__jinja_string_is(sign, "%") && a->kind == FSDP__JINJA_VALUE_STRING) {
        fsdp__jinja_value one = *b;
        const fsdp__jinja_list with = b->kind == FSDP__JINJA_VALUE_TUPLE ? *b->list : (fsdp__jinja_list){&one, 1};

        return fsdp__jinja_string_fill(r, a->string, &with, out);
    }
    return FSDP__RENDER_FAIL(r, "unsupported operand type(s) for %.*s: '%s' and '%s'", (int)sign.bytes, sign.at,
                             fsdp__jinja_value_type(a), fsdp__jinja_value_type(b));
}

fsdp_status fsdp__jinja_value_negate(fsdp__render *r, const fsdp__jinja_value *a, fsdp__jinja_value *out)
{
    if (a->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", a->string.at);
    if (a->kind == FSDP__JINJA_VALUE_BIG)
        return fsdp__jinja_big_negate(r, a, out);
    if (!fsdp__jinja_value_is_number(a))
        return FSDP__RENDER_FAIL(r, "bad operand type for unary -: '%s'", fsdp__jinja_value_type(a));
    if (a->kind == FSDP__JINJA_VALUE_REAL) {
        *out = fsdp__jinja_value_of_real(-a->real);
        return FSDP_OK;
    }
    return integers(r, (fsdp__jinja_string){"-", 1}, 0, fsdp__jinja_value_integer(a), out);
}

/* ---- '%' ---- */

/* Fills one place: `place` is "%-5.2f" or the like. */
static fsdp_status fill_place(fsdp__render *r, const char *place, const fsdp__jinja_value *value, fsdp__builder *out)
{
    char kind = place[strlen(place) - 1], format[40], text[400];
    fsdp__jinja_string string;

    if (kind == 's') {
        FSDP_TRY(fsdp__jinja_value_str(r, value, &string));
        if (strcmp(place, "%s") == 0)
            return fsdp__builder_add(r, out, string.at, string.bytes);
        return FSDP__RENDER_FAIL(r, "'%s' is not known: only '%%s' for strings", place);
    }
    if (kind == 'r' && strcmp(place, "%r") == 0)
        return fsdp__jinja_value_repr(r, value, out);
    if (value->kind == FSDP__JINJA_VALUE_BIG && (strcmp(place, "%d") == 0 || strcmp(place, "%i") == 0))
        return fsdp__builder_add(r, out, value->string.at, value->string.bytes);
    if (!fsdp__jinja_value_is_number(value))
        return FSDP__RENDER_FAIL(r, "%%%c format: a real number is required, not %s", kind,
                                 fsdp__jinja_value_type(value));
    if (strchr("dixXo", kind) && !(fabs(fsdp__jinja_value_real(value)) < 0x1p63))
        return too_large(r);
    if (strchr("dixXo", kind)) {
        snprintf(format, sizeof format, "%.*sll%c", (int)strlen(place) - 1, place, kind);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, format, (long long)fsdp__jinja_value_integer(value));
    } else {
        snprintf(text, sizeof text, place, fsdp__jinja_value_real(value));
#pragma GCC diagnostic pop
    }
    return fsdp__builder_add(r, out, text, strlen(text));
}

/* Copies the place that begins at `at`. Returns how many bytes it has, 0 if it is none that is known. */
static size_t read_place(fsdp__jinja_string text, size_t at, char out[16])
{
    size_t bytes = 1;

    while (at + bytes < text.bytes && strchr("0123456789.-+ #", text.at[at + bytes]) && bytes < 8)
        bytes++;
    if (at + bytes >= text.bytes || !strchr("sdirfFeEgGxXo%", text.at[at + bytes]))
        return 0;
    memcpy(out, text.at + at, bytes + 1);
    out[bytes + 1] = 0;
    return bytes + 1;
}

fsdp_status fsdp__jinja_string_fill(fsdp__render *r, fsdp__jinja_string text, const fsdp__jinja_list *with,
                                    fsdp__jinja_value *out)
{
    FSDP__BUILDER made = {0};
    int64_t used = 0;

    for (size_t at = 0; at < text.bytes;) {
        size_t next = fsdp__jinja_string_find(text, (fsdp__jinja_string){"%", 1}, at), bytes;
        char place[16];

        next = next == SIZE_MAX ? text.bytes : next;
        FSDP_TRY(fsdp__builder_add(r, &made, text.at + at, next - at));
        if (next == text.bytes)
            break;
        bytes = read_place(text, next, place);
        if (!bytes || (strchr(place, '%') != strrchr(place, '%') && bytes > 2))
            return FSDP__RENDER_FAIL(r, "a place for a value that is not known behind '%%'");
        at = next + bytes;
        if (place[bytes - 1] == '%') {
            FSDP_TRY(fsdp__builder_add(r, &made, "%", 1));
            continue;
        }
        if (used == with->count)
            return FSDP__RENDER_FAIL(r, "not enough arguments for format string");
        FSDP_TRY(fill_place(r, place, &with->items[used++], &made));
    }
    if (used < with->count)
        return FSDP__RENDER_FAIL(r, "not all arguments converted during string formatting");
    return fsdp__builder_value(r, &made, out);
}

/* ---- comparing ---- */

static fsdp_status contains(fsdp__render *r, const fsdp__jinja_value *in, const fsdp__jinja_value *what, bool *out)
{
    fsdp__jinja_list items;

    *out = false;
    if (in->kind == FSDP__JINJA_VALUE_STRING) {
        if (what->kind != FSDP__JINJA_VALUE_STRING)
            return FSDP__RENDER_FAIL(r, "'in <string>' requires string as left operand, not %s",
                                     fsdp__jinja_value_type(what));
        FSDP_TRY(fsdp__render_work(r, in->string.bytes / 64));
        *out = fsdp__jinja_string_find(in->string, what->string, 0) != SIZE_MAX;
        return FSDP_OK;
    }
    if (in->kind == FSDP__JINJA_VALUE_MAP && what->kind == FSDP__JINJA_VALUE_STRING) {
        *out = fsdp__jinja_map_get(in->map, what->string) != NULL;
        return FSDP_OK;
    }
    if (!fsdp__jinja_value_is_list(in) && in->kind != FSDP__JINJA_VALUE_MAP && in->kind != FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "argument of type '%s' is not iterable", fsdp__jinja_value_type(in));
    FSDP_TRY(fsdp__jinja_value_items(r, in, &items));
    for (int64_t i = 0; i < items.count && !*out; i++)
        FSDP_TRY(fsdp__jinja_value_equal(r, &items.items[i], what, out));
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_relate(fsdp__render *r, fsdp__jinja_string sign, const fsdp__jinja_value *a,
                                     const fsdp__jinja_value *b, bool *out)
{
    bool negated = sign.at[0] == '!' || sign.at[0] == 'n';
    int order;

    if (sign.at[0] == 'i' || sign.at[0] == 'n') {
        FSDP_TRY(contains(r, b, a, out));
    } else if (sign.at[0] == '=' || sign.at[0] == '!') {
        FSDP_TRY(fsdp__jinja_value_equal(r, a, b, out));
    } else {
        char text[3] = {sign.at[0], sign.bytes > 1 ? '=' : 0};

        FSDP_TRY(fsdp__jinja_value_compare(r, a, b, text, &order));
        *out = ((sign.bytes > 1 && order == 0) || (sign.at[0] == '<' ? order < 0 : order > 0)) &&
               !fsdp__jinja_either_is_nan(a, b);
    }
    *out ^= negated;
    return FSDP_OK;
}

/* ---- dots and brackets ---- */

/* Returns what jinja2 calls an object in messages: "'str object'". */
static const char *object_name(const fsdp__jinja_value *of)
{
    return of->kind == FSDP__JINJA_VALUE_NONE ? "None" : fsdp__jinja_value_type(of);
}

static fsdp_status no_attribute(fsdp__render *r, const fsdp__jinja_value *of, fsdp__jinja_string name,
                                fsdp__jinja_value *out)
{
    return fsdp__jinja_value_undefined(r, out, "'%s%s' has no attribute '%s'", object_name(of),
                                       of->kind == FSDP__JINJA_VALUE_NONE ? "" : " object", FSDP__JINJA_NAME(name));
}

/* Gets an attribute of `loop`. */
static fsdp_status loop_attribute(fsdp__render *r, const fsdp__jinja_loop *loop, fsdp__jinja_string name,
                                  fsdp__jinja_value *out)
{
    int64_t i = loop->index, count = loop->items->count;
    const struct {
        const char *name;
        fsdp__jinja_value value;
    } known[] = {{"index0", fsdp__jinja_value_of_integer(i)},
                 {"index", fsdp__jinja_value_of_integer(i + 1)},
                 {"first", fsdp__jinja_value_of_bool(i == 0)},
                 {"last", fsdp__jinja_value_of_bool(i == count - 1)},
                 {"length", fsdp__jinja_value_of_integer(count)},
                 {"revindex", fsdp__jinja_value_of_integer(count - i)},
                 {"revindex0", fsdp__jinja_value_of_integer(count - i - 1)}};

    for (size_t k = 0; k < FSDP__COUNT_OF(known); k++)
        if (fsdp__jinja_string_is(name, known[k].name)) {
            *out = known[k].value;
            return FSDP_OK;
        }
    if (fsdp__jinja_string_is(name, "previtem") || fsdp__jinja_string_is(name, "nextitem")) {
        int64_t at = name.at[0] == 'p' ? i - 1 : i + 1;

        if (at < 0 || at >= count)
            return fsdp__jinja_value_undefined(r, out, "there is no %s item", at < 0 ? "previous" : "next");
        *out = loop->items->items[at];
        return FSDP_OK;
    }
    return FSDP__RENDER_FAIL(r, "'loop.%s' is not known", FSDP__JINJA_NAME(name));
}

fsdp_status fsdp__jinja_value_attribute(fsdp__render *r, const fsdp__jinja_value *of, fsdp__jinja_string name,
                                        fsdp__jinja_value *out)
{
    const fsdp__jinja_value *found = NULL;

    if (of->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", of->string.at);
    if (of->kind == FSDP__JINJA_VALUE_LOOP)
        return loop_attribute(r, of->loop, name, out);
    if (of->kind != FSDP__JINJA_VALUE_NAMESPACE && fsdp__jinja_has_method(of, name)) {
        *out = (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_METHOD, .string = name};
        return FSDP_OK;
    }
    if (of->kind == FSDP__JINJA_VALUE_MAP || of->kind == FSDP__JINJA_VALUE_NAMESPACE)
        found = fsdp__jinja_map_get(of->map, name);
    if (!found)
        return no_attribute(r, of, name, out);
    *out = *found;
    return FSDP_OK;
}

static fsdp_status item_at(fsdp__render *r, const fsdp__jinja_value *of, int64_t index, fsdp__jinja_value *out)
{
    fsdp__jinja_list items;

    FSDP_TRY(fsdp__jinja_value_items(r, of, &items));
    if (index < -items.count || index >= items.count)
        return fsdp__jinja_value_undefined(r, out, "%s object has no element %lld", object_name(of), (long long)index);
    *out = items.items[index < 0 ? index + items.count : index];
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_index(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__jinja_value *index,
                                    fsdp__jinja_value *out)
{
    if (of->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", of->string.at);
    if (of->kind == FSDP__JINJA_VALUE_MAP ||
        (of->kind == FSDP__JINJA_VALUE_NAMESPACE && index->kind == FSDP__JINJA_VALUE_STRING))
        for (int64_t i = 0; i < of->map->count; i++) {
            bool equal;

            FSDP_TRY(fsdp__jinja_value_equal(r, &of->map->entries[i].key, index, &equal));
            if (equal) {
                *out = of->map->entries[i].value;
                return FSDP_OK;
            }
        }
    if (index->kind == FSDP__JINJA_VALUE_STRING)
        return of->kind == FSDP__JINJA_VALUE_MAP && !fsdp__jinja_has_method(of, index->string)
                   ? no_attribute(r, of, index->string, out)
                   : fsdp__jinja_value_attribute(r, of, index->string, out);
    if ((index->kind == FSDP__JINJA_VALUE_INTEGER || index->kind == FSDP__JINJA_VALUE_BOOL) &&
        (fsdp__jinja_value_is_list(of) || of->kind == FSDP__JINJA_VALUE_STRING))
        return item_at(r, of, fsdp__jinja_value_integer(index), out);
    return fsdp__jinja_value_undefined(r, out, "%s object has no such element", object_name(of));
}
