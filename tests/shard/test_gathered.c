/* Parameters that are gathered, or summoned, are not sharded, cut, adapted, converted, optimized or saved, since shards
 * take their places in the end: each such call is refused, and nothing has changed.
 * Links: optim parallel adapter */
#include "fsdp/adapter.h"
#include "fsdp/fsdp1.h"
#include "fsdp/optim.h"
#include "fsdp/parallelize.h"
#include "fsdp/replicate.h"
#include "fsdp/wrap.h"
#include "shard/net.h"

enum {
    BLOCKS = 2
};

/* ---- how they are there ---- */

static fsdp_status summon(fsdp_module *module)
{
    return fsdp_module_summon_full_params(module, NULL);
}

static fsdp_status summon_on_host(fsdp_module *module)
{
    return fsdp_module_summon_full_params(
        module, &(fsdp_summon_options){.no_writeback = true, .offload_to_cpu = true, .with_grads = true});
}

static const struct manner {
    fsdp_status (*begin)(fsdp_module *module), (*end)(fsdp_module *module);
} manners[] = {{summon, fsdp_module_end_summon},
               {summon_on_host, fsdp_module_end_summon},
               {fsdp_module_unshard, fsdp_module_reshard}};

/* ---- what is refused of a plain module below one that is sharded ---- */

static fsdp_status shard(fsdp_module *block)
{
    return fsdp_fully_shard(block, NULL);
}

static fsdp_status shard_by_policy(fsdp_module *block)
{
    const char *const types[] = {"Linear"};

    return fsdp_fully_shard_by_policy(
        block, &(fsdp_wrap_policy){.kind = FSDP_WRAP_CLASSES, .classes = types, .class_count = 1}, NULL);
}

static fsdp_status wrap(fsdp_module *block)
{
    return fsdp_fsdp1_wrap(block, &(fsdp_fsdp1_options){.sync_module_states = true});
}

static fsdp_status replicate(fsdp_module *block)
{
    return fsdp_replicate(block, NULL);
}

static fsdp_status parallelize(fsdp_module *block)
{
    const fsdp_parallel_entry plan[] = {{"up", {.kind = FSDP_COLUMN_WISE}}, {"down", {.kind = FSDP_ROW_WISE}}};
    int64_t ranks = fsdp_context_world_size(block->context);
    fsdp_mesh *mesh;
    fsdp_status status;

    CHECK_OK(fsdp_mesh_create(block->context, 1, &ranks, NULL, &mesh));
    status = fsdp_parallelize_module(block, mesh, plan, 2);
    fsdp_mesh_unref(mesh);
    return status;
}

static fsdp_status place(fsdp_module *block)
{
    int64_t ranks = fsdp_context_world_size(block->context);
    fsdp_mesh *mesh;
    fsdp_status status;

    CHECK_OK(fsdp_mesh_create(block->context, 1, &ranks, NULL, &mesh));
    status = fsdp_parallel_place(fsdp_module_child(block, "up"), "weight", mesh, (fsdp_placement){.kind = FSDP_SHARD},
                                 false);
    fsdp_mesh_unref(mesh);
    return status;
}

static fsdp_status adapt(fsdp_module *block)
{
    const char *const targets[] = {"up"};
    fsdp_adapter *adapter = NULL;
    fsdp_status status = fsdp_adapter_add(block, &(fsdp_lora_options){.targets = targets, .target_count = 1}, &adapter);

    fsdp_adapter_free(adapter);
    return status;
}

static fsdp_status convert(fsdp_module *block)
{
    return fsdp_module_to(block, FSDP_BF16);
}

static fsdp_status optimize(fsdp_module *block)
{
    fsdp_optimizer *optimizer = NULL;
    fsdp_parameters parameters;
    fsdp_status status;

    CHECK_OK(fsdp_module_parameters(block, &parameters));
    status = fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 1}, &optimizer);
    fsdp_parameters_release(&parameters);
    return status;
}

static fsdp_status save(fsdp_module *block)
{
    fsdp_state_dict *state = NULL;

    return fsdp_state_dict_from_module(block, &state);
}

static const struct refusal {
    const char *name;
    fsdp_status (*make)(fsdp_module *block);
    bool knows_owner; /* what is gathered is refused with the error of what is sharded, or of either */
} refusals[] = {{"shard", shard, true},
                {"shard by policy", shard_by_policy, true},
                {"wrap", wrap, true},
                {"replicate", replicate, true},
                {"parallelize", parallelize, false},
                {"place", place, false},
                {"adapt", adapt, false},
                {"convert", convert, false},
                {"optimize", optimize, false},
                {"save", save, false}};

typedef struct attempt {
    const struct manner *manner;
    bool replicated;
} attempt;

static void attempt_all(fsdp_context *context, void *arg)
{
    static const char *const parts[] = {"gathered now", "will be released", "end its summon"};
    const attempt *a = arg;
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *block = net_block_at(module, 1);
    fsdp_tensor *weight = fsdp_module_parameter(block, "up.weight");
    float before[NET_FFN * NET_DIM], after[NET_FFN * NET_DIM];

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(a->replicated ? fsdp_replicate(module, NULL) : fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_tensor_read(weight, FSDP_F32, before));
    for (size_t i = 0; i < FSDP__COUNT_OF(refusals); i++) {
        bool owner = refusals[i].knows_owner && a->manner->begin == fsdp_module_unshard;
        fsdp_status status;

        CHECK_OK(a->manner->begin(module));
        status = refusals[i].make(block);
        if (owner)
            CHECK(status != FSDP_OK);
        else
            net_check_refused(refusals[i].name, status, FSDP_STATE, parts, 3);
        CHECK_OK(a->manner->end(module));
        CHECK(fsdp_module_parameter(block, "up.weight") == weight && fsdp_tensor_requires_grad(weight));
    }
    CHECK_OK(fsdp_tensor_read(weight, FSDP_F32, after));
    CHECK_BYTES(after, before, (size_t)fsdp_tensor_numel(weight) * sizeof(float));
    CHECK_OK(net_try(module));
    fsdp_module_unref(module);
}

TEST(what_is_there_for_a_while_is_not_sharded_cut_or_changed)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(manners); i++)
        for (int replicated = 0; replicated < 2; replicated++)
            test_run_worlds(1, 3, attempt_all, &(attempt){&manners[i], replicated});
}
