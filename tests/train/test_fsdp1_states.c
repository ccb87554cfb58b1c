/* State dicts of FSDP1's runs have the keys, shapes and parts that PyTorch's have: FULL, SHARDED, LOCAL, and those of
 * the optimizer. The reference's files are read where FSDP_REFERENCE says. */
#include "fsdp/fsdp1.h"
#include "fsdp/state.h"
#include "support/ranks.h"
#include "train/replay.h"

static const char *const runs[] = {"fsdp1-gpt2-full-flat-ws2", "fsdp1-gpt2-full-flat-ws3", "fsdp1-gpt2-full-orig-ws3",
                                   "fsdp1-gpt2-none-flat-ws2", "fsdp1-gpt2-hybrid-flat-2x2"};

static const char *const types[] = {"FULL", "SHARDED", "LOCAL"};

/* ---- one tensor ---- */

static void check_list(const char *name, const json_t *list, const int64_t *values, int count)
{
    bool same = (int)json_array_size(list) == count;

    for (int i = 0; same && i < count; i++)
        same = json_integer_value(json_array_get(list, (size_t)i)) == values[i];
    if (!same)
        TEST_FAIL("'%s': %d dimensions from %lld, expected %s", name, count, count > 0 ? (long long)values[0] : 0,
                  json_dumps(list, JSON_COMPACT));
}

/* A list is the shape of a plain tensor, or of the part of one whose runs PyTorch shows. A ShardedTensor has parts with
 * their offsets, a DTensor the part's shape; a rank may have none. */
static void check_tensor(const fsdp_state_dict_entry *entry, const json_t *expected)
{
    const json_t *local = json_object_get(expected, "local"), *part = json_array_get(local, 0);
    fsdp_tensor *t = entry->tensor;

    if (json_is_array(expected)) {
        check_list(entry->name, expected, fsdp_tensor_shape(t), fsdp_tensor_ndim(t));
        return;
    }
    check_list(entry->name, json_object_get(expected, "size"), entry->global_shape, entry->ndim);
    CHECK(!entry->flat);
    if (strcmp(json_string_value(json_object_get(expected, "type")), "DTensor") == 0) {
        check_list(entry->name, local, entry->size, entry->ndim);
        CHECK_EQ(fsdp_tensor_distribution(t)->placements[0].kind, FSDP_REPLICATE);
        CHECK_EQ(fsdp_tensor_distribution(t)->placements[1].kind, FSDP_SHARD);
    } else if (part) {
        check_list(entry->name, json_object_get(part, "offsets"), entry->offset, entry->ndim);
        check_list(entry->name, json_object_get(part, "sizes"), entry->size, entry->ndim);
    } else {
        CHECK_EQ(fsdp_tensor_numel(t), 0);
    }
}

static const json_t *of_rank(const json_t *expected, const fsdp_context *context)
{
    const json_t *ranks = json_object_get(expected, "per_rank");

    return ranks ? json_array_get(ranks, (size_t)fsdp_context_rank(context)) : expected;
}

static void check_tensors(const char *prefix, const fsdp_state_dict *state, const json_t *expected)
{
    const json_t *tensor;
    const char *name;
    char text[256];

    json_object_foreach((json_t *)(uintptr_t)expected, name, tensor)
    {
        snprintf(text, sizeof text, "%s%s", prefix, name);
        if (!fsdp_state_dict_find(state, text))
            TEST_FAIL("no '%s'", text);
        check_tensor(fsdp_state_dict_find(state, text), tensor);
    }
}

/* ---- the state of a model, and of its optimizer ---- */

static fsdp_state_dict_config config_of(int type)
{
    return (fsdp_state_dict_config){.type = (fsdp_state_dict_type)type};
}

static void check_model(const replay *r, fsdp_module *model, int type)
{
    const json_t *expected = json_object_get(json_object_get(r->reference, "states"), types[type]);
    const fsdp_state_dict_config config = config_of(type);
    fsdp_state_dict *state;

    if (json_is_string(expected)) {
        CHECK_STATUS(fsdp_fsdp1_state_dict(model, &config, &state), FSDP_UNSUPPORTED);
        CHECK_CONTAINS(fsdp_last_error(), "wrapped with a mesh");
        return;
    }
    expected = of_rank(expected, model->context);
    CHECK_OK(fsdp_fsdp1_state_dict(model, &config, &state));
    CHECK_EQ(state->count, (int64_t)json_object_size(expected));
    check_tensors("", state, expected);
    fsdp_state_dict_free(state);
}

static void check_optimizer(const replay *r, fsdp_module *model, fsdp_optimizer *optimizer, int type)
{
    const fsdp_state_dict_config config = {
        .type = type == FSDP_FULL_STATE_DICT ? FSDP_FULL_STATE_DICT : FSDP_SHARDED_STATE_DICT, .over_replicas = true};
    const json_t *expected, *parameters, *tensors;
    fsdp_state_dict *own, *state;
    const char *name;
    char key[16], prefix[256];

    snprintf(key, sizeof key, "%s_OPTIM", types[type]);
    expected = json_object_get(json_object_get(r->reference, "states"), key);
    if (json_is_string(expected)) /* a mesh is nothing to the parts of an optimizer */
        return;
    parameters = json_object_get(of_rank(expected, model->context), "state");
    CHECK_OK(fsdp_optimizer_state_dict(optimizer, &own));
    CHECK_OK(fsdp_state_dict_of_type(own, &config, &state));
    CHECK_EQ(state->count, 3 * (int64_t)json_object_size(parameters));
    json_object_foreach((json_t *)(uintptr_t)parameters, name, tensors)
    {
        snprintf(prefix, sizeof prefix, "state.%s.", name);
        check_tensors(prefix, state, tensors);
    }
    fsdp_state_dict_free(state);
    fsdp_state_dict_free(own);
}

static void check_rank0_only(const replay *r, fsdp_module *model)
{
    const fsdp_state_dict_config config = {.rank0_only = true, .offload_to_cpu = true};
    const json_t *counts = json_object_get(json_object_get(r->reference, "states"), "FULL_rank0_only_keys");
    fsdp_state_dict *state;

    CHECK_OK(fsdp_fsdp1_set_state_dict_type(model, &config));
    CHECK_OK(fsdp_fsdp1_state_dict(model, NULL, &state));
    CHECK_EQ(state->count, json_integer_value(json_array_get(counts, (size_t)fsdp_context_rank(model->context))));
    fsdp_state_dict_free(state);
}

static void check_states(fsdp_context *context, void *arg)
{
    const replay *r = arg;
    fsdp_module *model = replay_model(r, context);
    fsdp_optimizer *optimizer = replay_optimizer(r, model);

    CHECK_OK(fsdp_optimizer_init_state(optimizer));
    for (int type = FSDP_FULL_STATE_DICT; type <= FSDP_LOCAL_STATE_DICT; type++) {
        check_model(r, model, type);
        check_optimizer(r, model, optimizer, type);
    }
    check_rank0_only(r, model);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(model);
    test_drop_workspace(context);
}

TEST(states_are_those_of_the_reference)
{
    bool any = false;

    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        replay r = {.model = NULL};

        if (!replay_is_there(runs[i]))
            continue;
        any = true;
        replay_open(&r, runs[i]);
        test_run_ranks(r.world, check_states, &r);
        replay_close(&r);
    }
    if (!any)
        skip(); /* FSDP_REFERENCE has them */
}
