/* pointer_table.c - a hash table from pointers to numbers, with open addressing. */
#include "base/pointer_table.h"

#include "base/alloc.h"
#include "base/hash.h"

/* Returns the key's entry, or the free one where it belongs. */
static fsdp__pointer_entry *find(const fsdp__pointer_table *table, const void *key)
{
    uint64_t last = (uint64_t)table->capacity - 1, at = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, &key, sizeof key);

    while (table->entries[at & last].key && table->entries[at & last].key != key)
        at++;
    return &table->entries[at & last];
}

static int make_room(fsdp__pointer_table *table)
{
    fsdp__pointer_table larger = {.count = table->count, .capacity = table->capacity ? 2 * table->capacity : 16};

    if (2 * table->count < table->capacity)
        return 0;
    larger.entries = fsdp__calloc((size_t)larger.capacity, sizeof *larger.entries);
    if (!larger.entries)
        return -1;
    for (int64_t i = 0; i < table->capacity; i++)
        if (table->entries[i].key)
            *find(&larger, table->entries[i].key) = table->entries[i];
    fsdp__free(table->entries);
    *table = larger;
    return 0;
}

int64_t *fsdp__pointer_table_at(fsdp__pointer_table *table, const void *key)
{
    fsdp__pointer_entry *entry;

    if (make_room(table) != 0)
        return NULL;
    entry = find(table, key);
    if (!entry->key) {
        entry->key = key;
        table->count++;
    }
    return &entry->number;
}

int64_t fsdp__pointer_table_find(const fsdp__pointer_table *table, const void *key)
{
    return table->count > 0 ? find(table, key)->number : 0;
}

void fsdp__pointer_table_release(fsdp__pointer_table *table)
{
    fsdp__free(table->entries);
    *table = (fsdp__pointer_table){0};
}
