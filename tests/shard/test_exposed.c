/* How long a GPU waits for gathers and reductions, by stamps of its own, on a fake one; and a processor, by the host's
 * clock. */
#include "shard/group/exposed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "device/device.h"
#include "fsdp/layers.h"
#include "fsdp/replicate.h"
#include "shard/group/in_flight.h"
#include "support/ranks.h"

#define HELD_NS INT64_C(60000000)
#define LATE_NS INT64_C(1000000000000) /* by which the clock of fake GPUs is put forward */
#define SLACK_NS INT64_C(6000000)      /* of stamps, which a device takes by a clock of its own */

static void sleep_held(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = HELD_NS}, NULL);
}

CONTEXT_TEST(a_processor_s_stretch_is_the_host_s_time)
{
    fsdp_stream *stream = fsdp_device_stream(CHECK_PTR(fsdp_cpu(context)));
    fsdp__exposed exposed = {.asked = false};
    fsdp__stretch stretch;

    for (int issues = 0; issues < 2; issues++) {
        CHECK_OK(fsdp__exposed_begin(&exposed, stream, stream, issues, &stretch));
        sleep_held();
        CHECK_OK(fsdp__exposed_end(&exposed, &stretch, true));
    }
    CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK(exposed.ns >= 2 * HELD_NS);
    fsdp__exposed_drop(&exposed);
}

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"

/* A GPU with a stream that computes and another one that exchanges, and an event of each. */
typedef struct rig {
    fsdp_context *context;
    fsdp_stream *compute, *other;
    fsdp_event *done, *computed;
} rig;

static rig open_rig(void)
{
    rig r = {.context = test_context()};
    fsdp_device *device = CHECK_PTR(fsdp_cuda(r.context, 0));

    r.compute = fsdp_device_stream(device);
    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &r.other));
    CHECK_OK(fsdp_event_create(device, &r.done));
    CHECK_OK(fsdp_event_create(device, &r.computed));
    return r;
}

static void close_rig(const rig *r)
{
    fsdp_event_free(r->done);
    fsdp_event_free(r->computed);
    fsdp_stream_free(r->other);
    fsdp_context_free(r->context);
}

/* Lets the stream that computes wait for the other one, which is held up for a while from then on. */
static void wait_held(const rig *r, fsdp__exposed *exposed)
{
    atomic_int open = 0;
    fsdp__stretch stretch;

    fakecuda.hold(CHECK_PTR(fsdp_stream_native(r->other)), &open);
    CHECK_OK(fsdp_event_record(r->done, r->other));
    CHECK_OK(fsdp__exposed_begin(exposed, r->compute, r->other, false, &stretch));
    CHECK_OK(fsdp_stream_synchronize(r->compute)); /* it has come to where its wait begins */
    CHECK_OK(fsdp_stream_wait_event(r->compute, r->done));
    CHECK_OK(fsdp__exposed_end(exposed, &stretch, true));
    sleep_held();
    atomic_store(&open, 1);
    CHECK_OK(fsdp_stream_synchronize(r->other));
    CHECK_OK(fsdp_stream_synchronize(r->compute));
}

/* The host does not wait, and knows nothing of it before it has asked. */
TEST(a_gpu_s_waits_are_counted_from_when_somebody_asks)
{
    fsdp__exposed exposed = {.asked = false};
    rig r = open_rig();
    int64_t before;

    wait_held(&r, &exposed);
    CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK_EQ(exposed.ns, 0);
    exposed.asked = true;
    for (int i = 0; i < 2; i++)
        wait_held(&r, &exposed);
    CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK(exposed.ns >= 2 * (HELD_NS - SLACK_NS));
    before = exposed.ns;
    CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK_EQ(exposed.ns, before);
    wait_held(&r, &exposed);
    fsdp__exposed_drop(&exposed);
    CHECK_EQ(exposed.newest == NULL, true);
    close_rig(&r);
}

/* Opens a stream that is held, when another one waits behind it. */
typedef struct opening {
    void *waiting;
    atomic_int open;
} opening;

static void *open_late(void *arg)
{
    opening *o = arg;

    while (!fakecuda.waits(o->waiting))
        sleep_held();
    fakecuda.skip_time(LATE_NS);
    atomic_store(&o->open, 1);
    return NULL;
}

/* Lets the host wait for the outcome of a reduction behind the computing, while one of the two streams is late. */
static void await_outcome(const rig *r, fsdp__exposed *exposed, bool reduction_is_late)
{
    fsdp__in_flight flight = {.count = 1, .stream = r->other, .done = r->done, .asked = true};
    opening o = {.waiting = CHECK_PTR(fsdp_stream_native(reduction_is_late ? r->compute : r->other))};
    pthread_t thread;

    fakecuda.hold(CHECK_PTR(fsdp_stream_native(reduction_is_late ? r->other : r->compute)), &o.open);
    CHECK_EQ(pthread_create(&thread, NULL, open_late, &o), 0);
    CHECK_OK(fsdp_event_record(r->computed, r->compute));
    if (!reduction_is_late)
        CHECK_OK(fsdp_stream_wait_event(r->other, r->computed));
    CHECK_OK(fsdp_event_record(r->done, r->other));
    CHECK_OK(fsdp__in_flight_await(&flight, exposed));
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(a_host_that_waits_for_a_reduction_counts_only_what_its_gpu_waits)
{
    fsdp__exposed exposed = {.asked = true};
    rig r = open_rig();

    for (int late = 0; late < 2; late++) {
        await_outcome(&r, &exposed, late);
        CHECK_OK(fsdp__exposed_sum(&exposed));
        CHECK_EQ(exposed.ns / LATE_NS, late);
    }
    exposed.asked = false;
    exposed.ns = 0;
    await_outcome(&r, &exposed, true);
    CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK_EQ(exposed.ns, 0); /* nobody has asked */
    close_rig(&r);
}

/* A program that asks once need not ask again: what it does not ask for is added up from time to time. */
TEST(waits_that_nobody_asks_for_do_not_pile_up)
{
    fsdp__exposed exposed = {.asked = true};
    rig r = open_rig();

    for (int i = 0; i < 5000; i++) {
        fsdp__stretch stretch;

        CHECK_OK(fsdp__exposed_begin(&exposed, r.compute, r.compute, true, &stretch));
        CHECK_OK(fsdp__exposed_end(&exposed, &stretch, true));
        CHECK(exposed.count == i % 4096 + 1);
    }
    fsdp__exposed_drop(&exposed);
    CHECK_EQ(exposed.count, 0);
    close_rig(&r);
}

/* A caller's own collective may ask how long others took. */
TEST(a_question_within_a_stretch_leaves_it_for_the_next)
{
    fsdp__exposed exposed = {.asked = true};
    rig r = open_rig();
    fsdp__stretch stretch;
    atomic_int open = 0;

    CHECK_OK(fsdp__exposed_begin(&exposed, r.compute, r.compute, true, &stretch));
    CHECK_OK(fsdp_stream_synchronize(r.compute));
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK(exposed.ns == 0 && exposed.count == 1);
    fakecuda.hold(CHECK_PTR(fsdp_stream_native(r.compute)), &open);
    CHECK_OK(fsdp__exposed_end(&exposed, &stretch, true));
    sleep_held();
    atomic_store(&open, 1);
    CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK(exposed.ns >= HELD_NS - SLACK_NS);
    CHECK_EQ(exposed.count, 0);
    close_rig(&r);
}

/* What is issued to another stream holds up nobody; what is done on the same one does. */
TEST(what_a_gpu_does_on_its_own_stream_counts_while_it_lasts)
{
    fsdp__exposed exposed = {.asked = true};
    rig r = open_rig();
    fsdp__stretch stretch;
    atomic_int open = 0;

    CHECK_OK(fsdp__exposed_begin(&exposed, r.compute, r.other, true, &stretch));
    CHECK(!stretch.wait && exposed.newest == NULL);
    CHECK_OK(fsdp__exposed_end(&exposed, &stretch, true));
    CHECK_OK(fsdp__exposed_begin(&exposed, r.compute, r.compute, true, &stretch));
    CHECK_OK(fsdp_stream_synchronize(r.compute));
    fakecuda.hold(CHECK_PTR(fsdp_stream_native(r.compute)), &open);
    CHECK_OK(fsdp__exposed_end(&exposed, &stretch, true));
    sleep_held();
    atomic_store(&open, 1);
    CHECK_OK(fsdp__exposed_begin(&exposed, r.compute, r.compute, false, &stretch)); /* and does not wait for itself */
    CHECK(!stretch.wait);
    CHECK_OK(fsdp__exposed_begin(&exposed, r.compute, r.other, false, &stretch));
    CHECK_OK(fsdp__exposed_end(&exposed, &stretch, false)); /* what fails within has no end */
    CHECK_OK(fsdp__exposed_sum(&exposed));
    CHECK(exposed.ns >= HELD_NS - SLACK_NS);
    close_rig(&r);
}

/* A stamp that cannot be taken is an error, and nothing is left over. */
TEST(a_stamp_that_fails_is_told)
{
    for (int nth = 1; nth <= 2; nth++) {
        fsdp__exposed exposed = {.asked = true};
        rig r = open_rig();
        fsdp__stretch stretch;
        fsdp_status status;

        CHECK_OK(fsdp__exposed_begin(&exposed, r.compute, r.other, false, &stretch)); /* sets the clock */
        CHECK_OK(fsdp__exposed_end(&exposed, &stretch, true));
        fakecuda.fail_call("cudaEventRecord", nth, 999, false);
        status = fsdp__exposed_begin(&exposed, r.compute, r.other, false, &stretch);
        if (status == FSDP_OK)
            status = fsdp__exposed_end(&exposed, &stretch, true);
        CHECK(status != FSDP_OK);
        CHECK(fakecuda.failed("cudaEventRecord"));
        fsdp__exposed_drop(&exposed);
        CHECK_EQ(exposed.count, 0);
        close_rig(&r);
        fakecuda.mend();
    }
}

/* ---- buffers that a forward of DDP's takes from rank 0 ---- */

typedef struct broadcasting {
    fsdp_carrier carrier;
    _Atomic(void *) streams[2];
} broadcasting;

static fsdp_tensor *normed(fsdp_module *norm, fsdp_device *device)
{
    return CHECK_PTR(fsdp_call(norm, CHECK_PTR(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2, 3, 1, 5)))));
}

/* Takes rank 0's buffers, and exchanges nothing else. */
static void evaluate(fsdp_module *norm, fsdp_device *device)
{
    fsdp_no_grad_begin(norm->context);
    CHECK_OK(fsdp_scope_begin(norm->context));
    (void)normed(norm, device);
    fsdp_scope_end(norm->context, NULL);
    fsdp_no_grad_end(norm->context);
}

/* Returns how much time was exposed in an evaluation to which rank 0's device is late, in parts of what it is late. */
static int evaluate_late(fsdp_module *norm, fsdp_device *device, broadcasting *b)
{
    int rank = fsdp_context_rank(norm->context);
    int64_t gathers[2], reductions[2];
    opening o = {.open = 0};
    pthread_t thread;

    CHECK_OK(fsdp_module_exposed_time(norm, &gathers[0], &reductions[0]));
    test_meet();
    if (rank == 0) {
        o.waiting = b->streams[1];
        fakecuda.hold(b->streams[0], &o.open);
        CHECK_EQ(pthread_create(&thread, NULL, open_late, &o), 0);
    }
    evaluate(norm, device);
    CHECK_OK(fsdp_module_exposed_time(norm, &gathers[1], &reductions[1]));
    if (rank == 0)
        CHECK_EQ(pthread_join(thread, NULL), 0);
    test_meet(); /* no check below ends the world while the thread runs */
    CHECK_EQ(gathers[1], gathers[0]);
    return (int)((reductions[1] - reductions[0]) / LATE_NS);
}

static void broadcast_late(fsdp_context *context, void *arg)
{
    broadcasting *b = arg;
    int rank = fsdp_context_rank(context);
    fsdp_device *device = CHECK_PTR(fsdp_cuda(context, rank));
    fsdp_module *norm = CHECK_PTR(fsdp_batch_norm2d_create(context, device, 3, NULL));

    CHECK_OK(fsdp_context_set_carrier(context, b->carrier));
    CHECK_OK(fsdp_module_initialize(norm, 1));
    CHECK_OK(fsdp_replicate(norm, NULL));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_backward(fsdp_mean(normed(norm, device)))); /* after which buffers are due */
    fsdp_scope_end(context, NULL);
    b->streams[rank] = CHECK_PTR(fsdp_stream_native(fsdp_device_stream(device)));
    CHECK_EQ(evaluate_late(norm, device, b), rank == 1);
    fsdp_module_unref(norm);
}

TEST(a_rank_that_waits_for_rank_0s_buffers_is_exposed)
{
    static const fsdp_carrier carriers[] = {FSDP_CARRIER_PEER, FSDP_CARRIER_NCCL};

    test_need_threads("a rank looks at the streams of another");
    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(carriers); i++) {
        broadcasting b = {.carrier = carriers[i]};

        test_run_machines(1, 2, false, broadcast_late, &b);
    }
}
#endif
