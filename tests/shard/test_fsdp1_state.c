/* FSDP1's state dicts: each type out of one model and into another, of every strategy, by groups or a mesh. */
#include "fsdp/fsdp1.h"
#include "fsdp/state.h"
#include "shard/net.h"

enum {
    BLOCKS = 2,
    PARAMS = 6 + 4 * BLOCKS,
    STRATEGIES = FSDP_HYBRID_SHARD_ZERO2 + 1
};

static bool is_hybrid(fsdp_sharding_strategy strategy)
{
    return strategy >= FSDP_HYBRID_SHARD;
}

/* The head's weight has a second name, "again.weight"; nobody calls that. */
static void tie(fsdp_module *module)
{
    fsdp_layer *head = (fsdp_layer *)((net *)module)->head, *again;

    CHECK_OK(fsdp_module_create(module->context, head->base.type, sizeof *again, &again));
    CHECK_OK(fsdp_module_tie_parameter(&again->base, "weight", &again->weight, head->weight));
    CHECK_OK(fsdp_module_add_child(module, "again", &again->base));
}

typedef struct trial {
    fsdp_sharding_strategy strategy;
    bool orig, offload, by_mesh;
    fsdp_state_dict_config config;
} trial;

static fsdp_module *make(fsdp_context *context, const trial *t, fsdp_mesh *mesh, uint64_t seed)
{
    fsdp_fsdp1_options options = {.strategy = t->strategy, .use_orig_params = t->orig, .cpu_offload.cpu = t->offload};
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    tie(module);
    if (fsdp_context_world_size(context) == 1)
        options.strategy = FSDP_NO_SHARD;
    if (mesh && t->by_mesh)
        options.mesh = mesh;
    if (mesh && !t->by_mesh) {
        options.replicate_group = fsdp_mesh_process_group(mesh, 0);
        options.process_group = fsdp_mesh_process_group(mesh, 1);
    }
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), &options));
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, seed));
    return module;
}

/* ---- out and in ---- */

static bool is_local_vector(fsdp_context *context, const trial *t)
{
    return t->config.type == FSDP_LOCAL_STATE_DICT && fsdp_context_world_size(context) > 1 &&
           t->strategy != FSDP_NO_SHARD;
}

static void check_names(fsdp_context *context, const trial *t, const fsdp_state_dict *state)
{
    bool vector = is_local_vector(context, t), names = !vector || t->orig;

    if (t->config.rank0_only && state->count == 0)
        return;
    CHECK_EQ(state->count, (names ? PARAMS + 1 : 0) + (vector ? BLOCKS + 1 : 0));
    CHECK_EQ(fsdp_state_dict_find(state, "again.weight") != NULL, names);
    CHECK_EQ(fsdp_state_dict_find(state, "_flat_param") != NULL, vector);
    CHECK_EQ(fsdp_state_dict_find(state, "blocks.1._flat_param") != NULL, vector);
    if (names)
        CHECK(fsdp_state_dict_find(state, "again.weight")->tensor ==
              fsdp_state_dict_find(state, "head.weight")->tensor);
    for (int64_t i = 0; i < state->count && t->config.offload_to_cpu; i++)
        CHECK(fsdp_tensor_device(state->entries[i].tensor) == fsdp_cpu(context));
}

/* Of tied parameters the second name alone. */
static fsdp_state_dict *without_first_name(const fsdp_state_dict *state)
{
    fsdp_state_dict *out;

    CHECK_OK(fsdp_state_dict_create(&out));
    for (int64_t i = 0; i < state->count; i++)
        if (strcmp(state->entries[i].name, "head.weight") != 0)
            CHECK_OK(fsdp_state_dict_add(out, state->entries[i].name, state->entries[i].tensor));
    return out;
}

static void check_round(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    fsdp_mesh *mesh = is_hybrid(t->strategy) ? net_hybrid_mesh(context, 2) : NULL;
    fsdp_module *from = make(context, t, mesh, 1), *to = make(context, t, mesh, 2);
    int64_t count, same;
    float *expected = net_values(from, &count), *values;
    fsdp_state_dict *state, *given;

    CHECK_OK(fsdp_fsdp1_state_dict(from, &t->config, &state));
    check_names(context, t, state);
    given = t->orig ? without_first_name(state) : state;
    CHECK_OK(fsdp_fsdp1_set_state_dict_type(to, &t->config));
    CHECK_OK(fsdp_fsdp1_load_state_dict(to, NULL, given));
    fsdp_state_dict_free(t->orig ? given : NULL);
    fsdp_state_dict_free(state);
    fsdp_module_unref(from);
    values = net_values(to, &same);
    CHECK_EQ(count, same);
    net_check_same(values, expected, count);
    net_train(to, 1);
    fsdp_module_unref(to);
    fsdp_mesh_unref(mesh);
    test_drop_workspace(context);
}

TEST(each_type_goes_out_and_in)
{
    static const fsdp_state_dict_config configs[] = {{.type = FSDP_FULL_STATE_DICT},
                                                     {.rank0_only = true, .offload_to_cpu = true},
                                                     {.type = FSDP_SHARDED_STATE_DICT},
                                                     {.type = FSDP_SHARDED_STATE_DICT, .offload_to_cpu = true},
                                                     {.type = FSDP_LOCAL_STATE_DICT}};
    trial t = {.orig = false};

    for (int strategy = 0; strategy < STRATEGIES; strategy++)
        for (size_t c = 0; c < FSDP__COUNT_OF(configs); c++)
            for (int orig = 0; orig < 2; orig++) {
                int worlds[] = {1, 2, 3};

                t = (trial){.strategy = (fsdp_sharding_strategy)strategy,
                            .orig = orig,
                            .offload = (strategy + (int)c) % 3 == 0,
                            .by_mesh = configs[c].type != FSDP_LOCAL_STATE_DICT && orig,
                            .config = configs[c]};
                test_run_ranks(is_hybrid(t.strategy) ? 4 : worlds[((int)c + strategy + orig) % 3], check_round, &t);
            }
}

/* ---- live memory, and other strategies ---- */

/* What LOCAL gives is the parameters' memory; what FULL gives goes into a model of another strategy and world. */
WORLDS_TEST(a_local_one_is_live_memory, 1, 3)
{
    const fsdp_state_dict_config local = {.type = FSDP_LOCAL_STATE_DICT}, full = {.type = FSDP_FULL_STATE_DICT};
    const trial flat = {.orig = false}, none = {.strategy = FSDP_NO_SHARD};
    fsdp_module *from = make(context, &flat, NULL, 1), *to = make(context, &none, NULL, 2);
    int64_t count, same;
    float *expected, *values;
    fsdp_state_dict *state;

    CHECK_OK(fsdp_fsdp1_state_dict(from, &local, &state));
    for (int64_t i = 0; i < state->count; i++)
        CHECK_OK(fsdp_tensor_fill_(state->entries[i].tensor, 0.25));
    fsdp_state_dict_free(state);
    expected = net_values(from, &count);
    for (int64_t i = 0; i < count; i++)
        CHECK_NEAR(expected[i], 0.25, 0);
    net_train(from, 1);
    free(expected);
    expected = net_values(from, &count);
    CHECK_OK(fsdp_fsdp1_state_dict(from, NULL, &state)); /* FULL, when nothing was said */
    CHECK_OK(fsdp_fsdp1_load_state_dict(to, &full, state));
    fsdp_state_dict_free(state);
    values = net_values(to, &same);
    net_check_same(values, expected, count);
    fsdp_module_unref(from);
    fsdp_module_unref(to);
    test_drop_workspace(context);
}

/* ---- refused ---- */

RANKS_TEST(what_has_no_answer_is_refused, 4)
{
    const fsdp_state_dict_config local = {.type = FSDP_LOCAL_STATE_DICT},
                                 odd = {.type = FSDP_SHARDED_STATE_DICT, .rank0_only = true},
                                 unknown = {.type = (fsdp_state_dict_type)7};
    const trial hybrid = {.strategy = FSDP_HYBRID_SHARD, .by_mesh = true}, flat = {.orig = false};
    fsdp_mesh *mesh = net_hybrid_mesh(context, 2);
    fsdp_module *module = make(context, &hybrid, mesh, 1), *plain = net_create(context, fsdp_meta(context), 1);
    fsdp_state_dict *state;

    CHECK_ERROR(fsdp_fsdp1_state_dict(plain, &local, &state), FSDP_STATE, "was not given to");
    CHECK_ERROR(fsdp_fsdp1_state_dict(module, &local, &state), FSDP_UNSUPPORTED, "wrapped with a mesh: take a sharded");
    CHECK_NULL(state);
    CHECK_ERROR(fsdp_fsdp1_state_dict(module, &odd, &state), FSDP_INVALID, "rank0_only belongs to full state dicts");
    CHECK_ERROR(fsdp_fsdp1_set_state_dict_type(module, &unknown), FSDP_INVALID, "7 is not a type of state dict");
    CHECK_ERROR(fsdp_fsdp1_set_state_dict_type(module, NULL), FSDP_INVALID, "is required");
    CHECK_ERROR(fsdp_fsdp1_load_state_dict(module, NULL, NULL), FSDP_INVALID, "it is NULL");
    CHECK_OK(fsdp_module_summon_full_params(module, NULL));
    CHECK_ERROR(fsdp_fsdp1_state_dict(module, NULL, &state), FSDP_STATE, "is gathered");
    CHECK_OK(fsdp_module_end_summon(module));
    fsdp_module_unref(module);
    fsdp_module_unref(plain);
    fsdp_mesh_unref(mesh);
    module = make(context, &flat, NULL, 1);
    CHECK_ERROR(fsdp_module_summon_full_params(module, &(fsdp_summon_options){.with_grads = true}), FSDP_UNSUPPORTED,
                "wrap with original parameters");
    CHECK_OK(fsdp_fsdp1_state_dict(module, NULL, &state));
    CHECK_ERROR(fsdp_fsdp1_load_state_dict(module, &local, state), FSDP_INVALID,
                "can only be loaded into units that are wrapped alike: cannot load '_flat_param': the state "
                "dict does not have it");
    fsdp_state_dict_free(state);
    net_train(module, 1);
    fsdp_module_unref(module);
    test_drop_workspace(context);
}

/* Only rank 0 takes the state, the others go on training (or end): an error on all, and no hang. */
static void take_alone(fsdp_context *context, void *arg)
{
    const trial flat = {.orig = *(const bool *)arg};
    fsdp_module *module = make(context, &flat, NULL, 1);
    fsdp_state_dict *state = NULL;
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    if (fsdp_context_rank(context) == 0)
        CHECK(fsdp_fsdp1_state_dict(module, NULL, &state) != FSDP_OK);
    else
        CHECK_NULL(fsdp_call(module, x, targets));
    CHECK(strlen(fsdp_last_error()) > 0);
    CHECK_NULL(state);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

TEST(a_rank_that_calls_alone_is_an_error)
{
    if (!test_on_cpu()) /* behind the host the others hear of it later */
        return;
    for (int world = 2; world <= 3; world++)
        test_run_ranks(world, take_alone, &(bool){world == 3});
}
