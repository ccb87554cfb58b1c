/* doors.c - the table of doors, and how a model goes through one. */
#include "shard/doors.h"

const door doors[DOORS] = {
    {.name = "plain"},
    {.name = "fully_shard", .kind = DOOR_SHARDED},
    {.name = "fully_shard, copies", .kind = DOOR_SHARDED, .sharded.no_shared_memory = true},
    {.name = "fully_shard, offloaded", .kind = DOOR_SHARDED, .sharded.offload_policy.cpu = true},
    {.name = "fully_shard, columns", .kind = DOOR_SHARDED, .sharded.placement = net_last_dimension},
    {.name = "hybrid", .kind = DOOR_SHARDED, .hybrid = true},
    {.name = "ZeRO 1", .kind = DOOR_SHARDED, .sharded.zero_stage = 1},
    {.name = "ZeRO 2", .kind = DOOR_SHARDED, .sharded.zero_stage = 2},
    {.name = "ZeRO 3", .kind = DOOR_SHARDED, .sharded.zero_stage = 3},
    {.name = "FULL_SHARD", .kind = DOOR_FSDP1},
    {.name = "FULL_SHARD, original parameters", .kind = DOOR_FSDP1, .fsdp1.use_orig_params = true},
    {.name = "FULL_SHARD, copies, offloaded",
     .kind = DOOR_FSDP1,
     .fsdp1 = {.no_shared_memory = true, .cpu_offload.cpu = true}},
    {.name = "SHARD_GRAD_OP", .kind = DOOR_FSDP1, .fsdp1.strategy = FSDP_SHARD_GRAD_OP},
    {.name = "NO_SHARD", .kind = DOOR_FSDP1, .fsdp1.strategy = FSDP_NO_SHARD},
    {.name = "HYBRID_SHARD, original parameters",
     .kind = DOOR_FSDP1,
     .hybrid = true,
     .fsdp1 = {.strategy = FSDP_HYBRID_SHARD, .use_orig_params = true}},
    {.name = "_HYBRID_SHARD_ZERO2", .kind = DOOR_FSDP1, .hybrid = true, .fsdp1.strategy = FSDP_HYBRID_SHARD_ZERO2},
    {.name = "DDP", .kind = DOOR_DDP},
    {.name = "DDP, gradients in buckets", .kind = DOOR_DDP, .ddp.gradient_as_bucket_view = true},
};

bool door_is_hybrid(const door *d, int world)
{
    return d->hybrid && world == 4;
}

void door_wrap(const door *d, fsdp_module *module, fsdp_module *const *units, int unit_count, fsdp_mesh *mesh)
{
    fsdp_shard_options sharded = d->sharded;
    fsdp_fsdp1_options fsdp1 = d->fsdp1;

    sharded.mesh = fsdp1.mesh = mesh;
    if (fsdp1.strategy > FSDP_NO_SHARD && !mesh)
        fsdp1.strategy -= FSDP_HYBRID_SHARD - FSDP_FULL_SHARD;
    if (fsdp_context_world_size(module->context) == 1)
        fsdp1.strategy = FSDP_NO_SHARD;
    for (int i = 0; i <= unit_count; i++) { /* the root is the last */
        fsdp_module *unit = i < unit_count ? units[i] : module;

        if (d->kind == DOOR_SHARDED)
            CHECK_OK(fsdp_fully_shard(unit, &sharded));
        if (d->kind == DOOR_FSDP1)
            CHECK_OK(fsdp_fsdp1_wrap(unit, &fsdp1));
    }
    if (d->kind == DOOR_DDP)
        CHECK_OK(fsdp_replicate(module, &d->ddp));
}
