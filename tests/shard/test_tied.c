/* Parameters that modules of several calls use: tied weights, and a module below two sharded parents. Links: optim */
#include "shard/ways.h"

/* ---- a net that runs its parts in any order ---- */

enum {
    PARTS = 4
};

/* a, b: Linear(7,7) of one weight, each with a bias of its own; m, n: blocks. `order` says what the forward runs; B is
 * b, recomputed. */
typedef struct knot {
    fsdp_module base;
    fsdp_module *parts[PARTS];
    const char *order;
} knot;

static const char part_names[] = "abmn";

static fsdp_tensor *call_part(void *arg, fsdp_tensor *const *inputs, int count)
{
    return fsdp_module_call(arg, inputs, count);
}

static fsdp_tensor *knot_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    knot *k = (knot *)self;
    fsdp_tensor *x = inputs[0];

    (void)count;
    for (const char *at = k->order; *at; at++)
        x = fsdp_gelu(*at == 'B' ? fsdp_recompute(self->context, call_part, k->parts[1], &x, 1, NULL)
                                 : fsdp_call(k->parts[strchr(part_names, *at) - part_names], x));
    return fsdp_mean(fsdp_mul(x, x));
}

static const fsdp_module_type knot_type = {.name = "Knot", .forward = knot_forward};

static fsdp_module *tied_linear(fsdp_context *context, fsdp_device *device, fsdp_module *to)
{
    const fsdp_init init = {.kind = FSDP_INIT_UNIFORM, .a = -0.3f, .b = 0.3f};
    fsdp_layer *layer;

    CHECK_OK(fsdp_module_create(context, to->type, sizeof *layer, &layer));
    CHECK_OK(fsdp_module_tie_parameter(&layer->base, "weight", &layer->weight, ((fsdp_layer *)to)->weight));
    CHECK_OK(
        fsdp_module_add_parameter(&layer->base, "bias", &layer->bias, device, FSDP_F32, FSDP_SHAPE(NET_DIM), init));
    return &layer->base;
}

static knot *knot_create(fsdp_context *context, fsdp_device *device)
{
    knot *k;

    CHECK_OK(fsdp_module_create(context, &knot_type, sizeof *k, &k));
    k->parts[0] = fsdp_linear_create(context, device, NET_DIM, NET_DIM, NULL);
    k->parts[1] = tied_linear(context, device, k->parts[0]);
    k->parts[2] = net_block_create(context, device);
    k->parts[3] = net_block_create(context, device);
    for (int i = 0; i < PARTS; i++)
        CHECK_OK(fsdp_module_add_child(&k->base, (const char[]){part_names[i], '\0'}, k->parts[i]));
    k->order = "";
    return k;
}

/* Whichever call comes first has the weight: the root last, if not before. */
typedef enum owner {
    A_FIRST,
    B_FIRST,
    A_ALONE, /* b is the root's */
    OWNERS
} owner;

static knot *sharded_knot(fsdp_context *context, const way_run *run, owner first, fsdp_reshard reshard)
{
    knot *k = knot_create(context, run->way ? fsdp_meta(context) : test_device(context));
    fsdp_shard_options options = run->options;

    options.reshard_after_forward = reshard;
    if (run->way) {
        for (int i = 2; i < PARTS; i++)
            CHECK_OK(fsdp_fully_shard(k->parts[i], &options));
        CHECK_OK(fsdp_fully_shard(k->parts[first == B_FIRST], &options));
        if (first != A_ALONE)
            CHECK_OK(fsdp_fully_shard(k->parts[first != B_FIRST], &options));
        CHECK_OK(fsdp_fully_shard(&k->base, &options));
        CHECK_OK(fsdp_module_materialize(&k->base, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(&k->base, 5));
    return k;
}

static fsdp_tensor *knot_loss(const way_run *run, knot *k, const char *order, int step)
{
    fsdp_context *context = k->base.context;
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world, first = fsdp_context_rank(context) * rows;
    float values[WAYS_ROWS * WAYS_WORLDS * NET_DIM];

    for (int i = 0; i < rows * NET_DIM; i++)
        values[i] = (float)(((first * NET_DIM + i) * 13 + step * 5) % 17) / 8.0f - 1.0f;
    k->order = order;
    if (step % 4 == 2)
        dawdle(context, run);
    return CHECK_PTR(
        fsdp_call(&k->base, fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(rows, NET_DIM), values)));
}

static void knot_backward(const way_run *run, knot *k, const char *order, int step)
{
    CHECK_OK(fsdp_scope_begin(k->base.context));
    CHECK_OK(fsdp_backward(knot_loss(run, k, order, step)));
    fsdp_scope_end(k->base.context, NULL);
}

static void set_sync(const way_run *run, knot *k, bool sync)
{
    if (run->way)
        CHECK_OK(fsdp_module_set_requires_gradient_sync(&k->base, sync, true));
}

static void evaluate(way_run *run, knot *k, const char *order)
{
    fsdp_no_grad_begin(k->base.context);
    CHECK_OK(fsdp_scope_begin(k->base.context));
    (void)knot_loss(run, k, order, 9);
    fsdp_scope_end(k->base.context, NULL);
    fsdp_no_grad_end(k->base.context);
}

static void train_orders(fsdp_context *context, way_run *run)
{
    static const char *const orders[] = {"ambn", "bman", "mb", "ma", "abba", "nbm", "mn", "bb", "anbmab"};
    knot *k = sharded_knot(context, run, (owner)(run->arg % OWNERS), (fsdp_reshard)(run->arg / OWNERS));
    fsdp_optimizer *optimizer = ways_optimizer(&k->base);

    for (size_t i = 0; i < FSDP__COUNT_OF(orders); i++) {
        knot_backward(run, k, orders[i], (int)i);
        note_gradients(run, &k->base);
        ways_step(optimizer);
        if (i % 3 == 1)
            evaluate(run, k, orders[i - 1]);
    }
    note_weights(run, &k->base);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(&k->base);
}

TEST(uses_in_any_order_add_up_in_one_gradient)
{
    for (int arg = 0; arg < OWNERS * 3; arg += test_long() ? 1 : OWNERS + 1)
        in_every_way_with(train_orders, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, arg);
}

/* Accumulation, several forwards, writes, freezes, unshards by hand. */
static void use_in_any_order(fsdp_context *context, way_run *run)
{
    knot *k = sharded_knot(context, run, (owner)(run->arg % OWNERS), (fsdp_reshard)(run->arg / OWNERS));
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(&k->base, "a.weight")), *losses[2];

    for (int step = 0; step < 2; step++) {
        set_sync(run, k, false);
        knot_backward(run, k, step == 0 ? "amb" : "bn", step);
        CHECK_OK(fsdp_tensor_fill_(weight, 0.125 + 0.25 * step));
        set_sync(run, k, true);
        knot_backward(run, k, step == 0 ? "nb" : "anb", step + 2);
        note_gradients(run, &k->base);
        CHECK_OK(fsdp_tensor_set_requires_grad(weight, step != 0));
        knot_backward(run, k, "bma", step + 4);
        note_gradients(run, &k->base);
        CHECK_OK(fsdp_tensor_set_requires_grad(weight, true));
        if (run->way && step == 0) {
            CHECK_OK(fsdp_module_unshard(k->parts[1]));
            for (int i = 0; i < 2; i++)
                CHECK_EQ(fsdp_tensor_size(((fsdp_layer *)k->parts[i])->weight, 0), NET_DIM);
            if (fsdp_module_is_sharded(k->parts[1]))
                CHECK_OK(fsdp_module_reshard(k->parts[1]));
        }
        CHECK_OK(fsdp_scope_begin(context));
        for (int i = 0; i < 2; i++)
            losses[i] = knot_loss(run, k, i == 0 ? "am" : "mb", i + step);
        CHECK_OK(fsdp_backward_from(losses, NULL, 2, false));
        fsdp_scope_end(context, NULL);
        note_gradients(run, &k->base);
        fsdp_module_zero_grad(&k->base);
        CHECK_NULL(fsdp_tensor_grad(weight));
    }
    note_weights(run, &k->base);
    fsdp_module_unref(&k->base);
}

TEST(a_tie_across_groups_stands_any_call)
{
    for (int arg = 0; arg < OWNERS * 3; arg += test_long() ? 1 : OWNERS + 1)
        if (arg % OWNERS != A_ALONE)
            in_every_way_with(use_in_any_order, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, arg);
}

/* ---- counts, bytes, bits ---- */

static void count(fsdp_context *context, void *arg)
{
    way_run run = {.way = &(way){0}, .options = *(const fsdp_shard_options *)arg};
    knot *k = sharded_knot(context, &run, A_FIRST, FSDP_RESHARD_ALWAYS);
    int64_t world = fsdp_context_world_size(context), chunk = (NET_DIM + world - 1) / world;
    fsdp_memory_stats memory;
    fsdp_comm_stats stats;
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(k->parts[0], &info));
    CHECK_EQ(info.parameter_count, 2);
    CHECK_OK(fsdp_module_shard_info(k->parts[1], &info));
    CHECK_EQ(info.parameter_count, 1);
    for (int step = 0; step < 3; step++) {
        fsdp_context_reset_comm_stats(context);
        knot_backward(&run, k, "amb", step);
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(((fsdp_layer *)k->parts[0])->weight, ((fsdp_layer *)k->parts[1])->weight);
        if (world == 1)
            continue;
        /* Forward: a; m; b and a. Backward: b and a; m; a. The weight is reduced once. */
        CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 8);
        CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 3);
        CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER],
                 4 * (world - 1) *
                     (chunk * NET_DIM + chunk + chunk + (NET_FFN + world - 1) / world * (NET_DIM + 1) +
                      chunk * (NET_FFN + 1)));
        fsdp_device_memory(test_device(context), &memory);
        CHECK_EQ(memory.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        fsdp_module_zero_grad(&k->base);
    }
    fsdp_module_unref(&k->base);
}

TEST(a_tied_weight_is_reduced_once)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(1, 4, count, &options[i]);
}

static void write_between(fsdp_context *context, void *arg)
{
    way_run run = {.way = &(way){0}, .options = *(const fsdp_shard_options *)arg};

    for (int first = 0; first < OWNERS; first++) {
        knot *k = sharded_knot(context, &run, (owner)first, FSDP_RESHARD_ALWAYS);
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        loss = knot_loss(&run, k, "mBn", 0);
        CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(&k->base, "a.weight")), 0.5));
        CHECK_ERROR(fsdp_backward(loss), FSDP_STATE, "'a.weight', was written to after the forward");
        fsdp_scope_end(context, NULL);
        fsdp_module_zero_grad(&k->base);
        knot_backward(&run, k, "mBn", 1);
        fsdp_module_unref(&k->base);
    }
}

TEST(a_write_to_a_tied_weight_is_noticed_in_a_recomputed_function_that_uses_it)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(1, 3, write_between, &options[i]);
}

static void one_rank(fsdp_context *context, void *arg)
{
    way_run run = {.world = 1}, sharded = {.way = &(way){0}, .world = 1};
    knot *plain = sharded_knot(context, &run, A_FIRST, FSDP_RESHARD_AUTO);
    knot *k = sharded_knot(context, &sharded, *(const owner *)arg, FSDP_RESHARD_AUTO);

    for (int step = 0; step < 3; step++) {
        knot_backward(&run, plain, "ambab", step);
        knot_backward(&sharded, k, "ambab", step);
        net_sgd(&plain->base, 0.25f);
        net_sgd(&k->base, 0.25f);
    }
    for (int i = 0; i < 2; i++) {
        float a[NET_DIM * NET_DIM], b[NET_DIM * NET_DIM];
        const char *name = i == 0 ? "a.weight" : "b.bias";
        fsdp_tensor *p = CHECK_PTR(fsdp_module_parameter(&plain->base, name));

        CHECK_OK(fsdp_tensor_read(p, FSDP_F32, a));
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_module_parameter(&k->base, name)), FSDP_F32, b));
        CHECK_BYTES(b, a, (size_t)fsdp_tensor_numel(p) * sizeof *a);
    }
    fsdp_module_unref(&plain->base);
    fsdp_module_unref(&k->base);
}

TEST(one_rank_is_bit_equal_to_the_plain_model)
{
    for (owner first = A_FIRST; first < OWNERS; first++)
        test_run_ranks(1, one_rank, &first);
}

/* ---- lives ---- */

static void die_in_any_order(fsdp_context *context, void *arg)
{
    way_run run = {.way = &(way){0}};

    for (int which = 0; which < 2; which++) {
        knot *k = sharded_knot(context, &run, (owner) * (const int *)arg, FSDP_RESHARD_NEVER);
        fsdp_module *kept = fsdp_module_ref(k->parts[which]);

        knot_backward(&run, k, "amb", 0);
        CHECK_OK(fsdp_scope_begin(context));
        (void)knot_loss(&run, k, "bma", 1);
        fsdp_scope_end(context, NULL);
        fsdp_module_unref(&k->base);
        CHECK_OK(fsdp_tensor_fill_(((fsdp_layer *)kept)->weight, 0.5));
        fsdp_module_unref(kept);
    }
}

TEST(owner_and_user_may_go_in_any_order)
{
    for (int world = 1; world <= 3; world++)
        for (int first = 0; first < 2; first++)
            test_run_ranks(world, die_in_any_order, &first);
}

/* ---- a module below two sharded parents ---- */

typedef struct pair {
    fsdp_module base;
    fsdp_module *own, *shared;
} pair;

static fsdp_tensor *pair_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    pair *p = (pair *)self;

    (void)count;
    return fsdp_call(p->shared, fsdp_gelu(fsdp_call(p->own, inputs[0])));
}

static const fsdp_module_type pair_type = {.name = "Pair", .forward = pair_forward};

static fsdp_module *pair_create(fsdp_context *context, fsdp_device *device, fsdp_module *shared)
{
    pair *p;

    CHECK_OK(fsdp_module_create(context, &pair_type, sizeof *p, &p));
    p->own = fsdp_linear_create(context, device, NET_DIM, NET_DIM, NULL);
    p->shared = fsdp_module_ref(shared);
    CHECK_OK(fsdp_module_add_child(&p->base, "own", p->own));
    CHECK_OK(fsdp_module_add_child(&p->base, "shared", shared));
    return &p->base;
}

/* arg: whether the shared block is given to a call of its own, first. */
static void share_module(fsdp_context *context, way_run *run)
{
    fsdp_device *device = run->way ? fsdp_meta(context) : test_device(context);
    fsdp_module *shared = net_block_create(context, device), *pairs[2], *list;
    float values[WAYS_ROWS * WAYS_WORLDS * NET_DIM];
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world, first = fsdp_context_rank(context) * rows;

    for (int i = 0; i < 2; i++)
        pairs[i] = pair_create(context, device, i == 0 ? shared : fsdp_module_ref(shared));
    list = CHECK_PTR(fsdp_sequential_create(context, pairs, 2));
    if (run->way) {
        if (run->arg)
            CHECK_OK(fsdp_fully_shard(shared, &run->options));
        for (int i = 0; i < 2; i++)
            CHECK_OK(fsdp_fully_shard(pairs[i], &run->options));
        CHECK_OK(fsdp_fully_shard(list, &run->options));
        CHECK_OK(fsdp_module_materialize(list, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(list, 2));
    for (int i = 0; i < rows * NET_DIM; i++)
        values[i] = (float)(((first * NET_DIM + i) * 11) % 19) / 9.0f - 1.0f;
    for (int step = 0; step < 3; step++) {
        fsdp_tensor *y;

        dawdle(context, run);
        CHECK_OK(fsdp_scope_begin(context));
        y = fsdp_call(list, fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(rows, NET_DIM), values));
        CHECK_OK(fsdp_backward(fsdp_mean(fsdp_mul(y, y))));
        fsdp_scope_end(context, NULL);
        note_gradients(run, list);
        net_sgd(list, 0.1f);
    }
    note_weights(run, list);
    fsdp_module_unref(((pair *)pairs[0])->shared);
    fsdp_module_unref(((pair *)pairs[1])->shared);
    fsdp_module_unref(list);
}

TEST(a_module_may_lie_below_two_sharded_parents)
{
    for (int own_call = 0; own_call < 2; own_call++)
        in_every_way_with(share_module, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, own_call);
}

/* ---- refusals ---- */

WORLDS_TEST(what_cannot_be_tied_is_refused, 1, 3)
{
    fsdp_shard_options bf16 = {.mp_policy.param_dtype = FSDP_BF16};
    knot *k = knot_create(context, test_device(context));
    float x[2 * NET_DIM] = {0};

    CHECK_OK(fsdp_fully_shard(k->parts[0], NULL));
    CHECK_ERROR(fsdp_fully_shard(k->parts[1], &bf16), FSDP_INVALID, "gathered in float32");
    CHECK(!fsdp_module_is_sharded(k->parts[1]));
    CHECK_OK(fsdp_fully_shard(k->parts[1], NULL));
    CHECK_OK(fsdp_scope_begin(context)); /* b alone has no stream in common with a */
    CHECK_NULL(fsdp_call(k->parts[1], fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM), x)));
    CHECK_CONTAINS(fsdp_last_error(), "shares parameters with a sharded module outside");
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_fully_shard(&k->base, NULL));
    CHECK_OK(fsdp_module_initialize(&k->base, 1));
    CHECK_OK(fsdp_scope_begin(context));
    k->order = "ab";
    CHECK_PTR(fsdp_call(&k->base, fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM), x)));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(&k->base);

    k = knot_create(context, test_device(context));
    CHECK_OK(fsdp_fully_shard(&k->base, NULL));
    CHECK_ERROR(fsdp_fully_shard(k->parts[1], NULL), FSDP_INVALID, "outer module took it");
    fsdp_module_unref(&k->base);
}
