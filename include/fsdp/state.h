/* fsdp/state.h - state dicts: the neutral currency between the makers of tensors (modules, optimizers) and files:
 * names, global shapes, and the part this rank holds. Making one moves and copies nothing: entries alias live memory.
 * One that was made before its modules were sharded says where tensors were then: saves and loads refuse it
 * (FSDP_STATE), and another one has to be made. */
#ifndef FSDP_STATE_H
#define FSDP_STATE_H

#include "fsdp/dist.h"
#include "fsdp/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_state_dict_entry {
    char *name;
    fsdp_tensor *tensor; /* local part, contiguous; the state dict holds a reference */
    int ndim;
    int64_t global_shape[FSDP_MAX_DIMS];
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS]; /* my box in the global tensor; size has a 0 when I hold none */
    bool flat;       /* no box, but a run of the global tensor's elements, row-major: offset[0], size[0] (FSDP_FLAT) */
    bool replicated; /* every rank of the world holds this box: one of them writes it */
    bool writer;     /* this rank writes its box: false for an empty one; of replicas in the tensor's mesh the first in
                      * every replicated dimension, of a plain tensor rank 0 */
} fsdp_state_dict_entry;

typedef struct fsdp_state_dict {
    int64_t count;
    fsdp_state_dict_entry *entries; /* in the order added */
} fsdp_state_dict;

/* Parameters (and persistent buffers) of a module under their dotted names, tied ones once under their first name. The
 * module must be sharded state (fsdp_module_reshard of what is not): an error names a parameter that is gathered. */
FSDP_API fsdp_status fsdp_state_dict_from_module(fsdp_module *module, fsdp_state_dict **out);
FSDP_API fsdp_status fsdp_state_dict_create(fsdp_state_dict **out);
/* Adds a tensor under a name that is not there yet; box and shape from its distribution. Refused: a taken name, a
 * tensor that is not contiguous or is partial over a mesh dimension. */
FSDP_API fsdp_status fsdp_state_dict_add(fsdp_state_dict *state, const char *name, fsdp_tensor *tensor);
FSDP_API void fsdp_state_dict_free(fsdp_state_dict *state);
FSDP_API const fsdp_state_dict_entry *fsdp_state_dict_find(const fsdp_state_dict *state,
                                                           const char *name); /* NULL when absent */

/* Names that only one of the two has, of what a state dict is loaded from. */
typedef struct fsdp_state_dict_keys {
    int64_t missing_count, unexpected_count;
    char **missing;    /* in the state, and not there */
    char **unexpected; /* there, and not in the state */
} fsdp_state_dict_keys;
FSDP_API void fsdp_state_dict_keys_release(fsdp_state_dict_keys *keys); /* NULL is allowed */

/* ---- whole tensors ----
 *
 * One tensor at a time: beside what is kept, no rank holds more than one whole tensor (with rows padded to a multiple
 * of the ranks where they are gathered; one more of it where another dimension than the first is split). All ranks of
 * the context must make the call, with the same entries in the same order; FSDP_MISMATCH names a rank that has others.
 */

typedef struct fsdp_full_state_options {
    bool cpu_offload; /* gather: into the host's memory, on rank 0 alone; the others get a state dict without entries */
    /* Gather, FSDP1's FullStateDictConfig: on the first rank of those that hold parts together, so of each replica, and
     * on all where every rank holds all; into the host's memory, of those who get it. */
    bool rank0_only, offload_to_cpu;
    bool broadcast_from_rank0; /* load: rank 0 alone has the full state dict; NULL will do on the others */
    bool partial;              /* load (PyTorch's strict=False): names that only one of the two has are passed over */
    /* Load: `full` may hold parts, in any placements over any mesh of the ranks, whoever made it: a part that a rank
     * needs of itself is copied, others are gathered, one whole tensor at a time. */
    bool from_parts;
} fsdp_full_state_options;

/* Every entry whole, under its name, in a new state dict: copies, on the device of their parts or, with cpu_offload, on
 * the CPU. options may be NULL. Errors name the entry: on the meta device. The caller owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_state_dict_gather(const fsdp_state_dict *state, const fsdp_full_state_options *options,
                                            fsdp_state_dict **out);
/* Writes to this rank's part of every entry what `full` has there, with conversion between floating dtypes, from any
 * device: from each rank's own full state dict, without communication of tensors, or broadcast by rank 0. What is wrong
 * on any rank is an error on all, naming the entry, before anything is written: one that `full` lacks, one that belongs
 * nowhere, another shape, a part of a tensor, the meta device, a shard that cannot be written now. options may be NULL.
 * [collective] */
FSDP_API fsdp_status fsdp_state_dict_load_full(const fsdp_state_dict *state, const fsdp_state_dict *full,
                                               const fsdp_full_state_options *options);

/* ---- parts by rows (FSDP1's SHARDED_STATE_DICT) ---- */

typedef struct fsdp_sharded_state_options {
    bool offload_to_cpu; /* in the host's memory: copies, where that is not their device */
    /* What every rank holds (NO_SHARD) is cut over those ranks, too: PyTorch does so with the state of optimizers, not
     * with that of modules. */
    bool over_replicas;
} fsdp_sharded_state_options;

/* Every entry in a new state dict as parts by the chunk rule over dimension 0, whatever its parts were: those that are
 * cut so already, and what is not cut, are the same tensors; of others there are copies, made through one whole tensor
 * at a time. options may be NULL. The same on all ranks as fsdp_state_dict_gather. The caller owns `*out`. [collective]
 */
FSDP_API fsdp_status fsdp_state_dict_shard_rows(const fsdp_state_dict *state, const fsdp_sharded_state_options *options,
                                                fsdp_state_dict **out);

/* ---- FSDP1's types of a state dict, as one word ---- */

typedef enum fsdp_state_dict_type {
    FSDP_FULL_STATE_DICT,    /* whole tensors: fsdp_state_dict_gather */
    FSDP_SHARDED_STATE_DICT, /* parts by rows: fsdp_state_dict_shard_rows */
    FSDP_LOCAL_STATE_DICT,   /* the parts as they are, without communication */
} fsdp_state_dict_type;

/* FullStateDictConfig, ShardedStateDictConfig, LocalStateDictConfig, and those of optimizers. All zero: FULL, on all
 * ranks, where its parts are. */
typedef struct fsdp_state_dict_config {
    fsdp_state_dict_type type;
    bool offload_to_cpu;
    bool rank0_only;    /* FULL: as in fsdp_full_state_options */
    bool over_replicas; /* SHARDED: as in fsdp_sharded_state_options */
} fsdp_state_dict_config;

/* `state` as the type says, in a new state dict; of any of them fsdp_state_dict_load_full takes all with from_parts,
 * and a full one on rank 0 with broadcast_from_rank0. The caller owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_state_dict_of_type(const fsdp_state_dict *state, const fsdp_state_dict_config *config,
                                             fsdp_state_dict **out);

/* ---- box arithmetic ---- */
/* Intersection of two boxes; false when empty (then a size is 0). */
FSDP_API bool fsdp_box_intersect(int ndim, const int64_t *offset_a, const int64_t *size_a, const int64_t *offset_b,
                                 const int64_t *size_b, int64_t *offset, int64_t *size);
/* Calls `run` for each maximal contiguous run of the box in a row-major tensor of `shape`: `global` is the run's first
 * element in the whole tensor, `local` in the box (row-major, size as given), `numel` its length. A box of full rows is
 * one run, an empty box none. Stops at the first failure and returns it. */
typedef fsdp_status (*fsdp_box_run)(void *arg, int64_t global, int64_t local, int64_t numel);
FSDP_API fsdp_status fsdp_box_runs(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size,
                                   fsdp_box_run run, void *arg);
/* The same of what this rank holds of an entry, flat or not. */
FSDP_API fsdp_status fsdp_state_dict_entry_runs(const fsdp_state_dict_entry *entry, fsdp_box_run run, void *arg);

#ifdef __cplusplus
}
#endif
#endif
