/* fsdp/dataset.h - your own data: numbered items, in an order that ranks share, in batches.
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
 * For token streams use the loader in fsdp/data.h.
 */
#ifndef FSDP_DATASET_H
#define FSDP_DATASET_H

#include "fsdp/context.h"
#include "fsdp/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_DATA_DIMS 6

/* ---- data sets ---- */

/* Describes one of the arrays that make an item: an image, its label. */
typedef struct fsdp_data_field {
    const char *name;
    fsdp_dtype dtype;
    int ndim; /* at most FSDP_DATA_DIMS - 1; 0 for a single number */
    int64_t shape[FSDP_DATA_DIMS];
} fsdp_data_field;

/* A data set consists of two functions and their argument. Fill it in for your own data. */
typedef struct fsdp_dataset {
    int64_t (*length)(void *arg); /* number of items; must not change */
    /* Writes item `index`, in [0, length): fields[i] is the place of field i. Loaders with workers call it on several
     * threads at once and in any order; it must always give the same item for an index. */
    fsdp_status (*item)(void *arg, int64_t index, void *const *fields);
    void *arg;
    const fsdp_data_field *fields;
    int field_count;
    void (*free)(void *arg); /* is called by fsdp_dataset_release; may be NULL */
} fsdp_dataset;

/* Makes a data set of arrays in memory: item i of field f is row i of arrays[f], whose shape is (length, shape of the
 * field). The fields are copied (names too), the arrays borrowed. Release `*out` with fsdp_dataset_release; on a
 * failure it is zero. */
FSDP_API fsdp_status fsdp_dataset_from_memory(const fsdp_data_field *fields, const void *const *arrays, int field_count,
                                              int64_t length, fsdp_dataset *out);

typedef struct fsdp_data_file {
    const char *name; /* of the field */
    const char *path;
} fsdp_data_file;

/* Opens files as a data set: each file is a field, and item i is row i of each, so the files' first dimensions must be
 * equal. The first bytes tell the format:
 *   - .npy of NumPy, versions 1 to 3: float32, float16, int32, int64, uint8, bool, little-endian, in C order;
 *   - IDX, MNIST's format (unpacked): unsigned byte, int, float.
 * Files are mapped, and rows are read when they are needed: a file that is truncated meanwhile ends the process
 * (SIGBUS). Errors name the file and what is wrong with it; a file whose size does not match its header is refused. */
FSDP_API fsdp_status fsdp_dataset_open(const fsdp_data_file *files, int count, fsdp_dataset *out);
/* Releases a data set. NULL and a data set of zeros are allowed. Its loaders must have been freed. */
FSDP_API void fsdp_dataset_release(fsdp_dataset *dataset);
/* Computes a 128-bit hash of the fields' names and of every byte of every item, in order. Saved with a position
 * (below), it tells a resumed run whether the data is still the same. It reads all items on the caller's thread; a
 * failure names the item. [blocks] */
FSDP_API fsdp_status fsdp_dataset_digest(const fsdp_dataset *dataset, uint64_t out[2]);

/* ---- sampling: torch.utils.data.DistributedSampler ---- */

typedef struct fsdp_sampler_options {
    int64_t length;       /* items in the data set */
    int rank, world_size; /* world_size 0: one rank */
    bool shuffle;         /* PyTorch's default: true */
    /* Ranks have the same number of items. false: the first items of the order are repeated at its end. true: its end
     * is dropped. */
    bool drop_last;
    uint64_t seed; /* the same on all ranks */
} fsdp_sampler_options;

typedef struct fsdp_distributed_sampler fsdp_distributed_sampler;

/* Creates a sampler, in epoch 0. Rank r gets items r, r + world_size, ... of an order of all items that depends only on
 * seed + epoch and the length. It is exactly PyTorch's order: torch.randperm(length) of a CPU generator with that
 * seed. */
FSDP_API fsdp_status fsdp_distributed_sampler_create(const fsdp_sampler_options *options,
                                                     fsdp_distributed_sampler **out);
FSDP_API void fsdp_distributed_sampler_free(fsdp_distributed_sampler *sampler);
/* Sets the epoch. Call it before each epoch, or all epochs have the same order. Loaders use it from their next epoch
 * on. */
FSDP_API fsdp_status fsdp_distributed_sampler_set_epoch(fsdp_distributed_sampler *sampler, int64_t epoch);
/* Returns the number of this rank's items, the same on all ranks; in an epoch that is resumed, of those that are
 * left. */
FSDP_API int64_t fsdp_distributed_sampler_length(const fsdp_distributed_sampler *sampler);
/* Returns the indices of these items, borrowed until the epoch is set. */
FSDP_API const int64_t *fsdp_distributed_sampler_indices(const fsdp_distributed_sampler *sampler);

/* ---- batches ---- */

typedef struct fsdp_data_loader_options {
    int64_t batch_size;
    bool drop_last;                    /* leave out a last batch that is not full */
    int workers;                       /* threads that prepare two batches each ahead; 0: the caller makes them */
    fsdp_distributed_sampler *sampler; /* borrowed, with the data set's length; NULL: all items in order */
    /* PyTorch's collate_fn: makes the fields of a batch, `fields` below, from those of the items (stored one after the
     * other). It is called on workers, like the data set's `item`. NULL: the batch consists of the items. */
    fsdp_status (*collate)(void *arg, int64_t size, void *const *items, void *const *out);
    void *collate_arg;
    const fsdp_data_field *fields; /* with collate: the fields it makes, with the shape of one item. Copied */
    int field_count;
    const fsdp_context *context; /* whose trace shows the batches (fsdp/trace.h), until the loader is freed; or NULL */
} fsdp_data_loader_options;

typedef struct fsdp_data_batch {
    int64_t size;   /* number of items */
    int64_t number; /* of the batch in its epoch, from 0, or from the position that was set */
    int field_count;
    const fsdp_data_field *fields; /* with `size` as the first dimension */
    void *const *data; /* of each field; aligned to 64 bytes, may be changed by the caller; valid until the next call */
} fsdp_data_batch;

typedef struct fsdp_data_loader fsdp_data_loader;

/* Creates a loader. It copies `dataset`, which must not be released before the loader. Batches are the same for any
 * number of workers. */
FSDP_API fsdp_status fsdp_data_loader_create(const fsdp_dataset *dataset, const fsdp_data_loader_options *options,
                                             fsdp_data_loader **out);
FSDP_API void fsdp_data_loader_free(fsdp_data_loader *loader);
/* Returns the number of batches in an epoch. */
FSDP_API int64_t fsdp_data_loader_length(const fsdp_data_loader *loader);
/* Returns the next batch of the epoch. `*more` is false if there is none; the next call then begins another epoch, in
 * the sampler's order at that time. If an item or the collation fails, the failure is returned at its batch, names the
 * item, and remains until fsdp_data_loader_reset. [blocks] */
FSDP_API fsdp_status fsdp_data_loader_next(fsdp_data_loader *loader, fsdp_data_batch *out, bool *more);
/* Ends the epoch: the next call begins another. [blocks] */
FSDP_API void fsdp_data_loader_reset(fsdp_data_loader *loader);

/* ---- the position of a run in its data, for checkpoints ----
 *
 *     position = fsdp_data_loader_position(loader);                // five numbers, the same on all ranks
 *
 *     FSDP_TRY(fsdp_data_loader_set_position(loader, &position));  // in another run, with any number of ranks
 *     for (int64_t epoch = position.epoch; epoch < epochs; epoch++) {
 *         FSDP_TRY(fsdp_distributed_sampler_set_epoch(sampler, epoch)); // the position is kept in its own epoch
 *         ...
 */

typedef struct fsdp_data_position {
    int64_t epoch;
    int64_t items;  /* number of items of the epoch's order that all ranks together have had in batches */
    int64_t length; /* length of the data set, and the sampler's options: the order depends on these */
    bool shuffle;
    uint64_t seed;
} fsdp_data_position;

/* Returns the position after the last batch that fsdp_data_loader_next returned, once each rank has had as many. At the
 * end of an epoch it includes the whole epoch. Without a sampler epochs are counted here. */
FSDP_API fsdp_data_position fsdp_data_loader_position(const fsdp_data_loader *loader);
/* Ends the epoch: the next call of fsdp_data_loader_next begins the epoch of `position`, without the items that have
 * been used. The order is the same, over the current number of ranks, so no item is lost or repeated (except the few
 * with which DistributedSampler fills up ranks at the end of an epoch). With as many ranks and the same batch size, the
 * batches are those of an uninterrupted run. FSDP_INVALID: the data set has another length, or the sampler another
 * order. [blocks] */
FSDP_API fsdp_status fsdp_data_loader_set_position(fsdp_data_loader *loader, const fsdp_data_position *position);

#ifdef __cplusplus
}
#endif
#endif
