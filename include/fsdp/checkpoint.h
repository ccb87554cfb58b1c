/* fsdp/checkpoint.h - the state of a training run on disk: <folder>/step-N, saved by all ranks without a gather, loaded
 * by any number of them.
 *
 *     manifest.json                      what is in it, who holds which part of it, and checksums of every byte
 *     rank-00000-of-00004.safetensors    the parts that rank 0 has written, under "<section>.<name>"; a part that is
 *                                        a run of a flat vector has one dimension
 *     config.json, ...                   small files that the caller has put beside them
 *
 * A checkpoint has tensors in named sections ("model", "optimizer"), values (numbers and texts by name) and files. It
 * appears whole, by one rename, when all of it is on disk, and is never written again. Loading takes any distribution
 * over any ranks, whatever was saved: each rank reads the parts that it needs, and checks what it reads.
 *
 * (What a forward computes again in the backward is fsdp_checkpoint in fsdp/autograd.h, and has nothing to do with it.)
 */
#ifndef FSDP_CHECKPOINT_H
#define FSDP_CHECKPOINT_H

#include "fsdp/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is in it ---- */

/* Tensors under a name of at most 64 letters, digits, '_' and '-'. */
typedef struct fsdp_checkpoint_section {
    const char *name;
    fsdp_state_dict *state; /* the same names on all ranks, but: */
    /* Ranks have tensors of their own, whole ones, as a partitioned optimizer has (fsdp_optimizer_partition_state):
     * whoever has one writes it, and no two have one name. They are loaded with `partial`. The same on all ranks. */
    bool own;
} fsdp_checkpoint_section;

typedef enum fsdp_checkpoint_value_type {
    FSDP_CHECKPOINT_INTEGER,
    FSDP_CHECKPOINT_NUMBER, /* a double; comes back to the bit */
    FSDP_CHECKPOINT_TEXT,   /* UTF-8 */
} fsdp_checkpoint_value_type;

typedef struct fsdp_checkpoint_value {
    const char *name;
    fsdp_checkpoint_value_type type;
    int64_t integer;
    double number;
    const char *text;
} fsdp_checkpoint_value;

/* A file that stands beside the tensors: a plain name, no file of the checkpoint's own. */
typedef struct fsdp_checkpoint_file {
    const char *name;
    const void *data;
    size_t bytes;
} fsdp_checkpoint_file;

typedef struct fsdp_checkpoint_content {
    int64_t step; /* not negative */
    const fsdp_checkpoint_section *sections;
    int section_count;
    /* Of rank 0; those of others are not looked at. */
    const fsdp_checkpoint_value *values;
    int value_count;
    const fsdp_checkpoint_file *files;
    int file_count;
    fsdp_mesh *mesh; /* noted for people; NULL: none */
} fsdp_checkpoint_content;

/* ---- saving ---- */

typedef struct fsdp_checkpoint_saver fsdp_checkpoint_saver;

typedef struct fsdp_checkpoint_saver_options {
    int64_t keep_latest_k; /* the newest so many stay, older ones go; 0: all stay */
    int64_t keep_every;    /* steps that are multiples of it stay for good; 0: none */
    /* A save copies what this rank writes (fsdp_checkpoint_snapshot_bytes), and a thread writes the copy. */
    bool async;
} fsdp_checkpoint_saver_options;

/* For the checkpoints of one run in `folder`, which the first save makes if need be. `group` has all ranks that share
 * what will be saved, and its first rank decides and publishes. options may be NULL. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_checkpoint_saver_create(const char *folder, const fsdp_checkpoint_saver_options *options,
                                                  fsdp_process_group *group, fsdp_checkpoint_saver **out);
/* Saves <folder>/step-<content->step>. Each rank writes the parts of which it is the writer
 * (fsdp_state_dict_entry.writer) to a file of its own. Before anything is written it is found out whether step-N is
 * there already, which is an error, whether there is room, and whether the tensors have values. What goes wrong on any
 * rank is everybody's error, naming rank and file; nothing of the save remains then, and older checkpoints stay as they
 * are. What processes that died in a save have left in the folder is removed, and so are checkpoints that the options
 * do not keep: never the one just saved nor the newest. Files that are none of the checkpoint's stay where they are,
 * with a warning, and so do checkpoints of another user's; a temporary folder of theirs (step-N.saving) is an error.
 *
 * Asynchronous, it returns when the copy is made: tensors may change, and the checkpoint is there when poll or wait
 * says so. One is under way at a time: this call waits for the one before, and returns its failure instead of saving.
 * [collective] [blocks] */
FSDP_API fsdp_status fsdp_checkpoint_saver_save(fsdp_checkpoint_saver *saver, const fsdp_checkpoint_content *content);
/* Publishes a save whose ranks have all written their files. `*out_step` (may be NULL) is its step, or -1 when none has
 * ended with this call. Returns the failure of a save under way, once. One small exchange while there is one, else
 * nothing is communicated. [collective] */
FSDP_API fsdp_status fsdp_checkpoint_saver_poll(fsdp_checkpoint_saver *saver, int64_t *out_step);
/* The same, waiting for the save under way. [collective] [blocks] */
FSDP_API fsdp_status fsdp_checkpoint_saver_wait(fsdp_checkpoint_saver *saver, int64_t *out_step);
/* Step of the save under way, or -1. Local. */
FSDP_API int64_t fsdp_checkpoint_saver_pending(const fsdp_checkpoint_saver *saver);
/* Steps that are never removed from now on, instead of those given before: "the best so far". They are copied. */
FSDP_API fsdp_status fsdp_checkpoint_saver_pin(fsdp_checkpoint_saver *saver, const int64_t *steps, int count);
/* Ends the save under way, if it is not published yet, and all later ones: FSDP_INTERRUPTED. Removes what it has made
 * on disk. For a program that is about to end. From any thread; NULL is allowed. [thread-safe] [blocks] */
FSDP_API void fsdp_checkpoint_saver_abandon(fsdp_checkpoint_saver *saver);
/* Gives up a save under way: call fsdp_checkpoint_saver_wait before. NULL is allowed. [blocks] */
FSDP_API void fsdp_checkpoint_saver_free(fsdp_checkpoint_saver *saver);

/* Bytes of the copy that an asynchronous save of this makes on this rank, in the host's memory (counted as workspace of
 * the CPU device). It is kept for the next save. 0 for what cannot be saved. */
FSDP_API size_t fsdp_checkpoint_snapshot_bytes(const fsdp_checkpoint_content *content);
/* One checkpoint, without a saver: all others stay. [collective] [blocks] */
FSDP_API fsdp_status fsdp_checkpoint_save(const char *folder, const fsdp_checkpoint_content *content,
                                          fsdp_process_group *group);

/* ---- finding ---- */

/* Steps of which `folder` has a step-N, ascending; the caller frees `*out` with free(). Whether they are whole is not
 * looked at, but a step-N that cannot be looked into, such as a link to nowhere, is an error. A folder that is not
 * there has none. */
FSDP_API fsdp_status fsdp_checkpoint_list(const char *folder, int64_t **out, int64_t *out_count);
enum {
    FSDP_CHECKPOINT_NEWEST = -1,
    FSDP_CHECKPOINT_BEST = -2
};
/* An integer among the values of a checkpoint: the step after which the lowest validation loss so far was measured. The
 * best of a folder is the checkpoint of the step that the newest one says. A training run saves it. */
#define FSDP_CHECKPOINT_BEST_STEP "validation.best_step"
/* Path of <folder>/step-<step>, or of the newest or the best: the caller frees `*out` with free(). FSDP_NOT_FOUND when
 * there is none, as of the best where nothing was validated, or its checkpoint was not kept. It is whole: manifest,
 * files and their sizes have been looked at; one that is not is an error, and never passed over in favour of an older
 * one. */
FSDP_API fsdp_status fsdp_checkpoint_find(const char *folder, int64_t step, char **out);
/* Whether the name <folder>/step-<step> is taken. */
FSDP_API bool fsdp_checkpoint_exists(const char *folder, int64_t step);

/* ---- reading ---- */

typedef struct fsdp_checkpoint_reader fsdp_checkpoint_reader;

/* A part of a tensor, in one rank's file. */
typedef struct fsdp_checkpoint_part {
    const char *file;
    int rank;                                           /* that has written it */
    bool flat;                                          /* a run of elements: offset[0], size[0] */
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS]; /* else a box */
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

/* `path` is a step-N, by whatever name; or a folder of them: then the newest; or <folder>/step-best: the best. Read and
 * checked: the manifest, that every tensor has each of its elements once, the files' names, sizes and headers, and the
 * small files whole. Local; the caller closes `*out`, on the thread that uses it. */
FSDP_API fsdp_status fsdp_checkpoint_open(const char *path, fsdp_checkpoint_reader **out);
FSDP_API void fsdp_checkpoint_close(fsdp_checkpoint_reader *reader); /* NULL is allowed */
FSDP_API const char *fsdp_checkpoint_path(const fsdp_checkpoint_reader *reader);
FSDP_API int64_t fsdp_checkpoint_step(const fsdp_checkpoint_reader *reader);
FSDP_API int fsdp_checkpoint_world_size(const fsdp_checkpoint_reader *reader); /* ranks that saved it */
/* "dp_replicate=2 dp_shard=4"; "" where none was given. */
FSDP_API const char *fsdp_checkpoint_mesh(const fsdp_checkpoint_reader *reader);

/* Tensors, by section in the order saved, and by name in it. */
FSDP_API int64_t fsdp_checkpoint_count(const fsdp_checkpoint_reader *reader);
FSDP_API const fsdp_checkpoint_tensor *fsdp_checkpoint_at(const fsdp_checkpoint_reader *reader, int64_t index);
FSDP_API const fsdp_checkpoint_tensor *fsdp_checkpoint_tensor_find(const fsdp_checkpoint_reader *reader,
                                                                   const char *section, const char *name); /* or NULL */
FSDP_API bool fsdp_checkpoint_has_section(const fsdp_checkpoint_reader *reader, const char *section);

/* Values in the order saved. */
FSDP_API int fsdp_checkpoint_value_count(const fsdp_checkpoint_reader *reader);
FSDP_API const fsdp_checkpoint_value *fsdp_checkpoint_value_at(const fsdp_checkpoint_reader *reader, int index);
/* FSDP_NOT_FOUND when it has no such value, FSDP_FORMAT for one of another type; `*out` stays as it was. A text is the
 * reader's. */
FSDP_API fsdp_status fsdp_checkpoint_get_integer(const fsdp_checkpoint_reader *reader, const char *name, int64_t *out);
FSDP_API fsdp_status fsdp_checkpoint_get_number(const fsdp_checkpoint_reader *reader, const char *name, double *out);
FSDP_API fsdp_status fsdp_checkpoint_get_text(const fsdp_checkpoint_reader *reader, const char *name, const char **out);

/* The small files, in the order saved. Their bytes are the reader's, with a NUL behind them that does not count. */
FSDP_API int fsdp_checkpoint_file_count(const fsdp_checkpoint_reader *reader);
FSDP_API const fsdp_checkpoint_file *fsdp_checkpoint_file_at(const fsdp_checkpoint_reader *reader, int index);
FSDP_API const fsdp_checkpoint_file *fsdp_checkpoint_file_find(const fsdp_checkpoint_reader *reader,
                                                               const char *name); /* or NULL */

typedef struct fsdp_checkpoint_load_options {
    bool partial;               /* names that only one of the two has are passed over (PyTorch's strict=False) */
    fsdp_state_dict_keys *keys; /* gets these, for the caller to release; also where they are an error. NULL: nobody */
} fsdp_checkpoint_load_options;

/* Writes to this rank's part of every entry what the section has there, in any distribution, converting between
 * floating dtypes. Reads what this rank needs, a window of a few MiB at a time, and checks each block of it before it
 * is used. Missing and surplus names, shapes and dtypes that do not fit, the meta device, and shards that cannot be
 * written now (their module runs, or is summoned) are errors before anything is changed; a checksum that does not fit
 * is one that names file and tensors, and the state holds parts of both then. Ranks look at their own parts only, so
 * one may fail alone: fsdp_agree on the result. options may be NULL. */
FSDP_API fsdp_status fsdp_checkpoint_load(fsdp_checkpoint_reader *reader, const char *section, fsdp_state_dict *state,
                                          const fsdp_checkpoint_load_options *options);
/* Elements [first, first + numel) of a tensor, row-major, in its own dtype; checked as above. */
FSDP_API fsdp_status fsdp_checkpoint_read(fsdp_checkpoint_reader *reader, const fsdp_checkpoint_tensor *tensor,
                                          int64_t first, int64_t numel, void *out);

/* Reads all of it and compares every checksum; what is wrong with the first that differs is the error. `progress` (may
 * be NULL) is told every few MiB, and what it returns but FSDP_OK ends it. */
typedef fsdp_status (*fsdp_checkpoint_progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
FSDP_API fsdp_status fsdp_checkpoint_verify(fsdp_checkpoint_reader *reader, fsdp_checkpoint_progress progress,
                                            void *arg);

#ifdef __cplusplus
}
#endif
#endif
