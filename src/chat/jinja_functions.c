/* jinja_functions.c - functions that every template has. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "chat/jinja_call.h"
#include "chat/jinja_strings.h"
#include "chat/jinja_text.h"

enum {
    MAX_RANGE = 100000 /* as in the sandbox */
};

/* Copies a string argument with a NUL behind it. */
static fsdp_status text_argument(fsdp__render *r, const fsdp__arguments *arguments, const char *name, const char **out)
{
    const fsdp__jinja_value *value = fsdp__argument(arguments, 0, name);
    fsdp__jinja_string text;
    fsdp__jinja_value copy;

    if (!value)
        return FSDP__RENDER_FAIL(r, "the argument '%s' is missing", name);
    FSDP_TRY(fsdp__jinja_value_str(r, value, &text));
    FSDP_TRY(fsdp__jinja_value_copy_text(r, text.at, text.bytes + 0, &copy));
    ((char *)copy.string.at)[copy.string.bytes] = 0;
    *out = copy.string.at;
    return FSDP_OK;
}

FSDP__CALLABLE(raise_exception)
{
    const char *text;

    FSDP_TRY(text_argument(r, arguments, "message", &text));
    return FSDP__RENDER_FAIL(r, "the template says: %s", text);
}

FSDP__CALLABLE(strftime_now)
{
    time_t now = (time_t)r->now;
    struct tm parts;
    char text[512];
    const char *format;

    FSDP_TRY(text_argument(r, arguments, "format", &format));
    if (!localtime_r(&now, &parts))
        return FSDP__RENDER_FAIL(r, "the time is not known");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (strftime(text, sizeof text, format, &parts) == 0 && *format)
#pragma GCC diagnostic pop
        return FSDP__RENDER_FAIL(r, "strftime_now: the format '%s' gives nothing, or over 500 bytes",
                                 FSDP__SHOWN_NAME(format));
    return fsdp__jinja_value_copy_text(r, text, *format ? strlen(text) : 0, out);
}

static fsdp_status add_named(fsdp__render *r, const fsdp__arguments *arguments, fsdp__jinja_map *to)
{
    for (int64_t i = 0; i < arguments->count; i++) {
        const fsdp__jinja_value *from = &arguments->values[i];

        if (from->kind != FSDP__JINJA_VALUE_MAP)
            return FSDP__RENDER_FAIL(r, "namespace and dict take a dict, and arguments with names");
        for (int64_t k = 0; k < from->map->count; k++)
            FSDP_TRY(fsdp__jinja_map_set(r, to, from->map->entries[k].key, from->map->entries[k].value));
    }
    for (int64_t i = 0; i < arguments->named_count; i++)
        FSDP_TRY(fsdp__jinja_map_set(r, to, arguments->named[i].key, arguments->named[i].value));
    return FSDP_OK;
}

FSDP__CALLABLE(make_namespace)
{
    FSDP_TRY(fsdp__jinja_value_new_map(r, FSDP__JINJA_VALUE_NAMESPACE, out));
    FSDP_TRY(add_named(r, arguments, out->map));
    for (int64_t i = 0; i < out->map->count; i++)
        if (out->map->entries[i].key.kind == FSDP__JINJA_VALUE_STRING &&
            fsdp__jinja_string_begins(out->map->entries[i].key.string, (fsdp__jinja_string){"_", 1}))
            return FSDP__RENDER_FAIL(r, "an attribute of a namespace cannot begin with '_'");
    return FSDP_OK;
}

FSDP__CALLABLE(make_dict)
{
    FSDP_TRY(fsdp__jinja_value_new_map(r, FSDP__JINJA_VALUE_MAP, out));
    return add_named(r, arguments, out->map);
}

FSDP__CALLABLE(range)
{
    int64_t begin = 0, end = 0, step = 1, count;

    if (arguments->count == 0)
        return FSDP__RENDER_FAIL(r, "range needs an argument");
    FSDP_TRY(fsdp__argument_integer(r, arguments, arguments->count > 1 ? 1 : 0, "", &end));
    if (arguments->count > 1)
        FSDP_TRY(fsdp__argument_integer(r, arguments, 0, "", &begin));
    FSDP_TRY(fsdp__argument_integer(r, arguments, 2, "", &step));
    if (step == 0)
        return FSDP__RENDER_FAIL(r, "range() arg 3 must not be zero");
    if (begin < -INT32_MAX || begin > INT32_MAX || end < -INT32_MAX || end > INT32_MAX || step < -INT32_MAX ||
        step > INT32_MAX)
        return FSDP__RENDER_FAIL(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    count =
        step > 0 ? (end > begin ? (end - begin - 1) / step + 1 : 0) : (begin > end ? (begin - end - 1) / -step + 1 : 0);
    if (count > MAX_RANGE)
        return FSDP__RENDER_FAIL(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, count, out));
    for (int64_t i = 0; i < count; i++)
        out->list->items[i] = fsdp__jinja_value_of_integer(begin + i * step);
    return FSDP_OK;
}

static fsdp_status make_turn(fsdp__render *r, fsdp__jinja_kind kind, const fsdp__jinja_value *items, int64_t count,
                             fsdp__jinja_value *out)
{
    fsdp__jinja_turn *turn = fsdp__render_alloc(r, sizeof *turn);
    fsdp__jinja_value list;

    if (!turn)
        return fsdp_fail_hop(r->failed, __FILE__, __LINE__);
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, count, &list));
    memcpy(list.list->items, items, (size_t)count * sizeof *items);
    *turn = (fsdp__jinja_turn){.items = *list.list};
    *out = (fsdp__jinja_value){.kind = kind, .turn = turn};
    return FSDP_OK;
}

FSDP__CALLABLE(joiner)
{
    const fsdp__jinja_value comma = fsdp__jinja_value_of_text(", ", 2), *between = fsdp__argument(arguments, 0, "sep");

    return make_turn(r, FSDP__JINJA_VALUE_JOINER, between ? between : &comma, 1, out);
}

FSDP__CALLABLE(cycler)
{
    if (arguments->count == 0)
        return FSDP__RENDER_FAIL(r, "at least one item has to be provided");
    return make_turn(r, FSDP__JINJA_VALUE_CYCLER, arguments->values, arguments->count, out);
}

FSDP__CALLABLE_IS(lipsum, FSDP__RENDER_FAIL(r, "lipsum is not known: it is random"))

static const fsdp__callable functions[] = {{"raise_exception", "message", raise_exception},
                                           {"strftime_now", "format", strftime_now},
                                           {"namespace", "**", make_namespace},
                                           {"dict", "**", make_dict},
                                           {"range", "*", range},
                                           {"joiner", "sep", joiner},
                                           {"cycler", "*", cycler},
                                           {"lipsum", "**", lipsum}};

const fsdp__callable *fsdp__jinja_function(fsdp__jinja_string name)
{
    return fsdp__callable_find(functions, FSDP__COUNT_OF(functions), name);
}
