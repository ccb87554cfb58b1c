/* What must not be done, as a table: the same error on all ranks, which says what, where and what to do. */
#include "fsdp/fsdp1.h"
#include "shard/net.h"

enum {
    BLOCKS = 2
};

typedef struct misuse {
    const char *name;
    fsdp_status (*make)(fsdp_context *context, fsdp_module *module); /* of a plain net on the test's device */
    fsdp_status status;
    const char *parts[4]; /* of the message */
} misuse;

/* A device that runs behind the host says it when it gets there. */
static fsdp_status called(const fsdp_tensor *output)
{
    return output ? fsdp_stream_synchronize(fsdp_device_stream(fsdp_tensor_device(output))) : fsdp_last_status();
}

static fsdp_status forward_with(fsdp_module *module, fsdp_tensor *x, fsdp_tensor *targets)
{
    fsdp_status status = called(fsdp_call(module, x, targets));

    fsdp_scope_end(module->context, NULL);
    return status;
}

static fsdp_status forward(fsdp_module *module)
{
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, 0, 0, 3, &x, &targets);
    return forward_with(module, x, targets);
}

static fsdp_status forward_block(fsdp_module *block)
{
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(block->context));
    status = called(fsdp_call(block, fsdp_zeros(test_device(block->context), FSDP_F32, FSDP_SHAPE(2, NET_DIM))));
    fsdp_scope_end(block->context, NULL);
    return status;
}

/* A module with one parameter, as child "odd" of the net. */
static const fsdp_module_type odd_type = {.name = "Odd", .forward = net_block_forward};

static fsdp_tensor **add_odd(fsdp_module *module, fsdp_dtype dtype, int ndim, const int64_t *shape)
{
    fsdp_layer *odd;

    CHECK_OK(fsdp_module_create(module->context, &odd_type, sizeof *odd, &odd));
    CHECK_OK(fsdp_module_add_parameter(&odd->base, "scale", &odd->weight, test_device(module->context), dtype, ndim,
                                       shape, (fsdp_init){0}));
    CHECK_OK(fsdp_module_add_child(module, "odd", &odd->base));
    return &odd->weight;
}

/* ---- the front door ---- */

static fsdp_status apply_twice(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    net_shard(module, NULL);
    return fsdp_fully_shard(net_block_at(module, 1), NULL);
}

static fsdp_status give_twice(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *block = net_block_at(module, 0);

    (void)context;
    return fsdp_fully_shard_modules((fsdp_module *const[]){block, block}, 2, NULL);
}

static fsdp_status shard_container(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    return fsdp_fully_shard(((net *)module)->blocks, NULL);
}

static fsdp_status shard_parent_first(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    CHECK_OK(fsdp_fully_shard(module, NULL));
    return fsdp_fully_shard(net_block_at(module, 1), NULL);
}

static fsdp_status shard_scalar(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    (void)add_odd(module, FSDP_F32, 0, NULL);
    return fsdp_fully_shard(module, NULL);
}

static fsdp_status shard_with_gradient(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    net_forward_backward(module, 0, 0, 1);
    return fsdp_fully_shard(net_block_at(module, 0), NULL);
}

static fsdp_status shard_over_three_dimensions(fsdp_context *context, fsdp_module *module)
{
    const char *const names[] = {"a", "b", "c"};
    const int64_t shape[] = {1, fsdp_context_world_size(context), 1};
    fsdp_mesh *mesh;
    fsdp_status status;

    CHECK_OK(fsdp_mesh_create(context, 3, shape, names, &mesh));
    status = fsdp_fully_shard(module, &(fsdp_shard_options){.mesh = mesh});
    fsdp_mesh_unref(mesh);
    return status;
}

static fsdp_status shard_on_mesh_of_another_context(fsdp_context *context, fsdp_module *module)
{
    const int64_t one = 1;
    fsdp_context *other = test_context();
    fsdp_mesh *mesh;
    fsdp_status status;

    (void)context;
    CHECK_OK(fsdp_mesh_create(other, 1, &one, NULL, &mesh));
    status = fsdp_fully_shard(module, &(fsdp_shard_options){.mesh = mesh});
    fsdp_mesh_unref(mesh);
    fsdp_context_free(other);
    return status;
}

static fsdp_status shard_into_parts_that_do_not_divide(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    return fsdp_fully_shard(module, &(fsdp_shard_options){.reshard_after_forward_ranks = 7});
}

static bool is_second(const fsdp_context *context)
{
    return fsdp_context_rank(context) == 1;
}

static fsdp_status shard_into_parts_on_one(fsdp_context *context, fsdp_module *module)
{
    return fsdp_fully_shard(module, &(fsdp_shard_options){.reshard_after_forward_ranks = is_second(context) ? 5 : 0});
}

static fsdp_status reshard_as_nobody_does(fsdp_context *context, fsdp_module *module)
{
    return fsdp_fully_shard(
        module, &(fsdp_shard_options){.reshard_after_forward = (fsdp_reshard)(is_second(context) ? 77 : 0)});
}

static fsdp_status shard_nothing_on_one(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *other = is_second(context) ? CHECK_PTR(fsdp_gelu_create(context, false)) : fsdp_module_ref(module);
    fsdp_status status = fsdp_fully_shard(other, NULL);

    CHECK(!fsdp_module_is_sharded(other));
    fsdp_module_unref(other);
    return status;
}

static fsdp_status wrap_with_no_strategy(fsdp_context *context, fsdp_module *module)
{
    return fsdp_fsdp1_wrap(module,
                           &(fsdp_fsdp1_options){.strategy = (fsdp_sharding_strategy)(is_second(context) ? 42 : 0)});
}

static fsdp_status compute_in_integers(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    return fsdp_fully_shard(module, &(fsdp_shard_options){.mp_policy.param_dtype = FSDP_I32});
}

static fsdp_status ignore_nothing(fsdp_context *context, fsdp_module *module)
{
    fsdp_tensor *ignored[] = {NULL};

    (void)context;
    return fsdp_fully_shard(module, &(fsdp_shard_options){.ignored_params = ignored, .ignored_param_count = 1});
}

/* ---- before and in the first forward ---- */

static fsdp_status run_child_first(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    net_shard(module, NULL);
    CHECK_OK(forward_block(net_block_at(module, 1)));
    return forward(module);
}

static fsdp_status run_group_as_root(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *const blocks[] = {net_block_at(module, 0), net_block_at(module, 1)};

    (void)context;
    CHECK_OK(fsdp_fully_shard_modules(blocks, 2, NULL));
    return forward_block(blocks[0]);
}

static fsdp_status initialize_on_meta(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *meta = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_status status;

    (void)module;
    net_shard(meta, NULL);
    status = fsdp_module_initialize(meta, 1);
    fsdp_module_unref(meta);
    return status;
}

static fsdp_status run_on_meta(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *meta = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_status status;

    (void)module;
    net_shard(meta, NULL);
    status = forward(meta);
    fsdp_module_unref(meta);
    return status;
}

static fsdp_status run_without_values(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *meta = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_status status;

    (void)module;
    net_shard(meta, NULL);
    CHECK_OK(fsdp_module_materialize(meta, test_device(context)));
    status = forward(meta);
    fsdp_module_unref(meta);
    return status;
}

/* Of another dtype: sharded parameters are not cast by naming others. */
static fsdp_status replace_after_sharding(fsdp_context *context, fsdp_module *module)
{
    fsdp_layer *up = (fsdp_layer *)((net_block *)net_block_at(module, 1))->up;
    fsdp_tensor *other;
    fsdp_status status;

    net_shard(module, NULL);
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_BF16, FSDP_SHAPE(NET_FFN, NET_DIM),
                                FSDP_MEMORY_PARAMETER_SHARD, &other));
    CHECK_OK(fsdp_tensor_fill_(other, 0.5));
    fsdp_tensor_unref(up->weight);
    up->weight = other;
    status = forward(module);
    return status;
}

/* ---- conditional modules ---- */

static fsdp_status share_conditional(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *shared = net_block_create(context, test_device(context));

    CHECK_OK(fsdp_module_initialize(shared, 2));
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_module_add_child(net_block_at(module, i), "shared", fsdp_module_ref(shared)));
    CHECK_OK(fsdp_fully_shard(shared, NULL));
    CHECK_OK(fsdp_module_set_conditional(shared, true));
    fsdp_module_unref(shared);
    net_shard(module, NULL);
    return forward(module);
}

static fsdp_status prefetch_from_conditional(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *first = net_block_at(module, 0), *second = net_block_at(module, 1);

    (void)context;
    net_shard(module, NULL);
    CHECK_OK(fsdp_module_set_conditional(first, true));
    CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(first, &second, 1));
    return forward(module);
}

static fsdp_status prefetch_from_conditional_later(fsdp_context *context, fsdp_module *module)
{
    fsdp_module *first = net_block_at(module, 0), *second = net_block_at(module, 1);

    (void)context;
    net_shard(module, NULL);
    CHECK_OK(fsdp_module_set_conditional(first, true));
    CHECK_OK(forward(module));
    return fsdp_module_set_modules_to_backward_prefetch(first, &second, 1);
}

static fsdp_status mark_after_the_first_forward(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    net_shard(module, NULL);
    CHECK_OK(forward(module));
    return fsdp_module_set_conditional(net_block_at(module, 0), true);
}

/* ---- later ---- */

static fsdp_status use_resharded(fsdp_context *context, fsdp_module *module)
{
    fsdp_tensor *weight;
    fsdp_status status;

    net_shard(module, NULL);
    CHECK_OK(fsdp_module_unshard(net_block_at(module, 0)));
    weight = fsdp_tensor_ref(CHECK_PTR(fsdp_module_parameter(module, "blocks.0.up.weight")));
    CHECK_OK(fsdp_module_reshard(net_block_at(module, 0)));
    CHECK_OK(fsdp_scope_begin(context));
    /* In shared memory that stays where it is, a rank's look at it would do no harm: the tensor has no bytes anyhow. */
    status = called(fsdp_gelu(weight));
    fsdp_scope_end(context, NULL);
    fsdp_tensor_unref(weight);
    return status;
}

static fsdp_status write_to_gathered(fsdp_context *context, fsdp_module *module)
{
    fsdp_status status;

    (void)context;
    net_shard(module, NULL);
    CHECK_OK(forward(module));
    CHECK_OK(fsdp_module_unshard(net_block_at(module, 0)));
    status = fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(module, "blocks.0.up.weight")), 0.0);
    CHECK_OK(fsdp_module_reshard(net_block_at(module, 0)));
    return status;
}

static fsdp_status reset_a_child(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    net_shard(module, NULL);
    CHECK_OK(forward(module));
    return fsdp_module_reset_iteration(net_block_at(module, 0));
}

static fsdp_status ask_a_plain_module(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    net_shard(module, NULL);
    return fsdp_module_unshard(((net *)module)->head);
}

static fsdp_status divide_by_nothing(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    net_shard(module, NULL);
    return fsdp_module_set_gradient_divide_factor(module, -1.0f);
}

/* ---- ranks that differ ---- */

static fsdp_status shard_other_shapes(fsdp_context *context, fsdp_module *module)
{
    (void)add_odd(module, FSDP_F32, FSDP_SHAPE(3 + (fsdp_context_rank(context) == 1)));
    CHECK_OK(fsdp_fully_shard(module, &(fsdp_shard_options){.no_shared_memory = true}));
    return forward(module);
}

static fsdp_status run_other_modules(fsdp_context *context, fsdp_module *module)
{
    net_shard(module, NULL);
    CHECK_OK(forward(module));
    return forward_block(net_block_at(module, fsdp_context_rank(context) == 1));
}

/* Rank 1 does not come, and all the others hear of it. A GPU that may wait for it takes nothing any more then, so the
 * batch is there before. */
static fsdp_status leave(fsdp_context *context, fsdp_module *module)
{
    fsdp_tensor *x, *targets;

    net_shard(module, NULL);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(test_device(context))));
    test_meet();
    if (fsdp_context_rank(context) == 1)
        fsdp_abort(context, "rank 1 has better things to do");
    return forward_with(module, x, targets);
}

/* In good order, between its forward and its backward. */
static fsdp_status end_in_the_middle(fsdp_context *context, fsdp_module *module)
{
    fsdp_tensor *x, *targets, *loss;
    fsdp_status status;

    net_shard(module, NULL);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    loss = CHECK_PTR(fsdp_call(module, x, targets));
    if (fsdp_context_rank(context) == 1)
        status = FSDP_FAIL(FSDP_COMM, "rank 1 has left of its own will");
    else
        status = called(fsdp_backward(loss) == FSDP_OK ? loss : NULL);
    fsdp_scope_end(context, NULL);
    return status;
}

static fsdp_status overlap_as_nobody_does(fsdp_context *context, fsdp_module *module)
{
    (void)context;
    return fsdp_fully_shard(module, &(fsdp_shard_options){.overlap = 9});
}

static fsdp_status wrap_with_no_overlap(fsdp_context *context, fsdp_module *module)
{
    return fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.overlap = fsdp_context_rank(context) == 1 ? 9 : 0});
}

static const misuse misuses[] = {
    {"apply twice", apply_twice, FSDP_STATE, {"fully_shard has already been applied to this Block"}},
    {"give twice", give_twice, FSDP_INVALID, {"the same Block twice"}},
    {"a container", shard_container, FSDP_INVALID, {"cannot shard a ModuleList", "give its children"}},
    {"a parent first", shard_parent_first, FSDP_INVALID, {"'weight' of a Linear", "bottom up"}},
    {"a scalar", shard_scalar, FSDP_INVALID, {"Odd: cannot shard 'scale'", "shape (1)"}},
    {"a gradient", shard_with_gradient, FSDP_STATE, {"Linear: cannot shard 'weight'", "zero_grad"}},
    {"three dimensions", shard_over_three_dimensions, FSDP_INVALID, {"dp_mesh_dims"}},
    {"another's mesh", shard_on_mesh_of_another_context, FSDP_INVALID, {"another context"}},
    {"7 ranks", shard_into_parts_that_do_not_divide, FSDP_INVALID, {"7 does not divide"}},
    {"5 ranks on one",
     shard_into_parts_on_one,
     FSDP_INVALID,
     {"rank 1: reshard_after_forward_ranks 5 does not divide"}},
    {"reshard 77", reshard_as_nobody_does, FSDP_INVALID, {"rank 1: reshard_after_forward 77"}},
    {"nothing on one", shard_nothing_on_one, FSDP_MISMATCH, {"ranks do not shard the same modules"}},
    {"strategy 42", wrap_with_no_strategy, FSDP_INVALID, {"rank 1: FSDP1: 42 is not a sharding strategy"}},
    {"overlap 9", overlap_as_nobody_does, FSDP_INVALID, {"overlap 9"}},
    {"FSDP1's overlap 9", wrap_with_no_overlap, FSDP_INVALID, {"rank 1: overlap 9"}},
    {"integers", compute_in_integers, FSDP_INVALID, {"int32 is not a floating dtype"}},
    {"ignore nothing", ignore_nothing, FSDP_INVALID, {"ignored_params[0] is null"}},
    {"a child first", run_child_first, FSDP_STATE, {"'blocks.1' has already run", "outermost"}},
    {"a group as root", run_group_as_root, FSDP_STATE, {"must name a single module, this one names 2"}},
    {"first values on meta", initialize_on_meta, FSDP_STATE, {"initialize 'Net'", "fsdp_module_materialize first"}},
    {"meta", run_on_meta, FSDP_STATE, {"'input.weight'", "still on the meta device", "materialize"}},
    {"no values", run_without_values, FSDP_STATE, {"'input.weight'", "no values", "initialize"}},
    {"replace", replace_after_sharding, FSDP_STATE, {"parameter 'weight' of a Linear", "another tensor"}},
    {"share conditional",
     share_conditional,
     FSDP_UNSUPPORTED,
     {"'blocks.0.shared' is conditional", "'blocks.0' and 'blocks.1'"}},
    {"prefetch",
     prefetch_from_conditional,
     FSDP_UNSUPPORTED,
     {"'blocks.0' is conditional", "list them for 'the root'"}},
    {"prefetch later", prefetch_from_conditional_later, FSDP_UNSUPPORTED, {"'blocks.0' is conditional"}},
    {"mark late", mark_after_the_first_forward, FSDP_STATE, {"'blocks.0' has run"}},
    {"use resharded", use_resharded, FSDP_STATE, {"has no bytes", "sharded parameter outside its module"}},
    {"write to gathered", write_to_gathered, FSDP_STATE, {"'blocks.0.up.weight'", "write to the shard"}},
    {"reset a child", reset_a_child, FSDP_STATE, {"only the outermost"}},
    {"a plain module", ask_a_plain_module, FSDP_STATE, {"this Linear was not given to fully_shard"}},
    {"divide by -1", divide_by_nothing, FSDP_INVALID, {"divide factor -1"}},
    {"other shapes", shard_other_shapes, FSDP_MISMATCH, {"'odd.scale': float32 (3,)", "rank 1", "(4,)"}},
    {"other modules", run_other_modules, FSDP_MISMATCH, {"blocks.0", "blocks.1", "rank 1"}},
    {"end", end_in_the_middle, FSDP_COMM, {"rank 1 has left"}},
    {"leave", leave, FSDP_COMM, {"rank 1 has better things to do"}},
};

static void commit(fsdp_context *context, void *arg)
{
    const misuse *m = arg;
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_status status;

    CHECK_OK(fsdp_module_initialize(module, 1));
    status = m->make(context, module);
    net_check_refused(m->name, status, m->status, m->parts, 4);
    fsdp_module_unref(module);
}

TEST(every_misuse_has_its_error_on_all_ranks)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(misuses); i++)
        test_run_worlds(2, 3, commit, (void *)(uintptr_t)&misuses[i]);
}

/* ---- on one rank alone ---- */

typedef struct alone {
    bool fsdp1, meta;
    int rank; /* that does it wrong */
} alone;

static fsdp_status fail_alone(void *arg, fsdp_module *module)
{
    CHECK_OK(fsdp_module_materialize(module, test_device(module->context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return *(bool *)arg ? FSDP_FAIL(FSDP_INVALID, "this rank's values cannot be read") : FSDP_OK;
}

/* Before the ranks come together it has a gradient, a list with a hole, or values that cannot be had. */
static void shard_wrongly(fsdp_context *context, void *arg)
{
    const alone *a = arg;
    bool wrong = fsdp_context_rank(context) == a->rank;
    fsdp_device *device = a->meta ? fsdp_meta(context) : test_device(context);
    fsdp_module *module = net_create(context, device, BLOCKS), *block = net_block_at(module, 0);
    fsdp_tensor *hole = NULL, *weight = fsdp_module_parameter(block, "up.weight");
    fsdp_tensor *grad = NULL;
    const fsdp_shard_options options = {.ignored_params = &hole, .ignored_param_count = a->meta && wrong};
    const fsdp_fsdp1_options fsdp1 = {.use_orig_params = true, .param_init_fn = fail_alone, .param_init_arg = &wrong};
    fsdp_status status;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* FSDP1 tells of a world of one rank */
    if (!a->meta)
        CHECK_OK(fsdp_module_initialize(module, 1));
    if (!a->meta && wrong) {
        CHECK_OK(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(NET_FFN, NET_DIM), FSDP_MEMORY_GRADIENT, &grad));
        CHECK_OK(fsdp_tensor_set_grad(weight, grad));
        fsdp_tensor_unref(grad);
    }
    status = a->fsdp1 && a->meta ? fsdp_fsdp1_wrap(block, &fsdp1)
             : a->fsdp1          ? fsdp_fsdp1_wrap(block, NULL)
                                 : fsdp_fully_shard(block, &options);
    CHECK(status != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), !a->meta ? "gradient" : a->fsdp1 ? "cannot be read" : "ignored_params[0]");
    if (fsdp_context_world_size(context) > 1)
        CHECK_CONTAINS(fsdp_last_error(), a->rank ? "rank 1: " : "rank 0: ");
    CHECK(!fsdp_module_is_sharded(block));
    CHECK_OK(fsdp_tensor_set_grad(weight, NULL));
    if (a->fsdp1 && a->meta) /* of which a part has bytes by now */
        CHECK_OK(fsdp_module_materialize(block, test_device(context)));
    CHECK_OK(a->fsdp1 ? fsdp_fsdp1_wrap(block, NULL) : fsdp_fully_shard(block, NULL));
    CHECK_OK(a->fsdp1 ? fsdp_fsdp1_wrap(module, NULL) : fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(forward(module));
    fsdp_module_unref(module);
}

TEST(what_one_rank_does_wrong_is_told_on_all)
{
    for (int world = 1; world <= 4; world++)
        for (int i = 0; i < 8; i++) {
            alone a = {.fsdp1 = i & 1, .meta = i & 2, .rank = world > 1 && i & 4};

            test_run_ranks(world, shard_wrongly, &a);
        }
}

/* One rank may not share memory. Where no rank can, it makes no difference. */
WORLDS_TEST(a_rank_that_alone_may_not_share_is_told_the_option, 2, 3)
{
    static const char *const parts[4] = {"rank 0 holds", "rank 1 does not", "no_shared_memory"};
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    const fsdp_shard_options options = {.no_shared_memory = fsdp_context_rank(context) == 1};
    fsdp_status status;

    CHECK_OK(fsdp_module_initialize(module, 1));
    status = fsdp_fully_shard(module, &options);
    if (net_ranks_share(context)) {
        net_check_refused("no_shared_memory", status, FSDP_MISMATCH, parts, 4);
        CHECK(!fsdp_module_is_sharded(module));
        CHECK_OK(fsdp_fully_shard(module, NULL));
    } else {
        CHECK_OK(status);
    }
    CHECK_OK(forward(module));
    fsdp_module_unref(module);
}
