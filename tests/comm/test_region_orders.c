/* Random orders of what is done with memory that ranks of a GPU have in common, on fake GPUs (tests/backend/fakecuda):
 * groups and regions are made, written, read and given back while streams of some ranks stand. All reads have what was
 * written, nobody waits for a stream that stands, and all of it goes back to the card. Some seeds let a call of the
 * driver fail: then the ranks end, and hang nobody. */
#include "comm/rank_peer.h"
#include "support/dice.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/use.h"
#include "comm/comm.h"
#include "comm/transport/arena/arena_group.h"
#include "comm/world.h"
#include "device/kernels.h"

enum {
    GROUPS = 3,
    REGIONS = 4,
    READS = 8, /* between two looks */
    STEPS = 60,
    NUMEL = 259,
    SEEDS = 4 /* of each way */
};

/* A region of a group, of which each rank has a row. */
typedef struct shared {
    fsdp_process_group *group; /* NULL: this rank is not of it */
    int at;                    /* of the group; -1: there is no region */
    float *memory;             /* NULL: this rank has given it back */
    int round, frees_in;       /* steps of this rank until it gives it back; 0: nobody has said so */
} shared;

/* What a read must have found. */
typedef struct seen {
    float *copy;      /* of the device */
    int round, ranks; /* 0: this rank has not read */
} seen;

typedef struct player {
    rank_peer g;
    fsdp_event *event;
    fsdp_process_group *groups[GROUPS];
    bool made[GROUPS];
    shared regions[REGIONS];
    seen reads[READS];
    int reads_count, steps;
    atomic_int open[2];  /* of its streams: whether they may go on, */
    int opens_in[2];     /* and in how many steps they may; 0: they may */
    uint64_t all, own;   /* dice: the same on all ranks, and this rank's own */
    bool threads, holds; /* its streams stand now and then */
} player;

/* What a rank that is a thread is told. */
typedef struct told {
    uint64_t seed;
    bool holds;
} told;

static int64_t chunk_of(int ranks)
{
    return (NUMEL + ranks - 1) / ranks;
}

static fsdp_stream *stream_of(const player *p, int i)
{
    return i == 0 ? p->g.stream : p->g.other;
}

/* ---- what each rank does when it likes ---- */

static void give_back(shared *s)
{
    if (s->memory)
        fsdp_process_group_free_memory(s->group, FSDP_MEMORY_SHARED, s->memory, NUMEL * sizeof(float));
    s->memory = NULL;
}

static void open_streams(player *p, bool now)
{
    for (int i = 0; i < 2; i++)
        if (p->opens_in[i] > 0 && (now || --p->opens_in[i] == 0)) {
            p->opens_in[i] = 0;
            atomic_store(&p->open[i], 1);
        }
}

static fsdp_status hold_stream(player *p)
{
    int i = dice_below(&p->own, 2);
    void *native;

    if (!p->holds || p->opens_in[i] > 0 || !dice_chance(&p->own, 20))
        return FSDP_OK;
    native = fsdp_stream_native(stream_of(p, i));
    if (!native) /* the device is lost */
        return fsdp_last_status();
    p->opens_in[i] = 1 + dice_below(&p->own, 4);
    atomic_store(&p->open[i], 0);
    fakecuda.hold(native, &p->open[i]);
    return FSDP_OK;
}

static fsdp_status go_on_alone(player *p)
{
    open_streams(p, false);
    for (int i = 0; i < REGIONS; i++)
        if (p->regions[i].frees_in > 0 && --p->regions[i].frees_in == 0)
            give_back(&p->regions[i]);
    return hold_stream(p);
}

/* ---- what all do ---- */

static fsdp_status make_group(player *p)
{
    int slot = dice_below(&p->all, GROUPS), size = 2 + dice_below(&p->all, p->g.size - 1),
        first = dice_below(&p->all, p->g.size - size + 1), ranks[RANK_PEER_MOST];
    bool is = true;
    char name[8] = {(char)('a' + slot)};

    if (p->made[slot])
        return FSDP_OK;
    for (int r = 0; r < size; r++)
        ranks[r] = first + r;
    p->made[slot] = true;
    FSDP_TRY(fsdp_process_group_create(p->g.context, ranks, size, name, &p->groups[slot]));
    if (!p->groups[slot])
        return FSDP_OK;
    FSDP_TRY(fsdp_process_group_set_carrier(p->groups[slot], FSDP_CARRIER_PEER));
    FSDP_TRY(fsdp__process_group_find_common(p->groups[slot], p->g.device, &is));
    return is ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "the ranks have no GPU in common");
}

/* Gives back what this rank has of the group's, then the group. Its last calls must be done, so nothing stands. */
static void free_group(player *p, int slot)
{
    open_streams(p, true);
    for (int i = 0; i < REGIONS; i++)
        if (p->regions[i].at == slot) {
            give_back(&p->regions[i]);
            p->regions[i] = (shared){.at = -1};
        }
    fsdp_process_group_free(p->groups[slot]);
    p->groups[slot] = NULL;
    p->made[slot] = false;
}

static fsdp_status make_region(player *p)
{
    int slot = dice_below(&p->all, GROUPS), i = dice_below(&p->all, REGIONS);
    shared *s = &p->regions[i];

    if (!p->made[slot] || s->at >= 0)
        return FSDP_OK;
    *s = (shared){.at = slot, .group = p->groups[slot]};
    if (!s->group)
        return FSDP_OK;
    if (p->threads) /* cudaFree of a driver without pools waits for what stands, and this host would open it later */
        open_streams(p, dice_chance(&p->own, 50));
    return fsdp__process_group_alloc_common(s->group, p->g.device, NUMEL * sizeof(float), (void **)&s->memory);
}

static fsdp_status write_and_gather(const player *p, const shared *s)
{
    int ranks = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    int64_t chunk = chunk_of(ranks), left = NUMEL - rank * chunk;
    fsdp_sharded_buffer b = {.unsharded = s->memory,
                             .shard = s->memory + rank * chunk,
                             .numel = NUMEL,
                             .chunk = chunk,
                             .unsharded_dtype = FSDP_F32,
                             .shard_dtype = FSDP_F32};

    FSDP_TRY(fsdp__process_group_await_readers(s->group, s->memory, p->g.stream));
    FSDP_TRY(fsdp__launch_fill_run(p->g.stream, b.shard, FSDP_F32, left < chunk ? left : chunk, 10 * s->round + rank));
    FSDP_TRY(fsdp_event_record(p->event, p->g.stream));
    FSDP_TRY(fsdp_stream_wait_event(p->g.other, p->event));
    FSDP_TRY(fsdp_all_gather_coalesced(s->group, &b, 1, p->g.other));
    FSDP_TRY(fsdp_event_record(p->event, p->g.other));
    return fsdp_stream_wait_event(p->g.stream, p->event);
}

static fsdp_status use_region(player *p)
{
    shared *s = &p->regions[dice_below(&p->all, REGIONS)];
    bool is_last = dice_chance(&p->all, 30);
    seen *read = &p->reads[p->reads_count];

    if (s->at < 0 || s->round < 0 || p->reads_count == READS)
        goto out;
    s->round++;
    p->reads_count++; /* on all ranks, since it decides what they do */
    read->ranks = 0;
    if (!s->group)
        goto out;
    FSDP_TRY(write_and_gather(p, s));
    fsdp__process_group_begin_read(s->group, s->memory);
    FSDP_TRY(fsdp__copy_on_device(p->g.stream, read->copy, s->memory, NUMEL * sizeof(float)));
    FSDP_TRY(fsdp__process_group_end_read(s->group, s->memory, p->g.stream));
    read->round = s->round;
    read->ranks = fsdp_process_group_size(s->group);
out:
    if (is_last && s->at >= 0 && s->round >= 0) {
        s->round = -1;
        s->frees_in = 1 + dice_below(&p->own, 4);
    }
    return FSDP_OK;
}

static fsdp_status check_reads(player *p)
{
    float values[NUMEL];

    open_streams(p, true);
    for (int n = 0; n < p->reads_count; n++) {
        const seen *read = &p->reads[n];

        if (read->ranks == 0)
            continue;
        FSDP_TRY(fsdp__copy_to_host(p->g.stream, values, read->copy, sizeof values));
        FSDP_TRY(fsdp_stream_synchronize(p->g.stream));
        for (int64_t i = 0; i < NUMEL; i++)
            if (values[i] != (float)(10 * read->round + i / chunk_of(read->ranks)))
                return FSDP_FAIL(FSDP_STATE, "step %d: element %lld is %g in round %d", p->steps, (long long)i,
                                 (double)values[i], read->round);
    }
    p->reads_count = 0;
    for (int i = 0; i < REGIONS; i++) /* where all have given it back, or will: its place is free */
        if (p->regions[i].round < 0) {
            give_back(&p->regions[i]);
            p->regions[i] = (shared){.at = -1};
        }
    return fsdp_barrier(p->g.staged);
}

static fsdp_status step(player *p)
{
    int what = dice_below(&p->all, 12), slot;

    FSDP_TRY(go_on_alone(p));
    if (what == 0)
        return make_group(p);
    if (what == 1) {
        slot = dice_below(&p->all, GROUPS);
        if (p->made[slot])
            free_group(p, slot);
        return FSDP_OK;
    }
    return what < 5     ? make_region(p)
           : what < 10  ? use_region(p)
           : what == 10 ? fsdp_barrier(p->g.staged)
                        : check_reads(p);
}

/* ---- a rank ---- */

static fsdp_status begin(fsdp_context *context, told t, bool threads, player *p)
{
    *p = (player){.all = t.seed,
                  .own = 1000 * t.seed + (uint64_t)fsdp_context_rank(context) + 1,
                  .threads = threads,
                  .holds = t.holds};
    for (int i = 0; i < REGIONS; i++)
        p->regions[i].at = -1;
    FSDP_TRY(rank_peer_open(context, RANK_PEER_OUTBOX, &p->g));
    FSDP_TRY(fsdp_event_create(p->g.device, &p->event));
    for (int i = 0; i < READS; i++)
        FSDP_TRY(
            fsdp__device_alloc(p->g.device, NUMEL * sizeof(float), FSDP_MEMORY_ACTIVATION, (void **)&p->reads[i].copy));
    return FSDP_OK;
}

static void end(player *p)
{
    open_streams(p, true);
    for (int slot = 0; slot < GROUPS; slot++)
        free_group(p, slot);
    for (int i = 0; i < 2 && p->g.other; i++)
        (void)fsdp_stream_synchronize(stream_of(p, i));
    for (int i = 0; i < READS; i++)
        if (p->reads[i].copy)
            fsdp__device_free(p->g.device, p->reads[i].copy, NUMEL * sizeof(float), FSDP_MEMORY_ACTIVATION);
    fsdp_event_free(p->event);
    rank_peer_close(&p->g);
}

/* All of it has gone back when all have met, and met again, since what they gave back is done. */
static fsdp_status play(player *p)
{
    const fsdp__arena_view *view = fsdp__comm_get(p->g.context)->transport;

    FSDP_TRY(fsdp_barrier(p->g.staged));
    for (p->steps = 0; p->steps < STEPS; p->steps++)
        FSDP_TRY(step(p));
    FSDP_TRY(check_reads(p));
    for (int slot = 0; slot < GROUPS; slot++)
        free_group(p, slot);
    for (int i = 0; i < 2; i++)
        FSDP_TRY(fsdp_stream_synchronize(stream_of(p, i)));
    for (int i = 0; i < 3; i++)
        FSDP_TRY(fsdp_barrier(p->g.staged));
    if (view->regions || (view->kept && !p->threads))
        return FSDP_FAIL(FSDP_STATE, "a region is still %s", view->regions ? "open" : "kept");
    return FSDP_OK;
}

/* Plays one order; a failure ends the others' calls. */
static fsdp_status play_order(fsdp_context *context, told t, bool threads)
{
    static _Thread_local player p; /* whose `open` streams look at */
    fsdp_status status = begin(context, t, threads, &p);

    if (status == FSDP_OK)
        status = play(&p);
    if (status != FSDP_OK) {
        fprintf(stderr, "seed %llu, rank %d, step %d: %s\n", (unsigned long long)t.seed, p.g.rank, p.steps,
                fsdp_last_error());
        fsdp_abort(context, fsdp_last_error());
    }
    end(&p);
    return status;
}

/* ---- ranks that are processes: first, while this process has no threads ---- */

static int order_of_process(const rank_child *child, fsdp_context *context)
{
    return play_order(context, (told){(uint64_t)child->number, true}, false) == FSDP_OK ? RANK_RIGHT : 1;
}

TEST_WITH(processes_use_what_they_have_in_common_in_any_order, rank_peer_one_gpu, rank_peer_any_gpus)
{
    dice_seeds seeds = dice_seeds_of("REGIONS", SEEDS);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        rank_children_run((rank_child){.world = 2 + (int)(seed % 3), .number = (int)seed}, order_of_process);
}

/* ---- ranks that are threads ---- */

static void order_of_thread(fsdp_context *context, void *arg)
{
    CHECK_OK(play_order(context, *(const told *)arg, true));
}

TEST_WITH(threads_do_so_too, rank_peer_one_gpu, rank_peer_any_gpus)
{
    dice_seeds seeds = dice_seeds_of("REGIONS", SEEDS);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        test_run_ranks(2 + (int)(seed % 3), order_of_thread, &(told){seed, true});
        check_nothing_lives();
    }
}

static void order_that_fails(fsdp_context *context, void *arg)
{
    (void)play_order(context, *(const told *)arg, true);
}

/* No stream stands, since whoever fails waits for what it still does. A rank of a world that has ended may leave memory
 * that a late one has open, so nobody looks at that. */
TEST_WITH(a_call_that_fails_in_any_order_hangs_nobody, rank_peer_one_gpu, rank_peer_any_gpus)
{
    static const char *const calls[] = {"cudaEventRecord",      "cudaStreamQuery",      "cudaEventQuery",
                                        "cudaHostUnregister",   "cudaHostRegister",     "cudaFreeAsync",
                                        "cuStreamWriteValue32", "cuStreamWaitValue32",  "cudaMalloc",
                                        "cudaMemcpyAsync",      "cudaEventSynchronize", "cudaEventCreateWithFlags"};
    dice_seeds seeds = dice_seeds_of("REGIONS", SEEDS);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        uint64_t dice = 77 * seed;
        const char *call = calls[dice_below(&dice, (int)FSDP__COUNT_OF(calls))];
        bool lost = dice_chance(&dice, 50);
        char text[4096];

        fakecuda.fail_call(call, 1 + dice_below(&dice, 60), lost ? 700 : 801, lost);
        (void)test_try_ranks(2 + (int)(seed % 3), order_that_fails, &(told){seed, false}, text, sizeof text);
        fakecuda.mend();
    }
}

#endif
