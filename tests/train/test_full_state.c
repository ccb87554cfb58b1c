/* The state of a sharded model and of its optimizer, in every residence: aliases of what is trained, gathered whole
 * without leaving a trace, loaded into another model that then trains on alike. */
#include "fsdp/state.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

static void train(const way_run *run, fsdp_module *module, fsdp_optimizer *optimizer, int first, int last)
{
    for (int step = first; step <= last; step++) {
        ways_backward(run, module, step);
        ways_step(optimizer);
    }
}

static fsdp_state_dict *state_of(fsdp_module *module)
{
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_state_dict_from_module(module, &state));
    return state;
}

static fsdp_state_dict *state_of_optimizer(fsdp_optimizer *optimizer)
{
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_optimizer_state_dict(optimizer, &state));
    return state;
}

/* ---- aliases ---- */

WAYS_TEST(entries_are_what_is_trained, WAYS_RANKS_AGREE)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_NEVER);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_state_dict *states[2], *whole = NULL;
    const void *data[2][32];
    fsdp_comm_stats stats;
    int64_t count;
    float *values;

    train(run, module, optimizer, 0, 0);
    fsdp_context_reset_comm_stats(context);
    states[0] = state_of(module);
    states[1] = state_of_optimizer(optimizer);
    fsdp_context_comm_stats(context, &stats);
    for (int i = 0; i < FSDP_COLLECTIVES; i++)
        CHECK_EQ(stats.calls[i], 0);
    for (int s = 0; s < 2; s++) {
        CHECK(states[s]->count <= 32);
        for (int64_t i = 0; i < states[s]->count; i++)
            data[s][i] = fsdp_tensor_data(states[s]->entries[i].tensor);
    }
    train(run, module, optimizer, 1, 2);
    (void)ways_evaluate(run, module, 3); /* all stay unsharded */
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < states[s]->count; i++)
            CHECK(fsdp_tensor_data(states[s]->entries[i].tensor) == data[s][i]);
    for (int64_t i = 0; i < states[0]->count; i++)
        CHECK(states[0]->entries[i].tensor == fsdp_module_parameter(module, states[0]->entries[i].name));

    values = net_values(module, &count);
    CHECK_OK(fsdp_state_dict_gather(states[0], NULL, &whole));
    for (int64_t i = 0, at = 0; i < whole->count; i++) {
        float *actual = malloc((size_t)count * sizeof *actual);
        int64_t numel = fsdp_tensor_numel(whole->entries[i].tensor);

        CHECK_OK(fsdp_tensor_read(whole->entries[i].tensor, FSDP_F32, actual));
        CHECK_BYTES(actual, values + at, (size_t)numel * sizeof *actual);
        at += numel;
        free(actual);
        CHECK(at <= count && (i + 1 < whole->count || at == count));
    }
    free(values);
    note_weights(run, module);
    fsdp_state_dict_free(whole);
    fsdp_state_dict_free(states[0]);
    fsdp_state_dict_free(states[1]);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

/* ---- from one model to another ---- */

static void freeze(fsdp_module *module)
{
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(module, "blocks.0.up.weight"), false));
}

/* The whole state of both, as a checkpoint would have it. */
static void gather(fsdp_module *module, fsdp_optimizer *optimizer, const fsdp_full_state_options *options,
                   fsdp_state_dict *out[2])
{
    fsdp_state_dict *states[] = {state_of(module), state_of_optimizer(optimizer)};

    for (int s = 0; s < 2; s++) {
        CHECK_OK(fsdp_state_dict_gather(states[s], options, &out[s]));
        fsdp_state_dict_free(states[s]);
    }
}

static void load(fsdp_module *module, fsdp_optimizer *optimizer, const fsdp_full_state_options *options,
                 fsdp_state_dict *const from[2])
{
    fsdp_state_dict *own = state_of(module);

    CHECK_OK(fsdp_state_dict_load_full(own, from[0], options));
    CHECK_OK(fsdp_optimizer_load_full_state_dict(optimizer, from[1], options));
    fsdp_state_dict_free(own);
}

/* From rank 0, or from each rank's own. */
WAYS_TEST(another_model_trains_on_alike, WAYS_RANKS_AGREE)
{
    bool from_first = run->world % 2 == 0;
    const fsdp_full_state_options first = {.cpu_offload = from_first, .broadcast_from_rank0 = from_first};
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO), *other;
    fsdp_optimizer *optimizer, *of_other;
    fsdp_state_dict *full[2];
    int64_t live;

    freeze(module);
    optimizer = ways_optimizer(module);
    train(run, module, optimizer, 0, 1);
    other = ways_net(context, run, BLOCKS, FSDP_RESHARD_NEVER);
    freeze(other);
    of_other = ways_optimizer(other);
    train(run, other, of_other, 5, 5);
    (void)ways_evaluate(run, other, 6); /* what it has gathered is stale after the load */
    live = test_live_bytes(context);
    gather(module, optimizer, &first, full);
    dawdle(context, run);
    load(other, of_other, &first, full);
    fsdp_state_dict_free(full[0]);
    fsdp_state_dict_free(full[1]);
    CHECK(test_live_bytes(context) <= live); /* what stayed unsharded may be gone */
    for (int step = 2; step < 4; step++) {
        float loss = ways_evaluate(run, module, step), same = ways_evaluate(run, other, step);

        CHECK_BYTES(&same, &loss, sizeof loss);
        train(run, module, optimizer, step, step);
        dawdle(context, run);
        train(run, other, of_other, step, step);
    }
    note_weights(run, module);
    note_weights(run, other);
    fsdp_optimizer_free(optimizer);
    fsdp_optimizer_free(of_other);
    fsdp_module_unref(module);
    fsdp_module_unref(other);
}
