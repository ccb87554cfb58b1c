/* fsdp1_mesh.c - makes a mesh from what FSDP1 takes: process groups, a mesh, or nothing. */
#include "shard/doors/fsdp1_mesh.h"

#include <string.h>

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "shard/group/default_groups.h"

static const char *const hybrid_names[] = {"replicate", "shard"};

const char *fsdp__fsdp1_strategy_name(fsdp_sharding_strategy strategy)
{
    static const char *const names[] = {
        [FSDP_FULL_SHARD] = "FULL_SHARD",
        [FSDP_SHARD_GRAD_OP] = "SHARD_GRAD_OP",
        [FSDP_NO_SHARD] = "NO_SHARD",
        [FSDP_HYBRID_SHARD] = "HYBRID_SHARD",
        [FSDP_HYBRID_SHARD_ZERO2] = "_HYBRID_SHARD_ZERO2",
    };

    return names[strategy];
}

static bool is_hybrid(const fsdp_fsdp1_options *o)
{
    return o->strategy == FSDP_HYBRID_SHARD || o->strategy == FSDP_HYBRID_SHARD_ZERO2;
}

/* ---- checks ---- */

static fsdp_status check_strategy(const fsdp_fsdp1_options *o)
{
    if (o->strategy < FSDP_FULL_SHARD || o->strategy > FSDP_HYBRID_SHARD_ZERO2)
        return FSDP_FAIL(FSDP_INVALID, "FSDP1: %d is not a sharding strategy", (int)o->strategy);
    if (o->mesh && (o->process_group || o->replicate_group))
        return FSDP_FAIL(FSDP_INVALID, "FSDP1 takes process groups or a mesh, not both");
    return FSDP_OK;
}

/* Returns whether a policy's units are all sharded over the ranks of each machine. */
static bool goes_by_machine(const fsdp_fsdp1_options *o)
{
    return is_hybrid(o) && o->auto_wrap_policy && !o->mesh && !o->process_group && !o->replicate_group;
}

static fsdp_status check_hybrid(const fsdp_fsdp1_options *o)
{
    const char *name = fsdp__fsdp1_strategy_name(o->strategy);

    if (o->mesh && fsdp_mesh_ndim(o->mesh) != 2)
        return FSDP_FAIL(FSDP_INVALID, "%s needs a mesh of two dimensions, (replicate, shard), and this one has %d",
                         name, fsdp_mesh_ndim(o->mesh));
    if (!o->mesh && !(o->process_group && o->replicate_group) && !goes_by_machine(o))
        return FSDP_FAIL(FSDP_INVALID,
                         "%s needs a pair of process groups (process_group and replicate_group) or a mesh of two "
                         "dimensions, unless a policy wraps all at once",
                         name);
    return FSDP_OK;
}

static fsdp_status check_plain(const fsdp_fsdp1_options *o)
{
    const char *name = fsdp__fsdp1_strategy_name(o->strategy);

    if (o->replicate_group)
        return FSDP_FAIL(FSDP_INVALID, "%s takes one process group: a pair is for HYBRID_SHARD", name);
    if (o->mesh && fsdp_mesh_ndim(o->mesh) != 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s takes a mesh of one dimension, and this one has %d: two are for HYBRID_SHARD", name,
                         fsdp_mesh_ndim(o->mesh));
    return FSDP_OK;
}

static fsdp_status check_context(fsdp_context *context, const fsdp_fsdp1_options *o)
{
    bool other = (o->mesh && fsdp_mesh_context(o->mesh) != context) ||
                 (o->process_group && fsdp_process_group_context(o->process_group) != context) ||
                 (o->replicate_group && fsdp_process_group_context(o->replicate_group) != context);

    return other ? FSDP_FAIL(FSDP_INVALID, "FSDP1 was given a mesh or group of another context than the module's")
                 : FSDP_OK;
}

/* ---- meshes ---- */

/* Returns the global ranks of a shard group, as one object. */
static int *ranks_of(const fsdp_process_group *pg, size_t *bytes)
{
    int size = fsdp_process_group_size(pg), *ranks = fsdp__malloc((size_t)size * sizeof *ranks);

    for (int i = 0; ranks && i < size; i++)
        ranks[i] = fsdp_process_group_global_rank(pg, i);
    *bytes = (size_t)size * sizeof *ranks;
    return ranks;
}

/* Joins the replicas' rows of the mesh, in their order. */
static fsdp_status join_rows(const fsdp_process_group *replicate, void *const *rows, const size_t *bytes, size_t row,
                             int **out)
{
    int replicas = fsdp_process_group_size(replicate);
    char *ranks;

    for (int r = 0; r < replicas; r++)
        if (bytes[r] != row)
            return FSDP_FAIL(FSDP_INVALID, "FSDP1: the shard group of rank %d has %zu ranks, that of rank %d has %zu",
                             fsdp_process_group_global_rank(replicate, r), bytes[r] / sizeof(int),
                             fsdp_process_group_global_rank(replicate, fsdp_process_group_rank(replicate)),
                             row / sizeof(int));
    FSDP__TRY_NEW(ranks = fsdp__malloc((size_t)replicas * row));
    for (int r = 0; r < replicas; r++)
        memcpy(ranks + (size_t)r * row, rows[r], row);
    *out = (int *)(void *)ranks;
    return FSDP_OK;
}

/* Makes a mesh (replicate, shard). [collective] of `replicate` */
static fsdp_status mesh_of_pair(fsdp_process_group *replicate, fsdp_process_group *shard, fsdp_mesh **out)
{
    fsdp_process_group *groups[] = {replicate, shard};
    FSDP__SCOPED(fsdp__gathered_release) fsdp__gathered rows = {0};
    size_t row;
    FSDP__FREED int *mine = ranks_of(shard, &row), *ranks = NULL;

    FSDP_TRY(fsdp_agree(replicate, mine ? FSDP_OK : FSDP_NO_MEMORY));
    FSDP_TRY(fsdp__gather(replicate, mine, row, &rows));
    FSDP_TRY(join_rows(replicate, rows.objects, rows.bytes, row, &ranks));
    return fsdp_mesh_from_groups(groups, 2, ranks, hybrid_names, out);
}

/* Makes a mesh in which every rank of `pg` is a replica of its own. */
static fsdp_status replicated_mesh(fsdp_context *context, fsdp_process_group *pg, fsdp_mesh **out)
{
    fsdp_process_group *groups[] = {pg, NULL};
    FSDP__FREED int *ranks = NULL;
    size_t bytes;

    if (fsdp_process_group_size(pg) == 1)
        return fsdp_mesh_from_groups(&pg, 1, NULL, NULL, out);
    FSDP_TRY(fsdp__default_alone(context, &groups[1]));
    ranks = ranks_of(pg, &bytes);
    FSDP_TRY(fsdp_agree(pg, ranks ? FSDP_OK : FSDP_NO_MEMORY));
    return fsdp_mesh_from_groups(groups, 2, ranks, hybrid_names, out);
}

static fsdp_status replicated_part(fsdp_mesh *mesh, fsdp_mesh **out)
{
    const int64_t sizes[] = {fsdp_mesh_size(mesh, 0), 1};

    return fsdp_mesh_unflatten(mesh, fsdp_mesh_dim_name(mesh, 0), 2, sizes, hybrid_names, out);
}

static fsdp_status plain_mesh(fsdp_context *context, const fsdp_fsdp1_options *o, fsdp_sharding_strategy strategy,
                              fsdp_mesh **out)
{
    fsdp_process_group *pg = o->process_group ? o->process_group : fsdp_world(context);

    if (strategy == FSDP_NO_SHARD) {
        if (o->mesh && fsdp_mesh_size(o->mesh, 0) > 1)
            return replicated_part(o->mesh, out);
        if (!o->mesh)
            return replicated_mesh(context, pg, out);
    }
    if (!o->mesh && o->process_group)
        return fsdp_mesh_from_groups(&pg, 1, NULL, NULL, out);
    *out = o->mesh;
    if (!*out)
        FSDP_TRY(fsdp__default_mesh(context, out));
    (void)fsdp_mesh_ref(*out);
    return FSDP_OK;
}

static fsdp_status machine_mesh(fsdp_context *context, fsdp_mesh **out)
{
    int64_t world = fsdp_context_world_size(context), machine = fsdp_context_local_world_size(context);
    const int64_t shape[] = {world / machine, machine};

    if (world % machine != 0)
        return FSDP_FAIL(FSDP_INVALID, "FSDP1 cannot shard over machines of %lld ranks: the world has %lld",
                         (long long)machine, (long long)world);
    return fsdp_mesh_create(context, 2, shape, hybrid_names, out);
}

static int shard_ranks(fsdp_context *context, const fsdp_fsdp1_options *o)
{
    if (o->mesh)
        return (int)fsdp_mesh_size(o->mesh, fsdp_mesh_ndim(o->mesh) - 1);
    if (goes_by_machine(o))
        return fsdp_context_local_world_size(context);
    return o->process_group ? fsdp_process_group_size(o->process_group) : fsdp_context_world_size(context);
}

fsdp_status fsdp__fsdp1_check(fsdp_context *context, const fsdp_fsdp1_options *o)
{
    FSDP_TRY(check_strategy(o));
    FSDP_TRY(check_context(context, o));
    return is_hybrid(o) ? check_hybrid(o) : check_plain(o);
}

fsdp_status fsdp__fsdp1_mesh(fsdp_context *context, const fsdp_fsdp1_options *o, fsdp_mesh **out,
                             fsdp_sharding_strategy *strategy)
{
    *strategy = o->strategy;
    if (shard_ranks(context, o) == 1)
        *strategy = FSDP_NO_SHARD;
    if (*strategy != o->strategy && fsdp_context_rank(context) == 0)
        fsdp_log(context, FSDP_LOG_WARNING, "FSDP1 switches to NO_SHARD instead of %s: the shard group has one rank",
                 fsdp__fsdp1_strategy_name(o->strategy));
    if (!is_hybrid(o))
        return plain_mesh(context, o, *strategy, out);
    if (goes_by_machine(o))
        return machine_mesh(context, out);
    if (!o->mesh)
        return mesh_of_pair(o->replicate_group, o->process_group, out);
    *out = fsdp_mesh_ref(o->mesh);
    return FSDP_OK;
}
