/* exchange.c - pieces on their way. */
#include "comm/transport/network/exchange.h"

#include <sys/prctl.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "comm/health/process.h"
#include "comm/health/verdict.h"
#include "comm/health/watchdog.h"

enum {
    SPIN_NS = 100000, /* small messages arrive within it. A turn may take long: MPI yields the processor in it */
    NAP_NS = 5000,    /* the first nap; each one is longer than the one before */
    LONG_NAP_NS = 100000,
    LONGEST_NAP_NS = 1000000,
    NAP_SHARE = 100,  /* where nothing has arrived for long, a nap is as long as one in so many parts of that time */
    SLACK_NS = 1000,  /* how much longer a nap may be: the system's default of 50 us is ten times the first nap */
    LOOK_NS = 5000000 /* between two checks of the ranks that are waited for */
};

/* Holds the progress of one leg, from its first byte to its last. */
typedef struct fsdp__flow {
    fsdp__leg leg;
    bool sends;
    int at_segment;
    size_t at_byte, left;
    int posted;                      /* number of pieces posted */
    int slots;                       /* number of pieces that are on their way at a time */
    fsdp__network_request *requests; /* one for each slot */
} flow;

size_t fsdp__leg_bytes(const fsdp__leg *leg)
{
    size_t bytes = 0;

    for (int i = 0; i < leg->count; i++)
        bytes += leg->segments[i].bytes;
    return bytes;
}

/* Cuts the next piece: its segments go into `out`, which has room for all of the leg's segments. */
static int cut(flow *f, fsdp__segment *out)
{
    size_t room = FSDP__MIN(f->left, (size_t)FSDP__PIECE_BYTES);
    int count = 0;

    f->left -= room;
    while (room > 0) {
        const fsdp__segment *segment = &f->leg.segments[f->at_segment];
        size_t bytes = FSDP__MIN(segment->bytes - f->at_byte, room);

        if (bytes > 0)
            out[count++] = (fsdp__segment){(char *)segment->data + f->at_byte, bytes};
        room -= bytes;
        f->at_byte += bytes;
        if (f->at_byte == segment->bytes) {
            f->at_segment++;
            f->at_byte = 0;
        }
    }
    return count;
}

/* Posts as many pieces as there are free slots. A leg's slots are used in turn: a piece that is late holds up its slot,
 * and so all pieces behind it. */
static fsdp_status post(fsdp__exchange *x, int i)
{
    fsdp__link *link = &x->group->world->link;
    flow *f = &x->flows[i];

    while (f->left > 0) {
        fsdp__network_request *request = &f->requests[f->posted % f->slots];
        int count;

        if (*request)
            return FSDP_OK;
        count = cut(f, x->scratch);
        FSDP_TRY(f->sends ? fsdp__link_send(link, f->leg.rank, x->tag, x->scratch, count, request)
                          : fsdp__link_receive(link, f->leg.rank, x->tag, x->scratch, count, f->leg.shorter, request));
        f->posted++;
    }
    return FSDP_OK;
}

/* Returns the number of slots for a leg of so many bytes. */
static int slots_for(size_t bytes)
{
    return (int)FSDP__MIN(fsdp__messages_of((int64_t)bytes), FSDP__PIECES);
}

/* Counts the legs. In a flat group legs to ranks on this machine are no traffic of the network. */
static void count_legs(fsdp__exchange *x, const fsdp__leg *legs, int count, bool sends)
{
    const fsdp__places *places = &x->group->world->link.places;

    for (int i = 0; i < count; i++) {
        int64_t bytes = (int64_t)fsdp__leg_bytes(&legs[i]);

        if (bytes == 0 || !fsdp__is_elsewhere(places, legs[i].rank))
            continue;
        *(sends ? &x->sent : &x->received) += bytes;
        x->messages += sends ? fsdp__messages_of(bytes) : 0;
    }
}

/* Adds the legs as flows. */
static void add_flows(fsdp__exchange *x, const fsdp__leg *legs, int count, bool sends)
{
    for (int i = 0; i < count; i++) {
        size_t bytes = fsdp__leg_bytes(&legs[i]);
        flow *f;

        if (bytes == 0)
            continue;
        f = &x->flows[x->count++];
        *f = (flow){.leg = legs[i],
                    .sends = sends,
                    .left = bytes,
                    .slots = slots_for(bytes),
                    .requests = x->requests + x->request_count};
        x->request_count += f->slots;
    }
}

static void release(fsdp__exchange *x)
{
    fsdp__free(x->flows);
    *x = (fsdp__exchange){0};
}

void fsdp__exchange_give_up(fsdp__exchange *x)
{
    fsdp__link *link = x->group ? &x->group->world->link : NULL;

    if (link) { /* peers wait for what is not sent any more */
        fsdp__link_fail(link);
        fsdp__link_give_up(link);
    }
    release(x);
}

/* Adds up the slots and segments that an exchange of these legs needs. */
static void measure(const fsdp__leg *legs, int count, size_t *slots, size_t *segments)
{
    for (int i = 0; i < count; i++) {
        *slots += (size_t)slots_for(fsdp__leg_bytes(&legs[i]));
        *segments = FSDP__MAX(*segments, (size_t)legs[i].count);
    }
}

/* Allocates flows, their requests, and segments for one piece in one allocation, since small calls are
 * latency-bound. */
static bool take_memory(fsdp__exchange *x, const fsdp__leg *sends, int send_count, const fsdp__leg *receives,
                        int receive_count)
{
    size_t legs = (size_t)(send_count + receive_count), slots = 0, segments = 1;

    measure(sends, send_count, &slots, &segments);
    measure(receives, receive_count, &slots, &segments);
    if (slots == 0)
        return true;
    x->flows = fsdp__calloc(1, legs * sizeof *x->flows + segments * sizeof *x->scratch + slots * sizeof *x->requests);
    if (!x->flows)
        return false;
    x->scratch = (fsdp__segment *)(x->flows + legs);
    x->requests = (fsdp__network_request *)(x->scratch + segments);
    return true;
}

fsdp_status fsdp__exchange_carry(fsdp__exchange *x, const fsdp__leg *sends, int send_count, const fsdp__leg *receives,
                                 int receive_count)
{
    if (!take_memory(x, sends, send_count, receives, receive_count))
        return FSDP_NO_MEMORY;
    /* Post the receives first, so that what arrives finds its place. */
    add_flows(x, receives, receive_count, false);
    add_flows(x, sends, send_count, true);
    for (int i = 0; i < x->count; i++)
        FSDP_TRY(post(x, i));
    return FSDP_OK;
}

fsdp_status fsdp__exchange_begin(fsdp__exchange *x, fsdp__network_group *group, int kind, const fsdp__leg *sends,
                                 int send_count, const fsdp__leg *receives, int receive_count)
{
    fsdp_status status;

    *x = (fsdp__exchange){.group = group, .tag = group->tag + kind};
    count_legs(x, sends, send_count, true);
    count_legs(x, receives, receive_count, false);
    status = group->world->acts->carry(x, sends, send_count, receives, receive_count);
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp__exchange_give_up(x);
    return fsdp_fail_hop(status, __FILE__, __LINE__);
}

/* ---- waiting ---- */

typedef struct patience {
    int64_t began_ns;
    int64_t moved_ns; /* when a piece arrived last, or the exchange began */
    int64_t pieces;   /* that were missing at the last turn */
    int64_t nap_ns;
    fsdp__awaited wait;
    int64_t looked_ns;   /* when it last checked the others; at first, when it began */
    int64_t cpu_ns;      /* of this thread, at that time or when it began to nap */
    bool naps;           /* true from the first nap on */
    int slack_ns;        /* the thread's own timer slack, kept while it naps: 0 for a real-time thread */
    bool told;           /* it has told whom it waits for */
    int64_t next_notice; /* see fsdp__watchdog_tell_slow */
    int64_t compared;    /* how long it had waited when it last compared the calls of this machine, in ticks */
} patience;

/* Returns how many pieces of a leg have not arrived yet. */
static int64_t missing(const fsdp__exchange *x, int i)
{
    const flow *f = &x->flows[i];
    int64_t pieces = fsdp__messages_of((int64_t)f->left);

    for (int p = 0; p < f->slots; p++)
        pieces += f->requests[p] != 0;
    return pieces;
}

/* Says that this rank lives, and checks whether the ranks that it waits for will come. */
static void look_after(fsdp__exchange *x, patience *p)
{
    fsdp__peers *peers = &x->group->world->peers;
    int64_t now = fsdp__thread_cpu_ns(), waited = atomic_load(&peers->ticks) - p->wait.since;
    int whom = -1;

    /* Beat for the ranks of this machine that wait for this one: it is not the one that stands still. */
    atomic_fetch_add(&peers->wait_beats, 1);
    fsdp__context_beat(peers->own->context);
    fsdp__health_looked(peers->own, now - p->cpu_ns);
    p->cpu_ns = now;
    for (int i = 0; i < x->count; i++) {
        if (missing(x, i) == 0)
            continue;
        if (whom < 0 && !x->flows[i].sends)
            whom = x->flows[i].leg.rank;
        fsdp__verdict_look(peers, x->flows[i].leg.rank, p->wait);
    }
    /* Not at once: ranks that meet compare signatures, which say more of what they disagree in. */
    if (x->group->local && waited >= fsdp__peers_fresh_ticks(peers) && waited != p->compared) {
        p->compared = waited;
        fsdp__verdict_disagreement(peers->own->board, x->group->local->index, peers->own->rank);
    }
    atomic_store(&peers->awaits, whom + 1);
    p->told = true;
    if (whom >= 0)
        fsdp__watchdog_tell_slow(peers, whom, waited, &p->next_notice);
}

/* Returns how long the longest nap may be. A wait of more than 10 ms is noticed to end a hundredth of it late at most,
 * and never later than 1 ms; pieces that come one after another are met within 0.1 ms. */
static int64_t longest_nap_ns(const patience *p, int64_t now)
{
    return FSDP__MIN(FSDP__MAX((now - p->moved_ns) / NAP_SHARE, LONG_NAP_NS), LONGEST_NAP_NS);
}

static void wait_a_turn(fsdp__exchange *x, patience *p)
{
    struct timespec time = {0};
    int64_t now = fsdp__clock_ns(), longest;

    if (now - p->began_ns < SPIN_NS)
        return;
    if (!p->naps) {
        p->naps = true;
        p->slack_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        (void)prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
        p->cpu_ns = fsdp__thread_cpu_ns();
    }
    longest = longest_nap_ns(p, now);
    p->nap_ns = FSDP__MIN(p->nap_ns + NAP_NS, longest);
    time.tv_nsec = p->nap_ns;
    (void)nanosleep(&time, NULL);
    now = fsdp__clock_ns();
    if (now - p->looked_ns < LOOK_NS)
        return;
    p->looked_ns = now;
    look_after(x, p);
}

static fsdp_status run(fsdp__exchange *x, patience *p)
{
    fsdp__link *link = &x->group->world->link;
    const fsdp__peers *peers = &x->group->world->peers;

    for (;;) {
        /* Ask this before the test: what was sent before some rank failed has arrived when its failure is heard of. */
        bool broken = fsdp__board_aborted(link->board);
        int64_t pieces = 0;

        p->wait.tested = atomic_load(&peers->ticks);
        FSDP_TRY(fsdp__link_test(link, x->requests, x->request_count));
        for (int i = 0; i < x->count; i++) {
            FSDP_TRY(post(x, i));
            pieces += missing(x, i);
        }
        if (pieces == 0)
            return FSDP_OK;
        if (broken)
            return fsdp__board_failure(link->board);
        /* a rank that sends, though slowly, or has left and sent everything before, will come */
        if (pieces != p->pieces) {
            p->wait.since = atomic_load(&peers->ticks);
            p->moved_ns = fsdp__clock_ns();
            p->next_notice = 0;
        }
        p->pieces = pieces;
        wait_a_turn(x, p);
    }
}

static fsdp_status wait_for_all(fsdp__exchange *x)
{
    int64_t now = fsdp__clock_ns();
    patience p = {
        .wait.since = atomic_load(&x->group->world->peers.ticks), .began_ns = now, .moved_ns = now, .looked_ns = now};
    fsdp_status status = run(x, &p);

    if (p.told)
        atomic_store(&x->group->world->peers.awaits, 0);
    if (p.naps && p.slack_ns > 0) /* 0 would set the system's own */
        (void)prctl(PR_SET_TIMERSLACK, p.slack_ns, 0, 0, 0);
    return status;
}

fsdp_status fsdp__exchange_end(fsdp__exchange *x, fsdp__traffic *traffic)
{
    int64_t start = fsdp__clock_ns();
    fsdp_status status = x->count > 0 ? wait_for_all(x) : FSDP_OK;

    traffic->waiting_ns += fsdp__clock_ns() - start;
    if (status != FSDP_OK) {
        fsdp__exchange_give_up(x);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    traffic->network_messages += x->messages;
    if (x->tag % FSDP__TAG_KINDS == FSDP__TAG_DATA) {
        traffic->network_sent += x->sent;
        traffic->network_received += x->received;
    }
    release(x);
    return FSDP_OK;
}

fsdp_status fsdp__exchange_rows(fsdp__network_group *g, uint8_t *rows, size_t bytes, fsdp__traffic *traffic)
{
    FSDP__FREED fsdp__segment *segments = fsdp__calloc((size_t)g->columns, sizeof *segments);
    FSDP__FREED fsdp__leg *legs = fsdp__calloc(2 * (size_t)g->columns, sizeof *legs);
    fsdp__exchange x;
    int peers = 0;

    FSDP__TRY_NEW(segments && legs);
    for (int p = 0; p < g->columns; p++) {
        segments[p] = (fsdp__segment){rows + (size_t)p * bytes, bytes};
        if (p == g->place)
            continue;
        legs[peers] = (fsdp__leg){g->column[p], &segments[g->place], 1, false};
        legs[g->columns + peers++] = (fsdp__leg){g->column[p], &segments[p], 1, false};
    }
    FSDP_TRY(fsdp__exchange_begin(&x, g, FSDP__TAG_HEADER, legs, peers, legs + g->columns, peers));
    return fsdp__exchange_end(&x, traffic);
}
