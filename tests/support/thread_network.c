/* support/thread_network.c - mailboxes. One lock for all: what counts here is the order, not the speed. */
#include "support/thread_network.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_MACHINES = 16,
    TAGS = 4,      /* whose messages are counted */
    IS_A_SEND = -2 /* in the place of whom it comes from */
};

typedef struct message {
    struct message *next;
    int from, tag, delay;
    size_t bytes;
    unsigned char data[];
} message;

typedef struct posted {
    struct posted *next;
    int from, tag;
    bool shorter, done, wrong;
    int count;
    fsdp__segment segments[];
} posted;

typedef struct endpoint {
    thread_network *network;
    int rank, machine;
    int fails_in; /* calls; 0: it does not */
    bool stopped, held;
    message *mail;    /* oldest first */
    posted *receives; /* the same */
} endpoint;

struct thread_network {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    int ranks, machines, delay;
    endpoint *endpoints;
    bool cut[MOST_MACHINES][MOST_MACHINES];
    long long bytes[MOST_MACHINES][MOST_MACHINES];
    int *messages;      /* [from][to][TAGS] */
    bool *stalled;      /* [from][to] */
    const void **shown; /* of an exchange */
    int entered, round, missing;
    bool ended;  /* a rank that did not take its leave: who started the ranks ends all that wait in an exchange */
    int whole;   /* ranks that have taken it */
    int sending; /* sends that they have not waited for */
};

static _Thread_local endpoint *chosen;

thread_network *thread_network_new(int ranks, int machines, const int *machine_of)
{
    thread_network *n = calloc(1, sizeof *n);

    pthread_mutex_init(&n->mutex, NULL);
    pthread_cond_init(&n->moved, NULL);
    n->ranks = ranks;
    n->machines = machines;
    n->endpoints = calloc((size_t)ranks, sizeof *n->endpoints);
    n->messages = calloc((size_t)(ranks * ranks * TAGS), sizeof *n->messages);
    n->stalled = calloc((size_t)(ranks * ranks), sizeof *n->stalled);
    n->shown = calloc((size_t)ranks, sizeof *n->shown);
    for (int r = 0; r < ranks; r++)
        n->endpoints[r] =
            (endpoint){.network = n, .rank = r, .machine = machine_of ? machine_of[r] : r / (ranks / machines)};
    return n;
}

static void throw_away(endpoint *e)
{
    while (e->mail) {
        message *m = e->mail;
        e->mail = m->next;
        free(m);
    }
    while (e->receives) {
        posted *p = e->receives;
        e->receives = p->next;
        free(p);
    }
}

void thread_network_free(thread_network *n)
{
    for (int r = 0; r < n->ranks; r++)
        throw_away(&n->endpoints[r]);
    pthread_cond_destroy(&n->moved);
    pthread_mutex_destroy(&n->mutex);
    free(n->messages);
    free(n->stalled);
    free(n->shown);
    free(n->endpoints);
    free(n);
}

int thread_network_unread(const thread_network *n)
{
    int unread = n->whole == n->ranks ? n->sending : 0;

    for (int r = 0; r < n->ranks && n->whole == n->ranks; r++)
        for (const message *m = n->endpoints[r].mail; m; m = m->next)
            unread++;
    return unread;
}

static int *messages_of(thread_network *n, int from, int to, int tag)
{
    return &n->messages[(from * n->ranks + to) * TAGS + tag];
}

int thread_network_messages(thread_network *n, int from, int to, int tag)
{
    int count;

    pthread_mutex_lock(&n->mutex);
    count = *messages_of(n, from, to, tag);
    pthread_mutex_unlock(&n->mutex);
    return count;
}

void thread_network_choose(thread_network *network, int rank)
{
    chosen = &network->endpoints[rank];
}

/* ---- entering ---- */

static void leave(endpoint *e)
{
    pthread_mutex_unlock(&e->network->mutex);
}

/* Enters with the lock; false: this call fails. */
static bool enter(endpoint *e, char *text)
{
    pthread_mutex_lock(&e->network->mutex);
    while (e->stopped)
        pthread_cond_wait(&e->network->moved, &e->network->mutex);
    if (e->fails_in == 0 || --e->fails_in > 0)
        return true;
    snprintf(text, FSDP__NETWORK_TEXT, "thread network: the call was made to fail");
    leave(e);
    return false;
}

static void end(thread_network *n)
{
    pthread_mutex_lock(&n->mutex);
    n->ended = true;
    pthread_cond_broadcast(&n->moved);
    pthread_mutex_unlock(&n->mutex);
}

static bool network_open(void **network, fsdp__network_world *out, char *text)
{
    endpoint *e = chosen;
    int lowest = 0;

    if (!enter(e, text)) {
        end(e->network);
        return false;
    }
    while (e->network->endpoints[lowest].machine != e->machine)
        lowest++;
    *out = (fsdp__network_world){.rank = e->rank, .size = e->network->ranks, .machine = lowest};
    snprintf(out->host, sizeof out->host, "%c", 'a' + e->machine);
    *network = e;
    leave(e);
    return true;
}

/* Takes leave of nobody: what others have sent is thrown away with the network. */
static void network_close(void *network, bool whole)
{
    thread_network *n = ((endpoint *)network)->network;

    if (!whole)
        end(n);
    pthread_mutex_lock(&n->mutex);
    n->whole += whole;
    for (const posted *p = ((endpoint *)network)->receives; p; p = p->next)
        n->sending += p->from == IS_A_SEND;
    pthread_mutex_unlock(&n->mutex);
}

static bool network_exchange(void *network, const void *mine, size_t bytes, void *all, char *text)
{
    endpoint *e = network;
    thread_network *n = e->network;
    int round, missing;

    if (!enter(e, text))
        return false;
    round = n->round;
    n->shown[e->rank] = mine;
    n->missing += !all;
    if (++n->entered == n->ranks)
        n->round++;
    pthread_cond_broadcast(&n->moved);
    while (n->round == round && !n->ended)
        pthread_cond_wait(&n->moved, &n->mutex);
    if (n->round == round) {
        snprintf(text, FSDP__NETWORK_TEXT, "thread network: a rank has ended");
        leave(e);
        return false;
    }
    missing = n->missing;
    for (int r = 0; r < n->ranks && missing == 0; r++)
        memcpy((char *)all + (size_t)r * bytes, n->shown[r], bytes);
    /* Nobody takes his own away before all have read it. */
    if (--n->entered == 0) {
        n->missing = 0;
        n->round++;
    }
    pthread_cond_broadcast(&n->moved);
    while (n->round == round + 1)
        pthread_cond_wait(&n->moved, &n->mutex);
    leave(e);
    if (missing > 0)
        snprintf(text, FSDP__NETWORK_TEXT, "%d of the ranks cannot go on", missing);
    return missing == 0;
}

/* ---- messages ---- */

static bool is_stalled(const thread_network *n, int from, int to)
{
    return n->stalled[from * n->ranks + to];
}

/* Adds what is to be waited for of one that does not arrive: whom it goes to stands in the place of the tag. */
static fsdp__network_request add_send(endpoint *e, int to)
{
    posted *p = calloc(1, sizeof *p);

    *p = (posted){.next = e->receives, .from = IS_A_SEND, .tag = to};
    e->receives = p;
    return (fsdp__network_request)p;
}

static bool network_send(void *network, int to, int tag, const fsdp__segment *segments, int count,
                         fsdp__network_request *out, char *text)
{
    endpoint *e = network, *there = &e->network->endpoints[to];
    message *m, **end;
    size_t bytes = 0;

    for (int i = 0; i < count; i++)
        bytes += segments[i].bytes;
    m = calloc(1, sizeof *m + bytes);
    *m = (message){.from = e->rank, .tag = tag, .bytes = bytes};
    bytes = 0;
    for (int i = 0; i < count; bytes += segments[i++].bytes)
        memcpy(m->data + bytes, segments[i].data, segments[i].bytes);
    if (!enter(e, text)) {
        free(m);
        return false;
    }
    *out = is_stalled(e->network, e->rank, to) ? add_send(e, to) : 0; /* else done: it was copied */
    m->delay = e->network->delay;
    e->network->bytes[e->machine][there->machine] += (long long)bytes;
    if (tag < TAGS)
        ++*messages_of(e->network, e->rank, to, tag);
    for (end = &there->mail; *end;)
        end = &(*end)->next;
    if (e->network->cut[e->machine][there->machine])
        free(m);
    else
        *end = m;
    leave(e);
    return true;
}

static bool network_receive(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                            fsdp__network_request *out, char *text)
{
    endpoint *e = network;
    posted *p = calloc(1, sizeof *p + (size_t)count * sizeof *segments), **end;

    *p = (posted){.from = from, .tag = tag, .shorter = shorter, .count = count};
    memcpy(p->segments, segments, (size_t)count * sizeof *segments);
    if (!enter(e, text)) {
        free(p);
        return false;
    }
    for (end = &e->receives; *end;)
        end = &(*end)->next;
    *end = p;
    *out = (fsdp__network_request)p;
    leave(e);
    return true;
}

/* Takes the oldest of a sender and tag; NULL: none has arrived. `from` -1: from anybody. */
static message *take(endpoint *e, int from, int tag)
{
    for (message **link = &e->mail; *link; link = &(*link)->next) {
        message *m = *link;

        if ((from >= 0 && m->from != from) || m->tag != tag || is_stalled(e->network, m->from, e->rank))
            continue;
        if (m->delay > 0)
            return NULL; /* those behind it stay behind it */
        *link = m->next;
        return m;
    }
    return NULL;
}

static void put(posted *p, const message *m)
{
    size_t at = 0;

    for (int i = 0; i < p->count; i++)
        at += p->segments[i].bytes;
    p->done = true;
    p->wrong = p->shorter ? at < m->bytes : at != m->bytes;
    at = 0;
    for (int i = 0; i < p->count && !p->wrong && at < m->bytes; at += p->segments[i++].bytes) {
        size_t left = m->bytes - at;

        memcpy(p->segments[i].data, m->data + at, left < p->segments[i].bytes ? left : p->segments[i].bytes);
    }
}

static void move(endpoint *e)
{
    for (message *m = e->mail; m; m = m->next)
        m->delay -= m->delay > 0;
    for (posted *p = e->receives; p; p = p->next) {
        message *m = p->done || p->from == IS_A_SEND ? NULL : take(e, p->from, p->tag);

        if (p->from == IS_A_SEND)
            p->done = !is_stalled(e->network, e->rank, p->tag);

        if (m)
            put(p, m);
        free(m);
    }
}

static void forget(endpoint *e, const posted *done)
{
    for (posted **link = &e->receives; *link; link = &(*link)->next)
        if (*link == done) {
            posted *p = *link;
            *link = p->next;
            free(p);
            return;
        }
}

static bool network_test(void *network, fsdp__network_request *requests, int count, char *text)
{
    endpoint *e = network;
    bool good = true;

    if (!enter(e, text))
        return false;
    while (e->held && count > 1)
        pthread_cond_wait(&e->network->moved, &e->network->mutex);
    move(e);
    for (int i = 0; i < count && good; i++) {
        const posted *p = (const posted *)requests[i];

        if (!p || !p->done)
            continue;
        good = !p->wrong;
        if (p->wrong)
            snprintf(text, FSDP__NETWORK_TEXT, "thread network: a message from rank %d has another length", p->from);
        forget(e, p);
        requests[i] = 0;
    }
    leave(e);
    return good;
}

static bool network_poll(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text)
{
    endpoint *e = network;
    message *m;

    if (!enter(e, text))
        return false;
    move(e);
    m = take(e, -1, tag);
    *from = m ? m->from : -1;
    *got = m ? (m->bytes < bytes ? m->bytes : bytes) : 0;
    if (m)
        memcpy(data, m->data, *got);
    free(m);
    leave(e);
    return true;
}

const fsdp__network_ops thread_network_ops = {.version = FSDP__NETWORK_VERSION,
                                              .open = network_open,
                                              .close = network_close,
                                              .exchange = network_exchange,
                                              .send = network_send,
                                              .receive = network_receive,
                                              .test = network_test,
                                              .poll = network_poll};

/* ---- faults ---- */

void thread_network_cut(thread_network *n, int machine, int other)
{
    pthread_mutex_lock(&n->mutex);
    n->cut[machine][other] = n->cut[other][machine] = true;
    pthread_mutex_unlock(&n->mutex);
}

void thread_network_delay(thread_network *n, int calls)
{
    pthread_mutex_lock(&n->mutex);
    n->delay = calls;
    pthread_mutex_unlock(&n->mutex);
}

void thread_network_fail(thread_network *n, int rank, int nth)
{
    pthread_mutex_lock(&n->mutex);
    n->endpoints[rank].fails_in = nth;
    pthread_mutex_unlock(&n->mutex);
}

void thread_network_stop(thread_network *n, int rank)
{
    pthread_mutex_lock(&n->mutex);
    n->endpoints[rank].stopped = true;
    pthread_mutex_unlock(&n->mutex);
}

void thread_network_hold(thread_network *n, int rank)
{
    pthread_mutex_lock(&n->mutex);
    n->endpoints[rank].held = true;
    pthread_mutex_unlock(&n->mutex);
}

void thread_network_stall(thread_network *n, int from, int to)
{
    pthread_mutex_lock(&n->mutex);
    n->stalled[from * n->ranks + to] = true;
    pthread_mutex_unlock(&n->mutex);
}

void thread_network_go_on(thread_network *n)
{
    pthread_mutex_lock(&n->mutex);
    for (int r = 0; r < n->ranks; r++)
        n->endpoints[r].stopped = n->endpoints[r].held = false;
    for (int pair = 0; pair < n->ranks * n->ranks; pair++)
        n->stalled[pair] = false;
    pthread_cond_broadcast(&n->moved);
    pthread_mutex_unlock(&n->mutex);
}

long long thread_network_bytes(const thread_network *n, int from_machine, int to_machine)
{
    return n->bytes[from_machine][to_machine];
}
