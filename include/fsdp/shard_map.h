/* fsdp/shard_map.h - which rank has what: the unit of every parameter and this rank's part, for FSDP2, FSDP1 and DDP
 * alike. fsdp_module_print shows the units in the tree:
 *
 *     [fully_shard: 3 parameters, 65664 elements, over 2 ranks] LlamaForCausalLM(
 *       (model): LlamaModel(
 *         (layers): ModuleList(
 *           (0-3): 4 x [fully_shard: 9 parameters, 233728 elements, over 2 ranks] LlamaDecoderLayer(
 */
#ifndef FSDP_SHARD_MAP_H
#define FSDP_SHARD_MAP_H

#include "fsdp/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_front_door {
    FSDP_DOOR_NONE,        /* not sharded, or ignored */
    FSDP_DOOR_FULLY_SHARD, /* fsdp/shard.h */
    FSDP_DOOR_FSDP1,       /* fsdp/fsdp1.h */
    FSDP_DOOR_REPLICATE    /* fsdp/replicate.h */
} fsdp_front_door;

typedef struct fsdp_shard_map_entry {
    const char *name; /* dotted, relative to the module given; tied ones under their first name */
    fsdp_front_door door;
    /* Dotted name of the module that was sharded or replicated, relative to the module given ("" for that module
     * itself); several names are separated by commas. NULL: none, or a module that is not below the one given. */
    const char *unit;
    fsdp_dtype dtype; /* of the shard */
    bool trained;     /* requires a gradient */
    int ndim;
    int64_t shape[FSDP_MAX_DIMS]; /* of the whole parameter */
    int64_t numel;                /* of the whole parameter */
    int64_t local_numel;          /* of this rank's part, without padding */
    int ranks, rank;              /* ranks that it is sharded over (1: it is not), and this rank among them */
    int replicas;                 /* number of ranks that hold the same part */
    /* This rank's part: indices [first, first + count) of dimension `dim`. In a flat group `dim` is -1, and these are
     * elements of the parameter as one run. */
    int dim;
    int64_t first, count;
    /* The same as boxes of the parameter: several where fused projections are cut by heads, none where the part is
     * empty or a run of a flat group. Tensor parallel may cut another dimension too: `across`; -1: there is none. */
    int piece_count, across;
    int piece_most; /* of any rank, at most */
    fsdp_piece pieces[FSDP_MAX_SEGMENTS];
    /* In a flat group: the position of this part in this rank's part of the flat vector, which has flat_numel elements
     * with padding. -1: not flat, or this rank has no part. */
    int64_t in_flat, flat_numel;
} fsdp_shard_map_entry;

typedef struct fsdp_shard_map {
    int64_t count;
    fsdp_shard_map_entry *items; /* in the order of the module tree, each once; the parts of a flat parameter */
} fsdp_shard_map;

/* Lists the parameters. A local call, at any time; all ranks get the same entries, except for their own parts. */
FSDP_API fsdp_status fsdp_module_shard_map(fsdp_module *module, fsdp_shard_map *out);
FSDP_API void fsdp_shard_map_release(fsdp_shard_map *map); /* NULL and zeros are allowed */

#ifdef __cplusplus
}
#endif
#endif
