/* state_dict.c - lists of named tensors, which alias live memory, each with its box. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/hash.h"
#include "fsdp/state.h"
#include "state/entry.h"

/* Holds what fsdp_state_dict_create really makes: the list, and an open-addressed table from names to entries. */
typedef struct state {
    fsdp_state_dict list;
    fsdp_context *context; /* whose ranks take part; NULL: not known yet */
    int64_t capacity;
    int64_t *table;     /* index of an entry + 1, 0: free */
    int64_t table_size; /* power of two, more than twice the entries */
} state;

static uint64_t hash_of(const char *name)
{
    return fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, name, strlen(name));
}

/* Returns where `name` is in the table, or would go. */
static int64_t *table_at(const state *s, const char *name)
{
    uint64_t mask = (uint64_t)s->table_size - 1, at = hash_of(name) & mask;

    while (s->table[at] != 0 && strcmp(s->list.entries[s->table[at] - 1].name, name) != 0)
        at = (at + 1) & mask;
    return &s->table[at];
}

static fsdp_status make_room(state *s)
{
    int64_t table_size = FSDP__MAX(s->table_size * 2, 64);
    int64_t *table;

    FSDP_TRY(fsdp__grow(&s->list.entries, s->list.count, &s->capacity, sizeof *s->list.entries));
    if (s->table_size > 2 * (s->list.count + 1))
        return FSDP_OK;
    FSDP__TRY_NEW(table = fsdp__calloc((size_t)table_size, sizeof *table));
    fsdp__free(s->table);
    s->table = table;
    s->table_size = table_size;
    for (int64_t i = 0; i < s->list.count; i++)
        *table_at(s, s->list.entries[i].name) = i + 1;
    return FSDP_OK;
}

fsdp_status fsdp__state_dict_create_in(fsdp_context *context, fsdp_state_dict **out)
{
    state *s;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a state dict: there is no place for it");
    *out = NULL;
    FSDP__TRY_NEW(s = fsdp__calloc(1, sizeof *s));
    s->context = context;
    *out = &s->list;
    return FSDP_OK;
}

fsdp_status fsdp_state_dict_create(fsdp_state_dict **out)
{
    return fsdp__state_dict_create_in(NULL, out);
}

fsdp_context *fsdp__state_dict_context(const fsdp_state_dict *list)
{
    return ((const state *)list)->context;
}

void fsdp_state_dict_free(fsdp_state_dict *list)
{
    state *s = (state *)list;

    if (!s)
        return;
    for (int64_t i = 0; i < list->count; i++) {
        fsdp_tensor_unref(list->entries[i].tensor);
        fsdp__free(list->entries[i].name);
    }
    FSDP__FREE_ALL(list->entries, s->table, s);
}

const fsdp_state_dict_entry *fsdp_state_dict_find(const fsdp_state_dict *list, const char *name)
{
    const state *s = (const state *)list;
    int64_t index = s && name && s->table_size > 0 ? *table_at(s, name) : 0;

    return index > 0 ? &list->entries[index - 1] : NULL;
}

fsdp_status fsdp_state_dict_add(fsdp_state_dict *list, const char *name, fsdp_tensor *tensor)
{
    state *s = (state *)list;
    fsdp_state_dict_entry entry = {.name = (char *)(uintptr_t)name, .tensor = tensor};

    if (!list || !name || !tensor)
        return FSDP_FAIL(FSDP_INVALID, "cannot add to a state: state, name and tensor are required");
    if (!fsdp_tensor_is_contiguous(tensor))
        return FSDP_FAIL(FSDP_INVALID, "cannot add '%s' to a state: it is not contiguous", name);
    if (fsdp_state_dict_find(list, name))
        return FSDP_FAIL(FSDP_INVALID, "cannot add '%s' to a state: the name is taken", name);
    FSDP_TRY(fsdp__entry_describe(&entry));
    FSDP_TRY(make_room(s));
    FSDP__TRY_NEW(entry.name = fsdp__strdup(name));
    fsdp_tensor_ref(tensor);
    s->context = s->context ? s->context : fsdp_device_context(fsdp_tensor_device(tensor));
    list->entries[list->count++] = entry;
    *table_at(s, name) = list->count;
    return FSDP_OK;
}

fsdp_status fsdp__state_dict_with(const fsdp_state_dict *base, const fsdp_state_dict *over, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *made = NULL;

    FSDP_TRY(fsdp__state_dict_create_in(fsdp__state_dict_context(base), &made));
    for (int64_t i = 0; i < base->count; i++) {
        const fsdp_state_dict_entry *other = fsdp_state_dict_find(over, base->entries[i].name);

        FSDP_TRY(fsdp_state_dict_add(made, base->entries[i].name, (other ? other : &base->entries[i])->tensor));
    }
    *out = fsdp__take(&made);
    return FSDP_OK;
}
