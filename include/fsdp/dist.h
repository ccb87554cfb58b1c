/* fsdp/dist.h - device meshes and distributed tensors.
 *
 * A mesh is an n-dimensional, row-major array of global ranks with named dimensions and one process group per
 * dimension. A distributed tensor is a local tensor with a mesh, one placement per mesh dimension and the global shape,
 * which fsdp_tensor_distribution returns.
 *
 * Shard(d) over W ranks follows PyTorch's chunk rule: c = ceil(n / W); rank r holds [min(n, r c), min(n, (r + 1) c)).
 * The last ranks may hold a shorter part or none.
 *
 * Several mesh dimensions may shard one tensor dimension. They cut one after the other: each mesh dimension cuts the
 * part that the mesh dimensions before it have left. The order is from left to right, except that a placement with a
 * split factor cuts after the mesh dimensions to its right. So tensor parallel ("tp") cuts a weight first, although
 * "dp" is left of it, and fully_shard then cuts each rank's part.
 */
#ifndef FSDP_DIST_H
#define FSDP_DIST_H

#include "fsdp/comm.h"
#include "fsdp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_MAX_MESH_DIMS 4

typedef struct fsdp_mesh fsdp_mesh;

/* Creates a mesh of `shape` over ranks 0 .. product - 1, row-major; the product must equal the world size. `names` has
 * ndim entries, unique and copied; NULL is allowed if ndim is 1 (then "dp"). Creates the process groups.
 * [collective] */
FSDP_API fsdp_status fsdp_mesh_create(fsdp_context *context, int ndim, const int64_t *shape, const char *const *names,
                                      fsdp_mesh **out);
/* Returns the part of `mesh` along the named dimensions (in the order given) that contains this rank. It uses the
 * mesh's groups. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_mesh_slice(fsdp_mesh *mesh, int count, const char *const *names, fsdp_mesh **out);
FSDP_API fsdp_mesh *fsdp_mesh_ref(fsdp_mesh *mesh);
FSDP_API void fsdp_mesh_unref(fsdp_mesh *mesh);
/* Describe the mesh. Of a dimension that it does not have the size is 0, name and group are NULL; a coordinate, and the
 * rank at coordinates that are none of it, is -1. */
FSDP_API int fsdp_mesh_ndim(const fsdp_mesh *mesh);
FSDP_API int64_t fsdp_mesh_size(const fsdp_mesh *mesh, int dim); /* dim -1: number of all ranks */
FSDP_API const char *fsdp_mesh_dim_name(const fsdp_mesh *mesh, int dim);
FSDP_API int fsdp_mesh_coordinate(const fsdp_mesh *mesh, int dim); /* this rank's */
FSDP_API int fsdp_mesh_rank_at(const fsdp_mesh *mesh, const int *coordinates);
FSDP_API fsdp_process_group *fsdp_mesh_process_group(const fsdp_mesh *mesh, int dim); /* borrowed */
FSDP_API int fsdp_mesh_find_dim(const fsdp_mesh *mesh, const char *name);             /* -1 if there is none */
FSDP_API fsdp_context *fsdp_mesh_context(const fsdp_mesh *mesh);
FSDP_API bool fsdp_mesh_equal(const fsdp_mesh *a, const fsdp_mesh *b); /* same ranks, shape and names */

typedef enum fsdp_placement_kind {
    FSDP_REPLICATE,
    FSDP_SHARD,
    FSDP_PARTIAL,
    FSDP_FLAT /* a part of a flat vector that contains the tensor, row-major, among others (FSDP1's FlatParameter) */
} fsdp_placement_kind;
#define FSDP_MAX_SEGMENTS 4
typedef struct fsdp_placement {
    fsdp_placement_kind kind;
    int dim;           /* FSDP_SHARD: tensor dimension */
    fsdp_reduce_op op; /* FSDP_PARTIAL */
    /* FSDP_SHARD: the number of parts into which mesh dimensions to the right cut the tensor dimension before this one
     * does (PyTorch's _StridedShard): the product of the sizes of the first of them that do. 0 or 1: none does. */
    int64_t split_factor;
    /* FSDP_SHARD: the tensor dimension consists of this many segments, one after the other, such as the queries, keys
     * and values of a fused projection; 0: it is one. Each segment is cut by the chunk rule by itself, and a rank's
     * parts of them lie one after the other. The sizes of the segments add up to that of the dimension. No mesh
     * dimension may cut it before, and at most one placement of a tensor may have segments. */
    int segment_count;
    int64_t segments[FSDP_MAX_SEGMENTS];
    /* FSDP_FLAT: coordinate r holds elements [r * chunk, (r + 1) * chunk) of the vector, in which the tensor begins at
     * `first`, and which holds all of it. The coordinate thus holds a run of the tensor's elements, all of them, or
     * none. The local tensor has one dimension. All other mesh dimensions replicate. */
    int64_t first, chunk;
} fsdp_placement;

typedef struct fsdp_distribution {
    fsdp_mesh *mesh; /* borrowed from the tensor */
    int placement_count;
    fsdp_placement placements[FSDP_MAX_MESH_DIMS];
    int ndim;
    int64_t global_shape[FSDP_MAX_DIMS];
    /* Bit d is set if mesh dimension d replicates the tensor and each rank has only its own contribution to the
     * gradient: the gradient is the sum over that dimension. */
    unsigned partial_gradients;
} fsdp_distribution;

/* Returns the tensor's distribution, borrowed; NULL for a plain tensor. */
FSDP_API const fsdp_distribution *fsdp_tensor_distribution(const fsdp_tensor *tensor);
/* Splits a tensor that is equal on all ranks of the mesh: makes a local copy of this rank's part, without
 * communication. Partial placements are refused. The caller owns `*out`. */
FSDP_API fsdp_status fsdp_distribute_tensor(const fsdp_tensor *tensor, fsdp_mesh *mesh,
                                            const fsdp_placement *placements, fsdp_tensor **out);
/* Makes the whole tensor on every rank (a copy, also of a plain tensor). The caller owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_full_tensor(const fsdp_tensor *tensor, fsdp_tensor **out);
/* Changes placements to any others, by all-gather, slice, all-reduce, reduce-scatter or all-to-all per mesh dimension.
 * Shard to Partial goes through Replicate, and so does any change from or to Flat. Replicate to Partial(sum) keeps the
 * value on coordinate 0 and sets zeros elsewhere; to other partial operations it keeps the value everywhere. There is
 * no autograd. On the meta device nothing is communicated. The caller owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_redistribute(const fsdp_tensor *tensor, const fsdp_placement *placements, fsdp_tensor **out);

/* ======== for experts: most programs need nothing below ======== */

/* Creates a mesh from existing process groups: groups[d] is dimension d and contains this rank. `ranks` are the mesh's
 * global ranks, row-major, as many as the product of the groups' sizes; NULL is allowed if ndim is 1. Names as in
 * fsdp_mesh_create. The mesh may be smaller than the world; ranks outside it have no mesh. The groups stay the caller's
 * and must outlive the mesh. A local call. */
FSDP_API fsdp_status fsdp_mesh_from_groups(fsdp_process_group *const *groups, int ndim, const int *ranks,
                                           const char *const *names, fsdp_mesh **out);
/* Returns the part of `mesh` along the named dimensions as a mesh of one dimension called `name`, with the ranks of the
 * named dimensions in the mesh's own order, whatever the order of the names; of a slice: in the order of the mesh that
 * it is a part of. Its process group is created the first time and kept with the mesh. All ranks of the world must call
 * it, including those of other parts. The caller owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_mesh_flatten(fsdp_mesh *mesh, int count, const char *const *dims, const char *name,
                                       fsdp_mesh **out);
/* Returns the mesh with dimension `dim` split into `count` dimensions, row-major; the product of `sizes` is its size.
 * The other dimensions keep their groups. All ranks of the world must call it. The caller owns `*out`. [collective] */
FSDP_API fsdp_status fsdp_mesh_unflatten(fsdp_mesh *mesh, const char *dim, int count, const int64_t *sizes,
                                         const char *const *names, fsdp_mesh **out);

/* Applies the chunk rule. Returns the length and stores the start (n for an empty part, and where there are no ranks or
 * `rank` is negative); `start` may be NULL. */
FSDP_API int64_t fsdp_shard_range(int64_t n, int64_t world_size, int64_t rank, int64_t *start);

/* Makes `local` a distributed tensor, after checking that its shape is what the rule gives this rank. Holds the mesh.
 * Replaces an existing distribution. */
FSDP_API fsdp_status fsdp_tensor_set_distribution(fsdp_tensor *local, const fsdp_distribution *distribution);
/* Returns whether the distribution has a flat placement. */
FSDP_API bool fsdp_distribution_is_flat(const fsdp_distribution *distribution);
/* Returns offset and size of this rank's part in the whole tensor; for a plain tensor zeros and its shape. A flat
 * tensor has no box but a run of elements: offset[0] and size[0]. A part may be several boxes if a placement has
 * segments (fsdp_distribution_pieces): then this is where the first begins, and the shape of the local tensor. */
FSDP_API void fsdp_tensor_box(const fsdp_tensor *tensor, int64_t *offset, int64_t *size);
/* Does the same for any coordinates of the mesh. */
FSDP_API void fsdp_distribution_box(const fsdp_distribution *distribution, const int *coordinates, int64_t *offset,
                                    int64_t *size);

/* Describes one box of a rank's part: its place in the local tensor and in the global one. */
typedef struct fsdp_piece {
    int64_t local_offset[FSDP_MAX_DIMS], offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
} fsdp_piece;

/* Lists the boxes that the part at these coordinates of the mesh consists of, in the order in which they lie in the
 * local tensor: none if it is empty, one unless a placement has segments, FSDP_MAX_SEGMENTS at most. A flat part is one
 * run, as in fsdp_tensor_box. Returns their number; `pieces` has room for FSDP_MAX_SEGMENTS. */
FSDP_API int fsdp_distribution_pieces(const fsdp_distribution *distribution, const int *coordinates,
                                      fsdp_piece *pieces);
/* Does the same for this rank's part of a tensor; a plain tensor is one piece. */
FSDP_API int fsdp_tensor_pieces(const fsdp_tensor *tensor, fsdp_piece *pieces);

/* ---- box arithmetic ---- */

/* Computes the intersection of two boxes. Returns false if it is empty (then a size is 0). */
FSDP_API bool fsdp_box_intersect(int ndim, const int64_t *offset_a, const int64_t *size_a, const int64_t *offset_b,
                                 const int64_t *size_b, int64_t *offset, int64_t *size);
/* Calls `run` for each maximal contiguous run of the box in a row-major tensor of `shape`. `global` is the index of the
 * run's first element in the whole tensor, `local` its index in the box (row-major, of the given size), `numel` the
 * run's length. A box of full rows is one run, an empty box none. Stops at the first failure and returns it. */
typedef fsdp_status (*fsdp_box_run)(void *arg, int64_t global, int64_t local, int64_t numel);
FSDP_API fsdp_status fsdp_box_runs(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size,
                                   fsdp_box_run run, void *arg);
/* Calls `run` for each maximal run of this rank's part of a tensor, flat or not, that is contiguous in both: `global`
 * in the whole tensor, `local` in the local one, as if that were contiguous; in the order of `local`. */
FSDP_API fsdp_status fsdp_tensor_runs(const fsdp_tensor *tensor, fsdp_box_run run, void *arg);

#ifdef __cplusplus
}
#endif
#endif
