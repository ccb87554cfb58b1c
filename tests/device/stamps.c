/* stamps.c - see stamps.h. */
#include "device/stamps.h"

#include "device/kernels.h"
#include "support/test.h"

enum {
    ROUNDS = 8,
    NUMEL = 64,
    MOST = 256
};

typedef struct taken {
    const fsdp_stream *stream;
    int count, depth, copies[3]; /* issued, begun, done */
    struct {
        fsdp__stamp stamp;
        bool begun;
        int depth;
    } stamps[MOST];
} taken;

/* Takes a stamp. The stream's work is done by one thread at a time. */
static void take(taken *t, fsdp__probe_event *e, bool begun)
{
    CHECK(e->ns > 0);
    CHECK(t->count < MOST);
    t->depth += begun ? 1 : -1;
    t->stamps[t->count].begun = begun;
    t->stamps[t->count].depth = begun ? t->depth : t->depth + 1;
    CHECK_OK(fsdp__stream_stamp(e->stream, &t->stamps[t->count++].stamp));
}

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    taken *t = arg;

    if (e->stream != t->stream)
        return FSDP_OK;
    switch (e->point) {
    case FSDP__POINT_COPY_ISSUED:
        t->copies[0]++;
        break;
    case FSDP__POINT_COPY_BEGUN:
    case FSDP__POINT_COPY_DONE:
        CHECK_EQ(e->bytes, NUMEL * sizeof(float));
        CHECK_CONTAINS(e->name, e->kind == FSDP__WRITES ? "from the host" : "to the host");
        t->copies[e->point == FSDP__POINT_COPY_BEGUN ? 1 : 2]++;
        take(t, e, e->point == FSDP__POINT_COPY_BEGUN);
        break;
    default:
        take(t, e, e->point == FSDP__POINT_KERNEL_BEGUN);
    }
    return FSDP_OK;
}

/* Reads all stamps. What begins is done at the next one of the same depth. */
static void check_times(taken *t)
{
    int64_t last = 0, begun[4] = {0};

    for (int i = 0; i < t->count; i++) {
        int64_t ns = 0;

        CHECK_OK(fsdp__stamp_read(&t->stamps[i].stamp, &ns));
        CHECK(ns > 0 && ns >= last);
        CHECK(t->stamps[i].depth < 4);
        if (t->stamps[i].begun)
            begun[t->stamps[i].depth] = ns;
        else
            CHECK(begun[t->stamps[i].depth] > 0 && ns >= begun[t->stamps[i].depth]);
        last = ns;
    }
}

void stamps_check(fsdp_stream *stream)
{
    const uint64_t points = FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN) | FSDP__POINT_BIT(FSDP__POINT_KERNEL_DONE) |
                            FSDP__POINT_BIT(FSDP__POINT_COPY_ISSUED) | FSDP__POINT_BIT(FSDP__POINT_COPY_BEGUN) |
                            FSDP__POINT_BIT(FSDP__POINT_COPY_DONE);
    fsdp_device *device = fsdp__stream_device(stream);
    float values[NUMEL] = {1}, back[ROUNDS][NUMEL];
    taken *t = CHECK_PTR(calloc(1, sizeof *t));
    fsdp__subscriber *subscriber;
    void *memory = NULL;

    t->stream = stream;
    CHECK_OK(fsdp__device_alloc(device, sizeof values, FSDP_MEMORY_ACTIVATION, &memory));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    subscriber = CHECK_PTR(fsdp__context_subscribe(fsdp_device_context(device), points, see, t));
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_OK(fsdp__copy_to_device(stream, memory, values, sizeof values));
        CHECK_OK(fsdp__launch_fill_run(stream, memory, FSDP_F32, NUMEL, i));
        CHECK_OK(fsdp__copy_to_host(stream, back[i], memory, sizeof values));
    }
    CHECK_OK(fsdp_stream_synchronize(stream));
    fsdp__unsubscribe(subscriber);
    for (int i = 0; i < ROUNDS; i++)
        CHECK_EQ(back[i][NUMEL - 1], i);
    CHECK_EQ(t->depth, 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(t->copies[i], 2 * ROUNDS);
    CHECK(t->count >= 2 * 3 * ROUNDS);
    check_times(t);
    CHECK_OK(fsdp__launch_fill_run(stream, memory, FSDP_F32, NUMEL, 0)); /* nobody takes stamps any more */
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_EQ(t->depth, 0);
    fsdp__device_free(device, memory, sizeof values, FSDP_MEMORY_ACTIVATION);
    free(t);
}
