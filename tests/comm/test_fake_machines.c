/* What a fake world of several machines counts is what a real one does: bytes and messages of every rank, kind by kind,
 * of collectives of all sizes, in memory of all sorts, in groups of all shapes. */
#include "comm/group_calls.h"
#include "comm/transport/network/shape.h"
#include "support/ranks.h"

typedef struct world {
    int machines, ranks; /* of each */
    bool one_level, force_copy;
} world;

enum {
    MOST_RANKS = 8,
    SOME_RANKS = 6, /* of which groups are made */
    BYTES = 9 << 20 /* of a buffer: several pieces, and several batches */
};

/* By rank, of one step of counted calls. */
typedef struct counted {
    world world;
    fsdp_comm_stats of[MOST_RANKS];
} counted;

/* ---- calls ---- */

static void call_plain(fsdp_process_group *group, char *send, char *recv, fsdp_stream *stream)
{
    static const int64_t counts[] = {0, 1, 1000, 1025, 200003};
    int size = fsdp_process_group_size(group);

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t n = counts[i];

        CHECK_OK(fsdp_all_gather(group, send, recv, n, FSDP_F32, stream));
        CHECK_OK(fsdp_reduce_scatter(group, send, recv, n, FSDP_F32, FSDP_SUM, stream));
        CHECK_OK(fsdp_all_reduce(group, send, recv, n, FSDP_F32, FSDP_AVG, stream));
        CHECK_OK(fsdp_broadcast(group, recv, n, FSDP_F32, size - 1, stream));
        CHECK_OK(fsdp_broadcast(group, recv, n, FSDP_F32, 0, stream));
        CHECK_OK(fsdp_all_to_all(group, send, recv, n, FSDP_F32, stream));
    }
    CHECK_OK(fsdp_barrier(group));
    CHECK_OK(fsdp_agree(group, FSDP_OK));
}

static void call_with_flags(fsdp_process_group *group, char *send, fsdp_stream *stream)
{
    uint8_t flags[] = {1, 0, 1}, all[] = {1, 1}, alike[][2] = {{1, 1}, {1, 0}, {1, 1}, {0, 1}}, complete = 0;
    bool lacking = false;

    CHECK_OK(fsdp__process_group_any(group, &(fsdp__any){.flags = flags,
                                                         .count = 3,
                                                         .stream = stream,
                                                         .send = send,
                                                         .recv = send,
                                                         .numel = 5000,
                                                         .dtype = FSDP_F32}));
    CHECK_OK(fsdp__process_group_any(
        group,
        &(fsdp__any){
            .flags = all, .count = 2, .stream = stream, .send = send, .recv = send, .numel = 5, .dtype = FSDP_F32}));
    CHECK_OK(fsdp__process_group_any(group, &(fsdp__any){.flags = &complete,
                                                         .count = 1,
                                                         .lacking = &lacking,
                                                         .stream = stream,
                                                         .send = send,
                                                         .recv = send,
                                                         .numel = 5,
                                                         .dtype = FSDP_F32,
                                                         .labelled = true}));
    /* Calls that differ in the flags alone do not send the same. */
    for (int i = 0; i < 4; i++)
        CHECK_OK(fsdp__process_group_any(group, &(fsdp__any){.flags = alike[i],
                                                             .count = 2,
                                                             .stream = stream,
                                                             .send = send,
                                                             .recv = send,
                                                             .numel = 70,
                                                             .dtype = FSDP_F32}));
    CHECK_OK(fsdp_stream_synchronize(stream));
}

/* Rows of all sizes, some ranks without any, in runs, converted. */
static int make_buffers(int size, char *unsharded, char *shard, fsdp_sharded_buffer *out)
{
    static const int64_t numels[] = {1001, 3, 40, 300007, 0, 64};

    for (int i = 0; i < 6; i++) {
        out[i] = (fsdp_sharded_buffer){.unsharded = unsharded + i * (BYTES / 6) / 64 * 64,
                                       .shard = shard + i * (BYTES / 6) / 64 * 64,
                                       .numel = numels[i],
                                       .chunk = (numels[i] + size - 1) / size,
                                       .outer = i == 2 ? 3 : 1,
                                       .unsharded_dtype = FSDP_F32,
                                       .shard_dtype = FSDP_F32,
                                       .reduce_dtype = i == 1 ? FSDP_BF16 : FSDP_DTYPE_NONE};
    }
    return 6;
}

static void call_coalesced(fsdp_process_group *group, char *gathered, char *visible, char *shard, fsdp_stream *stream)
{
    fsdp_reduce_options options = {.op = FSDP_AVG};
    fsdp_sharded_buffer buffers[6];
    int size = fsdp_process_group_size(group), count = make_buffers(size, gathered, shard, buffers);

    CHECK_OK(fsdp_all_gather_coalesced(group, buffers, count, stream));
    count = make_buffers(size, visible, shard, buffers);
    CHECK_OK(fsdp_reduce_scatter_coalesced(group, buffers, count, &options, stream));
    CHECK_OK(fsdp_barrier(group));
    buffers[0].unsharded = buffers[3].unsharded = NULL; /* nobody has anything for them */
    CHECK_OK(fsdp_reduce_scatter_coalesced(group, buffers, count, &options, stream));
    CHECK_OK(fsdp_barrier(group));
    for (int i = 0; i < count; i++)
        buffers[i].unsharded = NULL;
    CHECK_OK(fsdp_reduce_scatter_coalesced(group, buffers, count, &options, stream));
    CHECK_OK(fsdp_barrier(group));
}

/* In memory that ranks share, where there is such memory, and in their own, which threads are told to take for that. */
static void call_all(fsdp_process_group *group, const world *w)
{
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(group))));
    char *send = calloc(MOST_RANKS, BYTES), *recv = calloc(MOST_RANKS, BYTES);
    void *shared = NULL, *visible = NULL;

    call_plain(group, send, recv, stream);
    call_with_flags(group, send, stream);
    fsdp_process_group_force_copy(group, w->force_copy || w->ranks > 1);
    call_coalesced(group, recv, send, recv + BYTES, stream);
    fsdp_process_group_force_copy(group, w->force_copy);
    if (fsdp_process_group_can_share(group, FSDP_MEMORY_SHARED)) {
        CHECK_OK(fsdp_process_group_alloc(group, FSDP_MEMORY_SHARED, BYTES, &shared));
        CHECK_OK(fsdp_process_group_alloc(group, FSDP_MEMORY_SYMMETRIC, BYTES, &visible));
        memset(visible, 0, BYTES);
        call_coalesced(group, shared, visible, recv, stream);
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SYMMETRIC, visible, BYTES);
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, shared, BYTES);
    }
    free(recv);
    free(send);
}

static void call_in_group(fsdp_context *context, const int *ranks, int count, const world *w)
{
    fsdp_process_group *group;

    CHECK_OK(fsdp_process_group_create(context, ranks, count, "some", &group));
    if (!group)
        return;
    call_all(group, w);
    fsdp_process_group_free(group);
}

/* The world; of 3 x 2 ranks also a part of it on one machine, a column, and what is neither. */
static void call_everything(fsdp_context *context, counted *c)
{
    fsdp_process_group *all = fsdp_world(context);

    call_all(all, &c->world);
    if (fsdp_process_group_size(all) == SOME_RANKS) {
        call_in_group(context, (const int[]){2, 3}, 2, &c->world);
        call_in_group(context, fsdp_context_rank(context) % 2 ? (const int[]){1, 3, 5} : (const int[]){0, 2, 4}, 3,
                      &c->world);
        call_in_group(context, (const int[]){0, 1, 3}, 3, &c->world);
    }
    fsdp_context_comm_stats(context, &c->of[fsdp_context_rank(context)]);
}

static void call_really(fsdp_context *context, void *arg)
{
    call_everything(context, arg);
}

static void call_on_paper(counted *c)
{
    for (int rank = 0; rank < c->world.machines * c->world.ranks; rank++) {
        fsdp_context *context;

        CHECK_OK(
            fsdp_context_create_fake_machines(rank, c->world.machines, c->world.ranks, c->world.one_level, &context));
        call_everything(context, c);
        fsdp_context_free(context);
    }
}

/* ---- the comparison ---- */

static void compare(const counted *was, const counted *said)
{
    for (int rank = 0; rank < was->world.machines * was->world.ranks; rank++)
        for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
            const fsdp_comm_stats *a = &said->of[rank], *b = &was->of[rank];

            if (a->network_sent[kind] != b->network_sent[kind] ||
                a->network_received[kind] != b->network_received[kind] ||
                a->network_messages[kind] != b->network_messages[kind])
                test_fail(__FILE__, __LINE__,
                          "%d x %d%s%s, rank %d, %s: said %lld sent, %lld received, %lld messages; was %lld, %lld, "
                          "%lld",
                          was->world.machines, was->world.ranks, was->world.one_level ? " one level" : "",
                          was->world.force_copy ? " copied" : "", rank, fsdp_collective_name((fsdp_collective)kind),
                          (long long)a->network_sent[kind], (long long)a->network_received[kind],
                          (long long)a->network_messages[kind], (long long)b->network_sent[kind],
                          (long long)b->network_received[kind], (long long)b->network_messages[kind]);
        }
}

TEST(paper_counts_what_a_network_does)
{
    static const world worlds[] = {
        {2, 1, false, false}, {2, 2, false, false}, {3, 1, false, false}, {3, 2, false, false},
        {2, 1, true, false},  {2, 2, true, false},  {3, 2, true, false},  {3, 2, false, true},
        {2, 1, false, true},  {4, 2, true, false},  {2, 4, true, false},
    };

    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i += test_brief() ? 5 : 1) {
        counted was = {.world = worlds[i]}, said = was;

        test_run_machines(worlds[i].machines, worlds[i].ranks, worlds[i].one_level, call_really, &was);
        call_on_paper(&said);
        compare(&was, &said);
    }
}

/* What one rank is said to send is what its counterparts receive, however many there are. */
TEST(machines_send_what_others_receive)
{
    enum {
        MACHINES = 1024,
        RANKS = 64,
        COUNT = 1 << 20
    };
    fsdp_context *context;
    fsdp_comm_stats stats;
    float *buffer = calloc(COUNT, sizeof *buffer);
    fsdp_process_group *group;

    CHECK_OK(fsdp_context_create_fake_machines(MACHINES * RANKS - 1, MACHINES, RANKS, false, &context));
    CHECK_EQ(fsdp_context_machines(context), MACHINES);
    CHECK_EQ(fsdp_context_machine(context), MACHINES - 1);
    CHECK_EQ(fsdp_context_local_rank(context), RANKS - 1);
    CHECK_EQ(fsdp_context_local_world_size(context), RANKS);
    group = fsdp_world(context);
    CHECK_EQ(fsdp__process_group_machines(group), MACHINES);
    CHECK_OK(fsdp_all_reduce(group, buffer, buffer, COUNT, FSDP_F32, FSDP_SUM, fsdp_device_stream(fsdp_cpu(context))));
    fsdp_process_group_stats(group, &stats);
    CHECK_EQ(stats.network_sent[FSDP_ALL_REDUCE], 2 * (MACHINES - 1) * 64);
    CHECK_EQ(stats.network_received[FSDP_ALL_REDUCE], 2 * (MACHINES - 1) * 64);
    CHECK_EQ(stats.network_messages[FSDP_ALL_REDUCE], 2 * (MACHINES - 1));
    fsdp_context_free(context);
    free(buffer);
}

/* However its ranks lie: who goes through rounds waits for others that do. */
TEST(ranks_of_a_group_agree_on_rounds)
{
    uint64_t random = 1;
    int meet_in_rounds = 0;

    for (int i = 0; i < 20000; i++) {
        int ranks[64], count = 0, rounds = -1, machine_ranks, most;

        random = random * 6364136223846793005u + 1442695040888963407u;
        machine_ranks = 1 + (int)(random >> 60) % 4;
        most = (random >> 40) % 2 ? 2 << (random >> 50) % 5 : 64;
        for (int r = 0; r < 200 && count < most; r++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            if ((random >> 50) % 3 > 0)
                ranks[count++] = r;
        }
        for (int r = 0; r < count; r++) {
            fsdp__group_shape s = fsdp__group_shape_of(ranks, count, r, machine_ranks, i % 2);

            CHECK(r == 0 || s.rounds == rounds);
            rounds = s.rounds;
        }
        meet_in_rounds += rounds > 0;
    }
    CHECK(meet_in_rounds > 20);
}

TEST(worlds_that_cannot_be_are_refused)
{
    fsdp_context *context;

    CHECK_ERROR(fsdp_context_create_fake_machines(0, 0, 2, false, &context), FSDP_INVALID,
                "cannot make a fake world of 0 machines with 2 ranks");
    CHECK_ERROR(fsdp_context_create_fake_machines(0, 2, -1, false, &context), FSDP_INVALID, "2 machines with -1 ranks");
    CHECK_ERROR(fsdp_context_create_fake_machines(0, 1 << 20, 1 << 20, false, &context), FSDP_INVALID,
                "cannot make a fake world");
    CHECK_ERROR(fsdp_context_create_fake_machines(4, 2, 2, false, &context), FSDP_INVALID, "rank 4 is not in a world");
    CHECK_ERROR(fsdp_context_create_fake_machines(0, 2, 2, false, NULL), FSDP_INVALID, "cannot make a fake world");
}
