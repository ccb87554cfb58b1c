/* Gathers run beside the computing, on a device that runs behind the host: a gather waits for what it reads and for the
 * memory it gets, and for nothing else.
 *
 * The device's own stream has a thread, or is a GPU's. In the forward of one block it stands at a gate, which only
 * opens once the gather of a later block is done: a gather that waited for the device's stream would never be. */
#include <unistd.h>

#include "base/probe.h"
#include "device/device.h"
#include "shard/gate.h"
#include "shard/net.h"
#include "shard/state/module_state.h"

enum {
    BLOCKS = 4,
    GATED = 1,   /* the block that does not end before ... */
    GATHERED = 2 /* ... this one is whole */
};

/* A block whose forward lets the device's stream stand at a gate, when there is one. */
typedef struct gated_block {
    net_block block;
    gate *gate;
    bool on_device; /* it is the GPU that stands there, not the thread of its stream */
} gated_block;

static fsdp_tensor *gated_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    const gated_block *b = (const gated_block *)self;
    fsdp_stream *stream = fsdp_device_stream(test_device(self->context));

    if (b->gate && (b->on_device ? gate_put_on_device(b->gate, stream) : gate_put(b->gate, stream)) != FSDP_OK)
        return NULL;
    return net_block_forward(self, inputs, count);
}

static const fsdp_module_type gated_type = {.name = "Gated", .forward = gated_forward};

static fsdp_module *gated_block_create(fsdp_context *context, fsdp_device *device)
{
    gated_block *b;

    CHECK_OK(fsdp_module_create(context, &gated_type, sizeof *b, &b));
    b->block.up = fsdp_linear_create(context, device, NET_DIM, NET_FFN, NULL);
    b->block.down = fsdp_linear_create(context, device, NET_FFN, NET_DIM, NULL);
    CHECK_OK(fsdp_module_add_child(&b->block.base, "up", b->block.up));
    CHECK_OK(fsdp_module_add_child(&b->block.base, "down", b->block.down));
    return &b->block.base;
}

static fsdp_module *create(fsdp_context *context, const fsdp_shard_options *options)
{
    fsdp_device *meta = fsdp_meta(context);
    fsdp_module *module = net_create(context, meta, 0);

    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_module_list_append(((net *)module)->blocks, gated_block_create(context, meta)));
    net_shard(module, options);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

static fsdp_tensor *evaluate(fsdp_module *module, fsdp_tensor *x)
{
    fsdp_tensor *logits;

    fsdp_no_grad_begin(module->context);
    logits = CHECK_PTR(fsdp_call(module, x));
    fsdp_no_grad_end(module->context);
    return logits;
}

static void check_overlap(fsdp_context *context, void *arg)
{
    fsdp_device *device = test_device(context);
    gate g = GATE;
    float plain[NET_ROWS * NET_OUT], gated[NET_ROWS * NET_OUT];
    fsdp_tensor *x, *targets, *logits;
    fsdp_module *module;
    gated_block *gated_at;
    const fsdp_shard_options *options = arg;
    /* In memory that all have, the end of a read takes its turn among gathers when the device is given it, and a thread
     * that stands would hold up both. */
    bool on_device = fsdp__device_carries(device) && net_ranks_share(context) && !options->no_shared_memory &&
                     options->mp_policy.param_dtype != FSDP_BF16;

    if (!on_device)
        test_run_behind(device);
    module = create(context, options);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_OK(fsdp_tensor_read(evaluate(module, x), FSDP_F32, plain));

    gated_at = (gated_block *)net_block_at(module, GATED);
    gated_at->gate = &g;
    gated_at->on_device = on_device;
    CHECK_OK(fsdp_module_reshard(module));
    logits = evaluate(module, x); /* the host is through, the device stands in block 1 */
    CHECK_OK(fsdp_event_synchronize(fsdp__module_state_of(net_block_at(module, GATHERED))->groups[0]->gathered));
    gate_open(&g);
    CHECK_OK(fsdp_tensor_read(logits, FSDP_F32, gated));
    CHECK(!g.forced);
    CHECK_BYTES(gated, plain, 3 * NET_OUT * sizeof(float));
    fsdp_scope_end(context, NULL);
    gate_free(&g);
    fsdp_module_unref(module);
}

TEST(a_gather_does_not_wait_for_the_computing)
{
    const fsdp_mp_policy bf16 = {.param_dtype = FSDP_BF16};
    fsdp_shard_options options[] = {
        {.overlap = FSDP_OVERLAP_WORKER},
        {.overlap = FSDP_OVERLAP_WORKER, .mp_policy = bf16},
        {.overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true},
        {.overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true, .mp_policy = bf16},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(2, 5, check_overlap, &options[i]);
}

#ifdef FSDP_HAVE_FAKECUDA
static int open_two_gpus(void **state)
{
    (void)state;
    setenv("FSDP_TEST_DEVICE", "cuda", 1);
    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    return 0;
}

static void check_carried(fsdp_context *context, void *arg)
{
    const fsdp_shard_options auto_overlap = {.overlap = FSDP_OVERLAP_AUTO};

    CHECK_OK(fsdp_context_set_carrier(context, *(fsdp_carrier *)arg));
    check_overlap(context, (void *)&auto_overlap);
}

TEST_WITH(nor_does_it_between_gpus_of_a_machine_if_nobody_has_asked, open_two_gpus, NULL)
{
    fsdp_carrier carriers[] = {FSDP_CARRIER_PEER, FSDP_CARRIER_NCCL, FSDP_CARRIER_STAGED};

    if (getenv("FSDP_TEST_MACHINES"))
        skip(); /* peers are on one */
    for (size_t i = 0; i < FSDP__COUNT_OF(carriers); i++)
        test_run_ranks(2, check_carried, &carriers[i]);
    for (size_t i = 0; i < 2; i++)
        test_run_ranks(4, check_carried, &carriers[2 * i]); /* two on each GPU, which NCCL refuses */
}
#endif

/* ---- a reduction over the network ---- */

/* A reduction stands at a gate from when its sum is there until the next gather that is issued is done. */
typedef struct standing {
    gate gate;
    uint64_t gather; /* its number in its group; 0: none was issued yet */
    const void *group;
    bool stands;
} standing;

static fsdp_status stand_after_sum(void *arg, fsdp_tensor *gradients, fsdp_stream *stream)
{
    standing *s = arg;

    (void)gradients;
    pthread_mutex_lock(&s->gate.mutex); /* a gather may be done meanwhile, on another thread */
    s->stands = true;
    pthread_mutex_unlock(&s->gate.mutex);
    return gate_put(&s->gate, stream);
}

/* Called on the thread that issues, and, of what is done, on the thread of a stream, which comes later. */
static fsdp_status see_gather(void *arg, fsdp__probe_event *event)
{
    standing *s = arg;
    bool own;

    if (event->kind != FSDP_ALL_GATHER)
        return FSDP_OK;
    pthread_mutex_lock(&s->gate.mutex);
    if (event->point == FSDP__POINT_COLLECTIVE_ISSUED && s->stands && s->gather == 0) {
        s->gather = event->number;
        s->group = event->object;
    }
    own = s->gather == event->number && s->group == event->object;
    pthread_mutex_unlock(&s->gate.mutex);
    if (event->point == FSDP__POINT_COLLECTIVE_DONE && own)
        gate_open(&s->gate);
    return FSDP_OK;
}

static void check_reduction(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = *(fsdp_shard_options *)arg;
    standing s = {.gate = GATE};
    fsdp__subscriber *seeing;
    fsdp_module *module;

    test_run_behind(test_device(context));
    options.mesh = net_hybrid_mesh(context, 2); /* each machine has all parameters */
    module = create(context, &options);
    CHECK_OK(fsdp_module_set_all_reduce_hook(net_block_at(module, BLOCKS - 1), stand_after_sum, &s));
    seeing = CHECK_PTR(fsdp__context_subscribe(
        context, FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_ISSUED) | FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_DONE),
        see_gather, &s));
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(test_device(context))));
    CHECK(s.stands && s.gate.open && !s.gate.forced);
    fsdp__unsubscribe(seeing);
    gate_free(&s.gate);
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

TEST(a_gather_inside_a_machine_does_not_wait_for_a_reduction_over_the_network)
{
    fsdp_shard_options options[] = {{.overlap = FSDP_OVERLAP_AUTO},
                                    {.overlap = FSDP_OVERLAP_AUTO, .no_shared_memory = true}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_machines(2, 2, false, check_reduction, &options[i]);
}

/* ---- a step that fails while a rank is late ---- */

typedef struct failing {
    fsdp_shard_options options;
    enum {
        FREED,   /* right after the step has failed */
        GOES_ON, /* with another step */
        REMOVED  /* the hook that would fail, before it is called */
    } then;
} failing;

typedef struct fails {
    fsdp_module *block; /* whose hook fails, unless it is removed */
    bool late, removes;
    int calls;
} fails;

static fsdp_status linger(fsdp_stream *stream, const void *argument)
{
    (void)stream, (void)argument;
    (void)usleep(20000);
    return FSDP_OK;
}

static fsdp_status be_late(void *arg, fsdp_tensor *gradients, fsdp_stream *stream)
{
    const fails *f = arg;

    (void)gradients;
    if (f->removes)
        CHECK_OK(fsdp_module_set_all_reduce_hook(f->block, NULL, NULL));
    return f->late ? fsdp__stream_enqueue(stream, linger, NULL, 0) : FSDP_OK;
}

static fsdp_status refuse_sum(void *arg, fsdp_tensor *gradients, fsdp_stream *stream)
{
    (void)gradients, (void)stream;
    ((fails *)arg)->calls++;
    return FSDP_FAIL(FSDP_IO, "no sum today");
}

/* The reductions' stream of rank 0 is late when a later hook fails on all ranks. */
static void fail_late(fsdp_context *context, void *arg)
{
    const failing *how = arg;
    fsdp_shard_options options = how->options;
    fsdp_module *module, *last;
    fails f = {.late = fsdp_context_rank(context) == 0, .removes = how->then == REMOVED};

    test_run_behind(test_device(context));
    options.mesh = net_hybrid_mesh(context, 2);
    module = create(context, &options);
    last = net_block_at(module, BLOCKS - 1);
    f.block = net_block_at(module, 1);
    CHECK_OK(fsdp_module_set_all_reduce_hook(last, be_late, &f));
    CHECK_OK(fsdp_module_set_all_reduce_hook(f.block, refuse_sum, &f));
    if (how->then == REMOVED)
        CHECK_OK(net_try(module));
    else
        CHECK_ERROR(net_try(module), FSDP_IO, "no sum today");
    CHECK_EQ(f.calls, how->then != REMOVED);
    if (how->then == GOES_ON) {
        CHECK_OK(fsdp_module_set_all_reduce_hook(f.block, NULL, NULL));
        CHECK_OK(fsdp_module_set_all_reduce_hook(last, NULL, NULL));
        CHECK_OK(fsdp_module_reset_iteration(module));
    }
    if (how->then != FREED) {
        fsdp_module_zero_grad(module);
        net_train(module, 1);
    }
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

TEST(a_step_fails_while_a_reduction_over_the_network_is_late)
{
    for (int way = 0; way < (test_long() ? 6 : 3); way++) {
        failing how = {.options = {.overlap = FSDP_OVERLAP_AUTO, .no_shared_memory = way % 2}, .then = way % 3};

        test_run_machines(2, 2, false, fail_late, &how);
    }
}

/* ---- what that costs ---- */

typedef struct bound {
    bool behind;    /* the device runs behind the host */
    size_t peak[2]; /* of whole parameters: evaluation, training */
} bound;

static void measure(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = {.overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true};
    fsdp_device *device = test_device(context);
    fsdp_memory_stats stats;
    fsdp_module *module;
    fsdp_tensor *x, *targets;
    bound all = *(bound *)arg, *b = &all;

    if (b->behind)
        test_run_behind(device);
    module = create(context, &options);
    for (int step = 0; step < 3; step++) {
        fsdp_device_reset_peak(device);
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, 0, 0, 3, &x, &targets);
        (void)evaluate(module, x);
        fsdp_scope_end(context, NULL);
        fsdp_device_memory(device, &stats);
        b->peak[0] = stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
        CHECK_OK(fsdp_module_reshard_all(module));
        fsdp_device_reset_peak(device);
        net_forward_backward(module, step, 0, 1);
        fsdp_device_memory(device, &stats);
        b->peak[1] = stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
    if (fsdp_context_rank(context) == 0)
        *(bound *)arg = all;
}

/* Bytes of the whole parameters of a Linear(in, out), for one rank, and for two as the sizes here are. */
static size_t linear_bytes(int64_t in, int64_t out)
{
    int64_t rows = (out + 1) / 2 * 2;

    return (size_t)((rows * in * 4 + 63) / 64 * 64 + (rows * 4 + 63) / 64 * 64);
}

TEST(at_most_the_root_and_two_blocks_are_whole)
{
    size_t block = linear_bytes(NET_DIM, NET_FFN) + linear_bytes(NET_FFN, NET_DIM);
    size_t root = linear_bytes(NET_IN, NET_DIM) + linear_bytes(NET_DIM, NET_OUT) + 2 * 64;
    bound in_step = {0}, behind = {.behind = true};

    test_only_on_cpu("it compares a device in step with the host with the same behind it");
    test_run_ranks(2, measure, &in_step);
    CHECK_EQ(in_step.peak[0], root + block);
    CHECK_EQ(in_step.peak[1], root + 2 * block);
    test_run_ranks(2, measure, &behind);
    CHECK_EQ(behind.peak[0], root + 2 * block);
    CHECK_EQ(behind.peak[1], root + 2 * block);
}

/* ---- a forward whose backward never comes ---- */

static size_t whole_bytes(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
}

typedef struct left {
    size_t root, held; /* bytes: the root's, and all that stays for the gathers of the backward */
    const fsdp_gather_extension *extension;
} left;

static void leave_off(fsdp_context *context, void *arg)
{
    const left *l = arg;
    fsdp_shard_options options = {
        .overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true, .gather_extension = l->extension};
    fsdp_module *module;
    fsdp_tensor *x, *targets;

    test_run_behind(test_device(context));
    module = create(context, &options);
    for (int way = 0; way < 5; way++) {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, 0, 0, 3, &x, &targets);
        CHECK_PTR(fsdp_call(module, x, targets));
        CHECK_EQ(whole_bytes(context), l->held);
        if (way == 0)
            CHECK_OK(fsdp_module_reset_iteration(module));
        if (way == 1)
            CHECK_OK(fsdp_module_reshard_all(module));
        if (way == 2)
            (void)evaluate(module, x); /* the root stays, for the next forward */
        if (way == 3)
            CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(module, x, targets))));
        if (way == 4)
            CHECK_PTR(fsdp_call(module, x, targets));
        CHECK_EQ(whole_bytes(context), way == 2 ? l->root : way == 4 ? l->held : 0);
        fsdp_scope_end(context, NULL);
    }
    fsdp_module_unref(module);
}

/* What both ranks send of an int8 Linear: scales and codes of the weight, the bias as it is. */
static size_t coded_linear_bytes(int64_t in, int64_t out)
{
    int64_t chunk = (out + 1) / 2, scales = (4 * ((chunk * in + 127) / 128) + 15) / 16 * 16;

    return (size_t)(2 * ((scales + chunk * in + 15) / 16 * 16 + (4 * chunk + 15) / 16 * 16));
}

TEST(memory_for_a_backward_that_never_comes_is_given_back)
{
    size_t block = linear_bytes(NET_DIM, NET_FFN) + linear_bytes(NET_FFN, NET_DIM);
    size_t root = linear_bytes(NET_IN, NET_DIM) + linear_bytes(NET_DIM, NET_OUT) + 2 * 64;
    size_t sent = coded_linear_bytes(NET_DIM, NET_FFN) + coded_linear_bytes(NET_FFN, NET_DIM);
    left plain = {.root = root, .held = root + 2 * block}, coded = plain;

    test_only_on_cpu("closed forms of memory");
    test_run_ranks(2, leave_off, &plain);
    coded.extension = fsdp_gather_int8();
    coded.held += (sent + 127) / 128 * 128; /* of one group at a time */
    test_run_ranks(2, leave_off, &coded);
}
