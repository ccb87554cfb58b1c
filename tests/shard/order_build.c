/* order_build.c - models built and freed in every residence. */
#include "shard/order_build.h"

#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/parts.h"

/* The last dimension: columns of matrices. */
static fsdp_status place_last(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out)
{
    (void)arg, (void)name, (void)parameter;
    out->dim = -1;
    return FSDP_OK;
}

/* FSDP1's strategy for what the plan says, which is FULL_SHARD or SHARD_GRAD_OP, with replicas hybrid. */
static void wrap_unit(const order_model *m, const order_run *run, fsdp_mesh *mesh, int group)
{
    const order_program *p = run->program;
    fsdp_reshard reshard = m->plan->reshard[group];
    fsdp_module *module = module_at(m, group); /* targets are the root and the blocks, as groups are */
    fsdp_fsdp1_options options = {.mesh = mesh,
                                  .use_orig_params = !m->plan->as_one,
                                  .backward_prefetch = (fsdp_backward_prefetch)(p->seed / 5 % 3),
                                  .forward_prefetch = p->seed / 15 % 2,
                                  .overlap = residence_overlap(run->residence, p->seed),
                                  .no_shared_memory = run->residence->copy,
                                  .cpu_offload = residence_offload(run->residence, p->seed)};

    if (reshard == FSDP_RESHARD_NEVER)
        options.strategy = mesh ? FSDP_HYBRID_SHARD_ZERO2 : FSDP_SHARD_GRAD_OP;
    else
        options.strategy = mesh ? FSDP_HYBRID_SHARD : FSDP_FULL_SHARD;
    if (p->bf16) {
        options.mixed_precision.param_dtype = FSDP_BF16;
        options.mixed_precision.keep_low_precision_grads = p->seed / 5 % 2;
        options.mixed_precision.cast_forward_inputs = true; /* blocks are called by themselves, too */
        options.mixed_precision.reduce_dtype = p->reduce_f32 ? FSDP_F32 : FSDP_DTYPE_NONE;
    }
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    if (reshard == FSDP_RESHARD_ALWAYS)
        CHECK_OK(fsdp_module_set_reshard_after_forward(module, true, false));
}

static void shard_group(order_model *m, const order_run *run, fsdp_mesh *mesh, int group)
{
    const order_program *p = run->program;
    fsdp_module *modules[ORDER_MAX_TARGETS];
    int count = 0;
    fsdp_shard_options options = {.mesh = mesh,
                                  .reshard_after_forward = m->plan->reshard[group],
                                  .reshard_after_forward_ranks = m->plan->slice_ranks[group],
                                  .zero_stage = m->plan->zero_stage[group],
                                  .overlap = residence_overlap(run->residence, p->seed),
                                  .no_shared_memory = run->residence->copy,
                                  .offload_policy = residence_offload(run->residence, p->seed)};

    if (p->bf16)
        options.mp_policy.param_dtype = FSDP_BF16;
    if (p->bf16)
        options.mp_policy.reduce_dtype = p->reduce_f32 ? FSDP_F32 : FSDP_BF16;
    if (order_shards_last(p))
        options.placement = place_last;
    for (int t = 0; t < m->plan->target_count; t++)
        if (m->plan->targets[t].group == group)
            modules[count++] = module_at(m, t);
    /* Every third seed through the library's own front door, else in states of two or three groups. */
    if (p->seed % 3 == 0)
        CHECK_OK(fsdp_fully_shard_modules(modules, count, &options));
    else
        CHECK_OK(shard_in_parts(modules, count, &options, 1 + (int)(p->seed % 3)));
}

/* In buckets of any size. */
static void replicate(const order_model *m, const order_run *run)
{
    static const double caps[] = {0, 1e-4, 3e-4};
    const order_program *p = run->program;
    const fsdp_replicate_options options = {.bucket_cap_mb = caps[p->seed / 7 % 3],
                                            .find_unused_parameters = order_leaves_out(p, m->plan),
                                            .gradient_as_bucket_view = p->seed / 3 % 2,
                                            .overlap = residence_overlap(run->residence, p->seed),
                                            .no_shared_memory = run->residence->copy};

    CHECK_OK(fsdp_replicate(m->module, &options));
}

void order_build(order_player *player, const order_run *run, int index)
{
    order_model *m = &player->models[index];
    const order_plan *plan = m->plan = &run->program->plans[index];
    bool real = plan->real || player->plain;
    uint64_t seed = (uint64_t)index + 10;

    m->module = order_net_create(player->context, real ? test_device(player->context) : fsdp_meta(player->context),
                                 plan->blocks, order_ffn(run->program), plan->form);
    if (real)
        CHECK_OK(fsdp_module_initialize(m->module, seed));
    CHECK_OK(fsdp_module_parameters(m->module, &m->parameters)); /* those that the module was built with */
    CHECK_EQ(m->parameters.count, plan->param_count);
    for (int i = 0; i < plan->blocks && !player->plain; i++)
        if (plan->checkpoints >> i & 1)
            CHECK_OK(
                fsdp_module_set_recompute(module_at(m, 1 + i), i % 2 ? FSDP_RECOMPUTE_SELECTIVE : FSDP_RECOMPUTE_FULL));
    for (int g = plan->group_count - 1; g >= 0 && !player->plain; g--)
        if (plan->flat)
            wrap_unit(m, run, player->mesh, g);
        else if (order_replicates(run->program))
            replicate(m, run);
        else
            shard_group(m, run, player->mesh, g);
    if (!real) {
        CHECK_OK(fsdp_module_materialize(m->module, test_device(player->context)));
        CHECK_OK(fsdp_module_initialize(m->module, seed));
    }
}

void order_tear_down(order_model *m, bool losses_last)
{
    for (int slot = 0; slot < ORDER_SLOTS && !losses_last; slot++)
        drop_losses(m, slot);
    drop_unreduced(m, m->plan->all_params);
    fsdp_optimizer_free(m->optimizer);
    fsdp_state_dict_free(m->state);
    for (int p = 0; p < m->plan->param_count; p++)
        free(m->saved[p]);
    fsdp_parameters_release(&m->parameters);
    fsdp_module_unref(m->module);
    for (int slot = 0; slot < ORDER_SLOTS; slot++)
        drop_losses(m, slot);
    *m = (order_model){0};
}

void play_rebuild(order_player *player, const order_call *call)
{
    order_tear_down(model_of(player, call), call->number);
    order_build(player, player->run, call->model);
}
