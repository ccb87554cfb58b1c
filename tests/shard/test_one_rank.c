/* test_one_rank.c - one rank alone fails in a step, takes it back and goes on, while the others are still in it. What
 * each waits for then will not come: all are told at once, wherever the engine's calls wait. */
#include "shard/net.h"

enum {
    BLOCKS = 3,
    ROWS = 3,
    TIMEOUT_S = 1200 /* is not reached: that would be FSDP_COMM */
};

static fsdp_status step(fsdp_module *model, int columns)
{
    static const int32_t targets[ROWS];
    static const float values[ROWS * (NET_IN + 1)];
    fsdp_context *context = model->context;
    fsdp_device *device = test_device(context);
    fsdp_tensor *x, *loss;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(ROWS, columns), values));
    loss = fsdp_call(model, x, CHECK_PTR(fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(ROWS), targets)));
    status = loss ? fsdp_backward(loss) : fsdp_last_status();
    fsdp_scope_end(context, NULL);
    if (status == FSDP_OK) /* behind the host, what has failed is known by now at the latest */
        status = fsdp_stream_synchronize(fsdp_device_stream(device));
    return status;
}

static void step_again_alone(fsdp_context *context, void *arg)
{
    bool alone = fsdp_context_rank(context) == fsdp_context_world_size(context) - 1;
    fsdp_module *model = net_sharded(context, BLOCKS, arg);
    fsdp_status status;

    fsdp_context_set_comm_timeout(context, TIMEOUT_S);
    CHECK_OK(step(model, NET_IN));
    net_sgd(model, 0.1f);
    status = step(model, alone ? NET_IN + 1 : NET_IN);
    if (alone) {
        CHECK(status != FSDP_OK);
        fsdp_clear_error();
        status = fsdp_module_reset_iteration(model);
    }
    if (status == FSDP_OK)
        status = step(model, NET_IN);
    CHECK_STATUS(status, FSDP_MISMATCH);
    fsdp_module_unref(model);
}

TEST(who_steps_again_alone_ends_all)
{
    static const fsdp_overlap overlaps[] = {FSDP_OVERLAP_AUTO, FSDP_OVERLAP_INLINE, FSDP_OVERLAP_WORKER};

    for (size_t i = 0; i < sizeof overlaps / sizeof *overlaps; i++) {
        fsdp_shard_options options = {.overlap = overlaps[i]};

        test_run_machines(1, 4, false, step_again_alone, &options);
        test_run_machines(2, 1, false, step_again_alone, &options);
        test_run_machines(2, 2, false, step_again_alone, &options);
        test_run_machines(3, 2, false, step_again_alone, &options);
        test_run_machines(2, 2, true, step_again_alone, &options);
    }
}
