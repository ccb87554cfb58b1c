/* Shards are cast once after each write, for all gathers until the next. Links: optim */
#include "shard/group/cast.h"
#include "shard/state/module_state.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

/* Twice their values, and nobody is told. */
static void change_in_secret(fsdp_module *module)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *shard = parameters.items[i].tensor, *other = fsdp_scale(fsdp_detach(shard), 2);

        CHECK_OK(fsdp__tensor_copy(shard, CHECK_PTR(other), false));
    }
    fsdp_parameters_release(&parameters);
}

static void tell(fsdp_module *module, bool all)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (all || i == 0)
            CHECK_OK(fsdp_tensor_begin_write(parameters.items[i].tensor));
    fsdp_parameters_release(&parameters);
}

/* Every forward gathers. */
WAYS_TEST(a_write_is_seen_and_nothing_else, WAYS_ALONE)
{
    way_run here = *run;
    fsdp_module *module;
    float losses[4];

    here.options.offload_policy.cpu = false; /* those are cast by every gather */
    module = ways_net(context, &here, BLOCKS, FSDP_RESHARD_ALWAYS);
    CHECK_OK(fsdp_scope_begin(context));
    losses[0] = ways_evaluate(run, module, 1);
    CHECK_OK(fsdp_barrier(fsdp_world(context))); /* in place, peers would read what changes */
    change_in_secret(module);
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(test_device(context)))); /* nor do gathers wait for a secret */
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    losses[1] = ways_evaluate(run, module, 1);
    if (run->way->bf16)
        CHECK_BYTES(&losses[1], &losses[0], sizeof losses[0]);
    dawdle(context, run);
    tell(module, false); /* of the root's group alone */
    losses[2] = ways_evaluate(run, module, 1);
    dawdle(context, run);
    tell(module, true);
    losses[3] = ways_evaluate(run, module, 1);
    if (run->way->bf16)
        CHECK(losses[2] != losses[1] && losses[3] != losses[2]);
    note(context, run, losses, 4);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

/* Microbatches, evaluations between them, a rank that writes alone, by hand, a step that failed. */
WAYS_TEST(residences_agree_over_writes, WAYS_ALONE)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_tensor *bias = fsdp_module_parameter(module, "blocks.1.up.bias");
    float loss;

    for (int step = 0; step < 4; step++) {
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        ways_backward(run, module, 3 * step);
        loss = ways_evaluate(run, module, step);
        note(context, run, &loss, 1);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        if (step == 1 && fsdp_context_rank(context) == 0)
            CHECK_OK(fsdp_tensor_fill_(bias, 0.25));
        if (step == 2)
            CHECK_OK(fsdp_module_unshard(module));
        if (step == 3) {
            CHECK_OK(fsdp_scope_begin(context));
            (void)ways_loss(run, module, 2);
            fsdp_scope_end(context, NULL);
            CHECK_OK(fsdp_module_reset_iteration(module));
        }
        dawdle(context, run);
        ways_backward(run, module, 3 * step + 1);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

/* Rows that lie apart are cast by the gather. */
TEST(whoever_lies_apart_keeps_no_cast)
{
    fsdp__param param = {.orig_dtype = FSDP_F32, .param_dtype = FSDP_BF16, .extent = {1, 4, 2}, .chunk_numel = 40};
    fsdp__residence residence = {.cast_bytes = 7};

    CHECK(fsdp__param_keeps_cast(&param));
    fsdp__cast_lay_out(&residence, &param, 1);
    CHECK_EQ(residence.cast_bytes, 128);
    param.extent.outer = 3;
    CHECK(!fsdp__param_keeps_cast(&param));
    fsdp__cast_lay_out(&residence, &param, 1);
    CHECK_EQ(residence.cast_bytes, 0);
    param = (fsdp__param){.orig_dtype = FSDP_BF16, .param_dtype = FSDP_BF16, .extent = {1, 4, 2}};
    CHECK(!fsdp__param_keeps_cast(&param));
}
