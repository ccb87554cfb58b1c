/* fsdp/state.h - state dicts: what modules and optimizers exchange with files.
 *
 * A state dict holds names, global shapes, and the part of each tensor that this rank holds. Making one moves and
 * copies nothing: entries alias live memory. One that was made before its modules were sharded describes where tensors
 * were then: saves and loads refuse it (FSDP_STATE), and a new one has to be made. */
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
    /* Where this rank's box begins, and the local shape; a size is 0 if it is empty. A part may be several boxes. */
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    fsdp_piece pieces[FSDP_MAX_SEGMENTS]; /* the boxes (fsdp_distribution_pieces) */
    int piece_count;
    bool flat;       /* a run of the tensor's elements, row-major, instead of a box: offset[0], size[0] (FSDP_FLAT) */
    bool replicated; /* every rank of the world holds this box, and one of them writes it */
    bool writer; /* this rank writes its box; false for an empty one. Of a mesh's replicas the first writes (coordinate
                  * 0 in every replicated dimension), a plain tensor is written by rank 0. A slice of a mesh has its own
                  * writers; if ranks of several slices save together, only the first of them writes */
} fsdp_state_dict_entry;

typedef struct fsdp_state_dict {
    int64_t count;
    fsdp_state_dict_entry *entries; /* in the order added */
} fsdp_state_dict;

/* Makes a state dict of a module's parameters (and persistent buffers) under their dotted names, tied ones once under
 * their first name. The module must be in its sharded state (call fsdp_module_reshard): an error names a parameter that
 * is gathered. */
FSDP_API fsdp_status fsdp_state_dict_from_module(fsdp_module *module, fsdp_state_dict **out);
FSDP_API fsdp_status fsdp_state_dict_create(fsdp_state_dict **out);
/* Adds a tensor under a new name; its box and shape come from its distribution. Errors: a name that is taken, a tensor
 * that is not contiguous or is partial over a mesh dimension. */
FSDP_API fsdp_status fsdp_state_dict_add(fsdp_state_dict *state, const char *name, fsdp_tensor *tensor);
FSDP_API void fsdp_state_dict_free(fsdp_state_dict *state);
FSDP_API const fsdp_state_dict_entry *fsdp_state_dict_find(const fsdp_state_dict *state,
                                                           const char *name); /* NULL if there is none */

/* Lists the names that only the state, or only the source it is loaded from, has. */
typedef struct fsdp_state_dict_keys {
    int64_t missing_count, unexpected_count;
    char **missing;    /* in the state, not in the source */
    char **unexpected; /* in the source, not in the state */
} fsdp_state_dict_keys;
FSDP_API void fsdp_state_dict_keys_release(fsdp_state_dict_keys *keys); /* NULL is allowed */

/* ---- whole tensors ----
 *
 * These functions process one tensor at a time: besides what is kept, no rank holds more than one whole tensor (with
 * rows padded to a multiple of the ranks if it is gathered; a second one if another dimension than the first is split,
 * or one by segments). All ranks of the context must make the call, with the same entries in the same order;
 * FSDP_MISMATCH names a rank that has others, or none: the empty state dict that a gather, a module or an optimizer
 * gave counts like any other. Only one that was made empty (fsdp_state_dict_create) and still is does not know its
 * ranks: FSDP_INVALID. */

typedef struct fsdp_full_state_options {
    bool cpu_offload; /* gather: into host memory, on rank 0 only; the others get an empty state dict */
    /* These apply to a gather, as in FSDP1's FullStateDictConfig. With rank0_only only the first of the ranks that hold
     * parts together gets the result: one in each replica, or all ranks if every rank holds all. With offload_to_cpu it
     * lies in host memory. */
    bool rank0_only, offload_to_cpu;
    bool broadcast_from_rank0; /* load: only rank 0 has the full state dict; the others may pass NULL */
    bool partial;              /* load: ignore names that only one of the two has (PyTorch's strict=False) */
    /* For a load: `full` may hold parts, in any placements over any mesh of the ranks, from any source. A part that a
     * rank needs and has is copied; parts that it lacks are gathered, one whole tensor at a time. */
    bool from_parts;
} fsdp_full_state_options;

/* Gathers every entry whole, under its name, into a new state dict: copies on the device of the parts or, with
 * cpu_offload, on the CPU. `options` may be NULL. An entry on the meta device is an error that names it. The caller
 * owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_state_dict_gather(const fsdp_state_dict *state, const fsdp_full_state_options *options,
                                            fsdp_state_dict **out);
/* Loads this rank's part of every entry from `full`, converting between floating dtypes, from any device: from each
 * rank's own full state dict, without communication of tensors, or broadcast by rank 0. An error on any rank is an
 * error on all, names the entry, and comes before anything is written: an entry that `full` lacks or that belongs
 * nowhere, another shape, a part of a tensor, the meta device, a shard that cannot be written now. `options` may be
 * NULL. [collective] */
FSDP_API fsdp_status fsdp_state_dict_load_full(const fsdp_state_dict *state, const fsdp_state_dict *full,
                                               const fsdp_full_state_options *options);

/* ======== for experts: most programs need nothing below ======== */

/* ---- parts by rows (FSDP1's SHARDED_STATE_DICT) ---- */

typedef struct fsdp_sharded_state_options {
    bool offload_to_cpu; /* into host memory: copies, unless the tensors are there already */
    /* Tensors that every rank holds (NO_SHARD) are also split over those ranks: PyTorch does so with optimizer state,
     * not with module state. */
    bool over_replicas;
} fsdp_sharded_state_options;

/* Makes a new state dict in which every entry is split by the chunk rule over dimension 0, whatever its parts were.
 * Entries that are split so already, or are not split, are the same tensors; others are copies, made through one whole
 * tensor at a time. `options` may be NULL. All ranks must agree as for fsdp_state_dict_gather. The caller owns `*out`.
 * [collective] */
FSDP_API fsdp_status fsdp_state_dict_shard_rows(const fsdp_state_dict *state, const fsdp_sharded_state_options *options,
                                                fsdp_state_dict **out);

/* ---- FSDP1's state dict types ---- */

typedef enum fsdp_state_dict_type {
    FSDP_FULL_STATE_DICT,    /* whole tensors: fsdp_state_dict_gather */
    FSDP_SHARDED_STATE_DICT, /* parts by rows: fsdp_state_dict_shard_rows */
    FSDP_LOCAL_STATE_DICT,   /* the parts as they are, without communication */
} fsdp_state_dict_type;

/* Combines FullStateDictConfig, ShardedStateDictConfig and LocalStateDictConfig, and those of optimizers. All zero:
 * FULL, on all ranks, on the device of the parts. */
typedef struct fsdp_state_dict_config {
    fsdp_state_dict_type type;
    bool offload_to_cpu;
    bool rank0_only;    /* FULL: as in fsdp_full_state_options */
    bool over_replicas; /* SHARDED: as in fsdp_sharded_state_options */
} fsdp_state_dict_config;

/* Makes a new state dict of the type from `state`. fsdp_state_dict_load_full loads any of them with from_parts, and a
 * full one on rank 0 with broadcast_from_rank0. The caller owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_state_dict_of_type(const fsdp_state_dict *state, const fsdp_state_dict_config *config,
                                             fsdp_state_dict **out);

/* Calls `run` (fsdp/dist.h) for each maximal run of elements of what this rank holds of an entry that are contiguous in
 * the whole tensor and in the local one, in the local tensor's order. Stops at the first failure and returns it. */
FSDP_API fsdp_status fsdp_state_dict_entry_runs(const fsdp_state_dict_entry *entry, fsdp_box_run run, void *arg);

#ifdef __cplusplus
}
#endif
#endif
