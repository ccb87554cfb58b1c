/* fsdp/dataset.h - data of one's own: items by number, in an order that ranks share, as batches.
 *
 *     const fsdp_data_file files[] = {{"image", "train-images-idx3-ubyte"}, {"label", "train-labels-idx1-ubyte"}};
 *     fsdp_dataset data;
 *
 *     FSDP_TRY(fsdp_dataset_open(files, 2, &data));
 *     fsdp_sampler_options order = {data.length(data.arg), rank, world_size, .shuffle = true};
 *     FSDP_TRY(fsdp_distributed_sampler_create(&order, &sampler));
 *     fsdp_data_loader_options options = {.batch_size = 64, .sampler = sampler};
 *     FSDP_TRY(fsdp_data_loader_create(&data, &options, &loader));
 *     for (int64_t epoch = 0; epoch < epochs; epoch++) {
 *         FSDP_TRY(fsdp_distributed_sampler_set_epoch(sampler, epoch));
 *         for (;;) {
 *             fsdp_data_batch batch;
 *             bool more;
 *
 *             FSDP_TRY(fsdp_data_loader_next(loader, &batch, &more));
 *             if (!more)
 *                 break;
 *             image = fsdp_batch_tensor(device, &batch, 0);    // fsdp/train.h: (64,28,28) uint8
 *             ...
 *         }
 *     }
 *
 * Token streams have a loader of their own (fsdp/data.h).
 */
#ifndef FSDP_DATASET_H
#define FSDP_DATASET_H

#include "fsdp/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_DATA_DIMS 6

/* ---- data sets ---- */

/* One of the arrays that make an item: an image, its label. */
typedef struct fsdp_data_field {
    const char *name;
    fsdp_dtype dtype;
    int ndim; /* at most FSDP_DATA_DIMS - 1; a single number has 0 */
    int64_t shape[FSDP_DATA_DIMS];
} fsdp_data_field;

/* Two functions and their argument. A data set of one's own fills it in. */
typedef struct fsdp_dataset {
    int64_t (*length)(void *arg); /* how many items there are; the same at all times */
    /* Writes item `index`, of [0, length): fields[i] is the place of field i. Loaders with workers call it on several
     * threads at a time, and in any order; it must give the same item whenever it is asked. */
    fsdp_status (*item)(void *arg, int64_t index, void *const *fields);
    void *arg;
    const fsdp_data_field *fields;
    int field_count;
    void (*free)(void *arg); /* what fsdp_dataset_release calls; or NULL */
} fsdp_dataset;

/* Item i of field f is row i of arrays[f], whose shape is (length, shape of the field). Copies the fields (names too);
 * the arrays are borrowed. `*out` is for fsdp_dataset_release, zero on failure. */
FSDP_API fsdp_status fsdp_dataset_from_memory(const fsdp_data_field *fields, const void *const *arrays, int field_count,
                                              int64_t length, fsdp_dataset *out);

typedef struct fsdp_data_file {
    const char *name; /* of the field */
    const char *path;
} fsdp_data_file;

/* A field a file, an item a row of each, so the files' first dimensions are equal. Formats, told by the first bytes:
 *   - .npy of NumPy, versions 1 to 3: float32, float16, int32, int64, uint8, bool, little-endian, in C order;
 *   - IDX, as MNIST has it (unpacked): unsigned byte, int, float.
 * Files are mapped, and rows read when they are asked for: one that is cut short meanwhile ends the process (SIGBUS).
 * Errors name the file and what is wrong with it; one of other bytes than its header says is refused. */
FSDP_API fsdp_status fsdp_dataset_open(const fsdp_data_file *files, int count, fsdp_dataset *out);
/* NULL and a data set of zeros are allowed. Loaders of it must be gone. */
FSDP_API void fsdp_dataset_release(fsdp_dataset *dataset);
/* A 128-bit hash of the fields' names and of every byte of every item, in their order: kept beside a position (below)
 * it tells a run that goes on whether the data is still the same. Asks for all items, on the caller's thread; a failure
 * names the item. [blocks] */
FSDP_API fsdp_status fsdp_dataset_digest(const fsdp_dataset *dataset, uint64_t out[2]);

/* ---- which items, and in which order: torch.utils.data.DistributedSampler ---- */

typedef struct fsdp_sampler_options {
    int64_t length;       /* items of the data set */
    int rank, world_size; /* world_size 0: one rank */
    bool shuffle;         /* PyTorch's default: true */
    /* Ranks have equally many items: without, the first ones of the order come again at its end; with, it is cut. */
    bool drop_last;
    uint64_t seed; /* the same on all ranks */
} fsdp_sampler_options;

typedef struct fsdp_distributed_sampler fsdp_distributed_sampler;

/* Rank r has items r, r + world_size, ... of an order of all, which depends on seed + epoch and the length alone:
 * PyTorch's very order, the permutation torch.randperm(length) of a CPU generator seeded so. In epoch 0. */
FSDP_API fsdp_status fsdp_distributed_sampler_create(const fsdp_sampler_options *options,
                                                     fsdp_distributed_sampler **out);
FSDP_API void fsdp_distributed_sampler_free(fsdp_distributed_sampler *sampler);
/* Before each epoch, or all are in the same order. Loaders follow with their next epoch. */
FSDP_API fsdp_status fsdp_distributed_sampler_set_epoch(fsdp_distributed_sampler *sampler, int64_t epoch);
/* Items of this rank, the same on all; of an epoch that is gone on with, those that are left. */
FSDP_API int64_t fsdp_distributed_sampler_length(const fsdp_distributed_sampler *sampler);
/* Which these are; borrowed until the epoch is set. */
FSDP_API const int64_t *fsdp_distributed_sampler_indices(const fsdp_distributed_sampler *sampler);

/* ---- batches ---- */

typedef struct fsdp_data_loader_options {
    int64_t batch_size;
    bool drop_last;                    /* no batch of fewer items at the end */
    int workers;                       /* threads that make batches ahead, two each; 0: made in the caller */
    fsdp_distributed_sampler *sampler; /* borrowed, of the data set's length; NULL: all items, in their order */
    /* PyTorch's collate_fn: makes the fields of a batch, `fields` below, of the items' (all one after the other).
     * Called on workers as the items are. NULL: the batch is the items. */
    fsdp_status (*collate)(void *arg, int64_t size, void *const *items, void *const *out);
    void *collate_arg;
    const fsdp_data_field *fields; /* with collate: what it makes, shapes as of one item. Copied */
    int field_count;
} fsdp_data_loader_options;

typedef struct fsdp_data_batch {
    int64_t size;   /* items */
    int64_t number; /* of the batch in its epoch, from 0; where a position was set, from there */
    int field_count;
    const fsdp_data_field *fields; /* with `size` as the first dimension */
    void *const *data;             /* of each; aligned to 64 bytes, the caller's to change; until the next call */
} fsdp_data_batch;

typedef struct fsdp_data_loader fsdp_data_loader;

/* Copies what `dataset` says; it must not be released before. Batches are the same for any number of workers. */
FSDP_API fsdp_status fsdp_data_loader_create(const fsdp_dataset *dataset, const fsdp_data_loader_options *options,
                                             fsdp_data_loader **out);
FSDP_API void fsdp_data_loader_free(fsdp_data_loader *loader);
/* Batches of an epoch. */
FSDP_API int64_t fsdp_data_loader_length(const fsdp_data_loader *loader);
/* The next batch of the epoch; `*more` is false when there is none, and then the next call begins another, in the order
 * that the sampler has by then. A failure of an item or of the collation comes at its batch, naming the item, and stays
 * until fsdp_data_loader_reset. [blocks] */
FSDP_API fsdp_status fsdp_data_loader_next(fsdp_data_loader *loader, fsdp_data_batch *out, bool *more);
/* Leaves the epoch: the next call begins another. [blocks] */
FSDP_API void fsdp_data_loader_reset(fsdp_data_loader *loader);

/* ---- where a run stands in its data: what a checkpoint keeps of it ----
 *
 *     position = fsdp_data_loader_position(loader);                // five numbers, the same on all ranks
 *
 *     FSDP_TRY(fsdp_data_loader_set_position(loader, &position));  // of another run, with any number of ranks
 *     for (int64_t epoch = position.epoch; epoch < epochs; epoch++) {
 *         FSDP_TRY(fsdp_distributed_sampler_set_epoch(sampler, epoch)); // the position stays for the epoch it is of
 *         ...
 */

typedef struct fsdp_data_position {
    int64_t epoch;
    int64_t items;  /* of the epoch's order: so many have been in batches of all ranks together */
    int64_t length; /* of the data set, and how the sampler orders it: what the order depends on */
    bool shuffle;
    uint64_t seed;
} fsdp_data_position;

/* Behind the last batch that fsdp_data_loader_next gave out, once each rank has had as many. At the end of an epoch all
 * of it. Without a sampler epochs are counted here. */
FSDP_API fsdp_data_position fsdp_data_loader_position(const fsdp_data_loader *loader);
/* Leaves the epoch: the next call of fsdp_data_loader_next begins that of the position, without the items that have
 * been: in the same order, over as many ranks as there are now, so none is lost and none comes twice (but for the few
 * with which DistributedSampler fills up its ranks at the end of an epoch). With as many ranks and batches of the same
 * size they are the batches that would have come. FSDP_INVALID when the data set has another length or the sampler
 * another order. [blocks] */
FSDP_API fsdp_status fsdp_data_loader_set_position(fsdp_data_loader *loader, const fsdp_data_position *position);

#ifdef __cplusplus
}
#endif
#endif
