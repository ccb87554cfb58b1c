/* An optimizer that writes what the model computes with: no shard is cast after a step, and the numbers are those of
 * shards that are. Links: shard */
#include <math.h>

#include "base/probe.h"
#include "device/kernels.h"
#include "fsdp/ops.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/ranks.h"

enum {
    IN = 9,
    OUT = 7,
    MANY_OUT = 500, /* with IN enough for moments of bytes */
    ROWS = 4,
    STEPS = 3
};

typedef enum writes {
    BY_STEPS, /* of AdamW, alone */
    BEGUN,    /* of one parameter: its bytes may be others, so all casts are made again */
    OF_SGD,
    OF_LION,
    OF_BYTES, /* AdamW's moments are bytes */
    WAYS
} writes;

typedef struct outcome {
    writes way;
    bool copy; /* the ranks do not share memory */
    int casts[STEPS];
    float losses[STEPS];
} outcome;

static fsdp_status count_casts(void *arg, fsdp__probe_event *event)
{
    *(int *)arg += event->kind == FSDP__KERNEL_CAST_SPANS;
    return FSDP_OK;
}

static float loss_of(fsdp_context *context, fsdp_module *layer)
{
    float values[ROWS * IN];
    fsdp_tensor *loss;
    double value;

    for (int i = 0; i < ROWS * IN; i++)
        values[i] = (float)cos(0.3 * i + fsdp_context_rank(context));
    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(
        fsdp_call(layer, CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(ROWS, IN), values))));
    loss = CHECK_PTR(fsdp_mean(CHECK_PTR(fsdp_mul(loss, loss))));
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    fsdp_scope_end(context, NULL);
    return (float)value;
}

static fsdp_module *sharded(fsdp_context *context, const outcome *o)
{
    const fsdp_shard_options options = {.mp_policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32},
                                        .no_shared_memory = o->copy};
    int64_t out = o->way == OF_BYTES ? MANY_OUT : OUT;
    fsdp_module *layer = CHECK_PTR(fsdp_linear_create(context, test_device(context), IN, out, NULL));
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(layer, "weight"));
    float values[MANY_OUT * IN];

    for (int i = 0; i < MANY_OUT * IN; i++)
        values[i] = (float)sin(0.7 * i);
    CHECK_OK(fsdp_tensor_write(weight, FSDP_F32, values));
    CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(layer, "bias")), 0.1));
    CHECK_OK(fsdp_fully_shard(layer, &options));
    return layer;
}

static void take_steps(fsdp_context *context, void *arg)
{
    outcome *o = arg, ignored = *o;
    fsdp_module *layer = sharded(context, o);
    fsdp_adam_options adam = fsdp_adam_options_default();
    const fsdp_sgd_options sgd = {.lr = 0.05, .momentum = 0.9};
    const fsdp_lion_options lion = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99};
    fsdp_parameters parameters;
    fsdp__subscriber *subscriber;
    fsdp_optimizer *optimizer;
    int casts = 0;

    o = fsdp_context_rank(context) > 0 ? &ignored : o;
    adam.lr = o->way == OF_BYTES ? 0.01 : 0.05;
    adam.state_bits = o->way == OF_BYTES ? 8 : 0;
    CHECK_OK(fsdp_module_parameters(layer, &parameters));
    if (o->way == OF_SGD)
        CHECK_OK(fsdp_sgd_create(&parameters, &sgd, &optimizer));
    else if (o->way == OF_LION)
        CHECK_OK(fsdp_lion_create(&parameters, &lion, &optimizer));
    else
        CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
    fsdp_parameters_release(&parameters);
    subscriber =
        CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), count_casts, &casts));
    for (int step = 0; step < STEPS; step++) {
        casts = 0;
        o->losses[step] = loss_of(context, layer);
        o->casts[step] = casts;
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        if (o->way == BEGUN)
            CHECK_OK(fsdp_tensor_begin_write(CHECK_PTR(fsdp_module_parameter(layer, "bias"))));
    }
    fsdp__unsubscribe(subscriber);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(layer);
}

/* Peers read casts in memory that they share, so they are made by the next gather, which waits for them. */
static void check_world(int world, bool copy)
{
    outcome o[WAYS];
    bool shares = world > 1 && !copy && !getenv("FSDP_TEST_DEVICE");

    for (int way = 0; way < WAYS; way++) {
        o[way] = (outcome){.way = (writes)way, .copy = copy};
        test_run_ranks(world, take_steps, &o[way]);
        for (int step = 0; step < STEPS; step++)
            CHECK_EQ(o[way].casts[step], step > 0 && way != BEGUN && !shares ? 0 : 1);
    }
    CHECK_BYTES(o[BY_STEPS].losses, o[BEGUN].losses, sizeof o[0].losses);
    for (int way = 0; way < WAYS; way++)
        CHECK(o[way].losses[2] < o[way].losses[0]);
}

TEST(after_a_step_nothing_is_cast_where_no_peer_reads_the_casts)
{
    for (int world = 1; world <= 4; world++) {
        check_world(world, false);
        check_world(world, true);
    }
}
