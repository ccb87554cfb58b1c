/* batch_maker.h - makes any batch of an epoch, in a slot of its own. Both the caller's thread and workers use it. */
#pragma once

#include "fsdp/dataset.h"

/* Holds memory for one batch. */
typedef struct fsdp__batch_slot {
    void **items, **out; /* one for each of the items' fields, and of the batch's; the same without collation */
} fsdp__batch_slot;

typedef struct fsdp__batch_maker {
    fsdp_dataset dataset; /* borrows from the caller's */
    fsdp_data_loader_options options;
    int64_t items;  /* in the epoch */
    int64_t begin;  /* first item of the epoch within the data set, if there is no order */
    int64_t *order; /* of the epoch; NULL: the data set's own */
    fsdp__batch_slot *slots;
    int slot_count;
    unsigned char *memory, *first; /* `first`: where the slots begin in the memory */
    void **places;
} fsdp__batch_maker;

fsdp_status fsdp__batch_maker_init(fsdp__batch_maker *maker, const fsdp_dataset *dataset,
                                   const fsdp_data_loader_options *options);
void fsdp__batch_maker_release(fsdp__batch_maker *maker); /* a maker of zeros or a half-built one is allowed */
/* Returns the number of items in batch `number`. */
int64_t fsdp__batch_size(const fsdp__batch_maker *maker, int64_t number);
/* Makes item `index`, each field into its place. A failure names the item. */
fsdp_status fsdp__item_make(const fsdp_dataset *dataset, int64_t index, void *const *places);
/* Makes batch `number` in a slot. `thread` is one of max(workers, 1). */
fsdp_status fsdp__batch_make(const fsdp__batch_maker *maker, int64_t number, int slot, int thread);
