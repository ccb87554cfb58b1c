/* mesh_info.c - tells which ranks hold which part. */
#include "shard/group/mesh_info.h"

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "dist/dist.h"

/* ---- the two groups ---- */

fsdp__mesh_info fsdp__mesh_info_of(fsdp_mesh *mesh)
{
    bool hybrid = fsdp_mesh_ndim(mesh) == 2;
    fsdp_process_group *shard = fsdp_mesh_process_group(mesh, hybrid);
    fsdp_process_group *replicate = hybrid ? fsdp_mesh_process_group(mesh, 0) : NULL;

    return (fsdp__mesh_info){.mesh = fsdp_mesh_ref(mesh),
                             .shard_pg = shard,
                             .replicate_pg = replicate,
                             .ranks = fsdp_process_group_size(shard),
                             .rank = fsdp_process_group_rank(shard),
                             .replicas = replicate ? fsdp_process_group_size(replicate) : 1};
}

void fsdp__mesh_info_release(fsdp__mesh_info *info)
{
    fsdp_mesh_unref(info->mesh);
    *info = (fsdp__mesh_info){0};
}

bool fsdp__mesh_info_replicas_span_machines(const fsdp__mesh_info *info)
{
    return info->replicate_pg && fsdp__process_group_machines(info->replicate_pg) > 1;
}

fsdp_status fsdp__mesh_info_add_parallel(fsdp__mesh_info *info, const fsdp_mesh *mesh)
{
    for (int d = 0; d < fsdp_mesh_ndim(mesh); d++) {
        fsdp_process_group *pg = fsdp_mesh_process_group(mesh, d);
        bool known = fsdp_process_group_size(pg) == 1;

        for (int i = 0; i < info->parallel_count; i++)
            known = known || info->parallel_pgs[i] == pg;
        if (known)
            continue;
        if (info->parallel_count == FSDP_MAX_MESH_DIMS)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "parameters are cut over more than %d process groups, of which one is mesh dimension "
                             "'%s': cut them over fewer, or shard their modules one by one",
                             FSDP_MAX_MESH_DIMS, fsdp_mesh_dim_name(mesh, d));
        info->parallel_pgs[info->parallel_count++] = pg;
    }
    return FSDP_OK;
}

void fsdp__mesh_info_place(const fsdp__mesh_info *info, fsdp_placement placement, fsdp_distribution *out)
{
    out->mesh = info->mesh;
    out->placement_count = 0;
    if (info->replicate_pg)
        out->placements[out->placement_count++] = (fsdp_placement){.kind = FSDP_REPLICATE};
    out->placements[out->placement_count++] = placement;
}

/* Agrees on a status, and on whether ranks share memory. */
static fsdp_status agree_to_share(fsdp_process_group *pg, fsdp_status mine, bool shares)
{
    int first[2];

    FSDP_TRY(fsdp__agree_and_ask(pg, mine, shares, first));
    if (first[0] < 0 || first[1] < 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_MISMATCH,
                     "rank %d holds gathered parameters in memory that ranks share and rank %d does not: "
                     "no_shared_memory, and all else that decides it (the policies of dtypes and of offload, the "
                     "sharded dimension, functions around a gather), must be the same on all ranks",
                     first[1], first[0]);
}

static fsdp_status agree(const fsdp__mesh_info *info, fsdp_status mine, const bool *shares)
{
    if (info->ranks > 1)
        mine = shares ? agree_to_share(info->shard_pg, mine, *shares) : fsdp_agree(info->shard_pg, mine);
    if (info->replicas > 1) /* all ranks of a shard group have the same status by now */
        mine = fsdp_agree(info->replicate_pg, mine);
    for (int i = 0; i < info->parallel_count; i++)
        mine = fsdp_agree(info->parallel_pgs[i], mine);
    return mine;
}

fsdp_status fsdp__mesh_info_agree(const fsdp__mesh_info *info, fsdp_status mine)
{
    return agree(info, mine, NULL);
}

/* Returns whether both have the same ranks. */
static bool have_same_ranks(const fsdp__mesh_info *a, const fsdp__mesh_info *b)
{
    bool same =
        a->shard_pg == b->shard_pg && a->replicate_pg == b->replicate_pg && a->parallel_count == b->parallel_count;

    for (int i = 0; i < a->parallel_count && same; i++)
        same = a->parallel_pgs[i] == b->parallel_pgs[i];
    return same;
}

fsdp_status fsdp__mesh_info_agree_after(const fsdp__mesh_info **last, const fsdp__mesh_info *info, fsdp_status mine,
                                        const bool *shares)
{
    const fsdp__mesh_info *before = *last;

    *last = info;
    if (before && have_same_ranks(before, info))
        return mine;
    return agree(info, mine, shares);
}

/* ---- the data-parallel dimensions of a mesh ---- */

static int count_names(const char *const *names)
{
    int count = 0;

    while (count < FSDP_MAX_MESH_DIMS && names[count])
        count++;
    return count;
}

/* Returns "a_b", as PyTorch calls flattened dimensions; `otherwise` if there are none. */
static char *joined(const char *const *names, int count, const char *otherwise)
{
    char *text = fsdp__strdup(count > 0 ? names[0] : otherwise);

    for (int i = 1; i < count && text; i++) {
        char *longer = fsdp__sprintf("%s_%s", text, names[i]);

        fsdp__free(text);
        text = longer;
    }
    return text;
}

static fsdp_status named_mesh(fsdp_mesh *mesh, const fsdp_dp_mesh_dims *dims, fsdp_mesh **out)
{
    int replicate = count_names(dims->replicate), shard = count_names(dims->shard);
    const fsdp__mesh_names parts[] = {{replicate, dims->replicate}, {shard, dims->shard}};
    char *names[] = {joined(dims->replicate, replicate, "replicate"), joined(dims->shard, shard, "not sharded")};
    int first = replicate == 0; /* without replicas there is one dimension */
    fsdp_status status = FSDP_NO_MEMORY;

    if (names[0] && names[1])
        status = fsdp__mesh_part(mesh, "take the data-parallel dimensions (dp_mesh_dims) of a mesh", 2 - first,
                                 parts + first, (const char *const *)names + first, out);
    FSDP__FREE_ALL(names[0], names[1]);
    return status;
}

fsdp_status fsdp__data_parallel_mesh(fsdp_mesh *mesh, const fsdp_dp_mesh_dims *dims, fsdp_mesh **out)
{
    if (dims->shard[0] || dims->replicate[0])
        return named_mesh(mesh, dims, out);
    if (fsdp_mesh_ndim(mesh) > 2)
        return FSDP_FAIL(FSDP_INVALID,
                         "fully_shard takes a mesh of one dimension (shard) or two (replicate, shard), and this one "
                         "has %d: name its data-parallel dimensions in dp_mesh_dims",
                         fsdp_mesh_ndim(mesh));
    *out = fsdp_mesh_ref(mesh);
    return FSDP_OK;
}
