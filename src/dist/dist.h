/* dist.h - the inside of a mesh, and arithmetic on placements. */
#ifndef DIST_DIST_H
#define DIST_DIST_H

#include "fsdp/dist.h"
#include "tensor/tensor.h"

struct fsdp_mesh {
    int64_t refs;
    fsdp_context *context;
    fsdp_mesh *parent; /* of a slice: owns the groups */
    int ndim;
    int64_t shape[FSDP_MAX_MESH_DIMS];
    char *names[FSDP_MAX_MESH_DIMS];
    int coordinate[FSDP_MAX_MESH_DIMS];
    fsdp_process_group *groups[FSDP_MAX_MESH_DIMS];
    int *ranks; /* global ranks, row-major */
};

/* Checks that `placements` (one per mesh dimension) fit a tensor of `ndim` dimensions. */
fsdp_status fsdp__placements_check(const fsdp_mesh *mesh, const fsdp_placement *placements, int ndim);
bool fsdp__placement_equal(fsdp_placement a, fsdp_placement b);

#endif
