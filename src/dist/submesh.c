/* submesh.c - makes meshes from meshes: slices, and dimensions that are flattened into one or cut into several. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "dist/dist.h"

/* Writes names such as "'dp', 'tp'". */
static const char *names_text(const fsdp_mesh *mesh, char *text, size_t bytes)
{
    size_t used = 0;

    for (int d = 0; d < mesh->ndim && used < bytes; d++)
        used += (size_t)snprintf(text + used, bytes - used, "%s'%s'", d > 0 ? ", " : "", mesh->names[d]);
    return text;
}

static fsdp_status find_dim(const fsdp_mesh *mesh, const char *what, const char *name, int *out)
{
    char text[256];

    *out = name ? fsdp_mesh_find_dim(mesh, name) : -1;
    if (*out < 0)
        return FSDP_FAIL(FSDP_NOT_FOUND, "cannot %s: it has no dimension '%s', only %s", what, name ? name : "(null)",
                         names_text(mesh, text, sizeof text));
    return FSDP_OK;
}

/* ---- groups ---- */

static bool same_axes(const fsdp__mesh_axes *a, const fsdp__mesh_axes *b)
{
    return a->count == b->count && memcmp(a->axes, b->axes, (size_t)a->count * sizeof a->axes[0]) == 0;
}

/* Says which dimensions cannot become one. */
static fsdp_status cannot_flatten(const fsdp_mesh *whole, const fsdp__mesh_axes *axes, fsdp_status status)
{
    char text[FSDP__MESH_TEXT], names[256];
    size_t used = 0;

    for (int a = 0; a < axes->count && used < sizeof names; a++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%s'", a > 0 ? ", " : "",
                                 whole->names[axes->axes[a]]);
    return fsdp_fail_prefix(status, "dimensions %s of mesh %s cannot become one", names, fsdp__mesh_text(whole, text));
}

/* Finds or makes the group of the ranks along one dimension of a part. [collective] if it has to be made */
static fsdp_status find_group(fsdp_mesh *part, int dim)
{
    fsdp_mesh *whole = part->held;
    const fsdp__mesh_axes *axes = &part->axes[dim];
    fsdp__joint_group *joint = whole->joint;
    fsdp_status status;

    part->borrowed[dim] = true;
    if (axes->count == 1) {
        part->groups[dim] = whole->groups[axes->axes[0]];
        return FSDP_OK;
    }
    while (joint && !same_axes(&joint->axes, axes))
        joint = joint->next;
    if (!joint) {
        FSDP__TRY_NEW(joint = fsdp__malloc(sizeof *joint));
        status = fsdp__mesh_make_group(part, dim);
        if (status != FSDP_OK) {
            fsdp__free(joint);
            return cannot_flatten(whole, axes, status);
        }
        *joint = (fsdp__joint_group){.next = whole->joint, .axes = *axes, .group = part->groups[dim]};
        whole->joint = joint;
    }
    part->groups[dim] = joint->group;
    return FSDP_OK;
}

/* ---- parts ---- */

/* Adds a dimension of the whole where it is in the whole's order: then ranks ascend, in whatever order it is named. */
static void add_axis(fsdp__mesh_axes *axes, int axis)
{
    int at = axes->count++;

    for (; at > 0 && axes->axes[at - 1] > axis; at--)
        axes->axes[at] = axes->axes[at - 1];
    axes->axes[at] = axis;
}

/* Finds the dimensions of the whole that the named ones of `mesh` stand for. No dimension may be named twice:
 * `seen`. */
static fsdp_status find_axes(const fsdp_mesh *mesh, const char *what, const fsdp__mesh_names *dims, bool *seen,
                             fsdp__mesh_axes *out)
{
    *out = (fsdp__mesh_axes){0};
    for (int i = 0; i < dims->count; i++) {
        int dim;

        FSDP_TRY(find_dim(mesh, what, dims->names[i], &dim));
        if (seen[dim])
            return FSDP_FAIL(FSDP_INVALID, "cannot %s: dimension '%s' is named twice", what, dims->names[i]);
        seen[dim] = true;
        for (int a = 0; a < mesh->axes[dim].count; a++)
            add_axis(out, mesh->axes[dim].axes[a]);
    }
    return FSDP_OK;
}

/* Converts the part's coordinates to those in the whole, where the other coordinates are this rank's. */
static void to_whole(const fsdp_mesh *part, const int *coordinates, int *out)
{
    memcpy(out, part->held->coordinate, sizeof part->held->coordinate);
    for (int d = 0; d < part->ndim; d++) {
        int rest = coordinates[d];

        for (int a = part->axes[d].count - 1; a >= 0; a--) {
            int axis = part->axes[d].axes[a];

            out[axis] = rest % (int)part->held->shape[axis];
            rest /= (int)part->held->shape[axis];
        }
    }
}

static void place_ranks(fsdp_mesh *part)
{
    int coordinates[FSDP_MAX_MESH_DIMS], in_whole[FSDP_MAX_MESH_DIMS];
    int64_t count = fsdp_mesh_size(part, -1);

    for (int d = 0; d < part->ndim; d++)
        for (int a = 0; a < part->axes[d].count; a++) {
            int axis = part->axes[d].axes[a];

            part->coordinate[d] = part->coordinate[d] * (int)part->held->shape[axis] + part->held->coordinate[axis];
        }
    for (int64_t i = 0; i < count; i++) {
        fsdp__mesh_coordinates(part, i, coordinates);
        to_whole(part, coordinates, in_whole);
        part->ranks[i] = fsdp_mesh_rank_at(part->held, in_whole);
    }
}

fsdp_status fsdp__mesh_part(fsdp_mesh *mesh, const char *what, int ndim, const fsdp__mesh_names *dims,
                            const char *const *names, fsdp_mesh **out)
{
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *part = NULL;
    fsdp_mesh *whole = mesh->is_part ? mesh->held : mesh;
    fsdp__mesh_axes axes[FSDP_MAX_MESH_DIMS];
    int64_t shape[FSDP_MAX_MESH_DIMS];
    bool seen[FSDP_MAX_MESH_DIMS] = {false};

    for (int d = 0; d < ndim; d++) {
        FSDP_TRY(find_axes(mesh, what, &dims[d], seen, &axes[d]));
        shape[d] = 1;
        for (int a = 0; a < axes[d].count; a++)
            shape[d] *= whole->shape[axes[d].axes[a]];
    }
    FSDP_TRY(fsdp__mesh_new(mesh->context, ndim, shape, names, &part));
    memcpy(part->axes, axes, (size_t)ndim * sizeof *axes);
    part->held = fsdp_mesh_ref(whole);
    part->is_part = true;
    place_ranks(part);
    for (int d = 0; d < ndim; d++)
        FSDP_TRY(find_group(part, d));
    *out = fsdp__take(&part);
    return FSDP_OK;
}

fsdp_status fsdp_mesh_slice(fsdp_mesh *mesh, int count, const char *const *names, fsdp_mesh **out)
{
    fsdp__mesh_names dims[FSDP_MAX_MESH_DIMS];

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot slice a mesh: there is no place for the result");
    *out = NULL;
    if (!mesh || !names || count < 1 || count > mesh->ndim)
        return FSDP_FAIL(FSDP_INVALID, "cannot slice a mesh: it takes 1 to %d names, not %d", mesh ? mesh->ndim : 0,
                         count);
    for (int d = 0; d < count; d++)
        dims[d] = (fsdp__mesh_names){1, &names[d]};
    return fsdp__mesh_part(mesh, "slice a mesh", count, dims, names, out);
}

fsdp_status fsdp_mesh_flatten(fsdp_mesh *mesh, int count, const char *const *dims, const char *name, fsdp_mesh **out)
{
    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot flatten a mesh: there is no place for the result");
    *out = NULL;
    if (!mesh || !dims || count < 1 || count > mesh->ndim)
        return FSDP_FAIL(FSDP_INVALID, "cannot flatten a mesh: it takes the names of 1 to %d dimensions, not %d",
                         mesh ? mesh->ndim : 0, count);
    return fsdp__mesh_part(mesh, "flatten a mesh", 1, &(fsdp__mesh_names){count, dims}, &name, out);
}

/* ---- two parts together ---- */

/* Describes a dimension of one of two parts. */
typedef struct joined_dim {
    const fsdp__mesh_axes *axes;
    const char *name;
    int place; /* the first dimension of the whole that it is made of; of none: that of the dimension before it */
} joined_dim;

static fsdp_status cannot_join(const fsdp_mesh *a, const fsdp_mesh *b, const char *why)
{
    return FSDP_FAIL(FSDP_INVALID, "cannot combine mesh %s with mesh %s: %s", FSDP__MESH(a), FSDP__MESH(b), why);
}

/* Adds the dimensions of a part, where they are in the whole. */
static int add_dims(const fsdp_mesh *part, joined_dim *dims, int count)
{
    int place = -1;

    for (int d = 0; d < part->ndim; d++) {
        const fsdp__mesh_axes *axes = &part->axes[d];
        int at = count++;

        place = axes->count > 0 ? axes->axes[0] : place;
        for (; at > 0 && dims[at - 1].place > place; at--)
            dims[at] = dims[at - 1];
        dims[at] = (joined_dim){axes, part->names[d], place};
    }
    return count;
}

static bool meet(const joined_dim *dims, int count)
{
    bool seen[FSDP_MAX_MESH_DIMS] = {false};

    for (int d = 0; d < count; d++)
        for (int a = 0; a < dims[d].axes->count; a++) {
            if (seen[dims[d].axes->axes[a]])
                return true;
            seen[dims[d].axes->axes[a]] = true;
        }
    return false;
}

fsdp_status fsdp__mesh_join(fsdp_mesh *a, fsdp_mesh *b, fsdp_mesh **out)
{
    fsdp_mesh *whole = a->is_part ? a->held : a;
    joined_dim dims[2 * FSDP_MAX_MESH_DIMS];
    const char *own[FSDP_MAX_MESH_DIMS][FSDP_MAX_MESH_DIMS], *names[FSDP_MAX_MESH_DIMS];
    fsdp__mesh_names parts[FSDP_MAX_MESH_DIMS];
    int count;

    *out = NULL;
    if (whole != (b->is_part ? b->held : b))
        return cannot_join(a, b, "they are parts of two meshes: slice both from one (fsdp_mesh_slice)");
    count = add_dims(b, dims, add_dims(a, dims, 0));
    if (meet(dims, count))
        return cannot_join(a, b, "they have a dimension in common");
    if (count > FSDP_MAX_MESH_DIMS)
        return cannot_join(a, b, "they have more dimensions than a mesh can have");
    for (int d = 0; d < count; d++) {
        for (int i = 0; i < dims[d].axes->count; i++)
            own[d][i] = whole->names[dims[d].axes->axes[i]];
        parts[d] = (fsdp__mesh_names){dims[d].axes->count, own[d]};
        names[d] = dims[d].name;
    }
    return fsdp__mesh_part(whole, "combine two meshes", count, parts, names, out);
}

/* ---- one dimension into several ---- */

static fsdp_status check_cut(const fsdp_mesh *mesh, int dim, int count, const int64_t *sizes)
{
    int64_t product = 1;

    if (count < 1 || mesh->ndim - 1 + count > FSDP_MAX_MESH_DIMS)
        return FSDP_FAIL(
            FSDP_INVALID,
            "cannot unflatten dimension '%s' of a mesh into %d: it would have %d dimensions: 1 to %d are possible",
            mesh->names[dim], count, mesh->ndim - 1 + count, FSDP_MAX_MESH_DIMS);
    for (int i = 0; i < count; i++)
        if (sizes[i] < 1 || __builtin_mul_overflow(product, sizes[i], &product))
            product = -1;
    if (product != mesh->shape[dim])
        return FSDP_FAIL(FSDP_INVALID, "cannot unflatten dimension '%s' of a mesh into %s: it has %lld ranks",
                         mesh->names[dim], FSDP__SHOWN_SHAPE(count, sizes), (long long)mesh->shape[dim]);
    return FSDP_OK;
}

/* Makes a mesh of the same ranks in the same order, with dimension `dim` cut into `count`. */
static fsdp_status cut(fsdp_mesh *mesh, int dim, int count, const int64_t *sizes, const char *const *names,
                       fsdp_mesh **out)
{
    const char *all_names[FSDP_MAX_MESH_DIMS];
    int64_t shape[FSDP_MAX_MESH_DIMS], ranks = fsdp_mesh_size(mesh, -1);
    int ndim = 0;

    for (int d = 0; d < mesh->ndim; d++)
        for (int i = 0; i < (d == dim ? count : 1); i++) {
            all_names[ndim] = d == dim ? names[i] : mesh->names[d];
            shape[ndim++] = d == dim ? sizes[i] : mesh->shape[d];
        }
    FSDP_TRY(fsdp__mesh_new(mesh->context, ndim, shape, all_names, out));
    (*out)->held = fsdp_mesh_ref(mesh);
    memcpy((*out)->ranks, mesh->ranks, (size_t)ranks * sizeof *mesh->ranks);
    fsdp__mesh_coordinates(*out, fsdp__mesh_index(mesh, mesh->coordinate), (*out)->coordinate);
    return FSDP_OK;
}

fsdp_status fsdp_mesh_unflatten(fsdp_mesh *mesh, const char *dim, int count, const int64_t *sizes,
                                const char *const *names, fsdp_mesh **out)
{
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *made = NULL;
    int at;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot unflatten a mesh: there is no place for the result");
    *out = NULL;
    if (!mesh || !sizes || !names)
        return FSDP_FAIL(FSDP_INVALID, "cannot unflatten a mesh: mesh, sizes and names are required");
    FSDP_TRY(find_dim(mesh, "unflatten a mesh", dim, &at));
    FSDP_TRY(check_cut(mesh, at, count, sizes));
    FSDP_TRY(cut(mesh, at, count, sizes, names, &made));
    for (int d = 0; d < made->ndim; d++) {
        made->borrowed[d] = d < at || d >= at + count;
        if (made->borrowed[d])
            made->groups[d] = mesh->groups[d < at ? d : d - count + 1];
        else
            FSDP_TRY(fsdp__mesh_make_group(made, d));
    }
    *out = fsdp__take(&made);
    return FSDP_OK;
}
