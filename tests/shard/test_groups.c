/* A state with several groups, and what is left when one of them fails.
 * Links: optim */
#include "autograd/autograd.h"
#include "device/device.h"
#include "device/kernels.h"
#include "shard/doubling.h"
#include "shard/parts.h"
#include "shard/state/module_state.h"
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

WAYS_TEST(parameters_of_two_dtypes_are_one_group, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE)
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

WORLDS_TEST(several_dtypes_are_gathered_at_once, 1, WAYS_WORLDS)
{
    fsdp_module *module = mixed_create(context);
    int64_t world = fsdp_context_world_size(context);
    fsdp_comm_stats stats;
    fsdp_shard_info info;

    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.parameter_count, 3);
    CHECK_EQ(info.numel, MIDDLE * IN + OUT * MIDDLE + MIDDLE);
    CHECK_EQ(info.shares_memory, net_ranks_share(context) && test_machines_of((int)world) == 1);
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

/* ---- functions around gathers ---- */

/* Functions that fail: the group stays sharded, and all that was taken is given back. */
static void fail_around(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);
    doubler d = {.fail_pre = "not before", .fail_post = "not after"};
    fsdp_gather_extension extension = doubling(&d);
    fsdp_shard_options options = {.gather_extension = &extension, .no_shared_memory = *(const bool *)arg};
    int64_t before;

    net_shard(module, &options);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    before = test_live_bytes(context);
    CHECK_ERROR(fsdp_module_unshard(module), FSDP_INVALID, "not before");
    d.fail_pre = NULL;
    CHECK_ERROR(fsdp_module_unshard(module), FSDP_INVALID, "not after");
    if (test_on_cpu()) /* else the memory waits for the next gather */
        CHECK_EQ(test_live_bytes(context), before);
    d.fail_post = NULL;
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_module_reshard(module));
    CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(module, "head.weight")), 1.0)); /* no reader is left */
    CHECK_OK(fsdp_module_unshard(module));
    fsdp_module_unref(module);
}

TEST(functions_that_fail_leave_the_group_sharded)
{
    for (int world = 1; world <= WAYS_WORLDS; world++)
        for (int copy = 0; copy < 2; copy++)
            test_run_ranks(world, fail_around, &(bool){copy});
}

/* The second group fails to arrive: the first is given up with it. */
WORLDS_TEST(groups_of_one_state_fail_together, 1, WAYS_WORLDS)
{
    fsdp_module *module = mixed_create(context);
    doubler d = {.fail_post = "not today"};
    fsdp_gather_extension extension = doubling(&d);
    int64_t before;

    CHECK_OK(shard_in_parts(&module, 1, &(fsdp_shard_options){.gather_extension = &extension}, 2));
    before = test_live_bytes(context);
    CHECK_ERROR(fsdp_module_unshard(module), FSDP_INVALID, "not today");
    for (int i = 0; i < 2; i++)
        CHECK_EQ(fsdp__module_state_of(module)->groups[i]->sharded_state, FSDP_SHARDED);
    if (test_on_cpu())
        CHECK_EQ(test_live_bytes(context), before);
    CHECK_OK(fsdp_tensor_fill_(((mixed *)module)->first, 1.0)); /* nobody waits for a reader */
    d.fail_post = NULL;
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_module_reshard(module));
    fsdp_module_unref(module);
}

/* ---- memory that could not be had, elsewhere ---- */

WORLDS_TEST(a_failed_materialize_leaves_no_trace, 1, 3)
{
    fsdp_device *sim = CHECK_PTR(fsdp__device_open(context, "sim", 0));
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);
    int64_t world = fsdp_context_world_size(context);
    fsdp_shard_info info;

    net_shard(module, NULL);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 2);
    CHECK(fsdp_module_materialize(module, sim) != FSDP_OK);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_OK(fsdp_module_materialize(module, fsdp_cpu(context)));
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.shares_memory, world > 1 && test_machines_of((int)world) == 1); /* sim does not share, the CPU does */
    fsdp_module_unref(module);
}
