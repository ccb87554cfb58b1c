/* What a run tells whoever listens (base/probe.h). */
#include <pthread.h>

#include "device/device.h"
#include "fsdp/shard.h"
#include "train/story.h"

static _Atomic int told[FSDP__POINTS];
static _Atomic int changes[FSDP_EVENT_REDUCE + 1];

static fsdp_status count(void *arg, fsdp__probe_event *event)
{
    (void)arg;
    CHECK(event->ns > 0 && event->context);
    atomic_fetch_add(&told[event->point], 1);
    if (event->point == FSDP__POINT_SHARD_CHANGED)
        atomic_fetch_add(&changes[event->kind], 1);
    return FSDP_OK;
}

static void listen(void)
{
    static fsdp__subscriber all = {
        .points = FSDP__POINT_BIT(FSDP__POINT_SHARD_CHANGED) | FSDP__POINT_BIT(FSDP__POINT_STEP_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_STEP_DONE) | FSDP__POINT_BIT(FSDP__POINT_BATCH_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_BATCH_DONE) | FSDP__POINT_BIT(FSDP__POINT_PART_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_PART_DONE) | FSDP__POINT_BIT(FSDP__POINT_STAGE_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_STAGE_DONE),
        .see = count};
    static bool listens;

    if (!listens)
        fsdp__subscribe(&all);
    listens = true;
    memset(told, 0, sizeof told);
    memset(changes, 0, sizeof changes);
}

STORY_TEST(whoever_listens_hears_each_part_of_a_run_begin_and_end)
{
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "checkpoint.interval", "4");
    listen();
    story_go(s, 2);
    CHECK_EQ(told[FSDP__POINT_STEP_BEGUN], 2 * STORY_STEPS); /* each rank's */
    CHECK_EQ(told[FSDP__POINT_STEP_DONE], 2 * STORY_STEPS);
    CHECK(told[FSDP__POINT_STAGE_BEGUN] >= 2 * 3 * STORY_STEPS); /* steps, forwards, backwards */
    CHECK_EQ(told[FSDP__POINT_STAGE_DONE], told[FSDP__POINT_STAGE_BEGUN]);
    CHECK(told[FSDP__POINT_BATCH_BEGUN] >= 2 * STORY_STEPS);
    CHECK_EQ(told[FSDP__POINT_BATCH_DONE], told[FSDP__POINT_BATCH_BEGUN]);
    CHECK_EQ(told[FSDP__POINT_PART_BEGUN], 2 * 2); /* after steps 4 and 6 */
    CHECK_EQ(told[FSDP__POINT_PART_DONE], 2 * 2);
    CHECK(changes[FSDP_EVENT_UNSHARD] > 0 && changes[FSDP_EVENT_RESHARD] > 0);
    CHECK_EQ(changes[FSDP_EVENT_POST_FORWARD], changes[FSDP_EVENT_PRE_FORWARD]);
    CHECK_EQ(changes[FSDP_EVENT_POST_BACKWARD], changes[FSDP_EVENT_PRE_BACKWARD]);
    CHECK(changes[FSDP_EVENT_REDUCE] > 0);
}

/* ---- what streams do, by the clocks of their devices ---- */

enum {
    STREAMS = 64,
    DEPTH = 8
};

/* What is going on in a stream, whose work one thread does at a time. */
typedef struct lane {
    const fsdp_stream *stream;
    fsdp__stamp begun[DEPTH];
    int depth;
    int64_t last;
} lane;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static lane lanes[STREAMS]; /* which streams there are is guarded by the mutex */
static _Atomic int timed[FSDP__POINTS];
static _Atomic bool takes_times;

static lane *lane_of(const fsdp_stream *stream)
{
    lane *l = lanes;

    pthread_mutex_lock(&mutex);
    while (l->stream && l->stream != stream)
        l++;
    CHECK(l < lanes + STREAMS - 1);
    l->stream = stream;
    pthread_mutex_unlock(&mutex);
    return l;
}

/* Takes a stamp where something begins. Where it is done both times are read, behind the next ones that began inside.
 */
static fsdp_status take_times(void *arg, fsdp__probe_event *e)
{
    fsdp__stamp now;
    int64_t from, to;
    lane *l;

    (void)arg;
    if (!takes_times || !e->stream || !fsdp__device_has_bytes(fsdp__stream_device(e->stream)))
        return FSDP_OK;
    l = lane_of(e->stream);
    if (e->point == FSDP__POINT_STREAM_OPENED) { /* perhaps where another one was */
        l->depth = 0;
        l->last = 0;
        return FSDP_OK;
    }
    CHECK(e->ns > 0);
    CHECK_OK(fsdp__stream_stamp(e->stream, &now));
    if (e->point == FSDP__POINT_KERNEL_BEGUN || e->point == FSDP__POINT_COPY_BEGUN ||
        e->point == FSDP__POINT_COLLECTIVE_BEGUN) {
        CHECK(l->depth < DEPTH);
        l->begun[l->depth++] = now;
        return FSDP_OK;
    }
    CHECK(l->depth > 0);
    CHECK_OK(fsdp__stamp_read(&l->begun[--l->depth], &from));
    CHECK_OK(fsdp__stamp_read(&now, &to));
    CHECK(from > 0 && to >= from && to >= l->last);
    l->last = to;
    atomic_fetch_add(&timed[e->point], 1);
    return FSDP_OK;
}

__attribute__((constructor)) static void subscribe(void)
{
    static fsdp__subscriber times = {
        .points = FSDP__POINT_BIT(FSDP__POINT_STREAM_OPENED) | FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_KERNEL_DONE) | FSDP__POINT_BIT(FSDP__POINT_COPY_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_COPY_DONE) | FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_DONE),
        .see = take_times};

    fsdp__subscribe(&times);
}

STORY_TEST(kernels_copies_and_collectives_have_times_of_their_device)
{
    takes_times = true;
    story_go(s, 2);
    takes_times = false;
    CHECK(timed[FSDP__POINT_KERNEL_DONE] > 0);
    CHECK(timed[FSDP__POINT_COPY_DONE] > 0);
    CHECK(timed[FSDP__POINT_COLLECTIVE_DONE] > 0);
    for (const lane *l = lanes; l->stream; l++)
        CHECK_EQ(l->depth, 0);
}
