/* Steps map memory on a GPU while its stream waits for a collective to which another rank has not come, on fake GPUs:
 * no rank waits for it, since it may wait for what a rank does next. */
#include <stdatomic.h>
#include <unistd.h>

#include "comm/rank_gpu.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/use.h"
#include "device/steps.h"

enum {
    WORLD = 3,
    COUNT = 1501, /* elements of a rank */
    STEPS = 3,    /* that differ from those, while rank 0 is late */
    BLOCKS = 8,
    MIB = 1 << 20,
    NET_MS = 100000 /* rank 0 does not wait for ever where another one has failed */
};

typedef struct late {
    fsdp_carrier carrier;
    bool gives_up;
    bool on_device;     /* the device of rank 0 alone is late, and those of the others wait; otherwise their streams'
                         * threads do */
    int warm;           /* steps before; at the forward after two what only the first one needed is to go back */
    atomic_int open;    /* it waits no longer */
    atomic_int stepped; /* ranks that have taken their steps */
} late;

/* Takes a step whose requests depend on `dice`, while so much more lives. Later requests lie where earlier ones lay,
 * and at more places with each step that differs, so far more would be mapped than lives at once. */
static void take_step(fsdp_device *device, unsigned int dice, size_t more)
{
    void *blocks[BLOCKS] = {NULL};
    size_t bytes[BLOCKS] = {0};
    void *large = NULL;

    CHECK_OK(fsdp__note_forward(fsdp_device_context(device)));
    CHECK_OK(fsdp__device_alloc(device, more, FSDP_MEMORY_ACTIVATION, &large));
    for (int i = 0; i < 4 * BLOCKS; i++) {
        unsigned int b = (dice = dice * 1664525u + 1013904223u) >> 29;

        if (blocks[b]) {
            fsdp__device_free(device, blocks[b], bytes[b], FSDP_MEMORY_ACTIVATION);
            blocks[b] = NULL;
            continue;
        }
        bytes[b] = (size_t)(1 + (dice >> 16) % 48) * MIB;
        CHECK_OK(fsdp__device_alloc(device, bytes[b], FSDP_MEMORY_ACTIVATION, &blocks[b]));
    }
    for (int b = 0; b < BLOCKS; b++)
        fsdp__device_free(device, blocks[b], bytes[b], FSDP_MEMORY_ACTIVATION);
    fsdp__device_free(device, large, more, FSDP_MEMORY_ACTIVATION);
    fsdp__end_step(fsdp_device_context(device));
}

/* Waits until all others have taken their steps. Time decides nothing but when a test that has failed ends. */
static void be_late(late *l)
{
    for (int ms = 0; ms < NET_MS && atomic_load(&l->stepped) < WORLD - 1; ms++)
        (void)usleep(1000);
    CHECK_EQ(atomic_load(&l->stepped), WORLD - 1);
}

static void gather(const rank_gpu *g, float *on_device)
{
    CHECK_OK(fsdp_all_gather(g->group, on_device, on_device + COUNT, COUNT, FSDP_F32, g->stream));
}

static void reduce(fsdp_process_group *pair, float *on_device, fsdp_stream *stream)
{
    float *data = on_device + (WORLD + 1) * COUNT;

    CHECK_OK(fsdp_all_reduce(pair, data, data, COUNT, FSDP_F32, FSDP_SUM, stream));
}

/* Makes a call to which all others will be on time. */
static void come_late(const rank_gpu *g, late *l, float *on_device)
{
    if (l->on_device) {
        fakecuda.hold(CHECK_PTR(fsdp_stream_native(g->stream)), &l->open);
        gather(g, on_device);
    }
    be_late(l);
    atomic_store(&l->open, 1);
    if (l->on_device)
        return;
    if (l->gives_up)
        fsdp_abort(g->context, "rank 0 gives up");
    else
        gather(g, on_device);
}

/* Makes a call to which rank 0 is late, and one of the others alone behind it, on a stream of its own. They wait in the
 * streams' threads if something is queued before them. Returns whether the first one fails in the end. */
static bool come_first(const rank_gpu *g, late *l, float *on_device, fsdp_process_group *const *pairs,
                       fsdp_stream *second)
{
    atomic_int issued = 0, *gate = &issued;

    if (!l->on_device) {
        CHECK_OK(fsdp__stream_enqueue(g->stream, wait_for_flag, &gate, sizeof gate));
        CHECK_OK(fsdp__stream_enqueue(second, wait_for_flag, &gate, sizeof gate));
    }
    gather(g, on_device);
    reduce(pairs[0], on_device, second);
    follow(fsdp_device_stream(g->device), g->stream);
    follow(fsdp_device_stream(g->device), second);
    atomic_store(&issued, 1);
    if (l->on_device)
        CHECK_PTR(fsdp_stream_native(fsdp_device_stream(g->device))); /* now the device waits */
    for (unsigned int n = 0; n < STEPS; n++)
        take_step(g->device, n, 0);
    reduce(pairs[1], on_device, second); /* its first call, for which it gets memory */
    atomic_fetch_add(&l->stepped, 1);
    (void)fsdp_stream_synchronize(second); /* `issued` is read there */
    return fsdp_stream_synchronize(g->stream) != FSDP_OK;
}

static void check_gathered(const rank_gpu *g, const float *on_device)
{
    float host[WORLD * COUNT];

    CHECK_OK(fsdp__copy_to_host(g->stream, host, on_device + COUNT, sizeof host));
    CHECK_OK(fsdp_stream_synchronize(g->stream));
    for (int i = 0; i < WORLD * COUNT; i++)
        CHECK(host[i] == (float)(1 + i / COUNT));
}

static void run_rank(fsdp_context *context, void *arg)
{
    late *l = arg;
    rank_gpu g = rank_gpu_open(context);
    int others[] = {1, 2};
    fsdp_process_group *pairs[] = {NULL, NULL};
    float host[(WORLD + 2) * COUNT];
    fsdp_stream *second = NULL;
    float *on_device;

    for (size_t i = 0; i < FSDP__COUNT_OF(host); i++)
        host[i] = (float)(1 + g.rank);
    CHECK_OK(fsdp_context_set_carrier(context, l->carrier));
    CHECK_OK(fsdp_stream_create(g.device, FSDP_STREAM_WORKER, &second));
    on_device = rank_gpu_new(&g, host, sizeof host);
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_process_group_create(context, others, WORLD - 1, "others", &pairs[i]));
    gather(&g, on_device);
    if (pairs[0])
        reduce(pairs[0], on_device, g.stream);
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    for (int n = 0; n < l->warm; n++)
        take_step(g.device, 7, n == 0 ? 100 * MIB : 0);
    if (g.rank == 0)
        come_late(&g, l, on_device);
    else
        CHECK_EQ(come_first(&g, l, on_device, pairs, second), l->gives_up);
    if (!l->gives_up)
        check_gathered(&g, on_device);
    (void)fsdp_stream_synchronize(fsdp_device_stream(g.device)); /* which fails where the other has */
    for (int i = 0; i < 2; i++)
        fsdp_process_group_free(pairs[i]);
    fsdp_stream_free(second);
    rank_gpu_free(&g, on_device, sizeof host);
    rank_gpu_close(&g);
}

/* If a rank waits, rank 0 stays late, and the test fails. Ranks are threads, and with FSDP_TEST_RANKS=processes
 * processes. */
TEST(steps_map_memory_while_another_rank_is_late)
{
    const late ways[] = {{.carrier = FSDP_CARRIER_STAGED, .warm = 2},
                         {.carrier = FSDP_CARRIER_PEER, .on_device = true, .warm = 2},
                         {.carrier = FSDP_CARRIER_NCCL, .gives_up = true, .warm = 3},
                         {.carrier = FSDP_CARRIER_NCCL, .on_device = true, .warm = 2},
                         {.carrier = FSDP_CARRIER_NCCL, .warm = 3},
                         {.carrier = FSDP_CARRIER_PEER, .gives_up = true, .warm = 3},
                         {.carrier = FSDP_CARRIER_STAGED, .gives_up = true, .warm = 3}};

    for (size_t i = 0; i < (test_long() ? FSDP__COUNT_OF(ways) : 3); i++) {
        late l = ways[i];

        rank_gpu_run(WORLD, run_rank, &l);
    }
}

#else
MISSING_TEST(cuda)
#endif
