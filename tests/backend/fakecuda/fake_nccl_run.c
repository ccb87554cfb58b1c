/* fake_nccl_run.c - what a stream does when it gets to an operation of NCCL's: see [Note: mailboxes] in fake_nccl.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake_nccl.h"
#include "comm/health/futex.h"
#include "oracle/oracle.h"

enum {
    SLEEP_MS = 20 /* at most, at a time: an abort is seen by then at the latest */
};

/* Bytes on their way to a member, or from it. */
typedef struct transfer {
    struct transfer *next;
    fake_heading heading;
    int peer;
    bool sends, told;
    unsigned char *at;
    size_t bytes, done;
    bool over; /* one of no bytes takes a letter as well */
} transfer;

/* A sum that is made when everything has come: of `parts`, one behind the other. */
typedef struct sum {
    struct sum *next;
    fake_heading heading;
    unsigned char *parts, *out;
} sum;

struct fake_operation {
    struct ncclComm *comm;
    cudaStream_t stream;
    transfer *first, *last;
    sum *sums;
};

static size_t type_bytes(int type)
{
    switch (type) {
    case FSDP__NCCL_Int64:
        return 8;
    case FSDP__NCCL_Int32:
    case FSDP__NCCL_Float32:
        return 4;
    case FSDP__NCCL_Float16:
    case FSDP__NCCL_Bfloat16:
        return 2;
    default:
        return 1;
    }
}

size_t fake_bytes(const fake_heading *h)
{
    return (size_t)h->count * type_bytes(h->type);
}

static fsdp_dtype dtype_of(int type)
{
    switch (type) {
    case FSDP__NCCL_Int64:
        return FSDP_I64;
    case FSDP__NCCL_Int32:
        return FSDP_I32;
    case FSDP__NCCL_Float32:
        return FSDP_F32;
    case FSDP__NCCL_Float16:
        return FSDP_F16;
    case FSDP__NCCL_Bfloat16:
        return FSDP_BF16;
    default:
        return FSDP_U8;
    }
}

/* ---- how a call is made of transfers ---- */

fake_operation *fake_operation_new(struct ncclComm *comm, cudaStream_t stream)
{
    fake_operation *o = calloc(1, sizeof *o);

    if (o) {
        o->comm = comm;
        o->stream = stream;
    }
    return o;
}

struct ncclComm *fake_operation_comm(const fake_operation *o)
{
    return o->comm;
}

cudaStream_t fake_operation_stream(const fake_operation *o)
{
    return o->stream;
}

static void *checked(void *p)
{
    if (!p)
        abort(); /* no memory */
    return p;
}

static void add_transfer(fake_operation *o, const fake_heading *h, int peer, bool sends, const void *at, size_t bytes)
{
    transfer *t = checked(calloc(1, sizeof *t));

    *t = (transfer){.heading = *h, .peer = peer, .sends = sends, .at = (unsigned char *)(uintptr_t)at, .bytes = bytes};
    if (o->last)
        o->last->next = t;
    else
        o->first = t;
    o->last = t;
}

/* Exchanges parts with everybody, also with itself: `step` bytes lie between those for one member and the next. */
static void exchange(fake_operation *o, const fake_heading *h, const unsigned char *send, size_t send_step,
                     unsigned char *recv, size_t recv_step, size_t bytes)
{
    for (int i = 0; i < o->comm->ranks; i++) {
        int peer = (o->comm->rank + i) % o->comm->ranks;

        add_transfer(o, h, peer, true, send + (size_t)peer * send_step, bytes);
        add_transfer(o, h, peer, false, recv + (size_t)peer * recv_step, bytes);
    }
}

/* The root sends to all; letters of nothing see to it that nobody is done before all have come. */
static void broadcast(fake_operation *o, const fake_heading *h, const unsigned char *send, unsigned char *recv,
                      size_t bytes)
{
    const struct ncclComm *c = o->comm;

    for (int peer = 0; peer < c->ranks; peer++) {
        add_transfer(o, h, peer, true, send, c->rank == h->root ? bytes : 0);
        add_transfer(o, h, peer, false, recv, peer == h->root ? bytes : 0);
    }
}

static void add_sum(fake_operation *o, const fake_heading *h, const unsigned char *send, size_t step,
                    unsigned char *out, size_t bytes)
{
    sum *s = checked(calloc(1, sizeof *s));

    *s = (sum){.next = o->sums, .heading = *h, .out = out};
    s->parts = checked(malloc((size_t)o->comm->ranks * bytes + 1));
    o->sums = s;
    exchange(o, h, send, step, s->parts, bytes, bytes);
}

/* Finds memory that the device has; NULL: it has none there. */
static unsigned char *place_of(const void *pointer, size_t bytes)
{
    fake_place place = fake_find(pointer, bytes);

    return place.found && place.whole ? place.mapped : NULL;
}

bool fake_operation_add(fake_operation *o, const fake_heading *h, const void *send, void *recv, int peer)
{
    size_t bytes = fake_bytes(h), all = bytes * (size_t)o->comm->ranks;
    bool gathers = strcmp(h->name, "AllGather") == 0, swaps = strcmp(h->name, "AlltoAll") == 0,
         scatters = strcmp(h->name, "ReduceScatter") == 0, sends = strcmp(h->name, "Send") == 0,
         receives = strcmp(h->name, "Recv") == 0,
         gives = !receives && (strcmp(h->name, "Broadcast") != 0 || h->root == o->comm->rank);
    unsigned char *from = !gives ? NULL : place_of(send, swaps || scatters ? all : bytes),
                  *to = sends ? NULL : place_of(recv, swaps || gathers ? all : bytes);
    fake_heading both = *h;

    if ((gives && !from) || (!sends && !to))
        return false;
    if (sends || receives) {
        snprintf(both.name, sizeof both.name, "Send and Recv");
        add_transfer(o, &both, peer, sends, sends ? from : to, bytes);
    } else if (gathers) {
        exchange(o, h, from, 0, to, bytes, bytes);
    } else if (swaps) {
        exchange(o, h, from, bytes, to, bytes, bytes);
    } else if (scatters) {
        add_sum(o, h, from, bytes, to, bytes);
    } else if (strcmp(h->name, "AllReduce") == 0) {
        add_sum(o, h, from, 0, to, bytes);
    } else {
        broadcast(o, h, from, to, bytes);
    }
    return true;
}

/* ---- letters ---- */

void fake_hall_moved(fake_hall *hall)
{
    atomic_fetch_add(&hall->moves, 1);
    if (hall->sleepers > 0)
        fsdp__futex_wake_all(&hall->moves);
}

void fake_hall_sleep(fake_hall *hall, uint32_t moves)
{
    atomic_fetch_add(&hall->sleepers, 1);
    (void)fsdp__futex_wait(&hall->moves, moves, SLEEP_MS);
    atomic_fetch_sub(&hall->sleepers, 1);
}

static bool same(const fake_heading *a, const fake_heading *b)
{
    return strcmp(a->name, b->name) == 0 && a->count == b->count && a->type == b->type && a->op == b->op &&
           a->root == b->root && a->from == b->from && a->to == b->to;
}

/* Says, once, that a letter is of another call. */
static void tell(const struct ncclComm *c, transfer *t, const fake_heading *other)
{
    const char *wanted = getenv("FSDP_FAKENCCL_TELL");

    if (!t->told && wanted && strcmp(wanted, "1") == 0)
        fprintf(stderr,
                "fakenccl: rank %d calls %s of %lld elements of type %d, rank %d calls %s of %lld of type %d: "
                "both hang (registered memory: from %lld to %lld, from %lld to %lld)\n",
                c->rank, t->heading.name, (long long)t->heading.count, t->heading.type, t->peer, other->name,
                (long long)other->count, other->type, (long long)t->heading.from, (long long)t->heading.to,
                (long long)other->from, (long long)other->to);
    t->told = true;
}

/* Puts the next letter into the box, or takes it out. Returns whether that was possible. */
static bool step(const struct ncclComm *c, transfer *t)
{
    fake_box *box = t->sends ? &c->hall->boxes[c->rank][t->peer] : &c->hall->boxes[t->peer][c->rank];
    size_t bytes = t->bytes - t->done < FAKE_LETTER ? t->bytes - t->done : FAKE_LETTER;

    if (atomic_load_explicit(&box->full, memory_order_acquire) == t->sends)
        return false;
    if (t->sends) {
        box->heading = t->heading;
        box->bytes = bytes;
        if (bytes)
            memcpy(box->letter, t->at + t->done, bytes);
    } else if (!same(&box->heading, &t->heading) || box->bytes != bytes) {
        tell(c, t, &box->heading);
        return false;
    } else if (bytes) {
        memcpy(t->at + t->done, box->letter, bytes);
    }
    atomic_store_explicit(&box->full, t->sends, memory_order_release);
    t->done += bytes;
    t->over = t->done == t->bytes;
    return true;
}

static void add_up(const sum *s, int ranks)
{
    fsdp_dtype dtype = dtype_of(s->heading.type);

    /* From the last rank to the first, and rounded at each: not our order, as NCCL's is not. */
    for (int64_t i = 0; i < s->heading.count; i++) {
        double x = oracle_get(dtype, s->parts, (ranks - 1) * s->heading.count + i);

        for (int r = ranks - 2; r >= 0; r--) {
            double y = oracle_get(dtype, s->parts, r * s->heading.count + i);

            if (s->heading.op == FSDP__NCCL_Sum)
                x = oracle_round(dtype, x + y);
            else
                x = (s->heading.op == FSDP__NCCL_Max) == (y > x) ? y : x;
        }
        oracle_put(dtype, s->out, i, x);
    }
}

/* Makes one round over all transfers, of which those that go the same way are in order. Returns whether some are not
 * over. */
static bool make_round(const fake_operation *o, bool *moved)
{
    bool busy[2][FAKE_MEMBERS] = {{false}}, more = false;

    *moved = false;
    for (transfer *t = o->first; t; t = t->next) {
        if (!t->over && !busy[t->sends][t->peer])
            *moved = step(o->comm, t) || *moved;
        busy[t->sends][t->peer] = busy[t->sends][t->peer] || !t->over;
        more = more || !t->over;
    }
    return more;
}

static void run(const void *argument)
{
    fake_operation *o = *(fake_operation *const *)argument;
    fake_hall *hall = o->comm->hall;
    bool moved, more = true;

    while (more && !atomic_load(&o->comm->aborted)) {
        uint32_t moves = hall->moves;

        more = make_round(o, &moved);
        fake_tell_wait(!moved);
        if (moved)
            fake_hall_moved(hall);
        else if (more)
            fake_hall_sleep(hall, moves);
    }
    fake_tell_wait(false);
    if (!atomic_load(&o->comm->aborted))
        for (const sum *s = o->sums; s; s = s->next)
            add_up(s, o->comm->ranks);
}

/* Frees what has run, or what a lost device has left out. */
static void end(const void *argument)
{
    fake_operation *o = *(fake_operation *const *)argument;
    struct ncclComm *comm = o->comm;

    fake_operation_free(o);
    atomic_fetch_sub(&comm->under_way, 1);
}

void fake_operation_launch(fake_operation *o)
{
    atomic_fetch_add(&o->comm->under_way, 1);
    (void)fake_enqueue_recorded(o->stream, FAKE_RUNS_KERNEL, 0, run, &o, sizeof o);
    (void)fake_enqueue(o->stream, end, &o, sizeof o, true);
}

void fake_operation_free(fake_operation *o)
{
    while (o->first) {
        transfer *t = o->first;

        o->first = t->next;
        free(t);
    }
    while (o->sums) {
        sum *s = o->sums;

        o->sums = s->next;
        free(s->parts);
        free(s);
    }
    free(o);
}
