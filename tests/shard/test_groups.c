/* A state with several groups, and functions around the gathers of a parameter.
 * Links: optim */
#include "autograd/autograd.h"
#include "device/device.h"
#include "device/kernels.h"
#include "shard/gradients.h"
#include "shard/parts.h"
#include "shard/state.h"
#include "shard/ways.h"

/* ---- parameters of two dtypes in one call ---- */

enum {
    IN = 3,
    MIDDLE = 5,
    OUT = 7
};

typedef struct mixed {
    fsdp_module base;
    fsdp_tensor *first, *bias; /* f32 */
    fsdp_tensor *second;       /* bf16 */
} mixed;

/* Sums of small whole numbers: exact in any order. */
static fsdp_tensor *mixed_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    mixed *m = (mixed *)self;
    fsdp_tensor *x = fsdp_linear(fsdp_cast(inputs[0], m->first->dtype), m->first, m->bias);

    (void)count;
    return fsdp_sum(fsdp_cast(fsdp_linear(fsdp_cast(x, FSDP_BF16), m->second, FSDP_NO_BIAS), FSDP_F32));
}

static const fsdp_module_type mixed_type = {.name = "Mixed", .forward = mixed_forward};

static void set_values(fsdp_tensor *parameter, int64_t offset)
{
    float values[MIDDLE * OUT];

    for (int64_t i = 0; i < fsdp_tensor_numel(parameter); i++)
        values[i] = (float)((i * 5 + offset) % 3 - 1);
    CHECK_OK(fsdp_tensor_write(parameter, FSDP_F32, values));
}

static fsdp_module *mixed_create(fsdp_context *context)
{
    fsdp_device *device = test_device(context);
    const fsdp_init init = {0};
    mixed *m;

    CHECK_OK(fsdp_module_create(context, &mixed_type, sizeof *m, &m));
    CHECK_OK(fsdp_module_add_parameter(&m->base, "first", &m->first, device, FSDP_F32, FSDP_SHAPE(MIDDLE, IN), init));
    CHECK_OK(
        fsdp_module_add_parameter(&m->base, "second", &m->second, device, FSDP_BF16, FSDP_SHAPE(OUT, MIDDLE), init));
    CHECK_OK(fsdp_module_add_parameter(&m->base, "bias", &m->bias, device, FSDP_F32, FSDP_SHAPE(MIDDLE), init));
    set_values(m->first, 0);
    set_values(m->second, 1);
    set_values(m->bias, 2);
    return &m->base;
}

/* Rows [first, first + rows) of step `step`. */
static fsdp_tensor *mixed_loss(fsdp_module *module, int step, int first, int rows)
{
    float values[WAYS_ROWS * WAYS_WORLDS * IN];

    for (int i = 0; i < rows * IN; i++)
        values[i] = (float)(((first * IN + i) * 7 + step) % 3 - 1);
    return CHECK_PTR(
        fsdp_call(module, fsdp_from_data(test_device(module->context), FSDP_F32, FSDP_SHAPE(rows, IN), values)));
}

static void train_mixed(fsdp_context *context, way_run *run)
{
    fsdp_module *module = mixed_create(context);
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world, rank = fsdp_context_rank(context);

    if (run->way) {
        CHECK_OK(fsdp_fully_shard(module, &run->options));
        CHECK_OK(fsdp_module_set_gradient_divide_factor(module, 1)); /* sums: whole numbers */
    }
    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        dawdle(context, run);
        CHECK_OK(fsdp_backward(mixed_loss(module, step, rank * rows, rows)));
        fsdp_scope_end(context, NULL);
        note_gradients(run, module);
        if (step == 0) /* a write to one group makes it stale, and the other one not wrong */
            CHECK_OK(fsdp_tensor_fill_(((mixed *)module)->first, 1.0));
        if (step == 1)
            fsdp_module_zero_grad(module);
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

static void parameters_of_two_dtypes_are_one_group(void **state)
{
    (void)state;
    in_every_way(train_mixed, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE);
}

static void look(fsdp_context *context, void *arg)
{
    fsdp_module *module = mixed_create(context);
    int64_t world = fsdp_context_world_size(context);
    fsdp_comm_stats stats;
    fsdp_shard_info info;

    (void)arg;
    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.parameter_count, 3);
    CHECK_EQ(info.numel, MIDDLE * IN + OUT * MIDDLE + MIDDLE);
    CHECK_EQ(info.shares_memory, world > 1 && test_on_cpu());
    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.state, FSDP_UNSHARDED);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], world > 1);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER],
             (world - 1) * (4 * ((MIDDLE + world - 1) / world * (IN + 1)) + 2 * ((OUT + world - 1) / world * MIDDLE)));
    CHECK_OK(fsdp_module_reshard(module));
    fsdp_module_unref(module);
}

static void several_dtypes_are_gathered_at_once(void **state)
{
    (void)state;
    for (int world = 1; world <= WAYS_WORLDS; world++)
        test_run_ranks(world, look, NULL);
}

/* ---- functions around gathers ---- */

typedef struct doubler {
    int doubled, halved;
} doubler;

static fsdp_status scale(const fsdp_tensor *from, fsdp_tensor *to, float by)
{
    const fsdp__scale_args args = {.x = fsdp_tensor_data(from),
                                   .y = fsdp_tensor_data(to),
                                   .alpha = by,
                                   .numel = fsdp_tensor_numel(to),
                                   .dtype = to->dtype};

    return args.numel > 0 ? fsdp__launch_scale(fsdp_device_stream(fsdp_tensor_device(to)), &args) : FSDP_OK;
}

static fsdp_status double_shard(void *arg, fsdp_tensor *sharded, fsdp_tensor **out)
{
    doubler *d = arg;

    d->doubled++;
    FSDP_TRY(fsdp_tensor_create(fsdp_tensor_device(sharded), sharded->dtype, sharded->ndim, sharded->shape,
                                FSDP_MEMORY_ACTIVATION, out));
    return scale(sharded, *out, 2.0f);
}

static fsdp_status halve(void *arg, fsdp_tensor *unsharded)
{
    doubler *d = arg;

    d->halved++;
    return scale(unsharded, unsharded, 0.5f);
}

static fsdp_module *doubled_net(fsdp_context *context, const way_run *run, fsdp_reshard reshard, doubler *d)
{
    fsdp_shard_options options = run->options;
    fsdp_module *module = net_create(context, run->way ? fsdp_meta(context) : test_device(context), 2);

    if (run->way) {
        options.reshard_after_forward = reshard;
        net_shard(module, &options);
        for (int block = 0; block < 2; block++) {
            fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(net_block_at(module, block), "up.weight"));

            fsdp__param_of(weight)->gather = (fsdp__gather_functions){double_shard, halve, d};
        }
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

static void train_doubled(fsdp_context *context, way_run *run)
{
    doubler d = {0};
    fsdp_module *module = doubled_net(context, run, FSDP_RESHARD_AUTO, &d);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_shard_info info;

    for (int step = 0; step < 2; step++) {
        dawdle(context, run);
        ways_backward(run, module, step);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    note_weights(run, module);
    if (run->way) {
        CHECK_EQ(d.doubled, 2 * 2 * 2); /* blocks, steps, forward and backward */
        CHECK_EQ(d.halved, 2 * 2 * 2);
        CHECK_OK(fsdp_module_shard_info(net_block_at(module, 0), &info));
        CHECK(!info.shares_memory);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

static void functions_around_a_gather_change_what_is_gathered(void **state)
{
    (void)state;
    in_every_way(train_doubled, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE);
}

/* What happens before, between and after: evaluation, accumulation, a write, a freeze, an unshard by hand. */
static void use_doubled_in_any_order(fsdp_context *context, way_run *run)
{
    doubler d = {0};
    fsdp_module *module = doubled_net(context, run, (fsdp_reshard)run->arg, &d), *block = net_block_at(module, 0);
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(block, "up.weight"));
    float loss;

    for (int step = 0; step < 2; step++) {
        loss = ways_evaluate(run, module, step); /* of this rank's rows: in a world of one of all */
        note(context, run, &loss, run->world == 1);
        dawdle(context, run);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        ways_backward(run, module, step);
        CHECK_OK(fsdp_tensor_fill_(weight, 0.125 * (step + 1))); /* what was gathered is stale, doubled or not */
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        ways_backward(run, module, step + 2);
        note_gradients(run, module);
        if (run->way) {
            CHECK_OK(fsdp_module_unshard(block));
            dawdle(context, run);
            CHECK_OK(fsdp_module_reshard(block));
        }
        fsdp_module_zero_grad(module);
        CHECK_OK(fsdp_tensor_set_requires_grad(weight, step != 0));
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

static void functions_around_a_gather_stand_any_order(void **state)
{
    (void)state;
    for (int reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
        in_every_way_with(use_doubled_in_any_order, WAYS_EQUAL_PLAIN, reshard);
}

/* ---- functions that fail ---- */

static fsdp_status give_another_shape(void *arg, fsdp_tensor *sharded, fsdp_tensor **out)
{
    (void)arg;
    return fsdp_tensor_create(fsdp_tensor_device(sharded), sharded->dtype, FSDP_SHAPE(1, 1, 1), FSDP_MEMORY_ACTIVATION,
                              out);
}

static fsdp_status fail_after(void *arg, fsdp_tensor *unsharded)
{
    (void)arg;
    (void)unsharded;
    return FSDP_FAIL(FSDP_INVALID, "not today");
}

static void fail_around(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);
    const fsdp__gather_functions failing[] = {{.pre_gather = give_another_shape}, {.post_gather = fail_after}};
    static const char *const texts[] = {"pre_gather of parameter", "not today"};
    int64_t before;

    (void)arg;
    net_shard(module, NULL);
    for (int i = 0; i < 2; i++) {
        fsdp__param *param = fsdp__param_of(CHECK_PTR(fsdp_module_parameter(module, "head.weight")));

        param->gather = failing[i];
        if (i == 0) {
            CHECK_OK(fsdp_module_materialize(module, test_device(context)));
            CHECK_OK(fsdp_module_initialize(module, 1));
            before = test_live_bytes(context);
        }
        CHECK_ERROR(fsdp_module_unshard(module), FSDP_INVALID, texts[i]);
        if (test_on_cpu()) /* else the memory waits for the next gather */
            CHECK_EQ(test_live_bytes(context), before);
        param->gather = (fsdp__gather_functions){0};
    }
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_module_reshard(module));
    fsdp_module_unref(module);
}

static void functions_that_fail_leave_the_group_sharded(void **state)
{
    (void)state;
    for (int world = 1; world <= WAYS_WORLDS; world++)
        test_run_ranks(world, fail_around, NULL);
}

/* The second group fails to arrive: the first is given up with it. */
static void fail_the_second(fsdp_context *context, void *arg)
{
    fsdp_module *module = mixed_create(context);
    int64_t before;

    (void)arg;
    CHECK_OK(shard_in_parts(&module, 1, &(fsdp_shard_options){0}, 2));
    before = test_live_bytes(context);
    fsdp__param_of(((mixed *)module)->second)->gather.post_gather = fail_after;
    CHECK_ERROR(fsdp_module_unshard(module), FSDP_INVALID, "not today");
    for (int i = 0; i < 2; i++)
        CHECK_EQ(fsdp__module_state_of(module)->groups[i]->sharded_state, FSDP_SHARDED);
    if (test_on_cpu())
        CHECK_EQ(test_live_bytes(context), before);
    CHECK_OK(fsdp_tensor_fill_(((mixed *)module)->first, 1.0)); /* nobody waits for a reader */
    fsdp__param_of(((mixed *)module)->second)->gather.post_gather = NULL;
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_module_reshard(module));
    fsdp_module_unref(module);
}

static void groups_of_one_state_fail_together(void **state)
{
    (void)state;
    for (int world = 1; world <= WAYS_WORLDS; world++)
        test_run_ranks(world, fail_the_second, NULL);
}

/* ---- memory that could not be had, elsewhere ---- */

static void materialize_elsewhere_first(fsdp_context *context, void *arg)
{
    fsdp_device *sim = CHECK_PTR(fsdp__device_open(context, "sim", 0));
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);
    int64_t world = fsdp_context_world_size(context);
    fsdp_shard_info info;

    (void)arg;
    net_shard(module, NULL);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 2);
    CHECK(fsdp_module_materialize(module, sim) != FSDP_OK);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_OK(fsdp_module_materialize(module, fsdp_cpu(context)));
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.shares_memory, world > 1); /* sim does not share, the CPU does */
    fsdp_module_unref(module);
}

static void a_failed_materialize_leaves_no_trace(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        test_run_ranks(world, materialize_elsewhere_first, NULL);
}

TEST_MAIN(cmocka_unit_test(parameters_of_two_dtypes_are_one_group),
          cmocka_unit_test(several_dtypes_are_gathered_at_once),
          cmocka_unit_test(functions_around_a_gather_change_what_is_gathered),
          cmocka_unit_test(functions_around_a_gather_stand_any_order),
          cmocka_unit_test(functions_that_fail_leave_the_group_sharded),
          cmocka_unit_test(groups_of_one_state_fail_together), cmocka_unit_test(a_failed_materialize_leaves_no_trace))
