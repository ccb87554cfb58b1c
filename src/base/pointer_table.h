/* pointer_table.h - a hash table from pointers to numbers, in constant time.
 *
 *     fsdp__pointer_table seen = {0};
 *     int64_t *mark = fsdp__pointer_table_at(&seen, module);      NULL: out of memory; 0: was not there
 *     ...
 *     fsdp__pointer_table_release(&seen); */
#pragma once

#include <stdint.h>

typedef struct fsdp__pointer_entry {
    const void *key; /* NULL: the entry is free */
    int64_t number;
} fsdp__pointer_entry;

/* All zero: the table is empty. */
typedef struct fsdp__pointer_table {
    fsdp__pointer_entry *entries;
    int64_t count, capacity; /* a power of two, at least half of it free */
} fsdp__pointer_table;

/* Returns where the number of `key`, which must not be NULL, stands; valid until the next call. The number is 0 for a
 * new key. NULL and a last error when out of memory; then nothing has changed. */
int64_t *fsdp__pointer_table_at(fsdp__pointer_table *table, const void *key);
/* Returns the number of `key`; 0: it has none. */
int64_t fsdp__pointer_table_find(const fsdp__pointer_table *table, const void *key);
void fsdp__pointer_table_release(fsdp__pointer_table *table);
