/* trace_names.c - a table of names by hash, and one of their places by number. */
#include "watch/trace_names.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/lock.h"

enum {
    NAMES = 8192, /* of which three quarters are used */
    NAME_BYTES = 512 * 1024
};

void fsdp__trace_names_init(fsdp__trace_names *names)
{
    *names = (fsdp__trace_names){.table = NULL};
    pthread_mutex_init(&names->mutex, NULL);
}

void fsdp__trace_names_destroy(fsdp__trace_names *names)
{
    fsdp__trace_names_close(names);
    pthread_mutex_destroy(&names->mutex);
}

fsdp_status fsdp__trace_names_open(fsdp__trace_names *names)
{
    names->table = fsdp__calloc(NAMES, sizeof *names->table);
    names->number_at = fsdp__calloc(NAMES, sizeof *names->number_at);
    names->text = fsdp__malloc(NAME_BYTES);
    if (names->table && names->number_at && names->text)
        return FSDP_OK;
    fsdp__trace_names_close(names);
    return FSDP_NO_MEMORY;
}

void fsdp__trace_names_close(fsdp__trace_names *names)
{
    FSDP__FREE_ALL(names->table, names->number_at, names->text);
    names->table = NULL;
    names->number_at = NULL;
    names->text = NULL;
    names->text_used = 0;
    names->count = 0;
}

/* Returns the members of a group. `step` is a guess from the first two, which is_regular checks. */
static fsdp__traced_ranks ranks_of(const fsdp_process_group *group)
{
    fsdp__traced_ranks ranks = {.count = fsdp_process_group_size(group)};

    ranks.first = fsdp_process_group_global_rank(group, 0);
    ranks.step = ranks.count > 1 ? fsdp_process_group_global_rank(group, 1) - ranks.first : 1;
    return ranks;
}

static bool is_regular(const fsdp_process_group *group, const fsdp__traced_ranks *ranks)
{
    for (int i = 0; i < ranks->count; i++)
        if (fsdp_process_group_global_rank(group, i) != ranks->first + i * ranks->step)
            return false;
    return ranks->step > 0;
}

static bool is_named(const fsdp__trace_names *names, const fsdp__trace_name *n, const char *text,
                     const fsdp__traced_ranks *of)
{
    return n->of.count == of->count && n->of.first == of->first && (n->of.step == of->step || n->of.step == 0) &&
           strcmp(names->text + n->at, text) == 0;
}

uint32_t fsdp__trace_names_number(fsdp__trace_names *names, const char *text, const fsdp_process_group *group)
{
    fsdp__traced_ranks of = group ? ranks_of(group) : (fsdp__traced_ranks){0};
    size_t length = text ? strlen(text) : 0;
    uint64_t hash;
    uint32_t number;
    fsdp__trace_name *n;

    if (length == 0)
        return 0;
    hash = fsdp__mix(fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, length), (uint64_t)of.first);
    FSDP__HELD(&names->mutex);
    for (uint64_t i = hash % NAMES;; i = (i + 1) % NAMES) {
        n = &names->table[i];
        if (n->number == 0 || (n->hash == hash && is_named(names, n, text, &of)))
            break;
    }
    if (n->number == 0 && names->count < NAMES * 3 / 4 && length < NAME_BYTES - names->text_used) {
        if (group && !is_regular(group, &of))
            of.step = 0;
        *n = (fsdp__trace_name){.hash = hash, .at = (uint32_t)names->text_used, .number = ++names->count, .of = of};
        names->number_at[n->number] = (uint32_t)(n - names->table);
        memcpy(names->text + names->text_used, text, length + 1);
        names->text_used += length + 1;
    }
    number = n->number;
    return number;
}

const char *fsdp__trace_names_text(const fsdp__trace_names *names, uint32_t number)
{
    return number ? names->text + names->table[names->number_at[number]].at : "";
}

fsdp__traced_ranks fsdp__trace_names_ranks(const fsdp__trace_names *names, uint32_t number)
{
    return number ? names->table[names->number_at[number]].of : (fsdp__traced_ranks){0};
}
