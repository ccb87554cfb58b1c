/* fsdp/shard_map.h - who has what: of every parameter its unit, and this rank's part, whichever front door it came
 * through. fsdp_module_print shows the units in the tree:
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
    FSDP_DOOR_NONE,        /* it is nobody's: not sharded, or ignored */
    FSDP_DOOR_FULLY_SHARD, /* fsdp/shard.h */
    FSDP_DOOR_FSDP1,       /* fsdp/fsdp1.h */
    FSDP_DOOR_REPLICATE    /* fsdp/replicate.h */
} fsdp_front_door;

typedef struct fsdp_shard_map_entry {
    const char *name; /* dotted, from the module asked; tied ones under their first */
    fsdp_front_door door;
    /* Dotted name of the module that it came through the door with, from the module asked ("" for that itself); of
     * several the names, with commas between. NULL: nobody's, or that of a module which is not below the one asked. */
    const char *unit;
    fsdp_dtype dtype; /* of the shard */
    bool trained;     /* it requires a gradient */
    int ndim;
    int64_t shape[FSDP_MAX_DIMS]; /* whole */
    int64_t numel;                /* of all of it */
    int64_t local_numel;          /* of this rank's part, without padding */
    int ranks, rank;              /* that it is sharded over, 1: it is not; this one among them */
    int replicas;                 /* ranks that hold the same part */
    /* This rank's part: of dimension `dim` the indices [first, first + count). Of a flat group `dim` is -1, and these
     * are elements of the parameter, seen as one run. */
    int dim;
    int64_t first, count;
    /* Of a flat group: where they lie in this rank's part of the flat vector, of flat_numel elements with padding. -1:
     * not flat, or this rank has nothing of it. */
    int64_t in_flat, flat_numel;
} fsdp_shard_map_entry;

typedef struct fsdp_shard_map {
    int64_t count;
    fsdp_shard_map_entry *items; /* in the order of the module tree, each once; of a flat parameter its parts */
} fsdp_shard_map;

/* Local, at any time; the same entries on all ranks, but for their own parts. */
FSDP_API fsdp_status fsdp_module_shard_map(fsdp_module *module, fsdp_shard_map *out);
FSDP_API void fsdp_shard_map_release(fsdp_shard_map *map); /* NULL and zeros are allowed */

#ifdef __cplusplus
}
#endif
#endif
