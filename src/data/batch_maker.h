/* batch_maker.h - makes any batch of an epoch, at a place of its own: what the caller's thread and workers do. */
#ifndef DATA_BATCH_MAKER_H
#define DATA_BATCH_MAKER_H

#include "fsdp/dataset.h"

/* A place for a batch. */
typedef struct fsdp__batch_slot {
    void **items, **out; /* of the items' fields, and of the batch's; the same without collation */
    bool full;           /* the loader's */
    fsdp_status status;
    char message[512];
} fsdp__batch_slot;

typedef struct fsdp__batch_maker {
    fsdp_dataset dataset; /* borrows from the caller's */
    fsdp_data_loader_options options;
    int64_t items;  /* of the epoch */
    int64_t begin;  /* item that it begins with, of the data set: without an order */
    int64_t *order; /* of the epoch; NULL: as they are */
    fsdp__batch_slot *slots;
    int slot_count;
    unsigned char *memory, *first; /* where the slots begin in it */
    void **places;
} fsdp__batch_maker;

fsdp_status fsdp__batch_maker_init(fsdp__batch_maker *maker, const fsdp_dataset *dataset,
                                   const fsdp_data_loader_options *options);
void fsdp__batch_maker_release(fsdp__batch_maker *maker); /* also of one of zeros, or half made */
/* Items of batch `number`. */
int64_t fsdp__batch_size(const fsdp__batch_maker *maker, int64_t number);
/* Item `index` into a place for each field; a failure names it. */
fsdp_status fsdp__item_make(const fsdp_dataset *dataset, int64_t index, void *const *places);
/* Batch `number` into a slot; a failure stays there, with its words. `thread`: one of max(workers, 1). */
void fsdp__batch_make(const fsdp__batch_maker *maker, int64_t number, fsdp__batch_slot *into, int thread);

#endif
