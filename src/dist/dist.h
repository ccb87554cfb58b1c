/* dist.h - the inside of a mesh, and arithmetic on placements. */
#pragma once

#include "base/compiler.h"
#include "fsdp/dist.h"
#include "tensor/tensor.h"

/* Lists dimensions of one mesh that together are one dimension of another, row-major; none: that dimension has size
 * 1. */
typedef struct fsdp__mesh_axes {
    int count, axes[FSDP_MAX_MESH_DIMS];
} fsdp__mesh_axes;

/* Describes a group over several dimensions of a mesh. */
typedef struct fsdp__joint_group {
    struct fsdp__joint_group *next;
    fsdp__mesh_axes axes;
    fsdp_process_group *group;
} fsdp__joint_group;

struct fsdp_mesh {
    int64_t refs;
    fsdp_context *context;
    fsdp_mesh *held; /* has the groups that this mesh uses; may be NULL */
    bool is_part;    /* of `held`: a slice of it, or some of its dimensions flattened */
    int ndim;
    int64_t shape[FSDP_MAX_MESH_DIMS];
    char *names[FSDP_MAX_MESH_DIMS];
    int coordinate[FSDP_MAX_MESH_DIMS];
    fsdp_process_group *groups[FSDP_MAX_MESH_DIMS];
    bool borrowed[FSDP_MAX_MESH_DIMS];        /* the group belongs to somebody else */
    fsdp__mesh_axes axes[FSDP_MAX_MESH_DIMS]; /* of a part: what each dimension is made of in `held` */
    fsdp__joint_group *joint;                 /* not in a part: made when first asked for, and shared by parts */
    int *ranks;                               /* global ranks, row-major */
};

/* ---- mesh.c: for those that make meshes ---- */

/* Makes a mesh with sizes and names only, and room for the ranks. */
fsdp_status fsdp__mesh_new(fsdp_context *context, int ndim, const int64_t *shape, const char *const *names,
                           fsdp_mesh **out);
int64_t fsdp__mesh_index(const fsdp_mesh *mesh, const int *coordinates);
void fsdp__mesh_coordinates(const fsdp_mesh *mesh, int64_t index, int *coordinates);
/* Makes the group of the ranks that differ from this one in dimension `dim` only. [collective] of the world */
fsdp_status fsdp__mesh_make_group(fsdp_mesh *mesh, int dim);

/* ---- submesh.c ---- */

typedef struct fsdp__mesh_names {
    int count;
    const char *const *names;
} fsdp__mesh_names;

/* Makes the part of `mesh` that contains this rank. Its dimension i, called names[i], is the dimensions dims[i] of
 * `mesh` flattened; if dims[i] is empty, it is this rank alone. `what` says for messages what is being done: "slice a
 * mesh". [collective] of the world if a dimension is made of none or several, the first time for these. */
fsdp_status fsdp__mesh_part(fsdp_mesh *mesh, const char *what, int ndim, const fsdp__mesh_names *dims,
                            const char *const *names, fsdp_mesh **out);

/* Makes the mesh of all dimensions of two parts of one mesh, in that mesh's order and under their names. Others have
 * no dimensions in common that could be ordered: an error that names both. The caller owns `*out`. */
fsdp_status fsdp__mesh_join(fsdp_mesh *a, fsdp_mesh *b, fsdp_mesh **out);

/* ---- placements.c ---- */

bool fsdp__placement_equal(fsdp_placement a, fsdp_placement b);
/* Returns the mesh dimension of the flat placement, or -1 if there is none. */
int fsdp__flat_dim(const fsdp_placement *placements, int count);

#define FSDP__PLACEMENTS_TEXT 512
/* Writes placements as PyTorch prints them: "(_StridedShard(dim=0, sf=2), Shard(dim=0))". Returns `text`. */
const char *fsdp__placements_text(const fsdp_placement *placements, int count, char text[FSDP__PLACEMENTS_TEXT]);
#define FSDP__PLACEMENTS(list, count) fsdp__placements_text((list), (count), (char[FSDP__PLACEMENTS_TEXT]){0})
#define FSDP__MESH_TEXT 256
/* Writes the dimensions of a mesh: "(dp=2, tp=4)". Returns `text`. */
const char *fsdp__mesh_text(const fsdp_mesh *mesh, char text[FSDP__MESH_TEXT]);
#define FSDP__MESH(mesh) fsdp__mesh_text((mesh), (char[FSDP__MESH_TEXT]){0})

/* ---- distribution.c ---- */

/* Checks that `placements` (one per mesh dimension) fit a tensor. */
fsdp_status fsdp__placements_check(const fsdp_mesh *mesh, const fsdp_placement *placements, int ndim,
                                   const int64_t *shape);

/* ---- pieces.c ---- */

/* Lists the mesh dimensions in the order in which they cut, where those that do not cut are anywhere. Returns -1, or a
 * dimension whose split factor is not the product of the first cuts of dimensions to its right. */
int fsdp__cut_order(const fsdp_mesh *mesh, const fsdp_placement *placements, int *order);
/* Gives what rank `rank` of `ranks` gets of `length` indices that a placement cuts: FSDP_MAX_SEGMENTS runs at most.
 * Returns their number; those may be empty. */
int fsdp__placement_parts(fsdp_placement placement, int64_t length, int64_t ranks, int64_t rank, int64_t *start,
                          int64_t *size);
/* Gives the shape of this rank's part where the mesh dimensions cut in this order. */
void fsdp__cut_shape(const fsdp_mesh *mesh, const fsdp_placement *placements, const int *order, int ndim,
                     const int64_t *shape, int64_t *out);
/* Makes views of a piece in a rank's part and in the whole tensor. The caller owns both. */
fsdp_status fsdp__piece_views(const fsdp_piece *piece, const fsdp_tensor *local, const fsdp_tensor *whole,
                              fsdp_tensor **out_local, fsdp_tensor **out_whole);

/* ---- box.c ---- */

/* Says how a piece lies in a rank's part: element e at (e / inner) * stride + first + e % inner. */
typedef struct fsdp__piece_place {
    int64_t outer, inner, stride, first;
} fsdp__piece_place;
/* Returns the place of piece `k` among the pieces of a part that is not flat. */
fsdp__piece_place fsdp__piece_place_of(const fsdp_piece *pieces, int count, int ndim, int k);
/* Does what fsdp_tensor_runs does, of a part that consists of these pieces; of a flat one `shape` does not matter. */
fsdp_status fsdp__pieces_runs(bool flat, int ndim, const int64_t *shape, const fsdp_piece *pieces, int count,
                              fsdp_box_run run, void *arg);

/* ---- flat_runs.c ---- */

/* Gathers a flat tensor as a whole one: a copy, without a distribution. The caller owns `*out`. [collective] */
fsdp_status fsdp__flat_gather(const fsdp_tensor *tensor, fsdp_tensor **out);
/* Copies this rank's part of a whole tensor; `distribution` is flat. The caller owns `*out`. */
fsdp_status fsdp__flat_cut(const fsdp_tensor *whole, const fsdp_distribution *distribution, fsdp_tensor **out);

FSDP__SCOPED_POINTER(fsdp_mesh, fsdp_mesh_unref)
