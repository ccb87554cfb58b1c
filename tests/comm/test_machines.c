/* test_machines.c - collectives of ranks on several machines: naive results, the bits of one machine that adds in their
 * order, and bytes over the network to the byte. */
#include "comm/group_calls.h"
#include "comm/suite_mixed.h"
#include "comm/transport/network/meeting.h"
#include "support/ranks.h"

typedef struct shape {
    int machines, ranks; /* of each */
} shape;

static const shape shapes[] = {{2, 2}, {2, 1}, {3, 2}, {3, 1}};
static const shape larger[] = {{4, 2}, {2, 4}, {4, 1}}; /* of which the first two meet in rounds in one level */

enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    LARGER = sizeof larger / sizeof *larger
};

/* ---- naive results ---- */

static void run_suite(fsdp_context *context, void *arg)
{
    const fsdp_stream_mode *mode = arg;
    suite s = {.group = fsdp_world(context)};

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), *mode, &s.stream));
    suite_plain(&s);
    suite_blocks(&s);
    suite_objects(s.group);
    suite_mixed(&s, 100 * (uint64_t)fsdp_process_group_size(s.group), test_brief() ? 3 : 6);
    fsdp_stream_free(s.stream);
}

TEST(every_shape_gives_naive_results)
{
    fsdp_stream_mode mode = FSDP_STREAM_INLINE, worker = FSDP_STREAM_WORKER;

    test_run_machines(2, 2, false, run_suite, &worker);
    if (test_brief())
        return;
    for (int i = 0; i < SHAPES; i++) {
        test_run_machines(shapes[i].machines, shapes[i].ranks, false, run_suite, &mode);
        if (i == 0 || test_long())
            test_run_machines(shapes[i].machines, shapes[i].ranks, true, run_suite, i == 0 ? &worker : &mode);
    }
    for (int i = 0; i < LARGER; i += test_long() ? 1 : 2)
        test_run_machines(larger[i].machines, larger[i].ranks, true, run_suite, &mode);
}

/* ---- the same bits ---- */

enum {
    NUMEL = 30011, /* in pieces, and of no round number */
    FEW = 10,      /* go along with headers */
    MOST_RANKS = 8
};

typedef struct bits {
    int by; /* ranks to a machine that one machine is told to add by; 0: there are several */
    bool force_copy, one_level;
    fsdp_dtype dtype;
    unsigned char *reduced[MOST_RANKS], *gathered[MOST_RANKS], *scattered[MOST_RANKS];
} bits;

static void fill(void *buffer, int64_t count, fsdp_dtype dtype, int rank)
{
    for (int64_t i = 0; i < count; i++) {
        float x = (float)((i * 7919 + rank * 104729) % 10007) / (float)(rank + 3);

        if (dtype == FSDP_F32)
            ((float *)buffer)[i] = x;
        else
            ((uint16_t *)buffer)[i] = suite_bf16(x);
    }
}

/* In parts of a size for each way to do it. */
static void average(fsdp_process_group *world, const void *send, void *recv, fsdp_dtype dtype, fsdp_stream *stream)
{
    static const int64_t counts[] = {FEW, 1001, 3001, 5003, NUMEL - FEW - 1001 - 3001 - 5003};
    size_t at = 0;

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        CHECK_OK(
            fsdp_all_reduce(world, (const char *)send + at, (char *)recv + at, counts[i], dtype, FSDP_AVG, stream));
        at += (size_t)counts[i] * fsdp_dtype_size(dtype);
    }
}

/* All reductions of what the ranks hold, into `b`. */
static void reduce_everything(fsdp_context *context, void *arg)
{
    bits *b = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_process_group_rank(world), size = fsdp_process_group_size(world);
    size_t element = fsdp_dtype_size(b->dtype), bytes = NUMEL * element;
    int64_t chunk = (NUMEL + size - 1) / size;
    fsdp_reduce_options options = {.op = FSDP_AVG};
    void *send = malloc((size_t)size * bytes), *visible = NULL;
    fsdp_sharded_buffer buffer = {.shard = b->scattered[rank],
                                  .numel = NUMEL,
                                  .chunk = chunk,
                                  .unsharded_dtype = b->dtype,
                                  .shard_dtype = FSDP_F32,
                                  .reduce_dtype = b->dtype};

    if (b->by > 0)
        fsdp__context_add_by_machine(context, b->by);
    fsdp_process_group_force_copy(world, b->force_copy);
    fill(send, size * (int64_t)NUMEL, b->dtype, rank);
    average(world, send, b->reduced[rank], b->dtype, stream);
    CHECK_OK(fsdp_reduce_scatter(world, send, b->gathered[rank], NUMEL, b->dtype, FSDP_SUM, stream));
    CHECK_OK(fsdp_reduce_scatter(world, send, b->gathered[rank], FEW, b->dtype, FSDP_SUM, stream));
    if (!b->one_level)
        CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, bytes, &visible));
    else
        CHECK_PTR(visible = malloc(bytes));
    memcpy(visible, send, bytes);
    buffer.unsharded = rank == 1 ? NULL : visible; /* one has nothing to add */
    CHECK_OK(fsdp_reduce_scatter_coalesced(world, &buffer, 1, &options, stream));
    CHECK_OK(fsdp_barrier(world));
    if (!b->one_level)
        fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, visible, bytes);
    else
        free(visible);
    free(send);
}

static void make_bits(bits *b)
{
    for (int r = 0; r < MOST_RANKS; r++) {
        b->reduced[r] = calloc(NUMEL, 4);
        b->gathered[r] = calloc(NUMEL, 4);
        b->scattered[r] = calloc(NUMEL, 4);
    }
}

static void check_equal(const bits *a, const bits *b, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        CHECK_BYTES(a->reduced[r], b->reduced[r], NUMEL * 4);
        CHECK_BYTES(a->gathered[r], b->gathered[r], NUMEL * 4);
        CHECK_BYTES(a->scattered[r], b->scattered[r], NUMEL * 4);
    }
}

static void free_bits(bits *b)
{
    for (int r = 0; r < MOST_RANKS; r++) {
        free(b->reduced[r]);
        free(b->gathered[r]);
        free(b->scattered[r]);
    }
}

TEST(bits_are_those_of_one_machine_that_adds_so)
{
    for (int i = 0; i < SHAPES * 4 + 2; i += test_long() ? 1 : test_brief() ? 11 : 3) {
        const shape *s = i < SHAPES * 4 ? &shapes[i / 4] : &larger[0];
        bits one = {.by = s->ranks, .force_copy = i % 2, .dtype = i / 2 % 2 ? FSDP_BF16 : FSDP_F32};
        bits several = {.dtype = one.dtype, .force_copy = i % 3 == 0};
        bits flat = {.dtype = one.dtype, .one_level = true, .force_copy = i % 3 == 1};

        make_bits(&one);
        make_bits(&several);
        make_bits(&flat);
        test_run_ranks(s->machines * s->ranks, reduce_everything, &one);
        test_run_machines(s->machines, s->ranks, false, reduce_everything, &several);
        test_run_machines(s->machines, s->ranks, true, reduce_everything, &flat);
        check_equal(&one, &several, s->machines * s->ranks);
        check_equal(&one, &flat, s->machines * s->ranks);
        free_bits(&flat);
        free_bits(&several);
        free_bits(&one);
    }
}

/* ---- bytes over the network ---- */

typedef struct counting {
    shape shape;
    bool one_level;
} counting;

static void check_network(fsdp_process_group *group, fsdp_collective kind, int64_t sent, int64_t received,
                          int64_t messages)
{
    fsdp_comm_stats stats;

    fsdp_process_group_stats(group, &stats);
    CHECK_EQ(stats.network_sent[kind], sent);
    CHECK_EQ(stats.network_received[kind], received);
    CHECK_EQ(stats.network_messages[kind], messages);
}

static int halvings(int n)
{
    return n > 1 ? 1 + halvings(n / 2) : 0;
}

enum {
    COUNT = 24 * 1024, /* divides by all shapes, in lines of memory */
    PIECES = 2,        /* of 60 KiB at most, that so many go in; of what a rank reduces: 1 */
    WHOLE = 3000       /* are added up whole */
};

/* What a shape makes of calls: others of a rank's column that are elsewhere, and messages with headers, to each of them
 * or in rounds. */
typedef struct forms {
    int size, columns, elsewhere, others, counterparts, headers;
    bool by_machine, in_rounds;
} forms;

static forms forms_of(const counting *c)
{
    int machines = c->shape.machines, ranks = c->shape.ranks, size = machines * ranks;
    forms f = {.size = size, .elsewhere = size - ranks, .counterparts = machines - 1};

    f.columns = c->one_level ? size : machines;
    f.others = c->one_level ? f.elsewhere : f.counterparts;
    f.by_machine = c->one_level && ranks > 1; /* then what an all_reduce begins with stays on the machine */
    f.in_rounds = f.by_machine && (size & (size - 1)) == 0;
    f.headers = f.in_rounds ? halvings(machines) : f.others;
    return f;
}

/* Up to so many floats for a rank go along with a header. */
static int64_t most_along(const forms *f)
{
    return (f->in_rounds ? 60 * 1024 / (f->columns / 2) - (int64_t)sizeof(fsdp__header) : 32 * 1024) / 4;
}

static void count_gathers(fsdp_process_group *world, const forms *f, float *send, float *recv, fsdp_stream *stream)
{
    int64_t along = most_along(f);
    int64_t bytes = (int64_t)f->others * COUNT * 4;

    CHECK_OK(fsdp_all_gather(world, send, recv, COUNT, FSDP_F32, stream));
    check_network(world, FSDP_ALL_GATHER, bytes, bytes, f->headers + PIECES * f->others);
    CHECK_OK(fsdp_all_gather(world, send, recv, along, FSDP_F32, stream));
    CHECK_OK(fsdp_all_gather(world, send, recv, along + 1, FSDP_F32, stream));
    bytes += f->others * (2 * along + 1) * 4;
    check_network(world, FSDP_ALL_GATHER, bytes, bytes, 3 * f->headers + (PIECES + 1) * f->others);
}

static void count_scatters(fsdp_process_group *world, const forms *f, float *send, float *recv, fsdp_stream *stream)
{
    int64_t bytes = (int64_t)f->others * COUNT * 4, messages = f->headers + PIECES * f->others;
    int64_t along = most_along(f);

    CHECK_OK(fsdp_reduce_scatter(world, send, recv, COUNT, FSDP_F32, FSDP_SUM, stream));
    check_network(world, FSDP_REDUCE_SCATTER, bytes, bytes, messages);
    CHECK_OK(fsdp_reduce_scatter(world, send, recv, along, FSDP_F32, FSDP_SUM, stream));
    bytes += along * 4 * (f->in_rounds ? f->headers * f->columns / 2 : f->others); /* half of all parts in a round */
    messages += f->headers;
    check_network(world, FSDP_REDUCE_SCATTER, bytes, bytes, messages);
    CHECK_OK(fsdp_reduce_scatter(world, send, recv, along + 1, FSDP_F32, FSDP_SUM, stream));
    bytes += (along + 1) * 4 * f->others;
    messages += f->headers + f->others;
    check_network(world, FSDP_REDUCE_SCATTER, bytes, bytes, messages);
}

static void count_all_reduces(fsdp_process_group *world, const forms *f, float *send, float *recv, fsdp_stream *stream)
{
    bool along = COUNT / f->size * 4 <= 32 * 1024 && !f->by_machine && !f->in_rounds; /* the first of two exchanges */
    int64_t bytes = 2 * (int64_t)f->counterparts * COUNT * 4 / f->size;
    int64_t messages = f->headers + (along ? 1 : 2) * f->counterparts;
    uint8_t flags[] = {1, 0, 1};

    CHECK_OK(fsdp_all_reduce(world, send, recv, COUNT, FSDP_F32, FSDP_SUM, stream));
    check_network(world, FSDP_ALL_REDUCE, bytes, bytes, messages);
    CHECK_OK(fsdp_all_reduce(world, send, recv, FEW, FSDP_F32, FSDP_SUM, stream));
    bytes += (int64_t)f->others * FEW * 4;
    messages += f->headers;
    check_network(world, FSDP_ALL_REDUCE, bytes, bytes, messages);
    CHECK_OK(fsdp__process_group_any(world, &(fsdp__any){.flags = flags,
                                                         .count = 3,
                                                         .stream = stream,
                                                         .send = send,
                                                         .recv = send,
                                                         .numel = FEW,
                                                         .dtype = FSDP_F32}));
    bytes += (int64_t)f->others * FEW * 4; /* flags are no bytes of a buffer */
    messages += f->headers + f->others;
    check_network(world, FSDP_ALL_REDUCE, bytes, bytes, messages);
    if (!f->by_machine)
        return;
    CHECK_OK(fsdp_all_reduce(world, send, recv, WHOLE, FSDP_F32, FSDP_SUM, stream));
    bytes += (int64_t)f->counterparts * WHOLE * 4;
    messages += f->headers + f->counterparts;
    check_network(world, FSDP_ALL_REDUCE, bytes, bytes, messages);
}

static void count_bytes(fsdp_context *context, void *arg)
{
    const counting *c = arg;
    const forms f = forms_of(c);
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_process_group_rank(world);
    int64_t n = COUNT * 4, away = f.elsewhere * n;
    bool is_root = rank == f.size - 1, gets = (c->one_level || (rank + 1) % c->shape.ranks == 0) && rank < f.elsewhere;
    float *send = calloc((size_t)f.size * COUNT, 4), *recv = calloc((size_t)f.size * COUNT, 4);

    count_gathers(world, &f, send, recv, stream);
    count_scatters(world, &f, send, recv, stream);
    count_all_reduces(world, &f, send, recv, stream);
    CHECK_OK(fsdp_broadcast(world, send, COUNT, FSDP_F32, f.size - 1, stream));
    check_network(world, FSDP_BROADCAST, is_root ? f.others * n : 0, gets ? n : 0,
                  f.headers + is_root * PIECES * f.others);
    CHECK_OK(fsdp_all_to_all(world, send, recv, COUNT, FSDP_F32, stream));
    check_network(world, FSDP_ALL_TO_ALL, away, away, f.headers + PIECES * f.elsewhere);
    CHECK_OK(fsdp_barrier(world));
    check_network(world, FSDP_BARRIER, 0, 0, f.headers);
    free(recv);
    free(send);
}

TEST(bytes_over_the_network_are_the_closed_forms)
{
    for (int i = 0; i < SHAPES * 2; i++) {
        counting c = {shapes[i / 2], i % 2 == 1};

        test_run_machines(c.shape.machines, c.shape.ranks, c.one_level, count_bytes, &c);
    }
    for (int i = 0; i < LARGER * 2; i++) {
        counting c = {larger[i / 2], i % 2 == 1};

        test_run_machines(c.shape.machines, c.shape.ranks, c.one_level, count_bytes, &c);
    }
}

/* What lies in the machine's memory travels without padding and once to a machine: rows of all sizes, in runs too. */
static void count_rows(fsdp_context *context, void *arg)
{
    const counting *c = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int size = fsdp_process_group_size(world), rank = fsdp_process_group_rank(world), others = c->shape.machines - 1;
    int64_t numels[] = {1001, 6, 40}, outers[] = {1, 3, 1}, own = 0, column = 0;
    fsdp_sharded_buffer buffers[3];
    fsdp_reduce_options options = {.op = FSDP_SUM};
    float *shards = calloc(4096, sizeof *shards), *memory = NULL, *mine = NULL;
    size_t bytes = 8192 * sizeof *memory;

    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, bytes, (void **)&memory));
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, bytes, (void **)&mine));
    memset(mine, 0, bytes);
    for (int i = 0; i < 3; i++) {
        buffers[i] = (fsdp_sharded_buffer){.unsharded = memory + 2048 * i,
                                           .shard = shards + 1024 * i,
                                           .numel = numels[i],
                                           .chunk = (numels[i] + size - 1) / size,
                                           .outer = outers[i],
                                           .unsharded_dtype = FSDP_F32,
                                           .shard_dtype = FSDP_F32};
        own += outers[i] * suite_rows(&buffers[i], rank) * 4;
        for (int p = 0; p < c->shape.machines; p++)
            column += outers[i] * suite_rows(&buffers[i], p * c->shape.ranks + rank % c->shape.ranks) * 4;
    }
    CHECK_OK(fsdp_all_gather_coalesced(world, buffers, 3, stream));
    check_network(world, FSDP_ALL_GATHER, others * own, column - own, others); /* along with headers */
    for (int i = 0; i < 3; i++)
        buffers[i].unsharded = mine + 2048 * i;
    CHECK_OK(fsdp_reduce_scatter_coalesced(world, buffers, 3, &options, stream));
    check_network(world, FSDP_REDUCE_SCATTER, column - own, others * own, 2 * others);
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, mine, bytes);
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, memory, bytes);
    free(shards);
}

TEST(rows_enter_a_machine_once)
{
    CHECK(sizeof(fsdp__header) <= 256); /* as docs/cluster.md says */
    for (int i = 0; i < SHAPES; i++)
        test_run_machines(shapes[i].machines, shapes[i].ranks, false, count_rows, &(counting){.shape = shapes[i]});
}

/* ---- groups ---- */

/* One element, and many: in shares of odd sizes. */
static void add_up(fsdp_process_group *group, int mine, int all, fsdp_stream *stream)
{
    static const int64_t counts[] = {1, 5003, 10007};
    int32_t *values = calloc(10007, sizeof *values);

    for (size_t c = 0; c < 3; c++) {
        for (int64_t i = 0; i < counts[c]; i++)
            values[i] = mine * (int32_t)(i % 101 + 1);
        CHECK_OK(fsdp_all_reduce(group, values, values, counts[c], FSDP_I32, FSDP_SUM, stream));
        for (int64_t i = 0; i < counts[c]; i++)
            CHECK_EQ(values[i], all * (int32_t)(i % 101 + 1));
    }
    free(values);
}

/* Of the group's ranks, if this is one. */
static void try_group(fsdp_context *context, const int *ranks, int count, int machines, bool shares)
{
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    fsdp_process_group *group;
    int all = 0;
    void *memory = NULL;

    CHECK_OK(fsdp_process_group_create(context, ranks, count, "some", &group));
    if (!group)
        return;
    CHECK_EQ(fsdp__process_group_machines(group), machines);
    CHECK_EQ(fsdp_process_group_can_share(group, FSDP_MEMORY_SHARED), shares);
    for (int r = 0; r < count; r++)
        all += ranks[r] + 1;
    for (int i = 0; i < 3; i++)
        add_up(group, fsdp_context_rank(context) + 1, all, stream);
    if (shares) {
        CHECK_OK(fsdp_process_group_alloc(group, FSDP_MEMORY_SHARED, 4096, &memory));
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, memory, 4096);
    } else {
        CHECK_ERROR(fsdp_process_group_alloc(group, FSDP_MEMORY_SHARED, 4096, &memory), FSDP_UNSUPPORTED,
                    "has no memory that peers see");
    }
    fsdp_process_group_free(group);
}

static void make_groups(fsdp_context *context, void *arg)
{
    (void)arg;
    try_group(context, (const int[]){2, 3}, 2, 1, true);
    try_group(context, (const int[]){0, 2, 4}, 3, 3, true);
    try_group(context, (const int[]){2, 3, 4, 5}, 4, 2, true);
    try_group(context, (const int[]){0, 3}, 2, 2, false);
    try_group(context, (const int[]){0, 1, 2}, 3, 2, false);
    /* Side by side, under one name. */
    try_group(context, fsdp_context_rank(context) % 2 ? (const int[]){1, 3, 5} : (const int[]){0, 2, 4}, 3, 3, true);
}

/* Two of each machine, but others on each: flat, and what is added first is. */
static void make_uneven_groups(fsdp_context *context, void *arg)
{
    (void)arg;
    try_group(context, (const int[]){0, 1, 4, 5, 6, 8}, 6, 3, false);
    try_group(context, (const int[]){0, 1, 2, 6, 7, 8}, 6, 2, true);
    try_group(context, (const int[]){0, 2, 7, 8}, 4, 2, false);
}

TEST(groups_are_local_regular_or_flat)
{
    test_run_machines(3, 2, false, make_groups, NULL);
    test_run_machines(3, 3, false, make_uneven_groups, NULL);
}

/* Each machine has its own region; none has one where a rank cannot. */
static void share_on_each_machine(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_process_group_rank(world);
    int *memory = NULL;

    (void)arg;
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, 64, (void **)&memory));
    memory[rank % 2] = rank;
    CHECK_OK(fsdp_barrier(world));
    CHECK_EQ(memory[0], rank / 2 * 2);
    CHECK_EQ(memory[1], rank / 2 * 2 + 1);
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, memory, 64);
}

/* By itself: who is in a call still when others come to disagree may fail in it. */
static void ask_for_other_sizes(fsdp_context *context, void *arg)
{
    void *memory;

    (void)arg;
    CHECK_STATUS(fsdp_process_group_alloc(fsdp_world(context), FSDP_MEMORY_SHARED,
                                          fsdp_context_rank(context) == 3 ? 128 : 64, &memory),
                 FSDP_MISMATCH);
}

TEST(memory_is_shared_on_each_machine)
{
    test_run_machines(2, 2, false, share_on_each_machine, NULL);
    test_run_machines(2, 2, false, ask_for_other_sizes, NULL);
}

/* ---- ranks that disagree ---- */

static void disagree(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    float one = 1;

    (void)arg;
    CHECK_ERROR(fsdp_context_rank(context) == 1 ? fsdp_broadcast(world, &one, 1, FSDP_F32, 0, stream)
                                                : fsdp_all_reduce(world, &one, &one, 1, FSDP_F32, FSDP_SUM, stream),
                FSDP_MISMATCH, "ranks disagree in group 'world': call 1 is ");
    CHECK_CONTAINS(fsdp_last_error(), "all_reduce sum of 4 bytes float32 on rank ");
    CHECK_CONTAINS(fsdp_last_error(), "broadcast of 4 bytes float32 from group rank 0 on rank 1");
}

/* Some gather and some scatter, as much as goes along. */
static void disagree_at_large(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int size = fsdp_process_group_size(world), *gatherers = arg;
    int64_t count = (60 * 1024 / (size / 2) - (int64_t)sizeof(fsdp__header)) / 4;
    float *part = CHECK_PTR(calloc((size_t)count, 4)), *all = CHECK_PTR(calloc((size_t)(size * count), 4));

    CHECK_ERROR(*gatherers >> fsdp_context_rank(context) & 1
                    ? fsdp_all_gather(world, part, all, count, FSDP_F32, stream)
                    : fsdp_reduce_scatter(world, all, part, count, FSDP_F32, FSDP_SUM, stream),
                FSDP_MISMATCH, "ranks disagree in group 'world': call 1 is ");
    CHECK_CONTAINS(fsdp_last_error(), "all_gather of ");
    CHECK_CONTAINS(fsdp_last_error(), "reduce_scatter sum of ");
    free(all);
    free(part);
}

TEST(ranks_that_disagree_are_named_everywhere)
{
    int gatherers[] = {0x1, 0x2, 0x8, 0xe, 0xd};

    test_run_machines(2, 1, false, disagree, NULL);
    test_run_machines(2, 2, false, disagree, NULL);
    test_run_machines(3, 2, true, disagree, NULL);
    test_run_machines(2, 2, true, disagree, NULL); /* in rounds */
    test_run_machines(4, 2, true, disagree, NULL);
    for (size_t i = 0; i < sizeof gatherers / sizeof *gatherers; i++) {
        test_run_machines(2, 2, true, disagree_at_large, &gatherers[i]);
        test_run_machines(4, 2, true, disagree_at_large, &gatherers[i]);
    }
}

static void agree_on_a_failure(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_context_rank(context), ranks[1];
    fsdp_process_group *alone = NULL;
    fsdp_status mine = rank < 2 ? FSDP_OK : FSDP_FAIL(FSDP_IO, "cannot write 'x'");

    (void)arg;
    CHECK_ERROR(fsdp_agree(world, mine), FSDP_IO, "rank 2: cannot write 'x' (machine 'b')");
    /* once is enough */
    mine = rank == 0 ? FSDP_OK : FSDP_FAIL(FSDP_IO, "rank %d: machine '%c' is full", rank, 'a' + rank / 2);
    CHECK_STATUS(fsdp_agree(world, mine), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "rank 1: machine 'a' is full");
    mine = rank == 0 ? FSDP_OK : FSDP_FAIL(FSDP_IO, "machine '%c' is full", 'a' + rank / 2);
    CHECK_STATUS(fsdp_agree(world, mine), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "rank 1: machine 'a' is full");
    ranks[0] = rank;
    CHECK_OK(fsdp_process_group_create(context, ranks, 1, "alone", &alone));
    CHECK_STATUS(fsdp_agree(alone, FSDP_FAIL(FSDP_IO, "cannot write 'x'")), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "cannot write 'x'");
    fsdp_process_group_free(alone);
}

TEST(a_rank_that_fails_is_named_with_its_machine)
{
    test_run_machines(2, 2, false, agree_on_a_failure, NULL);
    test_run_machines(2, 2, true, agree_on_a_failure, NULL);
}
