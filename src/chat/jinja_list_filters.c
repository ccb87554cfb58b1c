/* jinja_list_filters.c - filters of lists: order, choice, and what is applied to each item. */
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_filters.h"
#include "chat/jinja_operators.h"
#include "chat/jinja_strings.h"
#include "chat/jinja_text.h"

/* ---- helpers ---- */

/* Copies what a value gives when it is iterated into a list of its own. */
static fsdp_status copy_items(fsdp__render *r, const fsdp__jinja_value *of, fsdp__jinja_value *out)
{
    fsdp__jinja_list items;

    FSDP_TRY(fsdp__jinja_value_items(r, of, &items));
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, items.count, out));
    if (items.count)
        memcpy(out->list->items, items.items, (size_t)items.count * sizeof *items.items);
    return FSDP_OK;
}

/* Gets "a.b.0" of an item; `instead` (NULL: nothing) stands for what is not there. */
static fsdp_status attribute_or(fsdp__render *r, const fsdp__jinja_value *item, fsdp__jinja_string path,
                                const fsdp__jinja_value *instead, fsdp__jinja_value *out)
{
    *out = *item;
    while (path.bytes > 0) {
        size_t dot = fsdp__jinja_string_find(path, (fsdp__jinja_string){".", 1}, 0);
        fsdp__jinja_string name = {path.at, dot == SIZE_MAX ? path.bytes : dot};
        fsdp__jinja_value key = fsdp__jinja_value_of_text(name.at, name.bytes), of = *out;

        if (name.bytes > 0 && name.bytes < 9 && strspn(name.at, "0123456789") >= name.bytes)
            key = fsdp__jinja_value_of_integer(strtol(name.at, NULL, 10));
        FSDP_TRY(fsdp__jinja_value_index(r, &of, &key, out));
        if (instead && out->kind == FSDP__JINJA_VALUE_UNDEFINED)
            *out = *instead;
        path.at += name.bytes + (dot != SIZE_MAX);
        path.bytes -= name.bytes + (dot != SIZE_MAX);
    }
    return FSDP_OK;
}

static fsdp_status attribute_of(fsdp__render *r, const fsdp__jinja_value *item, fsdp__jinja_string path,
                                fsdp__jinja_value *out)
{
    return attribute_or(r, item, path, NULL, out);
}

/* Gets what items are ordered by: an attribute, in small letters unless case counts. */
static fsdp_status sort_key(fsdp__render *r, const fsdp__jinja_value *item, fsdp__jinja_string attribute,
                            bool with_case, fsdp__jinja_value *out)
{
    FSDP_TRY(attribute_of(r, item, attribute, out));
    if (out->kind == FSDP__JINJA_VALUE_STRING && !with_case)
        return fsdp__jinja_string_case(r, out->string, FSDP__CASE_LOWER, out);
    return FSDP_OK;
}

/* Merges two sorted halves of `keys` and `items`, from `from` up to `middle` and `to`. */
static fsdp_status merge(fsdp__render *r, fsdp__jinja_entry *at, fsdp__jinja_entry *space, int64_t middle,
                         int64_t count, bool down)
{
    int64_t a = 0, b = middle;

    for (int64_t i = 0; i < count; i++) {
        int order = 0;

        if (a < middle && b < count)
            FSDP_TRY(fsdp__jinja_value_compare(r, &at[b].key, &at[a].key, "<", &order));
        space[i] = a < middle && (b == count || (down ? order <= 0 : order >= 0)) ? at[a++] : at[b++];
    }
    memcpy(at, space, (size_t)count * sizeof *at);
    return FSDP_OK;
}

static fsdp_status sort_entries(fsdp__render *r, fsdp__jinja_entry *at, fsdp__jinja_entry *space, int64_t count,
                                bool down)
{
    if (count < 2)
        return FSDP_OK;
    FSDP_TRY(sort_entries(r, at, space, count / 2, down));
    FSDP_TRY(sort_entries(r, at + count / 2, space, count - count / 2, down));
    return merge(r, at, space, count / 2, count, down);
}

/* Sorts a list in place; equal items keep their order. */
static fsdp_status sort_list(fsdp__render *r, fsdp__jinja_list *list, fsdp__jinja_string attribute, bool with_case,
                             bool down)
{
    fsdp__jinja_entry *entries = fsdp__render_alloc(r, 2 * (size_t)list->count * sizeof *entries);

    if (!entries)
        return fsdp_fail_hop(r->failed, __FILE__, __LINE__);
    for (int64_t i = 0; i < list->count; i++) {
        entries[i].value = list->items[i];
        FSDP_TRY(sort_key(r, &list->items[i], attribute, with_case, &entries[i].key));
    }
    FSDP_TRY(sort_entries(r, entries, entries + list->count, list->count, down));
    for (int64_t i = 0; i < list->count; i++)
        list->items[i] = entries[i].value;
    return FSDP_OK;
}

/* ---- filters ---- */

FSDP__CALLABLE(join)
{
    fsdp__jinja_string between = {"", 0}, attribute = {0};
    fsdp__jinja_list items;
    fsdp__jinja_value item;
    FSDP__BUILDER text = {0};

    FSDP_TRY(fsdp__argument_string(r, arguments, 0, "d", &between));
    FSDP_TRY(fsdp__argument_string(r, arguments, 1, "attribute", &attribute));
    FSDP_TRY(fsdp__jinja_value_items(r, of, &items));
    for (int64_t i = 0; i < items.count; i++) {
        if (i > 0)
            FSDP_TRY(fsdp__builder_add(r, &text, between.at, between.bytes));
        FSDP_TRY(attribute_of(r, &items.items[i], attribute, &item));
        FSDP_TRY(fsdp__jinja_value_print(r, &item, &text));
    }
    return fsdp__builder_value(r, &text, out);
}

FSDP__CALLABLE_IS(list, copy_items(r, of, out))

FSDP__CALLABLE(items)
{
    if (of->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, 0, out);
    if (of->kind != FSDP__JINJA_VALUE_MAP)
        return FSDP__RENDER_FAIL(r, "Can only get item pairs from a mapping.");
    return fsdp__jinja_method(r, (fsdp__jinja_string){"items", 5}, of, arguments, out);
}

FSDP__CALLABLE(dict_sort)
{
    fsdp__jinja_string by = {"key", 3};
    bool with_case = fsdp__argument_truth(arguments, 0, "case_sensitive");

    if (of->kind != FSDP__JINJA_VALUE_MAP)
        return FSDP__RENDER_FAIL(r, "dictsort of %s: a dict is needed", fsdp__jinja_value_type(of));
    FSDP_TRY(fsdp__argument_string(r, arguments, 1, "by", &by));
    FSDP_TRY(fsdp__jinja_method(r, (fsdp__jinja_string){"items", 5}, of, &(fsdp__arguments){0}, out));
    return sort_list(r, out->list, (fsdp__jinja_string){fsdp__jinja_string_is(by, "value") ? "1" : "0", 1}, with_case,
                     fsdp__argument_truth(arguments, 2, "reverse"));
}

FSDP__CALLABLE(sort)
{
    fsdp__jinja_string attribute = {0};

    FSDP_TRY(fsdp__argument_string(r, arguments, 2, "attribute", &attribute));
    FSDP_TRY(copy_items(r, of, out));
    return sort_list(r, out->list, attribute, fsdp__argument_truth(arguments, 1, "case_sensitive"),
                     fsdp__argument_truth(arguments, 0, "reverse"));
}

FSDP__CALLABLE(unique)
{
    fsdp__jinja_string attribute = {0};
    fsdp__jinja_value keys, key;
    int64_t count = 0;

    FSDP_TRY(fsdp__argument_string(r, arguments, 1, "attribute", &attribute));
    FSDP_TRY(copy_items(r, of, out));
    FSDP_TRY(copy_items(r, of, &keys));
    for (int64_t i = 0; i < out->list->count; i++) {
        bool seen = false;

        FSDP_TRY(
            sort_key(r, &out->list->items[i], attribute, fsdp__argument_truth(arguments, 0, "case_sensitive"), &key));
        for (int64_t k = 0; k < count && !seen; k++)
            FSDP_TRY(fsdp__jinja_value_equal(r, &keys.list->items[k], &key, &seen));
        if (seen)
            continue;
        keys.list->items[count] = key;
        out->list->items[count++] = out->list->items[i];
    }
    out->list->count = count;
    return FSDP_OK;
}

FSDP__CALLABLE(reverse)
{
    const fsdp__jinja_value back = fsdp__jinja_value_of_integer(-1);

    if (of->kind == FSDP__JINJA_VALUE_STRING)
        return fsdp__jinja_value_slice(r, of, NULL, NULL, &back, out);
    FSDP_TRY(copy_items(r, of, out));
    return fsdp__jinja_value_slice(r, out, NULL, NULL, &back, out);
}

/* Gets the item at an end. */
static fsdp_status item_of(fsdp__render *r, const fsdp__jinja_value *of, bool last, fsdp__jinja_value *out)
{
    fsdp__jinja_list items;

    FSDP_TRY(fsdp__jinja_value_items(r, of, &items));
    if (items.count == 0)
        return fsdp__jinja_value_undefined(r, out, "No %s item, sequence was empty.", last ? "last" : "first");
    *out = items.items[last ? items.count - 1 : 0];
    return FSDP_OK;
}

FSDP__CALLABLE_IS(first, item_of(r, of, false, out))
FSDP__CALLABLE_IS(last, item_of(r, of, true, out))

/* Gets the smallest or the largest item. */
static fsdp_status extreme(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments, bool largest,
                           fsdp__jinja_value *out)
{
    fsdp__jinja_string attribute = {0};
    fsdp__jinja_value list;

    FSDP_TRY(fsdp__argument_string(r, arguments, 1, "attribute", &attribute));
    FSDP_TRY(copy_items(r, of, &list));
    FSDP_TRY(sort_list(r, list.list, attribute, fsdp__argument_truth(arguments, 0, "case_sensitive"), largest));
    return item_of(r, &list, false, out);
}

FSDP__CALLABLE_IS(smallest, extreme(r, of, arguments, false, out))
FSDP__CALLABLE_IS(largest, extreme(r, of, arguments, true, out))

FSDP__CALLABLE(sum)
{
    fsdp__jinja_string attribute = {0};
    fsdp__jinja_list items;
    fsdp__jinja_value item, total;

    FSDP_TRY(fsdp__argument_string(r, arguments, 0, "attribute", &attribute));
    FSDP_TRY(fsdp__jinja_value_items(r, of, &items));
    *out = fsdp__jinja_value_of_integer(0);
    for (int64_t i = 0; i < items.count; i++) {
        FSDP_TRY(attribute_of(r, &items.items[i], attribute, &item));
        total = *out;
        FSDP_TRY(fsdp__jinja_value_operate(r, (fsdp__jinja_string){"+", 1}, &total, &item, out));
    }
    return FSDP_OK;
}

static const fsdp__callable filters[] = {
    {"join", "d attribute", join},
    {"list", "", list},
    {"items", "", items},
    {"dictsort", "case_sensitive by reverse", dict_sort},
    {"sort", "reverse case_sensitive attribute", sort},
    {"unique", "case_sensitive attribute", unique},
    {"reverse", "", reverse},
    {"first", "", first},
    {"last", "", last},
    {"min", "case_sensitive attribute", smallest},
    {"max", "case_sensitive attribute", largest},
    {"sum", "attribute", sum},
};

const fsdp__callable *fsdp__jinja_list_filter(fsdp__jinja_string name)
{
    return fsdp__callable_find(filters, FSDP__COUNT_OF(filters), name);
}

/* ---- what is applied to each item ---- */

bool fsdp__maps(fsdp__jinja_string name)
{
    return fsdp__jinja_string_is(name, "map") || fsdp__jinja_string_is(name, "select") ||
           fsdp__jinja_string_is(name, "reject") || fsdp__jinja_string_is(name, "selectattr") ||
           fsdp__jinja_string_is(name, "rejectattr");
}

/* Gets the name that the first arguments give, and leaves those behind it. */
static fsdp_status take_name(fsdp__render *r, const fsdp__arguments *arguments, int64_t index, fsdp__jinja_string *name,
                             fsdp__arguments *rest)
{
    *name = (fsdp__jinja_string){"", 0};
    FSDP_TRY(fsdp__argument_string(r, arguments, index, "", name));
    *rest = *arguments;
    rest->values += FSDP__MIN(index + 1, arguments->count);
    rest->count -= FSDP__MIN(index + 1, arguments->count);
    return FSDP_OK;
}

static fsdp_status map_items(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__arguments *arguments,
                             fsdp__filter filter, fsdp__jinja_value *out)
{
    const fsdp__jinja_value *instead = fsdp__argument(arguments, INT64_MAX, "default");
    fsdp__jinja_string attribute = {0}, name;
    fsdp__arguments rest;

    FSDP_TRY(fsdp__argument_string(r, arguments, INT64_MAX, "attribute", &attribute));
    FSDP_TRY(take_name(r, arguments, 0, &name, &rest));
    if (!name.bytes && !attribute.bytes)
        return FSDP__RENDER_FAIL(r, "map requires a filter argument");
    FSDP_TRY(copy_items(r, of, out));
    for (int64_t i = 0; i < out->list->count; i++) {
        fsdp__jinja_value item = out->list->items[i];

        FSDP_TRY(attribute.bytes ? attribute_or(r, &item, attribute, instead, &out->list->items[i])
                                 : filter(r, name, &item, &rest, &out->list->items[i]));
    }
    return FSDP_OK;
}

fsdp_status fsdp__jinja_map_filter(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                                   const fsdp__arguments *arguments, fsdp__filter filter, fsdp__jinja_value *out)
{
    bool rejects = name.at[0] == 'r', by_attribute = fsdp__jinja_string_ends(name, (fsdp__jinja_string){"attr", 4});
    fsdp__jinja_string attribute = {0}, test;
    fsdp__arguments rest;
    int64_t count = 0;

    if (name.at[0] == 'm')
        return map_items(r, of, arguments, filter, out);
    if (by_attribute) {
        FSDP_TRY(take_name(r, arguments, 0, &attribute, &rest));
        if (!attribute.bytes)
            return FSDP__RENDER_FAIL(r, "Missing parameter for attribute name");
    }
    FSDP_TRY(take_name(r, arguments, by_attribute ? 1 : 0, &test, &rest));
    FSDP_TRY(copy_items(r, of, out));
    for (int64_t i = 0; i < out->list->count; i++) {
        fsdp__jinja_value item = out->list->items[i], asked;
        bool is;

        FSDP_TRY(attribute_of(r, &item, attribute, &asked));
        is = fsdp__jinja_value_truth(&asked);
        if (test.bytes)
            FSDP_TRY(fsdp__jinja_test(r, test, &asked, &rest, &is));
        if (is != rejects)
            out->list->items[count++] = item;
    }
    out->list->count = count;
    return FSDP_OK;
}
