/* fsdp/checkpoint.h - checkpoints of training runs on disk: <folder>/step-N, saved by all ranks without a gather,
 * loaded by any number of ranks.
 *
 *     manifest.json                      the contents, which rank has which part, and checksums of every byte
 *     rank-00000-of-00004.safetensors    the parts that rank 0 has written, named "<section>.<name>"; a part that is
 *                                        a run of a flat vector has one dimension
 *     config.json, ...                   small files that the caller has added
 *
 * A checkpoint has tensors in named sections ("model", "optimizer"), values (named numbers and texts) and files. It
 * appears whole, by one rename, once all of it is on disk, and is never written again. It can be loaded in any
 * distribution over any number of ranks, whatever was saved: each rank reads the parts that it needs, and verifies what
 * it reads.
 *
 * (Activation checkpointing is fsdp_recompute in fsdp/autograd.h; it has nothing to do with these.)
 */
#ifndef FSDP_CHECKPOINT_H
#define FSDP_CHECKPOINT_H

#include "fsdp/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- contents ---- */

/* Holds tensors under a name of at most 64 letters, digits, '_' and '-'. */
typedef struct fsdp_checkpoint_section {
    const char *name;
    fsdp_state_dict *state; /* the same names on all ranks, unless `own` is set */
    /* Each rank has whole tensors of its own, as with a partitioned optimizer (fsdp_optimizer_partition_state). The
     * rank that has a tensor writes it, and no two ranks have one of the same name. Load them with `partial`. Set the
     * same on all ranks. */
    bool own;
} fsdp_checkpoint_section;

typedef enum fsdp_checkpoint_value_type {
    FSDP_CHECKPOINT_INTEGER,
    FSDP_CHECKPOINT_NUMBER, /* a double, restored to the bit */
    FSDP_CHECKPOINT_TEXT,   /* UTF-8 */
} fsdp_checkpoint_value_type;

typedef struct fsdp_checkpoint_value {
    const char *name;
    fsdp_checkpoint_value_type type;
    int64_t integer;
    double number;
    const char *text;
} fsdp_checkpoint_value;

/* Describes a file beside the tensors. `name` is a plain file name that is not one of the checkpoint's own files. */
typedef struct fsdp_checkpoint_file {
    const char *name;
    const void *data;
    size_t bytes;
} fsdp_checkpoint_file;

typedef struct fsdp_checkpoint_content {
    int64_t step; /* not negative */
    const fsdp_checkpoint_section *sections;
    int section_count;
    /* Used on rank 0; those of other ranks are ignored. */
    const fsdp_checkpoint_value *values;
    int value_count;
    const fsdp_checkpoint_file *files;
    int file_count;
    fsdp_mesh *mesh; /* recorded for information, of a part of a mesh all of it; NULL: none */
} fsdp_checkpoint_content;

/* ---- saving ---- */

/* Saves one checkpoint, <folder>/step-<content->step>, and keeps all others. [collective] [blocks] */
FSDP_API fsdp_status fsdp_checkpoint_save(const char *folder, const fsdp_checkpoint_content *content,
                                          fsdp_process_group *group);

typedef struct fsdp_checkpoint_saver fsdp_checkpoint_saver;

typedef struct fsdp_checkpoint_saver_options {
    int64_t keep_latest_k; /* keep this many of the newest and remove older ones; 0: keep all */
    int64_t keep_every;    /* steps that are multiples of it are never removed; 0: none */
    /* A save copies what this rank writes (fsdp_checkpoint_snapshot_bytes), and a thread writes the copy to disk. */
    bool async;
} fsdp_checkpoint_saver_options;

/* Creates a saver for the checkpoints of one run in `folder`, which the first save creates if necessary. `group` has
 * all ranks that share what will be saved; its first rank decides and publishes. `options` may be NULL. The caller owns
 * `*out`. */
FSDP_API fsdp_status fsdp_checkpoint_saver_create(const char *folder, const fsdp_checkpoint_saver_options *options,
                                                  fsdp_process_group *group, fsdp_checkpoint_saver **out);
/* Saves <folder>/step-<content->step>. Each rank writes the parts of which it is the writer
 * (fsdp_state_dict_entry.writer) to its own file. Before anything is written the call checks that step-N does not
 * exist, that there is enough space, and that the tensors have values. An error on any rank is an error on all and
 * names rank and file; nothing of the save remains, and older checkpoints are not touched. Remains of processes that
 * died while saving are removed from the folder, and so are checkpoints that the options do not keep, but never the one
 * just saved or the newest. Files that do not belong to the checkpoint stay, with a warning, and so do checkpoints of
 * another user; another user's temporary folder (step-N.saving) is an error.
 *
 * An asynchronous save returns once the copy is made: tensors may then change, and poll or wait tells when the
 * checkpoint exists. Only one save is under way at a time: this call waits for the one before and, if that failed,
 * returns its failure instead of saving. [collective] [blocks] */
FSDP_API fsdp_status fsdp_checkpoint_saver_save(fsdp_checkpoint_saver *saver, const fsdp_checkpoint_content *content);
/* Publishes a save if all its ranks have written their files. `*out_step` (may be NULL) is its step, or -1 if none was
 * completed by this call. Returns the failure of a save under way, once. It makes one small exchange while a save is
 * under way; otherwise nothing is communicated. [collective] */
FSDP_API fsdp_status fsdp_checkpoint_saver_poll(fsdp_checkpoint_saver *saver, int64_t *out_step);
/* Does the same after waiting for the save under way. [collective] [blocks] */
FSDP_API fsdp_status fsdp_checkpoint_saver_wait(fsdp_checkpoint_saver *saver, int64_t *out_step);
/* Frees the saver and abandons a save under way: call fsdp_checkpoint_saver_wait before. NULL is allowed. [blocks] */
FSDP_API void fsdp_checkpoint_saver_free(fsdp_checkpoint_saver *saver);

/* ---- finding and loading ---- */

enum {
    FSDP_CHECKPOINT_NEWEST = -1,
    FSDP_CHECKPOINT_BEST = -2
};
/* Names an integer value: the step after which the lowest validation loss so far was measured. A training run saves it.
 * The best checkpoint of a folder is the one of the step that the newest checkpoint names. */
#define FSDP_CHECKPOINT_BEST_STEP "validation.best_step"
/* Returns the path of <folder>/step-<step>, or of the newest or the best; the caller frees `*out` with free().
 * FSDP_NOT_FOUND: there is none; for the best, nothing was validated or its checkpoint was not kept. The checkpoint's
 * manifest, files and their sizes are checked: an incomplete one is an error, and is never skipped in favour of an
 * older one. */
FSDP_API fsdp_status fsdp_checkpoint_find(const char *folder, int64_t step, char **out);

typedef struct fsdp_checkpoint_reader fsdp_checkpoint_reader;

/* Opens a checkpoint. `path` is a step-N, under any name, or a folder of them (its newest is opened), or
 * <folder>/step-best (the best). This reads and checks the manifest, that every tensor has each of its elements once,
 * the files' names, sizes and headers, and the small files completely. A local call; the caller closes `*out`, on the
 * thread that uses it. */
FSDP_API fsdp_status fsdp_checkpoint_open(const char *path, fsdp_checkpoint_reader **out);
FSDP_API void fsdp_checkpoint_close(fsdp_checkpoint_reader *reader); /* NULL is allowed */
FSDP_API const char *fsdp_checkpoint_path(const fsdp_checkpoint_reader *reader);
FSDP_API int64_t fsdp_checkpoint_step(const fsdp_checkpoint_reader *reader);
/* Return a value by name. FSDP_NOT_FOUND: there is none of that name; FSDP_FORMAT: it has another type. On an error
 * `*out` does not change. A text belongs to the reader. */
FSDP_API fsdp_status fsdp_checkpoint_get_integer(const fsdp_checkpoint_reader *reader, const char *name, int64_t *out);
FSDP_API fsdp_status fsdp_checkpoint_get_number(const fsdp_checkpoint_reader *reader, const char *name, double *out);
FSDP_API fsdp_status fsdp_checkpoint_get_text(const fsdp_checkpoint_reader *reader, const char *name, const char **out);

typedef struct fsdp_checkpoint_load_options {
    bool partial;               /* ignore names that only the state or only the section has (PyTorch's strict=False) */
    fsdp_state_dict_keys *keys; /* gets these names, for the caller to release, also on an error; may be NULL */
} fsdp_checkpoint_load_options;

/* Loads this rank's part of every entry from the section, whatever its distribution, converting between floating
 * dtypes. It reads what this rank needs, a window of a few MiB at a time, and verifies each block before it is used.
 * Errors before anything is changed: missing and surplus names, shapes and dtypes that do not match, the meta device,
 * and shards that cannot be written now (their module is running or summoned). A wrong checksum is an error that names
 * file and tensors, after which the state is partly changed. Ranks read only their own parts, so one may fail alone:
 * call fsdp_agree on the result. `options` may be NULL. */
FSDP_API fsdp_status fsdp_checkpoint_load(fsdp_checkpoint_reader *reader, const char *section, fsdp_state_dict *state,
                                          const fsdp_checkpoint_load_options *options);

/* ======== for experts: most programs need nothing below ======== */

/* ---- a saver's life ---- */

/* Returns the step of the save under way, or -1. A local call. */
FSDP_API int64_t fsdp_checkpoint_saver_pending(const fsdp_checkpoint_saver *saver);
/* Sets the steps that are never removed from now on, replacing those set before: "the best so far". They are copied. */
FSDP_API fsdp_status fsdp_checkpoint_saver_pin(fsdp_checkpoint_saver *saver, const int64_t *steps, int count);
/* Aborts the save under way, unless it has been published, and all later ones: FSDP_INTERRUPTED. Removes what the save
 * has put on disk. For a program that is about to end. May be called on any thread; NULL is allowed. [thread-safe]
 * [blocks] */
FSDP_API void fsdp_checkpoint_saver_abandon(fsdp_checkpoint_saver *saver);
/* Returns the bytes of host memory that the copy of an asynchronous save takes on this rank (counted as workspace of
 * the CPU device). The copy is kept for the next save. 0 for content that cannot be saved. */
FSDP_API size_t fsdp_checkpoint_snapshot_bytes(const fsdp_checkpoint_content *content);

/* ---- what a folder has ---- */

/* Lists the steps N of all step-N in `folder`, ascending; the caller frees `*out` with free(). Whether they are
 * complete is not checked, but a step-N that cannot be looked into, such as a dangling link, is an error. A folder that
 * does not exist has none. */
FSDP_API fsdp_status fsdp_checkpoint_list(const char *folder, int64_t **out, int64_t *out_count);
/* Returns whether the name <folder>/step-<step> is taken. */
FSDP_API bool fsdp_checkpoint_exists(const char *folder, int64_t step);

/* ---- what a checkpoint has ---- */

FSDP_API int fsdp_checkpoint_world_size(const fsdp_checkpoint_reader *reader); /* number of ranks that saved it */
/* Returns the mesh as text, "dp_replicate=2 dp_shard=4 tp=2", followed by " of ranks 0,2,1,3" if it has all ranks in
 * another order; "" if none was given. */
FSDP_API const char *fsdp_checkpoint_mesh(const fsdp_checkpoint_reader *reader);

/* Describes a part of a tensor, in one rank's file. */
typedef struct fsdp_checkpoint_part {
    const char *file;
    int rank;                                           /* the rank that has written it */
    bool flat;                                          /* a run of elements: offset[0], size[0] */
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS]; /* otherwise a box */
    uint64_t begin, bytes;                              /* in the file */
} fsdp_checkpoint_part;

typedef struct fsdp_checkpoint_tensor {
    const char *section, *name;
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    int64_t part_count;
    const fsdp_checkpoint_part *parts;
} fsdp_checkpoint_tensor;

/* Return the tensors, by section in the order saved, and by name within a section. */
FSDP_API int64_t fsdp_checkpoint_count(const fsdp_checkpoint_reader *reader);
FSDP_API const fsdp_checkpoint_tensor *fsdp_checkpoint_at(const fsdp_checkpoint_reader *reader, int64_t index);
FSDP_API const fsdp_checkpoint_tensor *fsdp_checkpoint_tensor_find(const fsdp_checkpoint_reader *reader,
                                                                   const char *section, const char *name); /* or NULL */
FSDP_API bool fsdp_checkpoint_has_section(const fsdp_checkpoint_reader *reader, const char *section);

/* Return the values in the order saved. */
FSDP_API int fsdp_checkpoint_value_count(const fsdp_checkpoint_reader *reader);
FSDP_API const fsdp_checkpoint_value *fsdp_checkpoint_value_at(const fsdp_checkpoint_reader *reader, int index);
/* Return the small files in the order saved. Their bytes belong to the reader and are followed by a NUL that is not
 * counted. */
FSDP_API int fsdp_checkpoint_file_count(const fsdp_checkpoint_reader *reader);
FSDP_API const fsdp_checkpoint_file *fsdp_checkpoint_file_at(const fsdp_checkpoint_reader *reader, int index);
FSDP_API const fsdp_checkpoint_file *fsdp_checkpoint_file_find(const fsdp_checkpoint_reader *reader,
                                                               const char *name); /* or NULL */

/* Reads elements [first, first + numel) of a tensor, row-major, in its own dtype, verified as a load does. */
FSDP_API fsdp_status fsdp_checkpoint_read(fsdp_checkpoint_reader *reader, const fsdp_checkpoint_tensor *tensor,
                                          int64_t first, int64_t numel, void *out);

/* Reads everything and compares every checksum; the first difference is the error. `progress` (may be NULL) is called
 * every few MiB; any result but FSDP_OK ends the call. */
typedef fsdp_status (*fsdp_checkpoint_progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
FSDP_API fsdp_status fsdp_checkpoint_verify(fsdp_checkpoint_reader *reader, fsdp_checkpoint_progress progress,
                                            void *arg);

#ifdef __cplusplus
}
#endif
#endif
