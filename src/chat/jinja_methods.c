/* jinja_methods.c - methods of strings, dictionaries and lists; those that change a list or dictionary are refused, as
 * the immutable sandbox does. */

#include "chat/jinja_call.h"
#include "chat/jinja_strings.h"
#include "chat/jinja_text.h"

/* ---- strings ---- */

/* Gets an argument that may be left out or None. */
static fsdp_status optional_string(fsdp__render *r, const fsdp__arguments *arguments, const char *name,
                                   fsdp__jinja_string *storage, const fsdp__jinja_string **out)
{
    const fsdp__jinja_value *value = fsdp__argument(arguments, 0, name);

    *out = NULL;
    if (!value || value->kind == FSDP__JINJA_VALUE_NONE)
        return FSDP_OK;
    FSDP_TRY(fsdp__argument_string(r, arguments, 0, name, storage));
    *out = storage;
    return FSDP_OK;
}

static fsdp_status strip(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments, int sides,
                         fsdp__jinja_value *out)
{
    fsdp__jinja_string storage, text;
    const fsdp__jinja_string *characters;

    FSDP_TRY(optional_string(r, arguments, "chars", &storage, &characters));
    FSDP_TRY(fsdp__render_work(r, of->string.bytes / 64));
    text = fsdp__jinja_string_strip(of->string, sides, characters);
    *out = fsdp__jinja_value_of_text(text.at, text.bytes);
    return FSDP_OK;
}

FSDP__CALLABLE_IS(strip_both, strip(r, of, arguments, FSDP__STRIP_BOTH, out))
FSDP__CALLABLE_IS(strip_left, strip(r, of, arguments, FSDP__STRIP_LEFT, out))
FSDP__CALLABLE_IS(strip_right, strip(r, of, arguments, FSDP__STRIP_RIGHT, out))

/* Splits a string from the left, or from the right. */
static fsdp_status split_at(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments, bool right,
                            fsdp__jinja_value *out)
{
    fsdp__jinja_string storage;
    const fsdp__jinja_string *separator;
    int64_t most = -1;

    FSDP_TRY(optional_string(r, arguments, "sep", &storage, &separator));
    FSDP_TRY(fsdp__argument_integer(r, arguments, 1, "maxsplit", &most));
    return (right ? fsdp__jinja_string_split_right : fsdp__jinja_string_split)(r, of->string, separator, most, out);
}

FSDP__CALLABLE_IS(split, split_at(r, of, arguments, false, out))
FSDP__CALLABLE_IS(split_right, split_at(r, of, arguments, true, out))
FSDP__CALLABLE_IS(lines, fsdp__jinja_string_lines(r, of->string, fsdp__argument_truth(arguments, 0, "keepends"), out))

/* Asks about one string, or each of a tuple. */
static fsdp_status any_of(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments,
                          bool (*is)(fsdp__jinja_string, fsdp__jinja_string), fsdp__jinja_value *out)
{
    const fsdp__jinja_value *parts = fsdp__argument(arguments, 0, "prefix");
    fsdp__jinja_list list = {(fsdp__jinja_value *)parts, 1};
    bool found = false;

    if (!parts)
        return FSDP__RENDER_FAIL(r, "startswith and endswith need an argument");
    if (arguments->count > 1)
        return FSDP__RENDER_FAIL(r, "startswith and endswith with a place to begin are not known");
    if (parts->kind == FSDP__JINJA_VALUE_TUPLE)
        list = *parts->list;
    for (int64_t i = 0; i < list.count && !found; i++) {
        if (list.items[i].kind != FSDP__JINJA_VALUE_STRING)
            return FSDP__RENDER_FAIL(r, "startswith and endswith take a str or a tuple of str, not %s",
                                     fsdp__jinja_value_type(&list.items[i]));
        found = is(of->string, list.items[i].string);
    }
    *out = fsdp__jinja_value_of_bool(found);
    return FSDP_OK;
}

FSDP__CALLABLE_IS(begins, any_of(r, of, arguments, fsdp__jinja_string_begins, out))
FSDP__CALLABLE_IS(ends, any_of(r, of, arguments, fsdp__jinja_string_ends, out))
FSDP__CALLABLE_IS(upper, fsdp__jinja_string_case(r, of->string, FSDP__CASE_UPPER, out))
FSDP__CALLABLE_IS(lower, fsdp__jinja_string_case(r, of->string, FSDP__CASE_LOWER, out))
FSDP__CALLABLE_IS(capitalize, fsdp__jinja_string_case(r, of->string, FSDP__CASE_CAPITALIZE, out))
FSDP__CALLABLE_IS(title, fsdp__jinja_string_case(r, of->string, FSDP__CASE_TITLE, out))

FSDP__CALLABLE(replace)
{
    fsdp__jinja_string old = {0}, by = {0};
    int64_t most = -1;

    if (arguments->count + arguments->named_count < 2)
        return FSDP__RENDER_FAIL(r, "replace needs what to replace, and by what");
    FSDP_TRY(fsdp__argument_string(r, arguments, 0, "old", &old));
    FSDP_TRY(fsdp__argument_string(r, arguments, 1, "new", &by));
    FSDP_TRY(fsdp__argument_integer(r, arguments, 2, "count", &most));
    return fsdp__jinja_string_replace(r, of->string, old, by, most, out);
}

/* Gets the part that is looked for. */
static fsdp_status needle(fsdp__render *r, const fsdp__arguments *arguments, fsdp__jinja_string *out)
{
    if (arguments->count != 1)
        return FSDP__RENDER_FAIL(r, "one argument is needed: the text to look for");
    return fsdp__argument_string(r, arguments, 0, "sub", out);
}

FSDP__CALLABLE(find)
{
    fsdp__jinja_string part;
    size_t at;

    FSDP_TRY(needle(r, arguments, &part));
    at = fsdp__jinja_string_find(of->string, part, 0);
    *out = fsdp__jinja_value_of_integer(
        at == SIZE_MAX ? -1 : fsdp__jinja_string_length((fsdp__jinja_string){of->string.at, at}));
    return FSDP_OK;
}

FSDP__CALLABLE(count_of)
{
    fsdp__jinja_string part;
    int64_t count = 0;

    FSDP_TRY(needle(r, arguments, &part));
    if (part.bytes == 0)
        count = fsdp__jinja_string_length(of->string) + 1;
    else
        for (size_t at = 0; (at = fsdp__jinja_string_find(of->string, part, at)) != SIZE_MAX; at += part.bytes)
            count++;
    *out = fsdp__jinja_value_of_integer(count);
    return FSDP_OK;
}

static fsdp_status without(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments, bool at_end,
                           fsdp__jinja_value *out)
{
    fsdp__jinja_string part;

    FSDP_TRY(needle(r, arguments, &part));
    *out = *of;
    if (at_end ? fsdp__jinja_string_ends(of->string, part) : fsdp__jinja_string_begins(of->string, part)) {
        out->string.bytes -= part.bytes;
        out->string.at += at_end ? 0 : part.bytes;
    }
    return FSDP_OK;
}

FSDP__CALLABLE_IS(without_prefix, without(r, of, arguments, false, out))
FSDP__CALLABLE_IS(without_suffix, without(r, of, arguments, true, out))

FSDP__CALLABLE(is_digits)
{
    bool all = of->string.bytes > 0;

    for (size_t i = 0; i < of->string.bytes; i++) {
        if ((unsigned char)of->string.at[i] >= 0x80)
            return FSDP__RENDER_FAIL(r, "isdigit is known for ASCII alone");
        all = all && of->string.at[i] >= '0' && of->string.at[i] <= '9';
    }
    *out = fsdp__jinja_value_of_bool(all);
    return FSDP_OK;
}

FSDP__CALLABLE(is_space)
{
    *out = fsdp__jinja_value_of_bool(of->string.bytes > 0 &&
                                     fsdp__jinja_string_strip(of->string, FSDP__STRIP_LEFT, NULL).bytes == 0);
    return FSDP_OK;
}

FSDP__CALLABLE(join)
{
    const fsdp__jinja_value *what = fsdp__argument(arguments, 0, "iterable");
    FSDP__BUILDER text = {0};
    fsdp__jinja_list items = {0};

    if (!what)
        return FSDP__RENDER_FAIL(r, "join needs a list");
    FSDP_TRY(fsdp__jinja_value_items(r, what, &items));
    for (int64_t i = 0; i < items.count; i++) {
        if (items.items[i].kind != FSDP__JINJA_VALUE_STRING)
            return FSDP__RENDER_FAIL(r, "join: item %d is %s, not str", (int)i,
                                     fsdp__jinja_value_type(&items.items[i]));
        if (i > 0)
            FSDP_TRY(fsdp__builder_add(r, &text, of->string.at, of->string.bytes));
        FSDP_TRY(fsdp__builder_add(r, &text, items.items[i].string.at, items.items[i].string.bytes));
    }
    return fsdp__builder_value(r, &text, out);
}

/* Finds the argument that a place "{}", "{2}" or "{name}" of str.format stands for. */
static const fsdp__jinja_value *place_of(const fsdp__arguments *arguments, fsdp__jinja_string place, int64_t *next)
{
    int64_t index = 0;

    if (place.bytes == 0)
        return *next < arguments->count ? &arguments->values[(*next)++] : NULL;
    for (size_t i = 0; i < place.bytes; i++) {
        if (place.at[i] < '0' || place.at[i] > '9' || place.bytes > 4) {
            for (int64_t k = 0; k < arguments->named_count; k++)
                if (fsdp__jinja_strings_equal(arguments->named[k].key.string, place))
                    return &arguments->named[k].value;
            return NULL;
        }
        index = 10 * index + place.at[i] - '0';
    }
    return index < arguments->count ? &arguments->values[index] : NULL;
}

FSDP__CALLABLE(format)
{
    FSDP__BUILDER text = {0};
    int64_t next = 0;
    const fsdp__jinja_string s = of->string;

    for (size_t at = 0; at < s.bytes;) {
        const char c = s.at[at];
        size_t close;
        const fsdp__jinja_value *value;

        if ((c != '{' && c != '}') || (at + 1 < s.bytes && s.at[at + 1] == c)) {
            FSDP_TRY(fsdp__builder_add(r, &text, &s.at[at], 1));
            at += c == '{' || c == '}' ? 2 : 1;
            continue;
        }
        close = fsdp__jinja_string_find(s, (fsdp__jinja_string){"}", 1}, at);
        value = c == '{' && close != SIZE_MAX
                    ? place_of(arguments, (fsdp__jinja_string){s.at + at + 1, close - at - 1}, &next)
                    : NULL;
        if (!value)
            return FSDP__RENDER_FAIL(r, "format: a place '{...}' that is not known, or has no argument");
        FSDP_TRY(fsdp__jinja_value_print(r, value, &text));
        at = close + 1;
    }
    return fsdp__builder_value(r, &text, out);
}

/* ---- dictionaries ---- */

static fsdp_status list_entries(fsdp__render *r, const fsdp__jinja_map *map, bool keys, bool values,
                                fsdp__jinja_value *out)
{
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, map->count, out));
    for (int64_t i = 0; i < map->count; i++) {
        const fsdp__jinja_entry *entry = &map->entries[i];

        if (keys && values)
            FSDP_TRY(fsdp__jinja_value_pair(r, entry->key, entry->value, &out->list->items[i]));
        else
            out->list->items[i] = keys ? entry->key : entry->value;
    }
    return FSDP_OK;
}

FSDP__CALLABLE_IS(items, list_entries(r, of->map, true, true, out))
FSDP__CALLABLE_IS(keys, list_entries(r, of->map, true, false, out))
FSDP__CALLABLE_IS(values, list_entries(r, of->map, false, true, out))

FSDP__CALLABLE(get)
{
    const fsdp__jinja_value *key = fsdp__argument(arguments, 0, "key"),
                            *otherwise = fsdp__argument(arguments, 1, "default");

    if (!key)
        return FSDP__RENDER_FAIL(r, "get needs a key");
    *out = otherwise ? *otherwise : FSDP__NOTHING;
    for (int64_t i = 0; i < of->map->count; i++) {
        bool equal;

        FSDP_TRY(fsdp__jinja_value_equal(r, &of->map->entries[i].key, key, &equal));
        if (equal)
            *out = of->map->entries[i].value;
    }
    return FSDP_OK;
}

/* ---- lists ---- */

FSDP__CALLABLE(index_of)
{
    const fsdp__jinja_value *what = fsdp__argument(arguments, 0, "value");

    for (int64_t i = 0; what && i < of->list->count; i++) {
        bool equal;

        FSDP_TRY(fsdp__jinja_value_equal(r, &of->list->items[i], what, &equal));
        if (equal) {
            *out = fsdp__jinja_value_of_integer(i);
            return FSDP_OK;
        }
    }
    return FSDP__RENDER_FAIL(r, "index: the value is not in the list");
}

FSDP__CALLABLE(count_items)
{
    const fsdp__jinja_value *what = fsdp__argument(arguments, 0, "value");
    int64_t count = 0;

    for (int64_t i = 0; what && i < of->list->count; i++) {
        bool equal;

        FSDP_TRY(fsdp__jinja_value_equal(r, &of->list->items[i], what, &equal));
        count += equal;
    }
    *out = fsdp__jinja_value_of_integer(count);
    return FSDP_OK;
}

/* ---- cyclers ---- */

FSDP__CALLABLE(next_turn)
{
    fsdp__jinja_turn *turn = of->turn;

    *out = turn->items.items[turn->index];
    turn->index = (turn->index + 1) % turn->items.count;
    return FSDP_OK;
}

FSDP__CALLABLE(first_turn)
{
    of->turn->index = 0;
    *out = FSDP__NOTHING;
    return FSDP_OK;
}

/* ---- the tables ---- */

static const fsdp__callable string_methods[] = {
    {"strip", "chars", strip_both},
    {"lstrip", "chars", strip_left},
    {"rstrip", "chars", strip_right},
    {"split", "sep maxsplit", split},
    {"rsplit", "sep maxsplit", split_right},
    {"splitlines", "keepends", lines},
    {"startswith", "prefix", begins},
    {"endswith", "prefix", ends},
    {"upper", "", upper},
    {"lower", "", lower},
    {"capitalize", "", capitalize},
    {"title", "", title},
    {"replace", "old new count", replace},
    {"find", "sub", find},
    {"count", "sub", count_of},
    {"removeprefix", "sub", without_prefix},
    {"removesuffix", "sub", without_suffix},
    {"isdigit", "", is_digits},
    {"isspace", "", is_space},
    {"join", "iterable", join},
    {"format", "**", format},
};
static const fsdp__callable map_methods[] = {
    {"items", "", items}, {"keys", "", keys}, {"values", "", values}, {"get", "key default", get}};
static const fsdp__callable list_methods[] = {{"index", "value", index_of}, {"count", "value", count_items}};
static const fsdp__callable cycler_methods[] = {{"next", "", next_turn}, {"reset", "", first_turn}};

/* Lists the methods of each kind of value. `others` are those of Python that are not known, or change their object. */
static const struct methods {
    const fsdp__callable *table;
    size_t count;
    const char *others;
} methods[FSDP__JINJA_VALUE_METHOD + 1] = {
    [FSDP__JINJA_VALUE_STRING] = {string_methods, FSDP__COUNT_OF(string_methods),
                                  "casefold center encode expandtabs format_map index isalnum isalpha isascii "
                                  "isdecimal isidentifier islower isnumeric isprintable istitle isupper ljust "
                                  "maketrans partition rfind rindex rjust rpartition swapcase translate zfill"},
    [FSDP__JINJA_VALUE_MAP] = {map_methods, FSDP__COUNT_OF(map_methods),
                               "copy clear pop popitem setdefault update fromkeys"},
    [FSDP__JINJA_VALUE_LIST] = {list_methods, FSDP__COUNT_OF(list_methods),
                                "append clear copy extend insert pop remove reverse sort"},
    [FSDP__JINJA_VALUE_TUPLE] = {list_methods, FSDP__COUNT_OF(list_methods), NULL},
    [FSDP__JINJA_VALUE_CYCLER] = {cycler_methods, FSDP__COUNT_OF(cycler_methods), NULL},
};

bool fsdp__jinja_has_method(const fsdp__jinja_value *of, fsdp__jinja_string name)
{
    const struct methods *all = &methods[of->kind];

    return fsdp__callable_find(all->table, all->count, name) || fsdp__has_word(all->others, name);
}

fsdp_status fsdp__jinja_method(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                               const fsdp__arguments *arguments, fsdp__jinja_value *out)
{
    const struct methods *all = &methods[of->kind];
    const fsdp__callable *method = fsdp__callable_find(all->table, all->count, name);
    bool changes = of->kind != FSDP__JINJA_VALUE_STRING && !fsdp__jinja_string_is(name, "copy") &&
                   !fsdp__jinja_string_is(name, "fromkeys");

    if (method)
        return fsdp__callable_call(r, method, of, arguments, out);
    if (!fsdp__has_word(all->others, name))
        return FSDP__RENDER_FAIL(r, "'%s object' has no attribute '%s'", fsdp__jinja_value_type(of),
                                 FSDP__JINJA_NAME(name));
    return FSDP__RENDER_FAIL(
        r, changes ? "access to attribute '%s' of '%s' object is unsafe." : "the method '%s' of %s is not known",
        FSDP__JINJA_NAME(name), fsdp__jinja_value_type(of));
}
