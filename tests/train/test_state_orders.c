/* State dicts at the wrong time: made before the modules were sharded, and loaded while one module of several is
 * summoned. What is refused changes nothing. */
#include "fsdp/checkpoint.h"
#include "fsdp/fsdp1.h"
#include "fsdp/hub.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    WAYS = 4
};

typedef struct job {
    char *checkpoint, *model, *more;
} job;

static job job_create(const char *directory)
{
    return (job){.checkpoint = test_path(directory, "checkpoint"),
                 .model = test_path(directory, "model"),
                 .more = test_path(directory, "more")};
}

static void in_worlds(int first, int last, test_rank_body body)
{
    for (int world = first; world <= last; world++) {
        char *directory = test_directory();
        job j = job_create(directory);

        test_run_ranks(world, body, &j);
        test_directory_free(directory);
    }
}

static fsdp_status save(fsdp_context *context, const char *folder, fsdp_state_dict *state, int64_t step)
{
    const fsdp_checkpoint_section section = {.name = "model", .state = state};
    const fsdp_checkpoint_content content = {.step = step, .sections = &section, .section_count = 1};

    return fsdp_checkpoint_save(folder, &content, fsdp_world(context));
}

/* The four ways into a state dict: a checkpoint, a folder, the folder by a leader, whole tensors. */
static fsdp_status load(fsdp_context *context, const job *j, int way, fsdp_state_dict *state,
                        const fsdp_state_dict *full)
{
    fsdp_checkpoint_reader *reader = NULL;
    fsdp_status status;

    if (way == 1)
        return fsdp_hub_load(j->model, state, NULL);
    if (way == 2)
        return fsdp_hub_load_by_leader(j->model, state, NULL, fsdp_world(context));
    if (way == 3)
        return fsdp_state_dict_load_full(state, full, NULL);
    CHECK_OK(fsdp_checkpoint_open(j->checkpoint, &reader));
    status = fsdp_checkpoint_load(reader, "model", state, NULL);
    fsdp_checkpoint_close(reader);
    return status;
}

/* Both files, and all of it whole. */
static fsdp_state_dict *save_both(fsdp_context *context, const job *j, fsdp_state_dict *state)
{
    fsdp_state_dict *full = NULL;

    CHECK_OK(save(context, j->checkpoint, state, 1));
    CHECK_OK(fsdp_hub_save(j->model, state, NULL, FSDP_F32, fsdp_world(context)));
    CHECK_OK(fsdp_state_dict_gather(state, NULL, &full));
    return full;
}

static fsdp_module *make_net(fsdp_context *context)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);

    CHECK_OK(fsdp_module_initialize(module, 3));
    return module;
}

static void check_values(fsdp_module *module, const float *expected)
{
    int64_t count;
    float *values = net_values(module, &count);

    CHECK_BYTES(values, expected, (size_t)count * sizeof *values);
    free(values);
}

/* ---- from before ---- */

static void shard(fsdp_module *module, bool flat)
{
    if (flat)
        CHECK_OK(fsdp_fsdp1_wrap(module, NULL));
    else
        net_shard(module, NULL);
}

static void check_old(fsdp_context *context, const job *j, bool flat)
{
    fsdp_module *module = make_net(context);
    fsdp_state_dict *old = NULL, *now = NULL, *full;
    const char *const why = "it was sharded after the state dict was made";
    int64_t count;
    float *values;

    CHECK_OK(fsdp_state_dict_from_module(module, &old));
    full = save_both(context, j, old);
    shard(module, flat);
    values = net_values(module, &count);
    CHECK_ERROR(save(context, j->more, old, 1), FSDP_STATE, why);
    CHECK_ERROR(fsdp_hub_save(j->more, old, NULL, FSDP_F32, fsdp_world(context)), FSDP_STATE, why);
    CHECK(!fsdp_checkpoint_exists(j->more, 1));
    for (int way = 0; way < WAYS; way++)
        CHECK_ERROR(load(context, j, way, old, full), FSDP_STATE, why);
    check_values(module, values);
    CHECK_OK(fsdp_state_dict_from_module(module, &now));
    for (int way = 0; way < WAYS; way++) {
        for (int64_t i = 0; i < now->count; i++)
            CHECK_OK(fsdp_tensor_fill_(now->entries[i].tensor, 9));
        CHECK_OK(load(context, j, way, now, full));
        check_values(module, values);
    }
    free(values);
    fsdp_state_dict_free(full);
    fsdp_state_dict_free(now);
    fsdp_state_dict_free(old);
    fsdp_module_unref(module);
}

static void check_old_sharded(fsdp_context *context, void *arg)
{
    check_old(context, arg, false);
}

static void check_old_flat(fsdp_context *context, void *arg)
{
    check_old(context, arg, true);
}

TEST(one_from_before_the_sharding_is_refused)
{
    in_worlds(2, 3, check_old_sharded);
    in_worlds(2, 3, check_old_flat);
}

/* ---- while a part is summoned ---- */

static void check_nines(const fsdp_state_dict *state)
{
    for (int64_t i = 0; i < state->count; i++) {
        float values[NET_DIM * NET_FFN];

        CHECK_OK(fsdp_tensor_read(state->entries[i].tensor, FSDP_F32, values));
        for (int64_t k = 0; k < fsdp_tensor_numel(state->entries[i].tensor); k++)
            CHECK_EQ(values[k], 9);
    }
}

static void check_summoned(fsdp_context *context, void *arg)
{
    fsdp_module *module = make_net(context);
    fsdp_state_dict *state = NULL, *full;
    int64_t count;
    float *values;

    net_shard(module, NULL);
    CHECK_OK(fsdp_state_dict_from_module(module, &state));
    values = net_values(module, &count);
    full = save_both(context, arg, state);
    for (int way = 0; way < WAYS; way++) {
        for (int64_t i = 0; i < state->count; i++)
            CHECK_OK(fsdp_tensor_fill_(state->entries[i].tensor, 9));
        CHECK_OK(fsdp_module_summon_full_params(net_block_at(module, 1), NULL));
        CHECK_ERROR(load(context, arg, way, state, full), FSDP_STATE, "it is summoned");
        CHECK_OK(fsdp_module_end_summon(net_block_at(module, 1)));
        check_nines(state);
        CHECK_OK(load(context, arg, way, state, full));
        check_values(module, values);
    }
    free(values);
    fsdp_state_dict_free(full);
    fsdp_state_dict_free(state);
    fsdp_module_unref(module);
}

TEST(a_load_that_a_summoned_module_refuses_changes_no_other)
{
    in_worlds(1, 3, check_summoned);
}
