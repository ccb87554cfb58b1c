/* support/layouts.h - draws how a mesh cuts a tensor, and says by the definition which elements each rank holds. */
#pragma once

#include "fsdp/dist.h"

enum {
    LAYOUT_MAX_LENGTH = 64 /* of a dimension of the tensor */
};

typedef struct drawn_layout {
    int mesh_ndim, ndim;
    int64_t mesh[FSDP_MAX_MESH_DIMS], shape[FSDP_MAX_DIMS];
    int order[FSDP_MAX_MESH_DIMS]; /* in which the mesh dimensions cut */
    fsdp_placement placements[FSDP_MAX_MESH_DIMS];
} drawn_layout;

/* Draws placements: replicated or sharded in a random order of mesh dimensions, with the split factors that follow from
 * it, and sometimes with segments. */
void layout_draw(uint64_t *dice, int mesh_ndim, const int64_t *mesh, int ndim, const int64_t *shape, drawn_layout *out);
/* Lists the elements (row-major numbers in the whole tensor) of the part at these coordinates, in local order, and
 * gives its shape. Returns their number. */
int64_t layout_elements(const drawn_layout *l, const int *coordinates, int64_t *elements, int64_t *local_shape);
/* Returns how many ranks hold each element. */
int64_t layout_copies(const drawn_layout *l);
