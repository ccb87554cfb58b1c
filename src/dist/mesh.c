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

int64_t fsdp__mesh_index(const fsdp_mesh *mesh, const int *coordinates)
{
    int64_t index = 0;

    for (int d = 0; d < mesh->ndim; d++)
        index = index * mesh->shape[d] + coordinates[d];
    return index;
}

void fsdp__mesh_coordinates(const fsdp_mesh *mesh, int64_t index, int *coordinates)
{
    for (int d = mesh->ndim - 1; d >= 0; d--) {
        coordinates[d] = (int)(index % mesh->shape[d]);
        index /= mesh->shape[d];
    }
}

/* Checks the sizes; `*out` is their product. */
static fsdp_status check_sizes(int ndim, const int64_t *shape, int64_t *out)
{
    int64_t product = 1;

    if (ndim < 1 || ndim > FSDP_MAX_MESH_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh of %d dimensions: 1 to %d are possible", ndim,
                         FSDP_MAX_MESH_DIMS);
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 1)
            return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: dimension %d has size %lld: it must be positive", d,
                             (long long)shape[d]);
        if (__builtin_mul_overflow(product, shape[d], &product))
            product = INT64_MAX;
    }
    *out = product;
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
        FSDP__TRY_NEW(mesh->names[d] = fsdp__strdup(names[d]));
    }
    return FSDP_OK;
}

static const char *const only_name[] = {"dp"};

fsdp_status fsdp__mesh_new(fsdp_context *context, int ndim, const int64_t *shape, const char *const *names,
                           fsdp_mesh **out)
{
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *mesh = fsdp__calloc(1, sizeof *mesh);

    FSDP__TRY_NEW(mesh);
    mesh->refs = 1;
    mesh->context = context;
    mesh->ndim = ndim;
    memcpy(mesh->shape, shape, (size_t)ndim * sizeof *shape);
    for (int d = 0; d < ndim; d++)
        mesh->axes[d] = (fsdp__mesh_axes){.count = 1, .axes = {d}};
    FSDP_TRY(copy_names(mesh, names ? names : only_name));
    FSDP__TRY_NEW(mesh->ranks = fsdp__malloc((size_t)rank_count(mesh) * sizeof *mesh->ranks));
    *out = fsdp__take(&mesh);
    return FSDP_OK;
}

/* Lists the global ranks along a dimension, through this rank. */
static void ranks_along(const fsdp_mesh *mesh, int dim, int *ranks)
{
    int coordinates[FSDP_MAX_MESH_DIMS];

    memcpy(coordinates, mesh->coordinate, sizeof coordinates);
    for (coordinates[dim] = 0; coordinates[dim] < mesh->shape[dim]; coordinates[dim]++)
        ranks[coordinates[dim]] = mesh->ranks[fsdp__mesh_index(mesh, coordinates)];
}

fsdp_status fsdp__mesh_make_group(fsdp_mesh *mesh, int dim)
{
    int count = (int)mesh->shape[dim];
    FSDP__FREED int *ranks = fsdp__malloc((size_t)count * sizeof *ranks);

    FSDP__TRY_NEW(ranks);
    ranks_along(mesh, dim, ranks);
    return fsdp_process_group_create(mesh->context, ranks, count, mesh->names[dim], &mesh->groups[dim]);
}

fsdp_status fsdp_mesh_create(fsdp_context *context, int ndim, const int64_t *shape, const char *const *names,
                             fsdp_mesh **out)
{
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *mesh = NULL;
    int64_t count;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: there is no place for it");
    *out = NULL;
    if (!context || !shape || (!names && ndim != 1))
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: context, shape and, unless it has one dimension, names are "
                                       "required");
    FSDP_TRY(check_sizes(ndim, shape, &count));
    if (count != fsdp_context_world_size(context))
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh of shape %s: it has %lld ranks, and the world has %d",
                         FSDP__SHOWN_SHAPE(ndim, shape), (long long)count, fsdp_context_world_size(context));
    FSDP_TRY(fsdp__mesh_new(context, ndim, shape, names, &mesh));
    for (int64_t i = 0; i < count; i++)
        mesh->ranks[i] = (int)i;
    fsdp__mesh_coordinates(mesh, fsdp_context_rank(context), mesh->coordinate);
    /* Each group is a collective of the world, so all ranks make them in this order. */
    for (int d = 0; d < ndim; d++)
        FSDP_TRY(fsdp__mesh_make_group(mesh, d));
    *out = fsdp__take(&mesh);
    return FSDP_OK;
}

/* ---- made from groups that exist ---- */

/* Checks that every rank of the world is there at most once, and this one is; sets its coordinates. */
static fsdp_status find_self(fsdp_mesh *mesh)
{
    int world = fsdp_context_world_size(mesh->context), self = fsdp_context_rank(mesh->context);
    int64_t count = rank_count(mesh), found = -1;

    for (int64_t i = 0; i < count; i++) {
        if (mesh->ranks[i] < 0 || mesh->ranks[i] >= world)
            return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: the world has no rank %d", mesh->ranks[i]);
        for (int64_t j = 0; j < i; j++)
            if (mesh->ranks[j] == mesh->ranks[i])
                return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: rank %d is in it twice", mesh->ranks[i]);
        if (mesh->ranks[i] == self)
            found = i;
    }
    if (found < 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: this rank, %d, is not in it", self);
    fsdp__mesh_coordinates(mesh, found, mesh->coordinate);
    return FSDP_OK;
}

static fsdp_status check_group(const fsdp_mesh *mesh, int dim)
{
    const fsdp_process_group *group = mesh->groups[dim];
    int coordinates[FSDP_MAX_MESH_DIMS];

    memcpy(coordinates, mesh->coordinate, sizeof coordinates);
    for (int i = 0; i < mesh->shape[dim]; i++) {
        coordinates[dim] = i;
        if (fsdp_mesh_rank_at(mesh, coordinates) != fsdp_process_group_global_rank(group, i))
            return FSDP_FAIL(
                FSDP_INVALID,
                "cannot make a mesh: group '%s' of dimension '%s' has rank %d at %d, and the mesh has rank %d",
                fsdp_process_group_name(group), mesh->names[dim], fsdp_process_group_global_rank(group, i), i,
                fsdp_mesh_rank_at(mesh, coordinates));
    }
    return FSDP_OK;
}

/* Gives the sizes of a mesh that is made of these groups. */
static fsdp_status sizes_of(fsdp_process_group *const *groups, int ndim, int64_t *shape)
{
    int64_t count;

    for (int d = 0; d < ndim && d < FSDP_MAX_MESH_DIMS; d++) {
        if (!groups[d])
            return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: group %d is NULL (this rank is not in it?)", d);
        if (fsdp_process_group_context(groups[d]) != fsdp_process_group_context(groups[0]))
            return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: groups '%s' and '%s' belong to two contexts",
                             fsdp_process_group_name(groups[0]), fsdp_process_group_name(groups[d]));
        shape[d] = fsdp_process_group_size(groups[d]);
    }
    return check_sizes(ndim, shape, &count);
}

fsdp_status fsdp_mesh_from_groups(fsdp_process_group *const *groups, int ndim, const int *ranks,
                                  const char *const *names, fsdp_mesh **out)
{
    int64_t shape[FSDP_MAX_MESH_DIMS];
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *mesh = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: there is no place for it");
    *out = NULL;
    if (!groups || ((!ranks || !names) && ndim != 1))
        return FSDP_FAIL(FSDP_INVALID, "cannot make a mesh: groups and, unless it has one dimension, ranks and names "
                                       "are required");
    FSDP_TRY(sizes_of(groups, ndim, shape));
    FSDP_TRY(fsdp__mesh_new(fsdp_process_group_context(groups[0]), ndim, shape, names, &mesh));
    for (int64_t i = 0; i < rank_count(mesh); i++)
        mesh->ranks[i] = ranks ? ranks[i] : fsdp_process_group_global_rank(groups[0], (int)i);
    for (int d = 0; d < ndim; d++) {
        mesh->groups[d] = groups[d];
        mesh->borrowed[d] = true;
    }
    FSDP_TRY(find_self(mesh));
    for (int d = 0; d < ndim; d++)
        FSDP_TRY(check_group(mesh, d));
    *out = fsdp__take(&mesh);
    return FSDP_OK;
}

/* ---- life cycle ---- */

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
    for (fsdp__joint_group *joint = mesh->joint, *next; joint; joint = next) {
        next = joint->next;
        fsdp_process_group_free(joint->group);
        fsdp__free(joint);
    }
    for (int d = mesh->ndim - 1; d >= 0; d--) {
        if (!mesh->borrowed[d])
            fsdp_process_group_free(mesh->groups[d]);
        fsdp__free(mesh->names[d]);
    }
    fsdp__free(mesh->ranks);
    fsdp_mesh_unref(mesh->held);
    fsdp__free(mesh);
}

/* ---- properties ---- */

int fsdp_mesh_ndim(const fsdp_mesh *mesh)
{
    return mesh ? mesh->ndim : 0;
}

static bool has_dim(const fsdp_mesh *mesh, int dim)
{
    return dim >= 0 && dim < fsdp_mesh_ndim(mesh);
}

int64_t fsdp_mesh_size(const fsdp_mesh *mesh, int dim)
{
    if (!mesh || dim >= mesh->ndim)
        return 0;
    return dim < 0 ? rank_count(mesh) : mesh->shape[dim];
}

const char *fsdp_mesh_dim_name(const fsdp_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->names[dim] : NULL;
}

int fsdp_mesh_coordinate(const fsdp_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->coordinate[dim] : -1;
}

int fsdp_mesh_rank_at(const fsdp_mesh *mesh, const int *coordinates)
{
    for (int d = 0; d < fsdp_mesh_ndim(mesh); d++)
        if (!coordinates || coordinates[d] < 0 || coordinates[d] >= mesh->shape[d])
            return -1;
    return mesh ? mesh->ranks[fsdp__mesh_index(mesh, coordinates)] : -1;
}

fsdp_process_group *fsdp_mesh_process_group(const fsdp_mesh *mesh, int dim)
{
    return has_dim(mesh, dim) ? mesh->groups[dim] : NULL;
}

int fsdp_mesh_find_dim(const fsdp_mesh *mesh, const char *name)
{
    for (int d = 0; name && d < fsdp_mesh_ndim(mesh); d++)
        if (strcmp(mesh->names[d], name) == 0)
            return d;
    return -1;
}

fsdp_context *fsdp_mesh_context(const fsdp_mesh *mesh)
{
    return mesh ? mesh->context : NULL;
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
