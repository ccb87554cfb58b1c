/* fully_shard for the units of a wrap policy, and for modules while they are built: the same bits as by hand. */
#include "fsdp/wrap.h"

#include "shard/net.h"

enum {
    BLOCKS = 2,
    STEPS = 3
};

static const char *const block_class[] = {"Block"}, *const linear_class[] = {"Linear"};

/* ---- training ---- */

/* Blocks stay unsharded, the head comes in memory of its own, all else is the root's. */
static fsdp_status choose(void *arg, const fsdp_module *module, const char *name, void *options, bool *wrap)
{
    fsdp_shard_options *o = options;

    (void)arg;
    if (strcmp(module->type->name, "Block") == 0)
        o->reshard_after_forward = FSDP_RESHARD_NEVER;
    else if (strcmp(name, "head") == 0)
        o->no_shared_memory = true;
    else
        return FSDP_OK;
    *wrap = true;
    return FSDP_OK;
}

static const fsdp_wrap_policy parts[] = {{.kind = FSDP_WRAP_CLASSES, .classes = linear_class, .class_count = 1},
                                         {.kind = FSDP_WRAP_SIZE, .min_num_params = 172}};

static const struct {
    fsdp_wrap_policy policy;
    int units, gathers; /* of a step, with reshard ALWAYS: units with parameters once in each direction */
} cases[] = {
    {{.kind = FSDP_WRAP_CLASSES, .classes = block_class, .class_count = 1}, 3, 6},
    {{.kind = FSDP_WRAP_NONE}, 1, 2},
    {{.kind = FSDP_WRAP_SIZE, .min_num_params = 84}, 5, 10},
    {{.kind = FSDP_WRAP_ALWAYS}, 10, 14},
    {{.kind = FSDP_WRAP_ANY, .policies = parts, .policy_count = 2}, 7, 14},
    {{.kind = FSDP_WRAP_CUSTOM, .choose = choose}, 4, 6},
};

typedef struct run {
    int which;
    bool copy;
    const float *expected;
    float *by_hand; /* rank 0's; the policies' must have its bits */
} run;

static int count_units(fsdp_module *module)
{
    int count = fsdp_module_is_sharded(module);

    for (int64_t i = 0; i < fsdp_module_child_count(module); i++)
        count += count_units(fsdp_module_child_at(module, i, NULL));
    return count;
}

static void check_gathers(fsdp_context *context, int expected)
{
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], fsdp_context_world_size(context) > 1 ? STEPS * expected : 0);
}

static void train(fsdp_context *context, void *arg)
{
    run *r = arg;
    fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS, .no_shared_memory = r->copy};
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    float *values;
    int64_t count;

    if (r->which < 0) {
        net_shard(module, &options);
    } else {
        CHECK_OK(fsdp_fully_shard_by_policy(module, &cases[r->which].policy, &options));
        CHECK_EQ(count_units(module), cases[r->which].units);
    }
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    fsdp_context_reset_comm_stats(context);
    net_train(module, STEPS);
    if (r->which >= 0)
        check_gathers(context, cases[r->which].gathers);
    values = net_values(module, &count);
    CHECK_CLOSE(values, r->expected, count, 1e-5, 1e-6);
    if (fsdp_context_rank(context) == 0 && r->which < 0) {
        r->by_hand = values;
        values = NULL;
    } else if (fsdp_context_rank(context) == 0) {
        CHECK_BYTES(values, r->by_hand, (size_t)count * sizeof(float));
    }
    free(values);
    fsdp_module_unref(module);
}

TEST(units_of_any_policy_train_as_by_hand)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    for (int world = 1; world <= 4; world++) {
        run r = {.which = -1, .expected = expected};

        for (; r.which < (int)FSDP__COUNT_OF(cases); r.which++) {
            test_run_ranks(world, train, &r);
            r.copy = !r.copy;
        }
        free(r.by_hand);
    }
    free(expected);
}

/* ---- options ---- */

RANKS_TEST(what_is_ignored_and_what_is_in_full_precision, 2)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *block = net_block_at(module, 1);
    fsdp_tensor *weight = fsdp_module_parameter(module, "head.weight");
    fsdp_shard_options options = {.ignored_params = &weight,
                                  .ignored_param_count = 1,
                                  .mp_policy = {.param_dtype = FSDP_BF16, .output_dtype = FSDP_F32}};
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CLASSES,
                               .classes = block_class,
                               .class_count = 1,
                               .ignored_modules = &block,
                               .ignored_module_count = 1,
                               .full_precision_classes = linear_class,
                               .full_precision_class_count = 1};

    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_fully_shard_by_policy(module, &policy, &options));
    CHECK_EQ(count_units(module), 1 + 1 + 2 + 2); /* root; a block and its two layers; input and head */
    CHECK(!fsdp_tensor_distribution(weight));
    CHECK(!fsdp_tensor_distribution(fsdp_module_parameter(module, "blocks.1.up.weight")));
    CHECK_PTR(fsdp_tensor_distribution(fsdp_module_parameter(module, "head.bias")));
    CHECK_OK(fsdp_module_unshard(fsdp_module_child(module, "blocks.0.up")));
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_EQ(fsdp_tensor_dtype(fsdp_module_parameter(module, "blocks.0.up.weight")), FSDP_F32);
    CHECK_EQ(fsdp_tensor_dtype(fsdp_module_parameter(module, "norm.weight")), FSDP_BF16);
    CHECK_OK(fsdp_module_reshard_all(module));
    fsdp_module_unref(module);
}

/* ---- while a tree is built ---- */

/* As net_block_create, with a constructor that says what is a unit. */
static fsdp_module *build_block(fsdp_context *context, const fsdp_shard_options *of_up)
{
    net_block *block = NULL;

    CHECK_OK(fsdp_module_create(context, &net_block_type, sizeof *block, &block));
    block->up = fsdp_wrap(fsdp_linear_create(context, test_device(context), NET_DIM, NET_FFN, NULL), of_up);
    CHECK_OK(fsdp_module_add_child(&block->base, "up", block->up));
    block->down = fsdp_linear_create(context, test_device(context), NET_FFN, NET_DIM, NULL);
    CHECK_OK(fsdp_module_add_child(&block->base, "down", block->down));
    return &block->base;
}

static fsdp_status refuse(fsdp_module *module, const void *options)
{
    return FSDP_FAIL(FSDP_STATE, "%s: %s", module->type->name, (const char *)options);
}

RANKS_TEST(a_scope_wraps_what_is_built_in_it, 2)
{
    const fsdp_shard_options options = {.mp_policy = {.param_dtype = FSDP_BF16}}, own = {0};
    fsdp_module *plain = build_block(context, NULL), *block;

    CHECK_EQ(count_units(plain), 0); /* outside of a scope nothing happens */
    fsdp_module_unref(plain);
    for (int with_own = 0; with_own < 2; with_own++) {
        fsdp_module *up;

        CHECK_OK(fsdp_wrap_scope_begin(context, NULL, &options, sizeof options));
        CHECK_ERROR(fsdp_wrap_scope_begin(context, NULL, NULL, 0), FSDP_UNSUPPORTED, "inside another");
        block = build_block(context, with_own ? &own : NULL);
        fsdp_wrap_scope_end(context);
        fsdp_wrap_scope_end(context); /* idempotent */
        up = fsdp_module_child(block, "up");
        CHECK_EQ(count_units(block), 1);
        CHECK(fsdp_module_is_sharded(up));
        CHECK_OK(fsdp_fully_shard(block, &options));
        CHECK_OK(fsdp_module_unshard(up));
        CHECK_EQ(fsdp_tensor_dtype(fsdp_module_parameter(block, "up.weight")), with_own ? FSDP_F32 : FSDP_BF16);
        CHECK_OK(fsdp_module_reshard(up));
        fsdp_module_unref(block);
    }
    CHECK_OK(fsdp_wrap_scope_begin(context, refuse, "no", 3));
    CHECK_NULL(fsdp_wrap(fsdp_linear_create(context, test_device(context), 2, 3, NULL), NULL));
    CHECK_STRING(fsdp_last_error(), "Linear: no");
    CHECK_NULL(fsdp_wrap(fsdp_linear_create(context, test_device(context), 2, 3, NULL), "not"));
    CHECK_STRING(fsdp_last_error(), "Linear: not");
    CHECK_NULL(fsdp_wrap(NULL, NULL)); /* the constructor has failed */
    /* the scope is left open: it goes with the context */
}

/* ---- misuse ---- */

static const char *const unknown[] = {"Block", "Blok"}, *const list_class[] = {"ModuleList"},
                         *const null_class[] = {NULL};
static fsdp_tensor *const null_tensor[] = {NULL};
static fsdp_module *const null_module[] = {NULL};
static const fsdp_wrap_policy with_none[] = {{.kind = FSDP_WRAP_SIZE, .min_num_params = 84}, {0}};
static const fsdp_wrap_policy with_custom[] = {{.kind = FSDP_WRAP_CUSTOM, .choose = choose}};
static const fsdp_wrap_policy with_ignored[] = {
    {.kind = FSDP_WRAP_ALWAYS, .ignored_modules = null_module, .ignored_module_count = 1}};
static const fsdp_wrap_policy with_unknown[] = {{.kind = FSDP_WRAP_ALWAYS},
                                                {.kind = FSDP_WRAP_CLASSES, .classes = unknown, .class_count = 2}};

static bool wraps_none(void *arg, const fsdp_module *module, const char *name)
{
    (void)arg, (void)module, (void)name;
    return false;
}

static const struct {
    fsdp_wrap_policy policy;
    fsdp_status status;
    const char *part;
} misuses[] = {
    {{.kind = FSDP_WRAP_CLASSES, .classes = unknown, .class_count = 2},
     FSDP_NOT_FOUND,
     "this Net is of class 'Blok'; there are Net, Linear, ModuleList, Block, LayerNorm"},
    {{.kind = FSDP_WRAP_ANY, .policies = with_unknown, .policy_count = 2}, FSDP_NOT_FOUND, "class 'Blok'"},
    {{.kind = FSDP_WRAP_CLASSES, .classes = list_class, .class_count = 1},
     FSDP_INVALID,
     "cannot shard ModuleList 'blocks': it has no forward"},
    {{.kind = FSDP_WRAP_CLASSES, .classes = null_class, .class_count = 1}, FSDP_INVALID, "classes[0] is null"},
    {{.kind = FSDP_WRAP_CLASSES, .class_count = 2}, FSDP_INVALID, "2 names in classes, but no list"},
    {{.kind = FSDP_WRAP_CLASSES}, FSDP_INVALID, "at least one class"},
    {{.kind = FSDP_WRAP_SIZE},
     FSDP_INVALID,
     "no unit of any module below this Net: lower min_num_params, which is 100000000, or shard it as one unit"},
    {{.kind = FSDP_WRAP_SIZE, .min_num_params = 5000},
     FSDP_INVALID,
     "no unit of any module below this Net: lower min_num_params, which is 5000, or"},
    {{.kind = FSDP_WRAP_LAMBDA, .wraps = wraps_none},
     FSDP_INVALID,
     "no unit of any module below this Net: shard it as one unit without"},
    {{.kind = FSDP_WRAP_SIZE, .min_num_params = -1}, FSDP_INVALID, "min_num_params is -1"},
    {{.kind = FSDP_WRAP_LAMBDA}, FSDP_INVALID, "needs the function wraps"},
    {{.kind = FSDP_WRAP_FUNCTION}, FSDP_INVALID, "needs the function decide"},
    {{.kind = FSDP_WRAP_CUSTOM}, FSDP_INVALID, "needs the function choose"},
    {{.kind = FSDP_WRAP_ANY}, FSDP_INVALID, "at least one policy"},
    {{.kind = FSDP_WRAP_ANY, .policies = with_none, .policy_count = 2}, FSDP_INVALID, "a part of ANY is NONE"},
    {{.kind = FSDP_WRAP_ANY, .policies = with_custom, .policy_count = 1}, FSDP_INVALID, "a part of ANY is CUSTOM"},
    {{.kind = FSDP_WRAP_ANY, .policies = with_ignored, .policy_count = 1}, FSDP_INVALID, "of its own"},
    {{.kind = (fsdp_wrap_kind)77}, FSDP_INVALID, "no kind 77"},
    {{.ignored_params = null_tensor, .ignored_param_count = 1}, FSDP_INVALID, "ignored_params[0] is null"},
    {{.ignored_param_count = 1}, FSDP_INVALID, "1 tensors in ignored_params"},
    {{.ignored_modules = null_module, .ignored_module_count = 1}, FSDP_INVALID, "ignored_modules[0] is null"},
    {{.ignored_module_count = -1}, FSDP_INVALID, "-1 modules in ignored_modules"},
    {{.kind = FSDP_WRAP_ALWAYS, .full_precision_classes = null_class, .full_precision_class_count = 1},
     FSDP_INVALID,
     "full_precision_classes[0] is null"},
};

RANKS_TEST(every_misuse_has_its_error, 2)
{
    const fsdp_wrap_policy by_class = {.kind = FSDP_WRAP_CLASSES, .classes = block_class, .class_count = 1};
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *block = net_block_at(module, 1);
    fsdp_wrap_policy policy = by_class;

    for (size_t i = 0; i < FSDP__COUNT_OF(misuses); i++)
        CHECK_ERROR(fsdp_fully_shard_by_policy(module, &misuses[i].policy, NULL), misuses[i].status, misuses[i].part);
    CHECK_ERROR(fsdp_fully_shard_by_policy(module, NULL, NULL), FSDP_INVALID, "policy is null");
    CHECK_ERROR(fsdp_fully_shard_by_policy(NULL, &by_class, NULL), FSDP_INVALID, "module is null");
    CHECK_ERROR(fsdp_fully_shard_by_policy(module, &by_class, &(fsdp_shard_options){.ignored_param_count = 2}),
                FSDP_INVALID, "2, but no list");
    CHECK_EQ(count_units(module), 0); /* all of that left it as it was */
    CHECK_OK(fsdp_fully_shard(block, NULL));
    CHECK_ERROR(fsdp_fully_shard_by_policy(module, &by_class, NULL), FSDP_STATE,
                "Block 'blocks.1' has been sharded already");
    policy.ignored_modules = &block; /* and so it is not asked about */
    policy.ignored_module_count = 1;
    CHECK_OK(fsdp_fully_shard_by_policy(module, &policy, NULL));
    CHECK_EQ(count_units(module), 3);
    CHECK_ERROR(fsdp_fully_shard_by_policy(module, &(fsdp_wrap_policy){0}, NULL), FSDP_STATE, "already been applied");
    fsdp_module_unref(module);
}
