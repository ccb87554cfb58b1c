/* Modules with several outputs and an argument that is no tensor: some outputs are early, some what went in, some never
 * used, or not on every rank; auxiliary losses of modules deep inside, added to the main one or with a backward of
 * their own; and inputs and outputs that hooks change in place. Links: optim */
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/ways.h"

enum {
    LAYERS = 3,
    BLOCKS = 2 /* of the network whose hooks change tensors */
};

/* ---- a net of such modules ---- */

/* What is asked of one call, as an argument. */
typedef struct wish {
    bool main, aux[LAYERS];
    bool past[LAYERS]; /* goes on with what the layer was given */
    bool beside;       /* the first layer leaves its auxiliary loss here, held, instead of handing it on: */
    fsdp_tensor *left;
} wish;

/* x -> x + down(gelu(up(x))), an auxiliary loss of x alone, and x. */
typedef struct layer {
    fsdp_module base;
    fsdp_module *gate, *up, *down;
    int place;
} layer;

typedef struct talker {
    fsdp_module base;
    fsdp_module *input, *head, *layers[LAYERS];
} talker;

static fsdp_tensor *mean_square(fsdp_tensor *x)
{
    return fsdp_mean(fsdp_mul(x, x));
}

static fsdp_status layer_forward(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                 fsdp_tensor **outputs, int output_count)
{
    const layer *l = (layer *)self;
    wish *w = arg;

    CHECK_EQ(count, 1);
    CHECK_EQ(output_count, 3);
    outputs[1] = w->aux[l->place] ? mean_square(fsdp_call(l->gate, inputs[0])) : NULL;
    outputs[0] = fsdp_add(inputs[0], fsdp_call(l->down, fsdp_gelu(fsdp_call(l->up, inputs[0]))));
    outputs[2] = inputs[0];
    if (w->beside && l->place == 0) {
        w->left = fsdp_tensor_ref(outputs[1]);
        outputs[1] = NULL;
    }
    return FSDP_OK;
}

/* The main loss, and the sum of the auxiliary ones: either may be missing. */
static fsdp_status talker_forward(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                  fsdp_tensor **outputs, int output_count)
{
    const talker *t = (talker *)self;
    const wish *w = arg;
    fsdp_tensor *x = fsdp_call(t->input, inputs[0]);

    (void)count;
    CHECK_EQ(output_count, 2);
    for (int i = 0; i < LAYERS; i++) {
        fsdp_tensor *y[3];

        FSDP_TRY(fsdp_module_call_many(t->layers[i], arg, &x, 1, y, 3));
        x = w->past[i] ? y[2] : y[0];
        if (y[1])
            outputs[1] = outputs[1] ? fsdp_add(outputs[1], y[1]) : y[1];
    }
    outputs[0] = w->main ? mean_square(fsdp_call(t->head, x)) : NULL;
    return FSDP_OK;
}

static const fsdp_module_type layer_type = {.name = "Layer", .forward_many = layer_forward};
static const fsdp_module_type talker_type = {.name = "Talker", .forward_many = talker_forward};

static fsdp_module *layer_create(fsdp_context *context, fsdp_device *device, int place)
{
    layer *l;

    CHECK_OK(fsdp_module_create(context, &layer_type, sizeof *l, &l));
    l->place = place;
    l->gate = fsdp_linear_create(context, device, NET_DIM, 3, NULL);
    l->up = fsdp_linear_create(context, device, NET_DIM, NET_FFN, NULL);
    l->down = fsdp_linear_create(context, device, NET_FFN, NET_DIM, NULL);
    CHECK_OK(fsdp_module_add_child(&l->base, "gate", l->gate));
    CHECK_OK(fsdp_module_add_child(&l->base, "up", l->up));
    CHECK_OK(fsdp_module_add_child(&l->base, "down", l->down));
    return &l->base;
}

static talker *talker_create(fsdp_context *context, fsdp_device *device)
{
    static const char *const names[LAYERS] = {"first", "second", "third"};
    talker *t;

    CHECK_OK(fsdp_module_create(context, &talker_type, sizeof *t, &t));
    t->input = fsdp_linear_create(context, device, NET_IN, NET_DIM, NULL);
    t->head = fsdp_linear_create(context, device, NET_DIM, NET_OUT, NULL);
    CHECK_OK(fsdp_module_add_child(&t->base, "input", t->input));
    CHECK_OK(fsdp_module_add_child(&t->base, "head", t->head));
    for (int i = 0; i < LAYERS; i++) {
        t->layers[i] = layer_create(context, device, i);
        CHECK_OK(fsdp_module_add_child(&t->base, names[i], t->layers[i]));
    }
    return t;
}

/* ---- the doors ---- */

typedef enum door {
    FULLY_SHARD,
    RESHARDED,  /* with the root, and parts of layers apart */
    RECOMPUTED, /* layers, and the model around them */
    FSDP1,
    FLAT,
    DDP,
    DOORS
} door;

static void shard(talker *t, const fsdp_shard_options *given, door which)
{
    fsdp_shard_options options = *given;

    options.reshard_after_forward = which == RESHARDED ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_AUTO;
    for (int i = 0; i < LAYERS; i++) {
        if (which == RESHARDED && i == 1)
            CHECK_OK(fsdp_fully_shard(((layer *)t->layers[i])->up, &options));
        CHECK_OK(fsdp_fully_shard(t->layers[i], &options));
        if (which == RECOMPUTED && i > 0)
            CHECK_OK(fsdp_module_set_recompute(t->layers[i], FSDP_RECOMPUTE_FULL));
    }
    CHECK_OK(fsdp_fully_shard(&t->base, &options));
}

static void wrap_fsdp1(talker *t, const fsdp_shard_options *given, bool parts)
{
    static const char *const classes[] = {"Layer"};
    const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CLASSES, .classes = classes, .class_count = 1};
    const fsdp_fsdp1_options options = {
        .auto_wrap_policy = &policy,
        .use_orig_params = parts,
        .backward_prefetch = FSDP_BACKWARD_POST,
        .mixed_precision = {.param_dtype = given->mp_policy.param_dtype, .reduce_dtype = given->mp_policy.reduce_dtype},
        .overlap = given->overlap,
        .no_shared_memory = given->no_shared_memory};

    CHECK_OK(fsdp_fsdp1_wrap(&t->base, &options));
}

static talker *build(fsdp_context *context, const way_run *run, door which)
{
    talker *t = talker_create(context, run->way ? fsdp_meta(context) : test_device(context));
    const fsdp_replicate_options ddp = {.find_unused_parameters = true,
                                        .bucket_cap_mb = 0.0004,
                                        .overlap = run->options.overlap,
                                        .no_shared_memory = run->options.no_shared_memory};

    if (run->way && which == DDP)
        CHECK_OK(fsdp_replicate(&t->base, &ddp));
    else if (run->way && (which == FSDP1 || which == FLAT))
        wrap_fsdp1(t, &run->options, which == FSDP1);
    else if (run->way)
        shard(t, &run->options, which);
    if (run->way)
        CHECK_OK(fsdp_module_materialize(&t->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&t->base, 3));
    return t;
}

/* ---- steps ---- */

typedef enum kind {
    ADDED,     /* main and auxiliary losses are one */
    TOGETHER,  /* two roots of one backward */
    AUX_FIRST, /* a backward each */
    MAIN_FIRST,
    AUX_ALONE, /* nobody asks for the main loss */
    BESIDE,    /* one of the auxiliary losses is in no output */
    UNUSED,    /* the auxiliary one is there, and not used */
    PAST,      /* what the second layer makes of x is not used */
    BY_RANK,   /* ranks use different outputs of some layers */
    KINDS
} kind;

static wish wish_of(kind what, int rank)
{
    wish w = {.main = what != AUX_ALONE, .aux = {true, false, true}, .past[1] = what == PAST, .beside = what == BESIDE};

    if (what == BY_RANK)
        for (int i = 0; i < LAYERS; i++) {
            w.aux[i] = i == 0 || (rank + i) % 2;
            w.past[i] = (rank + i) % 3 == 0;
        }
    return w;
}

static void backwards(kind what, fsdp_tensor **losses)
{
    bool aux = what == AUX_FIRST;

    if (what == ADDED || what == PAST || what == BESIDE || what == BY_RANK) {
        CHECK_OK(fsdp_backward(fsdp_add(losses[0], losses[1])));
    } else if (what == TOGETHER) {
        CHECK_OK(fsdp_backward_from(losses, NULL, 2, false));
    } else if (what == UNUSED || what == AUX_ALONE) {
        CHECK_OK(fsdp_backward(losses[what == AUX_ALONE]));
    } else {
        CHECK_OK(fsdp_backward_from(&losses[aux], NULL, 1, true));
        CHECK_OK(fsdp_backward(losses[!aux]));
    }
}

/* Of rank `rank`: the plain model goes through them one after the other. */
static void step_of(const way_run *run, talker *t, kind what, int step, int rank)
{
    fsdp_context *context = t->base.context;
    wish w = wish_of(what, rank);
    fsdp_tensor *x, *targets, *losses[2];

    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, step, rank * WAYS_ROWS, WAYS_ROWS, &x, &targets);
    CHECK_OK(fsdp_module_call_many(&t->base, &w, &x, 1, losses, 2));
    CHECK_EQ(losses[0] != NULL, w.main);
    losses[0] = w.left ? fsdp_add(losses[0], w.left) : losses[0];
    for (int i = 0; i < 2 && !run->way; i++)
        losses[i] = losses[i] ? fsdp_scale(losses[i], 1.0 / run->world) : NULL;
    backwards(what, losses);
    fsdp_tensor_unref(w.left);
    fsdp_scope_end(context, NULL);
}

/* A flat vector has zeros where there is no gradient: that is no step without momentum. */
static fsdp_optimizer *optimizer_of(talker *t)
{
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(&t->base, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.5}, &optimizer));
    fsdp_parameters_release(&parameters);
    return optimizer;
}

static void train(fsdp_context *context, way_run *run)
{
    door which = (door)run->arg;
    talker *t = build(context, run, which);
    fsdp_optimizer *optimizer = optimizer_of(t);
    int64_t live = 0;

    for (int step = 0; step < (test_long() ? 2 : 1) * KINDS; step++) {
        kind what = (kind)(step * 4 % KINDS); /* all of them */

        if (step % 4 == 1)
            dawdle(context, run);
        for (int r = 0; r < (run->way ? 1 : run->world); r++)
            step_of(run, t, what, step, run->way ? fsdp_context_rank(context) : r);
        if (which != FLAT && which != FSDP1)
            note_gradients(run, &t->base);
        if (step % 3 == 0) /* gradients add up */
            ways_step(optimizer);
        if (step == KINDS - 1 || step == 2 * KINDS - 1) {
            ways_step(optimizer);
            CHECK(live == 0 || live == test_live_bytes(context));
            live = test_live_bytes(context);
        }
    }
    note_weights(run, &t->base);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(&t->base);
}

TEST(every_output_leads_back_through_every_door)
{
    for (int which = 0; which < DOORS; which++)
        if (test_long() || which == RESHARDED || which == DDP ||
            (!test_brief() && which != FULLY_SHARD && which != FSDP1))
            in_every_way_with(train, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, which);
}

/* ---- hooks that change what a call takes and gives, in place ---- */

typedef struct changer {
    double factor;
    bool of_inputs; /* of a call that has run: what it has saved */
} changer;

/* Without a gradient: what the change does is not undone in the backward. */
static void change(fsdp_tensor *tensor, double factor)
{
    fsdp_context *context = fsdp_device_context(fsdp_tensor_device(tensor));

    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_tensor_copy_(tensor, CHECK_PTR(fsdp_scale(tensor, factor))));
    fsdp_no_grad_end(context);
}

static fsdp_status change_inputs(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    (void)module, (void)count;
    change(inputs[0], ((const changer *)arg)->factor);
    return FSDP_OK;
}

static fsdp_status change_outputs(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                  fsdp_tensor **outputs, int output_count)
{
    const changer *c = arg;

    (void)module, (void)count, (void)output_count;
    change(c->of_inputs ? inputs[0] : outputs[0], c->factor);
    return FSDP_OK;
}

/* Block 0 was given hooks before it was sharded, block 1 afterwards. */
WAYS_TEST_BY(outputs_that_hooks_change_in_place_are_what_comes_next, in_every_way_with,
             WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, FSDP_RESHARD_ALWAYS)
{
    fsdp_module *module = net_create(context, run->way ? fsdp_meta(context) : test_device(context), BLOCKS);
    changer halves = {.factor = 0.5}, doubles = {.factor = 2};
    const fsdp_module_hooks first = {.arg = &halves, .post_forward = change_outputs};
    const fsdp_module_hooks second = {.arg = &doubles, .pre_forward = change_inputs, .post_forward = change_outputs};
    fsdp_shard_options options = run->options;

    options.reshard_after_forward = (fsdp_reshard)run->arg;
    CHECK_OK(fsdp_module_add_hooks(net_block_at(module, 0), &first, NULL));
    if (run->way) {
        net_shard(module, &options);
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    }
    CHECK_OK(fsdp_module_add_hooks(net_block_at(module, 1), &second, NULL));
    CHECK_OK(fsdp_module_initialize(module, 1));
    for (int step = 0; step < 3; step++) {
        ways_backward(run, module, step);
        note_gradients(run, module);
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
}

/* A hook changes what its block has saved: the backward would be wrong. */
static void train_spoilt(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    changer spoils = {.factor = 2, .of_inputs = true};
    int64_t handle, count;
    float *values;

    CHECK_OK(fsdp_module_add_hooks(net_block_at(module, 1),
                                   &(fsdp_module_hooks){.arg = &spoils, .post_forward = change_outputs}, &handle));
    CHECK_STATUS(net_try(module), FSDP_STATE);
    CHECK_CONTAINS(fsdp_last_error(), "was written to after");
    CHECK_OK(fsdp_module_remove_hooks(net_block_at(module, 1), handle));
    CHECK_OK(fsdp_module_reset_iteration(module));
    fsdp_module_zero_grad(module);
    net_train(module, 2);
    values = net_values(module, &count);
    CHECK_CLOSE(values, (const float *)arg, count, 1e-5, 1e-6);
    free(values);
    fsdp_module_unref(module);
}

TEST(a_hook_that_changes_what_was_saved_ends_the_backward_and_leaves_nothing)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, 2, &count);

    for (int world = 1; world < 4; world++)
        test_run_ranks(world, train_spoilt, expected);
    free(expected);
}
