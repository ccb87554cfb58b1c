/* Ranks that use different parameters in one step: of modules that all of them enter, of modules whose output only some
 * of them use, of conditional modules that only some of them enter. Links: optim */
#include "shard/ways.h"

enum {
    LAYERS = 3,
    EXPERTS = 3
};

/* ---- a net in which every rank chooses ---- */

/* x + the sum of the chosen experts, Linear(7,7), of x. */
typedef struct layer {
    fsdp_module base;
    fsdp_module *experts[EXPERTS];
    unsigned chosen; /* bit i: expert i */
} layer;

typedef struct choosy {
    fsdp_module base;
    fsdp_module *input, *head, *layers[LAYERS];
    bool entered[LAYERS], used[LAYERS];
    bool twice;  /* each layer is called on its output again */
    bool beside; /* each layer is given the same, and their outputs are added up, scaled */
} choosy;

static fsdp_tensor *layer_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    layer *l = (layer *)self;
    fsdp_tensor *x = inputs[0];

    (void)count;
    for (int i = 0; i < EXPERTS; i++)
        if (l->chosen >> i & 1)
            x = fsdp_add(x, fsdp_gelu(fsdp_call(l->experts[i], inputs[0])));
    return x;
}

static fsdp_tensor *choosy_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    choosy *c = (choosy *)self;
    fsdp_tensor *x = fsdp_call(c->input, inputs[0]), *given = x;

    (void)count;
    for (int i = 0; i < LAYERS; i++) {
        fsdp_tensor *y = c->entered[i] ? fsdp_call(c->layers[i], given) : given;

        y = c->twice ? fsdp_call(c->layers[i], fsdp_scale(y, 0.25)) : y;

        x = c->beside ? fsdp_scale(fsdp_add(x, y), 0.25) : c->used[i] || !y ? y : x;
        given = c->beside ? given : x;
    }
    x = fsdp_call(c->head, x);
    return fsdp_mean(fsdp_mul(x, x));
}

static const fsdp_module_type layer_type = {.name = "Layer", .forward = layer_forward};
static const fsdp_module_type choosy_type = {.name = "Choosy", .forward = choosy_forward};

static fsdp_module *layer_create(fsdp_context *context, fsdp_device *device)
{
    layer *l;

    CHECK_OK(fsdp_module_create(context, &layer_type, sizeof *l, &l));
    for (int i = 0; i < EXPERTS; i++) {
        l->experts[i] = fsdp_linear_create(context, device, NET_DIM, NET_DIM, NULL);
        CHECK_OK(fsdp_module_add_child(&l->base, (const char[]){(char)('0' + i), '\0'}, l->experts[i]));
    }
    return &l->base;
}

static choosy *choosy_create(fsdp_context *context, fsdp_device *device)
{
    static const char *const names[LAYERS] = {"first", "second", "third"};
    choosy *c;

    CHECK_OK(fsdp_module_create(context, &choosy_type, sizeof *c, &c));
    c->input = fsdp_linear_create(context, device, NET_IN, NET_DIM, NULL);
    c->head = fsdp_linear_create(context, device, NET_DIM, NET_OUT, NULL);
    CHECK_OK(fsdp_module_add_child(&c->base, "input", c->input));
    CHECK_OK(fsdp_module_add_child(&c->base, "head", c->head));
    for (int i = 0; i < LAYERS; i++) {
        c->layers[i] = layer_create(context, device);
        CHECK_OK(fsdp_module_add_child(&c->base, names[i], c->layers[i]));
    }
    return c;
}

/* What ranks choose. */
typedef enum choice {
    PARAMETERS,  /* experts, of layers that all enter */
    OUTPUTS,     /* and whose output they use */
    CONDITIONAL, /* which layers they enter */
    NESTED,      /* and which experts, sharded and conditional too */
    BESIDE,      /* experts, of layers that are one group, and lie beside each other */
    TWICE,       /* experts, which are conditional and one group, of layers that are called twice */
    CHOICES
} choice;

static choosy *sharded_choosy(fsdp_context *context, const way_run *run, choice what, fsdp_reshard reshard)
{
    choosy *c = choosy_create(context, run->way ? fsdp_meta(context) : test_device(context));
    fsdp_shard_options options = run->options;

    options.reshard_after_forward = reshard;
    c->beside = what == BESIDE;
    c->twice = what == TWICE;
    for (int i = 0; i < LAYERS && run->way; i++) {
        for (int e = 0; e < EXPERTS && what == NESTED; e++) {
            CHECK_OK(fsdp_fully_shard(((layer *)c->layers[i])->experts[e], &options));
            CHECK_OK(fsdp_module_set_conditional(((layer *)c->layers[i])->experts[e], true));
        }
        if (what == BESIDE)
            continue;
        if (what == TWICE) {
            CHECK_OK(fsdp_fully_shard_modules(((layer *)c->layers[i])->experts, EXPERTS, &options));
            CHECK_OK(fsdp_module_set_conditional(((layer *)c->layers[i])->experts[0], true));
        }
        CHECK_OK(fsdp_fully_shard(c->layers[i], &options));
        CHECK_OK(fsdp_module_set_conditional(c->layers[i], what == CONDITIONAL || what == NESTED));
    }
    if (run->way && what == BESIDE)
        CHECK_OK(fsdp_fully_shard_modules(c->layers, LAYERS, &options));
    if (run->way) {
        CHECK_OK(fsdp_fully_shard(&c->base, &options));
        CHECK_OK(fsdp_module_materialize(&c->base, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(&c->base, 3));
    return c;
}

static bool draw(int step, int rank, int what)
{
    uint32_t x = (uint32_t)(step * 977 + rank * 131 + what) * 2654435761u;

    x ^= x >> 15;
    x *= 2246822519u;
    return (x >> 13) % 5 < 2;
}

/* The last expert of all is never used. */
static bool is_idle(int which, int expert)
{
    return which == LAYERS - 1 && expert == EXPERTS - 1;
}

static void choose(choosy *c, choice what, int step, int rank)
{
    for (int i = 0; i < LAYERS; i++) {
        layer *l = (layer *)c->layers[i];

        c->entered[i] = what < CONDITIONAL || what >= BESIDE || draw(step, rank, 50 + i) || draw(step, rank, 60 + i);
        c->used[i] = what != OUTPUTS || draw(step, rank, 40 + i);
        l->chosen = 0;
        for (int e = 0; e < EXPERTS; e++)
            l->chosen |= (unsigned)(draw(step, rank, i * EXPERTS + e) && !is_idle(i, e)) << e;
    }
}

/* The loss of rank `rank`. */
static fsdp_tensor *choosy_loss(choosy *c, choice what, int step, int rank)
{
    fsdp_tensor *x, *targets;

    choose(c, what, step, rank);
    net_batch(c->base.context, step, rank * WAYS_ROWS, WAYS_ROWS, &x, &targets);
    return CHECK_PTR(fsdp_call(&c->base, x));
}

/* The plain model goes through the ranks one after the other. */
static void choosy_backward(const way_run *run, choosy *c, choice what, int step)
{
    fsdp_context *context = c->base.context;

    for (int r = 0; r < (run->way ? 1 : run->world); r++) {
        int rank = run->way ? fsdp_context_rank(context) : r;
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        if (step % 3 == 1)
            dawdle(context, run);
        loss = choosy_loss(c, what, step, rank);
        if (fsdp_tensor_requires_grad(loss) || (run->way && run->world > 1)) /* sharded it does for others, too */
            CHECK_OK(fsdp_backward(fsdp_scale(loss, run->way ? 1.0 : 1.0 / run->world)));
        fsdp_scope_end(context, NULL);
    }
}

static void set_sync(const way_run *run, choosy *c, bool sync)
{
    if (run->way)
        CHECK_OK(fsdp_module_set_requires_gradient_sync(&c->base, sync, true));
}

static void evaluate(const way_run *run, choosy *c, choice what, int step)
{
    fsdp_context *context = c->base.context;

    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_scope_begin(context));
    (void)choosy_loss(c, what, step, run->way ? fsdp_context_rank(context) : 0);
    fsdp_scope_end(context, NULL);
    fsdp_no_grad_end(context);
}

static void train_choosy(fsdp_context *context, way_run *run)
{
    choice what = (choice)(run->arg % CHOICES);
    choosy *c = sharded_choosy(context, run, what, (fsdp_reshard)(run->arg / CHOICES % 3));
    fsdp_optimizer *optimizer = ways_optimizer(&c->base);

    for (int step = 0; step < 4; step++) {
        choosy_backward(run, c, what, 3 * step);
        note_gradients(run, &c->base);
        evaluate(run, c, what, step);
        if (step == 1) /* adds to what there is, and to what there is not */
            choosy_backward(run, c, what, 100);
        ways_step(optimizer);
        set_sync(run, c, false); /* used in one microbatch here, and in another one there */
        choosy_backward(run, c, what, 3 * step + 1);
        set_sync(run, c, true);
        choosy_backward(run, c, what, 3 * step + 2);
        note_gradients(run, &c->base);
        ways_step(optimizer);
    }
    note_weights(run, &c->base);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(&c->base);
}

static void in_ways(choice what)
{
    for (int reshard = 0; reshard < 3; reshard++)
        if (test_long() || reshard == (int)what % 3)
            in_every_way_with(train_choosy, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, (int)what + CHOICES * reshard);
}

CALL_TEST(ranks_may_use_different_parameters, in_ways(PARAMETERS))
CALL_TEST(ranks_may_use_the_outputs_of_different_modules, in_ways(OUTPUTS))
CALL_TEST(ranks_may_enter_different_conditional_modules, in_ways(CONDITIONAL))
CALL_TEST(conditional_modules_nest, in_ways(NESTED))
CALL_TEST(modules_of_one_group_may_hand_on_what_they_were_given, in_ways(BESIDE))
CALL_TEST(a_conditional_group_may_run_in_part_and_again, in_ways(TWICE))

/* ---- hooks, frozen parameters, a failed step ---- */

static fsdp_status halve(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)arg, (void)tensor;
    *grad = fsdp_scale(*grad, 0.5);
    return *grad ? FSDP_OK : fsdp_last_status();
}

/* The plain gradient arrives rank by rank: the hook is linear. */
static void train_hooked(fsdp_context *context, way_run *run)
{
    choice what = (choice)run->arg;
    choosy *c = sharded_choosy(context, run, what, FSDP_RESHARD_AUTO);
    layer *first = (layer *)c->layers[0];

    CHECK_OK(fsdp_tensor_add_grad_hook(((fsdp_layer *)first->experts[0])->weight, halve, NULL));
    for (int step = 0; step < 6; step++) {
        CHECK_OK(fsdp_module_set_requires_grad(first->experts[1], step % 2 != 0));
        choosy_backward(run, c, what, step);
        note_gradients(run, &c->base);
        if (step == 3 && run->way) {
            CHECK_OK(fsdp_scope_begin(context)); /* a forward that no backward follows */
            (void)choosy_loss(c, what, step, fsdp_context_rank(context));
            fsdp_scope_end(context, NULL);
            CHECK_OK(fsdp_module_reset_iteration(&c->base));
        }
        if (step % 2)
            net_sgd(&c->base, 0.25f);
    }
    note_weights(run, &c->base);
    fsdp_module_unref(&c->base);
}

TEST(hooks_and_freezes_see_what_some_rank_used)
{
    in_every_way_with(train_hooked, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, PARAMETERS);
    in_every_way_with(train_hooked, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, CONDITIONAL);
}

static fsdp_status refuse(void *arg, fsdp_tensor *gradients, fsdp_stream *stream)
{
    (void)arg, (void)gradients, (void)stream;
    return FSDP_FAIL(FSDP_STATE, "not today");
}

/* Between two backwards a reset, or a failure of another root on the same communication context: what has been reduced
 * stays, on ranks that have not used it as well. */
static void interrupt_step(fsdp_context *context, way_run *run)
{
    choice what = (choice)(run->arg % CHOICES);
    choosy *c = sharded_choosy(context, run, what, FSDP_RESHARD_AUTO), *other = sharded_choosy(context, run, 0, 0);

    if (run->way) {
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(&c->base, LAYERS + 1, true));
        CHECK_OK(fsdp_module_set_all_reduce_hook(other->layers[LAYERS - 1], refuse, NULL));
        CHECK_OK(fsdp_share_comm_context((fsdp_module *[]){&c->base, &other->base}, run->arg < CHOICES ? 1 : 2));
        CHECK_OK(fsdp_module_set_is_last_backward(&c->base, false));
    }
    choosy_backward(run, c, what, 0);
    note_gradients(run, &c->base); /* which there are, all ranks agree on at once */
    CHECK_OK(fsdp_scope_begin(context));
    if (run->way && run->arg < CHOICES)
        CHECK_OK(fsdp_module_reset_iteration(&c->base));
    else if (run->way && run->world > 1)
        CHECK_ERROR(fsdp_backward(choosy_loss(other, 0, 2, fsdp_context_rank(context))), FSDP_STATE, "not today");
    fsdp_scope_end(context, NULL);
    if (run->way)
        CHECK_OK(fsdp_module_set_is_last_backward(&c->base, true));
    choosy_backward(run, c, what, 1);
    note_gradients(run, &c->base);
    fsdp_module_unref(&c->base);
    fsdp_module_unref(&other->base);
}

TEST(what_was_reduced_stays_when_something_else_fails)
{
    for (int arg = 0; arg < 2 * CHOICES; arg += test_brief() ? 8 : 2) /* PARAMETERS, CONDITIONAL; twice */
        in_every_way_with(interrupt_step, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, arg);
}

/* What all ranks use is frozen: on a rank that uses nothing else no gradient is wanted. */
WAYS_TEST_BY(a_rank_may_use_nothing, in_every_way_with, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, CONDITIONAL)
{
    choosy *c = sharded_choosy(context, run, (choice)run->arg, FSDP_RESHARD_ALWAYS);

    CHECK_OK(fsdp_module_set_requires_grad(c->input, false));
    CHECK_OK(fsdp_module_set_requires_grad(c->head, false));
    for (int step = 0; step < 8; step++) {
        choosy_backward(run, c, (choice)run->arg, step);
        note_gradients(run, &c->base);
        if (step % 2)
            net_sgd(&c->base, 0.25f);
    }
    note_weights(run, &c->base);
    fsdp_module_unref(&c->base);
}

/* ---- hybrid: joined over the replicas ---- */

static void check_like_plain(choosy *c, choosy *whole)
{
    fsdp_parameters parameters, expected;

    CHECK_OK(fsdp_module_parameters(&c->base, &parameters));
    CHECK_OK(fsdp_module_parameters(&whole->base, &expected));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *gradient = fsdp_tensor_grad(parameters.items[i].tensor), *all;
        fsdp_tensor *wanted = fsdp_tensor_grad(expected.items[i].tensor);
        float a[NET_DIM * NET_DIM], b[NET_DIM * NET_DIM];

        CHECK_EQ(gradient != NULL, wanted != NULL);
        if (!gradient)
            continue;
        CHECK_OK(fsdp_full_tensor(gradient, &all));
        CHECK_OK(fsdp_tensor_read(all, FSDP_F32, a));
        CHECK_OK(fsdp_tensor_read(wanted, FSDP_F32, b));
        CHECK_CLOSE(a, b, fsdp_tensor_numel(all), 1e-5, 1e-6);
        fsdp_tensor_unref(all);
    }
    fsdp_parameters_release(&parameters);
    fsdp_parameters_release(&expected);
}

/* Reduced inside the replicas only: of what waits, the engine knows whether anybody in the replica has used it. */
static void check_partial(choosy *c, bool waits)
{
    const layer *last = (const layer *)c->layers[LAYERS - 1];
    const fsdp_layer *used = (const fsdp_layer *)c->head, *idle = (const fsdp_layer *)last->experts[EXPERTS - 1];

    CHECK_EQ(fsdp_parameter_pending_gradients(used->weight), waits ? FSDP_PENDING_PARTIAL : 0);
    CHECK_EQ(fsdp_parameter_pending_gradients(idle->weight), 0);
}

typedef struct hybrid {
    choice what;
    fsdp_shard_options options;
    bool separate; /* a channel for reductions, and several in flight */
    bool custom;   /* reductions by a function of the caller's */
} hybrid;

static fsdp_status reduce(void *arg, const fsdp_custom_call *call)
{
    (void)arg;
    return fsdp_reduce_scatter(call->group, call->send, call->recv, call->count, call->dtype, call->op, call->stream);
}

/* Two microbatches a step, the first one not reduced, or not over the replicas. */
static void train_hybrid(fsdp_context *context, void *arg)
{
    const hybrid *h = arg;
    way_run run = {.way = &(way){0}, .options = h->options}, plain = {.world = 4};
    fsdp_context *alone = test_context();
    choosy *whole = sharded_choosy(alone, &plain, h->what, FSDP_RESHARD_AUTO), *c;

    run.options.mesh = net_hybrid_mesh(context, 2);
    c = sharded_choosy(context, &run, h->what, FSDP_RESHARD_AUTO);
    if (h->separate) {
        CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(&c->base, true, true));
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(&c->base, 3, true));
    }
    for (int i = 0; h->custom && i <= LAYERS; i++)
        CHECK_OK(fsdp_module_set_custom_reduce_scatter(i < LAYERS ? c->layers[i] : &c->base,
                                                       &(fsdp_custom_collective){.run = reduce}));
    for (int step = 0; step < 6; step++) {
        CHECK_OK(fsdp_module_set_requires_gradient_sync(&c->base, step % 3 != 2, true));
        CHECK_OK(fsdp_module_set_requires_all_reduce(&c->base, step % 3 == 0, true));
        choosy_backward(&run, c, h->what, 2 * step);
        choosy_backward(&plain, whole, h->what, 2 * step);
        if (step % 3 == 1)
            check_partial(c, true);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(&c->base, true, true));
        if (step > 2) {
            choosy_backward(&run, c, h->what, 2 * step + 1);
            choosy_backward(&plain, whole, h->what, 2 * step + 1);
        }
        CHECK_OK(fsdp_module_synchronize_gradients(&c->base));
        check_partial(c, false);
        check_like_plain(c, whole);
        if (step % 2 == 0)
            continue;
        fsdp_module_zero_grad(&c->base);
        fsdp_module_zero_grad(&whole->base);
    }
    fsdp_module_unref(&whole->base);
    fsdp_context_free(alone);
    fsdp_module_unref(&c->base);
    fsdp_mesh_unref(run.options.mesh);
}

TEST(replicas_join_what_was_used)
{
    const fsdp_shard_options options[] = {{0},
                                          {.overlap = FSDP_OVERLAP_WORKER},
                                          {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER},
                                          {.overlap = FSDP_OVERLAP_WORKER}};

    for (int what = PARAMETERS; what < CHOICES; what++)
        for (size_t i = 0; i < FSDP__COUNT_OF(options); i++) {
            hybrid h = {.what = (choice)what, .options = options[i], .separate = i == 2, .custom = i == 3};

            if (!test_takes((int)i + 3 * (int)what, 2, FSDP__COUNT_OF(options)))
                continue;
            test_run_ranks(4, train_hybrid, &h);
        }
}

/* ---- what it costs, and what is refused ---- */

static void count(fsdp_context *context, void *arg)
{
    way_run run = {.way = &(way){0}, .options = *(const fsdp_shard_options *)arg};
    choosy *c = sharded_choosy(context, &run, PARAMETERS, FSDP_RESHARD_ALWAYS);
    int64_t world = fsdp_context_world_size(context), rows = (NET_DIM + world - 1) / world * (world - 1);
    fsdp_memory_stats memory;
    fsdp_comm_stats stats;
    fsdp_tensor *x, *targets;

    for (int step = 0; step < 3; step++) {
        choose(c, PARAMETERS, 0, 0);
        for (int i = 0; i < LAYERS; i++) /* one rank uses one expert of the first layer; nobody anything else */
            ((layer *)c->layers[i])->chosen = i == 0 && fsdp_context_rank(context) == 0 ? 2 : 0;
        fsdp_context_reset_comm_stats(context);
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, 0, WAYS_ROWS, &x, &targets);
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(&c->base, x))));
        fsdp_scope_end(context, NULL);
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 2); /* the first layer's and the root's */
        CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER],
                 4 * (rows * (NET_DIM + 1) + rows * (NET_IN + 1) +
                      (NET_OUT + world - 1) / world * (world - 1) * (NET_DIM + 1)));
        CHECK_PTR(fsdp_tensor_grad(((fsdp_layer *)((layer *)c->layers[0])->experts[1])->weight));
        CHECK_NULL(fsdp_tensor_grad(((fsdp_layer *)((layer *)c->layers[0])->experts[0])->weight));
        CHECK_NULL(fsdp_tensor_grad(((fsdp_layer *)((layer *)c->layers[1])->experts[1])->weight));
        fsdp_module_zero_grad(&c->base);
        fsdp_device_memory(test_device(context), &memory);
        CHECK_EQ(memory.live_bytes[FSDP_MEMORY_GRADIENT], 0);
    }
    fsdp_module_unref(&c->base);
}

TEST(only_what_somebody_used_is_sent)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(2, 4, count, &options[i]);
}

static void enter_unmarked(fsdp_context *context, void *arg)
{
    way_run run = {.way = &(way){0}, .options = *(const fsdp_shard_options *)arg};
    choosy *c = sharded_choosy(context, &run, PARAMETERS, FSDP_RESHARD_AUTO);
    bool ahead = fsdp_context_machines(context) > 1 && run.options.overlap == FSDP_OVERLAP_AUTO;
    fsdp_tensor *x, *targets, *loss;

    CHECK_OK(fsdp_scope_begin(context));
    choose(c, PARAMETERS, 0, 0);
    net_batch(context, 0, 0, WAYS_ROWS, &x, &targets);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(&c->base, x))));
    c->entered[1] = fsdp_context_rank(context) != 1;          /* that one comes to the third layer next */
    CHECK_EQ((loss = fsdp_call(&c->base, x)) != NULL, ahead); /* all gather both then, and their reductions tell */
    CHECK_STATUS(ahead ? fsdp_backward(loss) : fsdp_last_status(), FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "second");
    CHECK_CONTAINS(fsdp_last_error(), ahead ? "first" : "third");
    CHECK_CONTAINS(fsdp_last_error(), "rank 1");
    fsdp_scope_end(context, NULL);
    CHECK_ERROR(fsdp_module_set_conditional(c->layers[0], true), FSDP_STATE, "before the first forward");
    CHECK_ERROR(fsdp_module_set_conditional(((layer *)c->layers[0])->experts[0], true), FSDP_STATE,
                "not given to fully_shard");
    fsdp_module_unref(&c->base);
}

/* What stays unsharded is not gathered when it is entered: its reduction tells. */
static void enter_unsharded(fsdp_context *context, void *arg)
{
    way_run run = {.way = &(way){0}, .options = *(const fsdp_shard_options *)arg};
    choosy *c = sharded_choosy(context, &run, PARAMETERS, FSDP_RESHARD_NEVER);
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_scope_begin(context));
    choose(c, PARAMETERS, 0, 0);
    net_batch(context, 0, 0, WAYS_ROWS, &x, &targets);
    for (int i = 0; i < LAYERS; i++)
        CHECK_OK(fsdp_module_unshard(c->layers[i]));
    c->entered[1] = fsdp_context_rank(context) != 1;
    CHECK_STATUS(fsdp_backward(CHECK_PTR(fsdp_call(&c->base, x))), FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "first");
    CHECK_CONTAINS(fsdp_last_error(), "second");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(&c->base);
}

TEST(ranks_in_different_modules_are_told_which)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    test_only_on_cpu("errors at the very call that fails");
    for (int world = 2; world <= 3; world++)
        for (size_t i = 0; i < FSDP__COUNT_OF(options); i++) {
            test_run_ranks(world, enter_unmarked, &options[i]);
            test_run_ranks(world, enter_unsharded, &options[i]);
        }
}
