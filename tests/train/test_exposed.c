/* What a run says of exposed communication where one rank is late: the ranks that wait for it have all of the time, and
 * it has none. The clock of the fake GPUs (tests/backend/fakecuda) is put forward while one rank's device
 * is held up and the other's waits, so how fast this machine is makes no difference. */
#include <pthread.h>
#include <unistd.h>

#include "device/device.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <stdatomic.h>

#include "backend/fakecuda/control.h"

enum {
    RANKS = 2,
    STEPS = 2
};

#define LATE_NS INT64_C(1000000000000) /* far more than any step takes */

typedef struct lateness {
    const char *strategy, *carrier;
    int late; /* this rank */
    _Atomic(void *) streams[RANKS];
    double exposed_ms[RANKS];
} lateness;

/* Holds a stream up until another one waits. */
typedef struct holdup {
    void *held, *other;
    atomic_int open;
    pthread_t thread;
} holdup;

static void *let_go(void *arg)
{
    holdup *h = arg;

    while (!fakecuda.waits(h->other))
        (void)usleep(1000);
    fakecuda.skip_time(LATE_NS);
    atomic_store(&h->open, 1);
    return NULL;
}

static void hold_up(holdup *h, const lateness *l)
{
    *h = (holdup){.held = l->streams[l->late], .other = l->streams[1 - l->late]};
    fakecuda.hold(h->held, &h->open);
    CHECK_EQ(pthread_create(&h->thread, NULL, let_go, h), 0);
}

/* Takes a step in which the device of the late rank does not begin before that of the other one waits for it. */
static void take_step(fsdp_train_run *run, int rank, lateness *l)
{
    fsdp_train_report report;
    holdup h;

    test_meet();
    if (rank == l->late)
        hold_up(&h, l);
    CHECK_OK(fsdp_train_step(run, &report));
    if (rank == l->late)
        CHECK_EQ(pthread_join(h.thread, NULL), 0);
    l->exposed_ms[rank] += report.gather_ms + report.reduce_ms;
}

static void train_late(fsdp_context *context, void *arg)
{
    lateness *l = arg;
    fsdp_train_config *config = test_small_config("training.device=cuda");
    int rank = fsdp_context_rank(context);
    fsdp_train_run *run = NULL;

    test_set_keys(config, "parallelism.strategy=%s comm.carrier=%s", l->strategy, l->carrier);
    CHECK_OK(fsdp_train_run_create(context, config, &run));
    CHECK_OK(fsdp_train_step(run, NULL)); /* which makes carriers, and the first question for the time */
    l->streams[rank] = CHECK_PTR(fsdp_stream_native(fsdp_device_stream(CHECK_PTR(fsdp_cuda(context, rank)))));
    for (int step = 0; step < STEPS; step++)
        take_step(run, rank, l);
    fsdp_train_run_free(run);
}

static void check_late(const char *strategy, const char *carrier)
{
    for (int late = 0; late < RANKS; late++) {
        lateness l = {.strategy = strategy, .carrier = carrier, .late = late};
        double late_ms = (double)LATE_NS / 1e6;

        test_run_ranks(RANKS, train_late, &l);
        CHECK_EQ((int)(l.exposed_ms[1 - late] / late_ms), STEPS);
        CHECK_EQ((int)(l.exposed_ms[late] / late_ms), 0);
    }
}

TEST(a_late_rank_is_exposed_time_of_those_who_wait_for_it_alone)
{
    static const char *const strategies[] = {"fsdp2", "ddp", "fsdp1", "zero1"};

    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    for (size_t i = 0; i < (test_long() ? FSDP__COUNT_OF(strategies) : 2); i++) {
        check_late(strategies[i], "peer");
        check_late(strategies[i], "nccl");
    }
}
#endif
