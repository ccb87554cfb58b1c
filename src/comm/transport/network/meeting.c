/* meeting.c - exchanges and compares headers. */
#include "comm/transport/network/meeting.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/health/verdict.h"

void fsdp__meeting_release(fsdp__meeting *m)
{
    fsdp__exchange_give_up(&m->exchange); /* for a meeting where what went along has failed before the end */
    *m = (fsdp__meeting){0};
}

/* Returns the most bytes that go along with a rank's header: in rounds what half the column has said must fit into one
 * piece. */
static int64_t room_for(int columns, int rounds)
{
    return rounds == 0 ? FSDP__ALONG_BYTES : FSDP__PIECE_BYTES / (columns / 2) - (int64_t)sizeof(fsdp__header);
}

/* Returns the most bytes of a message, rounded up to whole cache lines. On paper messages have no bytes: the header of
 * all places is one. */
static size_t message_bytes(const fsdp__network_group *g)
{
    int64_t along = FSDP__MAX(room_for(g->columns, g->rounds), 0);

    return fsdp__network_on_paper(g) ? 0 : (sizeof(fsdp__header) + (size_t)along + 63) / 64 * 64;
}

/* Returns where the message from a place arrives, a header and what is along. Behind those of all places lies the
 * message that goes to each. */
static unsigned char *message_of(const fsdp__meeting *m, int place)
{
    return m->group->messages + (size_t)place * m->message_bytes;
}

static unsigned char *along_of(const fsdp__meeting *m, int place)
{
    return message_of(m, place) + sizeof(fsdp__header);
}

/* Returns the same in rounds: there the headers of several ranks travel, followed by what goes along with them. */
static unsigned char *passage(const fsdp__meeting *m, bool comes)
{
    return message_of(m, m->group->columns + comes * m->group->columns / 2);
}

const fsdp__header *fsdp__meeting_header(const fsdp__meeting *m, int place)
{
    return (const fsdp__header *)message_of(m, place);
}

/* ---- what goes along ---- */

/* Returns whether `bytes` bytes to a rank, or from it, need no message of their own. */
static bool goes_along(const fsdp__network_group *g, fsdp__parts parts, size_t bytes)
{
    return bytes > 0 && (int64_t)bytes <= room_for(g->columns, g->rounds) &&
           (g->rounds == 0 || parts != FSDP__ANY_PARTS);
}

/* Takes the small ones of the legs along, by their places. */
static void take_along(const fsdp__meeting *m, fsdp__parts parts, fsdp__leg *legs, int count, fsdp__leg *along)
{
    const fsdp__network_group *g = m->group;
    int place = 0;

    for (int i = 0; i < count; i++) {
        if (!goes_along(g, parts, fsdp__leg_bytes(&legs[i])))
            continue;
        while (place < g->columns && g->column[place] < legs[i].rank)
            place++;
        if (place == g->columns || g->column[place] != legs[i].rank)
            continue;
        along[place] = legs[i];
        legs[i].count = 0;
    }
}

/* Copies to `at`; returns where that ends. */
static unsigned char *put(const fsdp__meeting *m, unsigned char *at, const void *from, size_t bytes)
{
    m->group->world->acts->copy(at, from, bytes);
    return at + bytes;
}

/* Copies from `at`; returns where that ends. */
static const unsigned char *get(const fsdp__meeting *m, const unsigned char *at, void *to, size_t bytes)
{
    m->group->world->acts->copy(to, at, bytes);
    return at + bytes;
}

/* Packs what goes along at `at`; returns its bytes. */
static size_t pack(const fsdp__meeting *m, const fsdp__leg *along, unsigned char *at)
{
    for (int i = 0; i < along->count; i++)
        at = put(m, at, along->segments[i].data, along->segments[i].bytes);
    return fsdp__leg_bytes(along);
}

/* Puts what came along into its places. */
static void unpack(const fsdp__meeting *m, fsdp__traffic *traffic)
{
    const fsdp__network_group *g = m->group;
    const fsdp__places *places = &g->world->link.places;

    for (int p = 0; p < g->columns; p++) {
        const fsdp__leg *in = &m->along[p], *out = &m->along[g->columns + p];
        const unsigned char *from = along_of(m, p);

        for (int i = 0; i < in->count; i++)
            from = get(m, from, in->segments[i].data, in->segments[i].bytes);
        if (m->part > 0 || !fsdp__is_elsewhere(places, g->column[p]))
            continue;
        traffic->network_received += (int64_t)fsdp__leg_bytes(in);
        traffic->network_sent += (int64_t)fsdp__leg_bytes(out);
    }
}

/* ---- in rounds ---- */

/* Returns the first of the 2^round places whose messages the rank at `place` has before a round. */
static int first_heard(int place, int round)
{
    return place & ~((1 << round) - 1);
}

/* Returns whether, of equal parts, what lies at the place goes to the other rank of a round: see meeting.h. */
static bool crosses(const fsdp__meeting *m, int place)
{
    return ((place ^ m->group->place) >> m->round & 1) != 0;
}

static size_t pack_round(const fsdp__meeting *m)
{
    int first = first_heard(m->group->place, m->round), heard = 1 << m->round;
    unsigned char *at = passage(m, false);

    for (int p = first; p < first + heard; p++)
        at = put(m, at, message_of(m, p), sizeof(fsdp__header));
    for (int p = first; p < first + heard; p++)
        at = put(m, at, along_of(m, p), fsdp__meeting_header(m, p)->along);
    for (int p = 0; p < m->group->columns && m->part > 0; p++)
        at = crosses(m, p) ? put(m, at, along_of(m, p), m->part) : at;
    return (size_t)(at - passage(m, false));
}

static void unpack_round(const fsdp__meeting *m)
{
    int first = first_heard(m->group->place ^ 1 << m->round, m->round), heard = 1 << m->round;
    int64_t most = m->part > 0 ? 0 : FSDP__MAX(room_for(m->group->columns, m->group->rounds), 0);
    const unsigned char *at = passage(m, true);

    for (int p = first; p < first + heard; p++) {
        fsdp__header *header = (fsdp__header *)message_of(m, p);

        at = get(m, at, header, sizeof *header);
        header->along = (uint16_t)FSDP__MIN(header->along, most); /* a rank that sends more calls something else */
    }
    for (int p = first; p < first + heard; p++)
        at = get(m, at, along_of(m, p), fsdp__meeting_header(m, p)->along);
    for (int p = 0; p < m->group->columns && m->part > 0; p++)
        at = crosses(m, p) ? get(m, at, along_of(m, p), m->part) : at;
}

static fsdp_status begin_round(fsdp__meeting *m)
{
    const fsdp__network_group *g = m->group;
    bool alone = room_for(g->columns, g->rounds) <= 0; /* if so, headers may fill several messages */
    size_t most = alone ? sizeof(fsdp__header) << m->round : FSDP__PIECE_BYTES;
    int with = g->column[g->place ^ 1 << m->round];

    m->segments[0] = (fsdp__segment){passage(m, false), pack_round(m)};
    m->segments[1] = (fsdp__segment){passage(m, true), most};
    m->legs[0] = (fsdp__leg){with, &m->segments[0], 1, false};
    m->legs[1] = (fsdp__leg){with, &m->segments[1], 1, !alone};
    return fsdp__exchange_begin(&m->exchange, m->group, FSDP__TAG_HEADER, &m->legs[0], 1, &m->legs[1], 1);
}

static fsdp_status end_round(fsdp__meeting *m, fsdp__traffic *traffic)
{
    const fsdp__network_group *g = m->group;
    int with = g->column[g->place ^ 1 << m->round];

    FSDP_TRY(fsdp__exchange_end(&m->exchange, traffic));
    unpack_round(m);
    if (fsdp__is_elsewhere(&g->world->link.places, with)) {
        traffic->network_sent += (int64_t)m->part * (g->columns / 2);
        traffic->network_received += (int64_t)m->part * (g->columns / 2);
    }
    return FSDP_OK;
}

static fsdp_status begin_rounds(fsdp__meeting *m, fsdp__parts parts)
{
    const fsdp__network_group *g = m->group;
    fsdp__header *own = (fsdp__header *)message_of(m, g->place);
    const fsdp__leg *to = m->along + g->columns, *next = &to[g->place ^ 1];

    if (parts == FSDP__EQUAL_PARTS)
        m->part = fsdp__leg_bytes(next);
    else
        own->along = (uint16_t)pack(m, next, along_of(m, g->place));
    for (int p = 0; p < g->columns && m->part > 0; p++)
        (void)pack(m, &to[p], along_of(m, p));
    return begin_round(m);
}

static fsdp_status end_rounds(fsdp__meeting *m, fsdp__traffic *traffic)
{
    FSDP_TRY(end_round(m, traffic));
    for (m->round = 1; m->round < m->group->rounds; m->round++) {
        FSDP_TRY(begin_round(m));
        FSDP_TRY(end_round(m, traffic));
    }
    return FSDP_OK;
}

/* ---- each with each ---- */

static fsdp_status begin(fsdp__meeting *m)
{
    const fsdp__network_group *g = m->group;
    fsdp__segment own = {message_of(m, g->place), sizeof(fsdp__header)};
    int peers = 0;

    for (int p = 0; p < g->columns; p++) {
        const fsdp__leg *out = &m->along[g->columns + p];
        fsdp__segment *sent = &m->segments[g->columns + p];

        if (p == g->place)
            continue;
        m->segments[p] = (fsdp__segment){message_of(m, p), m->message_bytes};
        *sent = own;
        if (out->count > 0) {
            sent->data = memmove(message_of(m, g->columns + p), own.data, own.bytes);
            sent->bytes += pack(m, out, along_of(m, g->columns + p));
        }
        m->legs[peers] = (fsdp__leg){g->column[p], &m->segments[g->columns + p], 1, false};
        m->legs[g->columns + peers++] = (fsdp__leg){g->column[p], &m->segments[p], 1, true};
    }
    return fsdp__exchange_begin(&m->exchange, m->group, FSDP__TAG_HEADER, m->legs, peers, m->legs + g->columns, peers);
}

/* Allocates the group's memory for all its meetings: messages, then legs, then segments. A peer that calls something
 * else may send as much as goes along in any call. */
static bool take_memory(fsdp__meeting *m)
{
    size_t columns = (size_t)m->group->columns;
    size_t bytes = 2 * columns * m->message_bytes + sizeof(fsdp__header);

    if (!m->group->messages)
        m->group->messages = fsdp__malloc(bytes + 2 * columns * (2 * sizeof *m->legs + sizeof *m->segments));
    if (!m->group->messages)
        return false;
    m->legs = (fsdp__leg *)(m->group->messages + bytes);
    m->along = m->legs + 2 * columns;
    m->segments = (fsdp__segment *)(m->along + 2 * columns);
    memset(m->along, 0, 2 * columns * sizeof *m->along);
    return true;
}

fsdp_status fsdp__meeting_begin(fsdp__meeting *m, fsdp__network_group *group, const fsdp__call *call,
                                const fsdp__header *own, const fsdp__legs *legs)
{
    fsdp__link *link = &group->world->link;
    fsdp__header *header;

    *m = (fsdp__meeting){.group = group, .message_bytes = message_bytes(group)};
    if (!take_memory(m)) {
        fsdp__link_fail(link);
        return FSDP_NO_MEMORY;
    }
    if (legs) {
        take_along(m, legs->parts, legs->receives, legs->receive_count, m->along);
        take_along(m, legs->parts, legs->sends, legs->send_count, m->along + group->columns);
    }
    header = (fsdp__header *)message_of(m, group->place);
    *header = *own;
    fsdp__signature_fill(call, &header->signature);
    return group->rounds > 0 ? begin_rounds(m, legs ? legs->parts : FSDP__ANY_PARTS) : begin(m);
}

/* ---- comparing ---- */

static const fsdp__signature *said_by(const void *meeting, int place)
{
    return &fsdp__meeting_header(meeting, place)->signature;
}

/* Fails with what the rank at a place and the first rank say: the same two, whichever rank of the column finds the
 * mismatch. */
static fsdp_status fail_mismatch(const fsdp__meeting *m, int place)
{
    const fsdp__network_group *g = m->group;
    fsdp_status status =
        fsdp__verdict_mismatch(g->world->link.board, g->name, &fsdp__meeting_header(m, 0)->signature, g->column[0],
                               &fsdp__meeting_header(m, place)->signature, g->column[place]);

    fsdp__link_give_up(&g->world->link);
    return status;
}

fsdp_status fsdp__meeting_compare(const fsdp__meeting *m)
{
    const fsdp__network_group *g = m->group;
    int other;

    for (int p = 0; p < g->columns; p++)
        if (p != g->place)
            fsdp__peers_met(&m->group->world->peers, g->column[p], g->name, g->tag,
                            &fsdp__meeting_header(m, p)->signature);
    other = fsdp__signatures_compare(m, said_by, g->columns);
    return other ? fail_mismatch(m, other) : FSDP_OK;
}

fsdp_status fsdp__meeting_end(fsdp__meeting *m, fsdp__traffic *traffic)
{
    FSDP_TRY(m->group->rounds > 0 ? end_rounds(m, traffic) : fsdp__exchange_end(&m->exchange, traffic));
    FSDP_TRY(m->group->world->acts->compare(m));
    unpack(m, traffic);
    return FSDP_OK;
}

fsdp_status fsdp__meet(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__header own = {.complete = true};
    FSDP__SCOPED(fsdp__meeting_release) fsdp__meeting meeting = {0};

    FSDP_TRY(fsdp__meeting_begin(&meeting, group, call, &own, NULL));
    return fsdp__meeting_end(&meeting, traffic);
}
