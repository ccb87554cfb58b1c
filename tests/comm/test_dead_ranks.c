/* A rank that is killed in any call, while the devices of the others wait for its (tests/backend/fakecuda), by each
 * carrier: it is named, and the others end. comm.timeout is an hour, so whoever waited for it would not end. Ranks are
 * processes. */
#include <signal.h>
#include <stdlib.h>

#include "comm/rank_peer.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <time.h>

#include "backend/fakecuda/control.h"
#include "device/device.h"

enum {
    HOUR = 3600,
    PIECES = 3 /* the piece of a call, or what stands for it, in which a rank dies */
};

/* The calls: those of the suite, and these. */
enum {
    GATHER_BUFFERS = PLAINS,
    SCATTER_BUFFERS,
    FLAGS,
    MEET, /* a barrier, which no device makes */
    CALLS
};

/* Where it dies. */
typedef enum way {
    BEFORE_IT, /* the call */
    ON_DEVICE, /* all hosts have made it, and its device never comes */
    IN_MIDDLE, /* it has issued part of it to its device, or is about to end what it has issued */
    WAYS
} way;

typedef struct rank {
    fsdp_context *context;
    fsdp_process_group *group;
    fsdp_device *device;
    fsdp_stream *stream;
    char *memory;
    size_t bytes; /* of each half of it */
    int size;
    bool nccl;
} rank;

/* What a world does, as the number of its ranks' errand. */
static int number_of(bool nccl, way how, int call)
{
    return (nccl * WAYS + (int)how) * CALLS + call;
}

static fsdp_status rank_open(fsdp_context *context, bool nccl, rank *r)
{
    int own = fsdp_context_rank(context);

    *r = (rank){.context = context, .group = fsdp_world(context), .nccl = nccl};
    r->size = fsdp_process_group_size(r->group);
    r->bytes = (size_t)r->size * RANK_PEER_LONG * sizeof(float);
    fsdp__context_set_outbox(context, RANK_PEER_OUTBOX);
    FSDP_TRY(fsdp_process_group_set_carrier(r->group, nccl ? FSDP_CARRIER_NCCL : FSDP_CARRIER_PEER));
    FSDP_TRY(fsdp_context_set_comm_timeout(context, HOUR));
    r->device = fsdp_cuda(context, own);
    if (!r->device)
        return fsdp_last_status();
    FSDP_TRY(fsdp_stream_create(r->device, FSDP_STREAM_WORKER, &r->stream));
    return fsdp__device_alloc(r->device, 2 * r->bytes, FSDP_MEMORY_ACTIVATION, (void **)&r->memory);
}

static void rank_close(rank *r)
{
    (void)fsdp_stream_synchronize(r->stream);
    fsdp__device_free(r->device, r->memory, 2 * r->bytes, FSDP_MEMORY_ACTIVATION);
    fsdp_stream_free(r->stream);
}

static fsdp_status make(const rank *r, int what)
{
    static uint8_t flags[2];
    fsdp_reduce_options options = {.op = FSDP_SUM};
    fsdp_sharded_buffer b = {.unsharded = r->memory,
                             .shard = r->memory + r->bytes,
                             .numel = r->size * RANK_PEER_LONG,
                             .chunk = RANK_PEER_LONG,
                             .unsharded_dtype = FSDP_F32,
                             .shard_dtype = FSDP_F32};
    plain_call call = {.what = (plain)what, .dtype = FSDP_F32, .count = RANK_PEER_LONG};

    switch (what) {
    case GATHER_BUFFERS:
        return fsdp_all_gather_coalesced(r->group, &b, 1, r->stream);
    case SCATTER_BUFFERS:
        return fsdp_reduce_scatter_coalesced(r->group, &b, 1, &options, r->stream);
    case FLAGS:
        return fsdp__process_group_any(r->group, &(fsdp__any){.flags = flags, .count = 2, .stream = r->stream});
    case MEET:
        return fsdp_barrier(r->group);
    default:
        return plain_make(&call, r->group, r->memory, r->memory + r->bytes, r->stream);
    }
}

static fsdp_status make_and_wait(const rank *r, int what)
{
    FSDP_TRY(make(r, what));
    return fsdp_stream_synchronize(r->stream);
}

/* Waits until every rank's host is through with the last call that this one has issued. */
static void await_hosts(const rank *r)
{
    const fsdp__board *board = rank_peer_board(r->context);
    int own = fsdp_context_rank(r->context);
    uint64_t last = atomic_load(&fsdp__desk_at(board, 0, own)->issued);

    for (int i = 0; i < r->size; i++)
        while (atomic_load(&fsdp__desk_at(board, 0, i)->done) < last)
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static _Noreturn void die(const rank *r, way how, int what)
{
    static const atomic_int never;

    if (how == ON_DEVICE)
        fakecuda.hold(fsdp_stream_native(r->stream), &never);
    if (how == IN_MIDDLE)
        fakecuda.fail_call(r->nccl ? "ncclGroupEnd" : "cuStreamWriteValue32", r->nccl ? 1 : PIECES, FAKECUDA_DIES,
                           false);
    if (how != BEFORE_IT)
        (void)make(r, what);
    if (how == ON_DEVICE)
        await_hosts(r);
    if (how == IN_MIDDLE)
        (void)fsdp_stream_synchronize(r->stream); /* its worker dies, unless the call has no such part */
    raise(SIGKILL);
    abort();
}

static int lose_a_rank(const rank_child *c, fsdp_context *context)
{
    int what = c->number % CALLS;
    way how = (way)(c->number / CALLS % WAYS);
    fsdp_status status;
    rank r;

    status = rank_open(context, c->number / CALLS / WAYS, &r);
    for (int call = 0; call < CALLS && status == FSDP_OK; call++) /* so that carrier and scratch are there */
        status = make_and_wait(&r, call);
    if (status == FSDP_OK && c->rank == 1)
        die(&r, how, what);
    if (status == FSDP_OK) {
        status = make_and_wait(&r, what);
        if (status == FSDP_OK)
            status = fsdp_barrier(r.group);
        if (status == FSDP_COMM && strstr(fsdp_last_error(), "rank 1 has died")) {
            rank_close(&r);
            return RANK_RIGHT;
        }
    }
    fprintf(stderr, "rank %d of %d, carrier %d, way %d, call %d: %s: %s\n", c->rank, c->world, r.nccl, (int)how, what,
            fsdp_status_text(status), fsdp_last_error());
    return 3;
}

static void lose_a_rank_of_each_world(bool nccl)
{
    char gpus[12];

    snprintf(gpus, sizeof gpus, "%d", RANK_PEER_MOST);
    setenv("FSDP_FAKECUDA_DEVICES", gpus, 1);
    for (int how = 0; how < WAYS; how++)
        for (int call = 0; call < (how == BEFORE_IT ? CALLS : MEET); call++)
            for (int world = 2; world <= RANK_PEER_MOST; world++)
                if (test_takes(how + call + world + nccl, 6, 12))
                    rank_children_run(
                        (rank_child){.world = world, .number = number_of(nccl, (way)how, call), .fate = RANK_DIES},
                        lose_a_rank);
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

CALL_TEST(a_rank_that_dies_is_named_by_those_whose_gpus_read_its_memory, lose_a_rank_of_each_world(false))
CALL_TEST(a_rank_that_dies_is_named_by_those_who_wait_in_nccl, lose_a_rank_of_each_world(true))
#endif
