/* mesh.c - n-dimensional arrays of ranks, with one process group per dimension. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "dist/dist.h"

static int64_t rank_count(const fsdp_mesh *mesh)
{
    int64_t count = 1;

    for (int d = 0; d < mesh->ndim; d++)
        count *= mesh->shape[d];
    return count;
}

static int64_t index_of(const fsdp_mesh *mesh, const int *coordinates)
{
    int64_t index = 0;

    for (int d = 0; d < mesh->ndim; d++)
        index = index * mesh->shape[d] + coordinates[d];
    return index;
}

static fsdp_status check_shape(const fsdp_context *context, int ndim, const int64_t *shape)
{
    int64_t world = fsdp_context_world_size(context), product = 1;

    if (ndim < 1 || ndim > FSDP_MAX_MESH_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh of %d dimensions: 1 to %d are possible", ndim,
                         FSDP_MAX_MESH_DIMS);
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 1)
            return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: dimension %d has size %lld, it must be positive", d,
                             (long long)shape[d]);
        if (__builtin_mul_overflow(product, shape[d], &product))
            product = INT64_MAX;
    }
    if (product != world) {
        char text[FSDP__SHAPE_TEXT];

        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh of shape %s: it has %lld ranks, the world has %lld",
                         fsdp__shape_text(ndim, shape, text), (long long)product, (long long)world);
    }
    return FSDP_OK;
}

static fsdp_status copy_names(fsdp_mesh *mesh, const char *const *names)
{
    for (int d = 0; d < mesh->ndim; d++) {
        if (!names[d] || !*names[d])
            return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: dimension %d has no name", d);
        for (int e = 0; e < d; e++)
            if (strcmp(names[d], names[e]) == 0)
                return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: dimensions %d and %d are both named '%s'", e, d,
                                 names[d]);
        mesh->names[d] = fsdp__strdup(names[d]);
        if (!mesh->names[d])
            return FSDP_NO_MEMORY;
    }
    return FSDP_OK;
}

/* The ranks that differ from this one in dimension `dim` only. */
static fsdp_status make_group(fsdp_mesh *mesh, int dim)
{
    int coordinates[FSDP_MAX_MESH_DIMS];
    int count = (int)mesh->shape[dim];
    int *ranks = fsdp__malloc((size_t)count * sizeof *ranks);
    fsdp_status status = FSDP_OK;

    if (!ranks)
        return FSDP_NO_MEMORY;
    memcpy(coordinates, mesh->coordinate, sizeof coordinates);
    for (int i = 0; i < count; i++) {
        coordinates[dim] = i;
        ranks[i] = mesh->ranks[index_of(mesh, coordinates)];
    }
    FSDP_TRY_GOTO(status, fsdp_process_group_create(mesh->context, ranks, count, mesh->names[dim], &mesh->groups[dim]),
                  out);
out:
    fsdp__free(ranks);
    return status;
}

fsdp_status fsdp_mesh_create(fsdp_context *context, int ndim, const int64_t *shape, const char *const *names,
                             fsdp_mesh **out)
{
    static const char *const only_name[] = {"dp"};
    fsdp_status status = FSDP_OK;
    fsdp_mesh *mesh;
    int64_t count, rest;

    *out = NULL;
    if (!context || !shape || (!names && ndim != 1))
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: context, shape and, unless it has one dimension, names are "
                                       "required");
    FSDP_TRY(check_shape(context, ndim, shape));
    mesh = fsdp__calloc(1, sizeof *mesh);
    if (!mesh)
        return FSDP_NO_MEMORY;
    mesh->refs = 1;
    mesh->context = context;
    mesh->ndim = ndim;
    memcpy(mesh->shape, shape, (size_t)ndim * sizeof *shape);
    FSDP_TRY_GOTO(status, copy_names(mesh, names ? names : only_name), out);
    count = rank_count(mesh);
    mesh->ranks = fsdp__malloc((size_t)count * sizeof *mesh->ranks);
    if (!mesh->ranks) {
        status = FSDP_NO_MEMORY;
        goto out;
    }
    for (int64_t i = 0; i < count; i++)
        mesh->ranks[i] = (int)i;
    rest = fsdp_context_rank(context);
    for (int d = ndim - 1; d >= 0; d--) {
        mesh->coordinate[d] = (int)(rest % shape[d]);
        rest /= shape[d];
    }
    /* Each is a collective of the world, so all ranks make them in this order. */
    for (int d = 0; d < ndim; d++)
        FSDP_TRY_GOTO(status, make_group(mesh, d), out);
    *out = mesh;
    mesh = NULL;
out:
    fsdp_mesh_unref(mesh);
    return status;
}

/* Fills the slice's ranks: those of the parent that differ from this one in the slice's dimensions only. */
static void slice_ranks(fsdp_mesh *slice, const fsdp_mesh *parent, const int *dims)
{
    int64_t count = rank_count(slice);
    int coordinates[FSDP_MAX_MESH_DIMS];

    memcpy(coordinates, parent->coordinate, sizeof coordinates);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i;

        for (int d = slice->ndim - 1; d >= 0; d--) {
            coordinates[dims[d]] = (int)(rest % slice->shape[d]);
            rest /= slice->shape[d];
        }
        slice->ranks[i] = parent->ranks[index_of(parent, coordinates)];
    }
}

fsdp_status fsdp_mesh_slice(fsdp_mesh *mesh, int count, const char *const *names, fsdp_mesh **out)
{
    int dims[FSDP_MAX_MESH_DIMS];
    fsdp_status status = FSDP_OK;
    fsdp_mesh *slice;

    *out = NULL;
    if (!mesh || !names || count < 1 || count > mesh->ndim)
        return FSDP_FAIL(FSDP_INVALID, "cannot slice a mesh: it takes 1 to %d names, not %d", mesh ? mesh->ndim : 0,
                         count);
    for (int d = 0; d < count; d++) {
        dims[d] = names[d] ? fsdp_mesh_find_dim(mesh, names[d]) : -1;
        if (dims[d] < 0)
            return FSDP_FAIL(FSDP_NOT_FOUND, "cannot slice a mesh: it has no dimension '%s'",
                             names[d] ? names[d] : "(null)");
    }
    slice = fsdp__calloc(1, sizeof *slice);
    if (!slice)
        return FSDP_NO_MEMORY;
    slice->refs = 1;
    slice->context = mesh->context;
    slice->parent = fsdp_mesh_ref(mesh);
    slice->ndim = count;
    for (int d = 0; d < count; d++) {
        slice->shape[d] = mesh->shape[dims[d]];
        slice->coordinate[d] = mesh->coordinate[dims[d]];
        slice->groups[d] = mesh->groups[dims[d]];
    }
    FSDP_TRY_GOTO(status, copy_names(slice, names), out);
    slice->ranks = fsdp__malloc((size_t)rank_count(slice) * sizeof *slice->ranks);
    if (!slice->ranks) {
        status = FSDP_NO_MEMORY;
        goto out;
    }
    slice_ranks(slice, mesh, dims);
    *out = slice;
    slice = NULL;
out:
    fsdp_mesh_unref(slice);
    return status;
}

fsdp_mesh *fsdp_mesh_ref(fsdp_mesh *mesh)
{
    if (mesh)
        mesh->refs++;
    return mesh;
}

void fsdp_mesh_unref(fsdp_mesh *mesh)
{
    if (!mesh || --mesh->refs > 0)
        return;
    for (int d = mesh->ndim - 1; d >= 0; d--) {
        if (!mesh->parent) /* a slice has those of its parent, which it holds */
            fsdp_process_group_free(mesh->groups[d]);
        fsdp__free(mesh->names[d]);
    }
    fsdp__free(mesh->ranks);
    fsdp_mesh_unref(mesh->parent);
    fsdp__free(mesh);
}

int fsdp_mesh_ndim(const fsdp_mesh *mesh)
{
    return mesh->ndim;
}

int64_t fsdp_mesh_size(const fsdp_mesh *mesh, int dim)
{
    return dim < 0 ? rank_count(mesh) : mesh->shape[dim];
}

const char *fsdp_mesh_dim_name(const fsdp_mesh *mesh, int dim)
{
    return mesh->names[dim];
}

int fsdp_mesh_coordinate(const fsdp_mesh *mesh, int dim)
{
    return mesh->coordinate[dim];
}

int fsdp_mesh_rank_at(const fsdp_mesh *mesh, const int *coordinates)
{
    return mesh->ranks[index_of(mesh, coordinates)];
}

fsdp_process_group *fsdp_mesh_process_group(const fsdp_mesh *mesh, int dim)
{
    return mesh->groups[dim];
}

int fsdp_mesh_find_dim(const fsdp_mesh *mesh, const char *name)
{
    for (int d = 0; d < mesh->ndim; d++)
        if (strcmp(mesh->names[d], name) == 0)
            return d;
    return -1;
}

fsdp_context *fsdp_mesh_context(const fsdp_mesh *mesh)
{
    return mesh->context;
}

bool fsdp_mesh_equal(const fsdp_mesh *a, const fsdp_mesh *b)
{
    if (a == b)
        return true;
    if (!a || !b || a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d] || strcmp(a->names[d], b->names[d]) != 0)
            return false;
    return memcmp(a->ranks, b->ranks, (size_t)rank_count(a) * sizeof *a->ranks) == 0;
}
