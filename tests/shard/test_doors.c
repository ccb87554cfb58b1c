/* State of models and optimizers moves between all front doors and strategies: a step after the move is the step that
 * would have been taken without, to the bit where the ranks' gradients add up in the same order. And the gradient
 * scaler, through all of them.
 * Links: optim state */
#include <math.h>

#include "fsdp/optim.h"
#include "fsdp/state.h"
#include "shard/doors.h"

enum {
    BLOCKS = 2,
    LAYERS = 5, /* of a hollow model */
    STEPS = 2,  /* before the move */
    ROWS = 4
};

/* Whose state is moved. */
typedef enum model {
    NET,
    HOLLOW, /* layers between which there is nothing: most parameters have no elements, of some units none */
    NOTHING /* no parameter has */
} model;

typedef struct trained {
    const door *door;
    model model;
    fsdp_module *module;
    fsdp_optimizer *optimizer;
    fsdp_mesh *mesh;
} trained;

/* x (n, NET_IN) -> (n, NET_OUT), or where there is nothing (n, 0). */
static fsdp_module *hollow_create(fsdp_context *context, model m)
{
    const int64_t hollow[] = {NET_IN, NET_DIM, 0, NET_DIM, 0, NET_OUT}, nothing[] = {NET_IN, 0, 0, 0, 0, 0};
    const int64_t *sizes = m == HOLLOW ? hollow : nothing;
    const fsdp_linear_options biases[] = {{.no_bias = m == NOTHING}, {.no_bias = false}};
    fsdp_module *layers[LAYERS];

    for (int i = 0; i < LAYERS; i++)
        layers[i] = fsdp_linear_create(context, test_device(context), sizes[i], sizes[i + 1], &biases[i != LAYERS - 1]);
    return fsdp_sequential_create(context, layers, LAYERS);
}

static void wrap(const trained *t)
{
    fsdp_module *units[LAYERS];
    int count = t->model == NET ? BLOCKS : LAYERS - 1;

    for (int i = 0; i < count; i++)
        units[i] = t->model == NET ? net_block_at(t->module, i) : fsdp_module_child_at(t->module, i, NULL);
    door_wrap(t->door, t->module, units, count, t->mesh);
}

static void trained_init(trained *t, fsdp_context *context, model m, const door *d, uint64_t seed)
{
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_parameters parameters;

    *t = (trained){.door = d, .model = m};
    t->module = m == NET ? net_create(context, test_device(context), BLOCKS) : hollow_create(context, m);
    CHECK_OK(fsdp_module_initialize(t->module, seed));
    if (door_is_hybrid(d, fsdp_context_world_size(context)))
        t->mesh = net_hybrid_mesh(context, 2);
    wrap(t);
    options.lr = 1e-2 * (double)seed;
    CHECK_OK(fsdp_module_parameters(t->module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &options, &t->optimizer));
    fsdp_parameters_release(&parameters);
}

static void trained_free(trained *t)
{
    fsdp_optimizer_free(t->optimizer);
    fsdp_module_unref(t->module);
    fsdp_mesh_unref(t->mesh);
}

/* A plain model stands for all ranks. Belongs to the scope. */
static fsdp_tensor *loss_of(const trained *t, int step)
{
    fsdp_context *context = t->module->context;
    bool plain = t->door->kind == DOOR_PLAIN;
    int world = fsdp_context_world_size(context), rows = plain ? ROWS * world : ROWS;
    fsdp_tensor *x, *targets;

    net_batch(context, step, plain ? 0 : fsdp_context_rank(context) * rows, rows, &x, &targets);
    if (t->model == NET)
        return CHECK_PTR(fsdp_call(t->module, x, targets));
    return CHECK_PTR(fsdp_scale(fsdp_sum(fsdp_square(fsdp_call(t->module, x))), 1.0 / rows));
}

static void take_step(const trained *t, int step)
{
    fsdp_context *context = t->module->context;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_backward(loss_of(t, step)));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_optimizer_step(t->optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(t->optimizer));
}

/* ---- the move ---- */

static fsdp_state_dict *state_of(const trained *t, bool optimizer)
{
    fsdp_state_dict *state;

    if (!optimizer) {
        CHECK_OK(fsdp_state_dict_from_module(t->module, &state));
        return state;
    }
    CHECK_OK(fsdp_optimizer_state_dict(t->optimizer, &state));
    CHECK_OK(fsdp_optimizer_add_param_groups(t->optimizer, state));
    return state;
}

static void load(const trained *to, const fsdp_state_dict *from, const fsdp_full_state_options *options, bool optimizer)
{
    fsdp_state_dict *own;

    if (optimizer) {
        CHECK_OK(fsdp_optimizer_load_full_state_dict(to->optimizer, from, options));
        return;
    }
    own = state_of(to, false);
    CHECK_OK(fsdp_state_dict_load_full(own, from, options));
    fsdp_state_dict_free(own);
}

typedef enum way {
    PARTS, /* as they are */
    BY_ROWS,
    WHOLE,
    FROM_RANK_0,
    WAYS
} way;

/* What one door gives, made once. */
typedef struct given {
    fsdp_state_dict *state, *made[WAYS];
} given;

static void given_init(given *g, const trained *from, bool optimizer)
{
    const fsdp_sharded_state_options rows = {.over_replicas = optimizer, .offload_to_cpu = optimizer};
    const fsdp_full_state_options host = {.cpu_offload = true};

    *g = (given){.state = state_of(from, optimizer)};
    CHECK_OK(fsdp_state_dict_shard_rows(g->state, &rows, &g->made[BY_ROWS]));
    CHECK_OK(fsdp_state_dict_gather(g->state, NULL, &g->made[WHOLE]));
    CHECK_OK(fsdp_state_dict_gather(g->state, &host, &g->made[FROM_RANK_0]));
}

static void given_free(given *g)
{
    fsdp_state_dict_free(g->state);
    for (int w = 0; w < WAYS; w++)
        fsdp_state_dict_free(g->made[w]);
}

static void move(const trained *to, const given *g, way how, bool optimizer)
{
    const fsdp_full_state_options parts = {.from_parts = true}, broadcast = {.broadcast_from_rank0 = true};

    load(to, how == PARTS ? g->state : g->made[how],
         how == FROM_RANK_0 ? &broadcast
         : how == WHOLE     ? NULL
                            : &parts,
         optimizer);
}

/* ---- what is seen ---- */

static float *values_of(const trained *t, int64_t *count)
{
    return net_values(t->module, count);
}

/* What a summon shows is what the state says. */
static void check_summoned(const trained *t)
{
    const fsdp_summon_options read = {.no_writeback = true};
    int64_t count, same;
    float *values = values_of(t, &count), *summoned;

    if (t->door->kind != DOOR_PLAIN) {
        CHECK_OK(fsdp_module_summon_full_params(t->module, &read));
        summoned = values_of(t, &same);
        CHECK_EQ(count, same);
        CHECK_BYTES(values, summoned, (size_t)count * sizeof *values);
        CHECK_OK(fsdp_module_end_summon(t->module));
        free(summoned);
    }
    free(values);
}

/* All ranks as one, or two replicas by themselves first; a plain model has other rows in one sum. */
static int order_of(const door *d, int world)
{
    return d->kind == DOOR_PLAIN ? 0 : door_is_hybrid(d, world) ? 2 : 1;
}

static void compare(const trained *to, const door *from, const float *expected, int64_t count)
{
    int world = fsdp_context_world_size(to->module->context);
    bool bits = test_has_cpu_bits() && (world == 1 || order_of(to->door, world) == order_of(from, world));
    int64_t same;
    float *values = values_of(to, &same);

    CHECK_EQ(same, count);
    for (int64_t i = 0; i < count; i++)
        if (bits ? memcmp(&values[i], &expected[i], sizeof *values) != 0 : fabsf(values[i] - expected[i]) > 1e-5f)
            TEST_FAIL("from %s to %s, %d ranks: value %lld is %.9g, not %.9g", from->name, to->door->name, world,
                      (long long)i, (double)values[i], (double)expected[i]);
    free(values);
}

/* ---- all pairs ---- */

static bool is_drawn(int from, int to, int world)
{
    return test_long() || (from * 5 + to * 3 + world) % (test_brief() ? 36 : 18) == 0;
}

/* What a model has after so many steps through one door. */
static float *expected_of(fsdp_context *context, model m, const door *d, int steps, int64_t *count)
{
    trained t;
    float *values;

    trained_init(&t, context, m, d, 1);
    for (int step = 0; step < steps; step++)
        take_step(&t, step);
    values = values_of(&t, count);
    trained_free(&t);
    return values;
}

typedef struct passage {
    model model;
    int from; /* a door */
} passage;

static void go_through(fsdp_context *context, void *arg)
{
    model m = ((const passage *)arg)->model;
    int world = fsdp_context_world_size(context), from = ((const passage *)arg)->from;
    given module, optimizer;
    trained gives, takes;
    int64_t count;
    float *expected = expected_of(context, m, &doors[from], STEPS + 1, &count);

    trained_init(&gives, context, m, &doors[from], 1);
    for (int step = 0; step < STEPS; step++)
        take_step(&gives, step);
    given_init(&module, &gives, false);
    given_init(&optimizer, &gives, true);
    for (int to = 0; to < DOORS; to++) {
        if (!is_drawn(from, to, world))
            continue;
        trained_init(&takes, context, m, &doors[to], 2); /* other values and options */
        if (to % 3)
            take_step(&takes, 7); /* after lazy initialisation, over other state */
        move(&takes, &module, (way)((from + to) % WAYS), false);
        move(&takes, &optimizer, (way)((from + to / 2) % WAYS), true);
        check_summoned(&takes);
        take_step(&takes, STEPS);
        compare(&takes, &doors[from], expected, count);
        trained_free(&takes);
    }
    given_free(&module);
    given_free(&optimizer);
    trained_free(&gives);
    free(expected);
    test_drop_workspace(context);
}

/* Under a sanitizer, and on another device, in the one that has every door; without elements there, and in one more. */
static void move_in_all_worlds(model m)
{
    for (int world = test_brief() ? 4 : m == NET || test_long() ? 1 : 3; world <= 4; world++)
        for (int from = 0; from < DOORS; from += test_brief() && m != NET ? 2 : 1)
            test_run_ranks(world, go_through, &(passage){m, from});
}

TEST(state_moves_from_every_door_to_every_other)
{
    move_in_all_worlds(NET);
}

TEST(state_without_elements_moves_as_well)
{
    move_in_all_worlds(HOLLOW);
    move_in_all_worlds(NOTHING);
}

/* ---- the gradient scaler ---- */

/* The step of a scaled loss; on one rank it is infinite. */
static bool scaled_step(const trained *t, fsdp_grad_scaler *scaler, int step, bool infinite)
{
    fsdp_context *context = t->module->context;
    fsdp_tensor *loss;
    bool stepped;

    CHECK_OK(fsdp_scope_begin(context));
    loss = loss_of(t, step);
    if (infinite && fsdp_context_rank(context) == fsdp_context_world_size(context) - 1)
        loss = fsdp_scale(loss, INFINITY);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_grad_scaler_scale(scaler, loss))));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_grad_scaler_step(scaler, t->optimizer, &stepped));
    CHECK_OK(fsdp_grad_scaler_update(scaler));
    CHECK_OK(fsdp_optimizer_zero_grad(t->optimizer));
    return stepped;
}

/* A power of two scales exactly; a step that is left out changes nothing, on no rank. */
static void scale(fsdp_context *context, void *arg)
{
    const door *d = arg;
    fsdp_grad_scaler *scaler;
    int64_t count;
    float *expected = expected_of(context, NET, d, STEPS, &count);
    trained t;

    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    trained_init(&t, context, NET, d, 1);
    for (int step = 0; step < STEPS; step++) {
        CHECK(scaled_step(&t, scaler, step, false));
        CHECK(!scaled_step(&t, scaler, step + 5, true));
        CHECK_NEAR(fsdp_grad_scaler_get_state(scaler).scale, 65536 >> (step + 1), 0);
    }
    compare(&t, d, expected, count);
    free(expected);
    fsdp_grad_scaler_free(scaler);
    trained_free(&t);
    test_drop_workspace(context);
}

TEST(all_ranks_leave_out_the_same_steps)
{
    for (size_t d = 0; d < DOORS; d++)
        for (int world = doors[d].hybrid ? 4 : 1 + (int)d % 2; world <= 4; world += test_brief() ? 4 : 2)
            test_run_ranks(world, scale, (void *)(uintptr_t)&doors[d]);
}

/* ---- written between forward and backward ---- */

static fsdp_tensor *net_loss(const trained *t, int step, fsdp_tensor **x)
{
    int rows = t->door->kind == DOOR_PLAIN ? ROWS * fsdp_context_world_size(t->module->context) : ROWS;
    int first = t->door->kind == DOOR_PLAIN ? 0 : fsdp_context_rank(t->module->context) * rows;
    fsdp_tensor *targets;

    net_batch(t->module->context, step, first, rows, x, &targets);
    return CHECK_PTR(fsdp_call(t->module, *x, targets));
}

/* Between two walks of one graph. */
static fsdp_status step_inside(const trained *t)
{
    fsdp_tensor *x, *loss;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(t->module->context));
    loss = net_loss(t, 0, &x);
    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
    CHECK_OK(fsdp_optimizer_step(t->optimizer));
    status = fsdp_backward(loss);
    fsdp_scope_end(t->module->context, NULL);
    CHECK_OK(fsdp_optimizer_zero_grad(t->optimizer));
    take_step(t, 1);
    return status;
}

static void step_between(fsdp_context *context, void *arg)
{
    const door *d = arg;
    int64_t count;
    float *expected;
    trained plain, t;

    trained_init(&plain, context, NET, &doors[DOOR_PLAIN], 1);
    net_renew(plain.module);
    net_without_norm(plain.module);
    CHECK_OK(step_inside(&plain));
    expected = values_of(&plain, &count);
    trained_init(&t, context, NET, d, 1);
    if (d->kind == DOOR_PLAIN || d->kind == DOOR_DDP) {
        CHECK_ERROR(step_inside(&t), FSDP_STATE,
                    fsdp__device_makes_again(test_device(context)) /* which finds the norm's weight first */
                        ? "', was written to after the forward"
                        : "backward of linear: input 1 (6, 7), parameter 'head.weight', was written to after the "
                          "forward");
        CHECK_CONTAINS(fsdp_last_error(), "; run the backward before the write");
    } else {
        net_without_norm(t.module);
        CHECK_OK(step_inside(&t));
        compare(&t, &doors[DOOR_PLAIN], expected, count);
    }
    free(expected);
    trained_free(&plain);
    trained_free(&t);
    test_drop_workspace(context);
}

TEST(a_step_before_the_backward_is_used_where_parameters_are_gathered_and_else_an_error)
{
    for (size_t d = 0; d < DOORS; d++)
        for (int world = doors[d].hybrid ? 4 : 1; world <= 4; world++)
            if (test_takes((int)d + world, 2, 3) || world == 4)
                test_run_ranks(world, step_between, (void *)(uintptr_t)&doors[d]);
}

/* All ranks have the error, and train on. */
static void misfit(fsdp_context *context, void *arg)
{
    int64_t count;
    float *expected = expected_of(context, NET, arg, STEPS, &count);
    fsdp_tensor *x, *targets;
    trained t;

    trained_init(&t, context, NET, arg, 1);
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, 0, ROWS, &x, &targets);
        CHECK_NULL(fsdp_call(t.module, CHECK_PTR(fsdp_transpose(x, 0, 1)), targets));
        CHECK_STRING(fsdp_last_error(), "input (Linear): input (5, 4) does not fit weight (7, 5)");
        fsdp_scope_end(context, NULL);
        take_step(&t, step);
    }
    compare(&t, arg, expected, count);
    free(expected);
    trained_free(&t);
    test_drop_workspace(context);
}

TEST(shapes_that_do_not_fit_are_an_error_that_names_the_layer)
{
    for (size_t d = 0; d < DOORS; d++)
        test_run_ranks(doors[d].hybrid ? 4 : 1 + (int)d % 3, misfit, (void *)(uintptr_t)&doors[d]);
}

/* What one rank writes is its error alone, and ends the others by its abort. */
static void write_on_one_rank(fsdp_context *context, void *arg)
{
    int last = fsdp_context_world_size(context) - 1;
    bool mine = fsdp_context_rank(context) == last;
    fsdp_status status;
    fsdp_tensor *x, *loss;
    trained t;

    trained_init(&t, context, NET, arg, 1);
    take_step(&t, 0);
    CHECK_OK(fsdp_scope_begin(context));
    loss = net_loss(&t, 1, &x);
    test_meet(); /* ranks that share a GPU may not wait for one another: an abort would end others' forwards */
    if (mine)
        CHECK_OK(fsdp_tensor_fill_(x, 0.5));
    status = fsdp_backward(loss);
    if (mine)
        CHECK_ERROR(status, FSDP_STATE, "backward of linear: input 0 (4, 5) was written to after the forward");
    if (mine)
        fsdp_abort(context, fsdp_last_error());
    else if (status == FSDP_OK)
        status = fsdp_optimizer_step(t.optimizer);
    CHECK(mine || status == FSDP_OK || strstr(fsdp_last_error(), "was written to after the forward"));
    fsdp_scope_end(context, NULL);
    trained_free(&t);
    (void)fsdp_stream_synchronize(fsdp_device_stream(test_device(context))); /* asks for what failed in it */
}

TEST(a_write_of_one_rank_ends_all_with_its_message)
{
    for (size_t d = 1; d < DOORS; d++)
        for (int world = doors[d].hybrid ? 4 : 2; world <= 4; world += test_long() ? 1 : test_brief() ? 3 : 2)
            test_run_ranks(world, write_on_one_rank, (void *)(uintptr_t)&doors[d]);
}

/* ---- ranks that do not have the same ---- */

/* The error of a first forward, which the last rank alone has brought about: `name` is a parameter of the others. */
static void check_told(const trained *t, const char *name)
{
    fsdp_context *context = t->module->context;
    fsdp_tensor *x, *targets;
    char others[64], last[64];

    snprintf(others, sizeof others, "has parameter '%s'", name);
    snprintf(last, sizeof last, "and rank %d has parameter '", fsdp_context_world_size(context) - 1);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, ROWS, &x, &targets);
    CHECK_NULL(fsdp_call(t->module, x, targets));
    CHECK_EQ(fsdp_last_status(), FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), others);
    CHECK_CONTAINS(fsdp_last_error(), last);
    fsdp_scope_end(context, NULL);
}

/* One of two that have as many elements, so that the bytes which ranks send do not tell. */
static void freeze_one(const trained *t, bool second)
{
    bool units = t->door->kind == DOOR_FSDP1 && !t->door->fsdp1.use_orig_params;

    for (int i = 0; i < 2; i++) {
        if (units)
            CHECK_OK(fsdp_module_set_requires_grad(net_block_at(t->module, i), i != second));
        else
            CHECK_OK(fsdp_tensor_set_requires_grad(
                CHECK_PTR(fsdp_module_parameter(t->module, i ? "norm.bias" : "norm.weight")), i != second));
    }
}

static bool is_last(const fsdp_context *context)
{
    return fsdp_context_rank(context) == fsdp_context_world_size(context) - 1;
}

/* Once it is put right, the first forward works. */
static void freeze_another(fsdp_context *context, void *arg)
{
    const door *d = arg;
    trained t;

    trained_init(&t, context, NET, d, 1);
    freeze_one(&t, is_last(context));
    check_told(&t, d->kind == DOOR_FSDP1 && !d->fsdp1.use_orig_params ? "blocks.0.up.weight" : "norm.weight");
    CHECK_CONTAINS(fsdp_last_error(), ", frozen");
    freeze_one(&t, false);
    take_step(&t, 0);
    trained_free(&t);
}

static void register_in_another_order(fsdp_context *context, void *arg)
{
    const char *const names[] = {"q", "k"};
    trained t = {.door = arg, .module = net_create(context, test_device(context), BLOCKS)};

    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_module_add_child(t.module, names[is_last(context) ? 1 - i : i],
                                       fsdp_linear_create(context, test_device(context), NET_DIM, NET_DIM, NULL)));
    CHECK_OK(fsdp_module_initialize(t.module, 1));
    if (door_is_hybrid(t.door, fsdp_context_world_size(context)))
        t.mesh = net_hybrid_mesh(context, 2);
    wrap(&t);
    check_told(&t, "q.weight");
    trained_free(&t);
}

TEST(ranks_with_other_parameters_are_told_by_the_first_forward)
{
    for (size_t d = 1; d < DOORS; d++)
        for (int world = doors[d].hybrid ? 4 : 2; world <= 4; world += test_long() ? 1 : test_brief() ? 3 : 2) {
            test_run_ranks(world, freeze_another, (void *)(uintptr_t)&doors[d]);
            if (doors[d].kind != DOOR_DDP) /* which tells at the door */
                test_run_ranks(world, register_in_another_order, (void *)(uintptr_t)&doors[d]);
        }
}
