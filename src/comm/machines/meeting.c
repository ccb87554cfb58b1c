/* meeting.c - headers. */
#include "comm/machines/meeting.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/symmetric/watch.h"

enum {
    MESSAGE_BYTES = (sizeof(fsdp__header) + FSDP__ALONG_BYTES + 63) / 64 * 64 /* at most, and lines of its own */
};

void fsdp__meeting_release(fsdp__meeting *m)
{
    fsdp__exchange_give_up(&m->exchange); /* where what went with it has failed before its end */
    *m = (fsdp__meeting){0};
}

/* As it comes, a header and what is along; behind those of all places: as it goes. */
static unsigned char *message_of(const fsdp__meeting *m, int place)
{
    return m->group->messages + (size_t)place * MESSAGE_BYTES;
}

const fsdp__header *fsdp__meeting_header(const fsdp__meeting *m, int place)
{
    return (const fsdp__header *)message_of(m, place);
}

/* ---- what goes along ---- */

/* Takes those of the legs that are small, by their places. */
static void take_along(const fsdp__meeting *m, fsdp__leg *legs, int count, fsdp__leg *along)
{
    const fsdp__machines_group *g = m->group;
    int place = 0;

    for (int i = 0; i < count; i++) {
        if (!fsdp__goes_along((int64_t)fsdp__leg_bytes(&legs[i])))
            continue;
        while (place < g->columns && g->column[place] < legs[i].rank)
            place++;
        if (place == g->columns || g->column[place] != legs[i].rank)
            continue;
        along[place] = legs[i];
        legs[i].count = 0;
    }
}

/* The message to a place, at `at`: its bytes. */
static size_t pack(const fsdp__meeting *m, const fsdp__leg *along, unsigned char *at)
{
    size_t bytes = sizeof(fsdp__header);

    memcpy(at, message_of(m, m->group->place), bytes);
    for (int i = 0; i < along->count; i++) {
        memcpy(at + bytes, along->segments[i].data, along->segments[i].bytes);
        bytes += along->segments[i].bytes;
    }
    return bytes;
}

/* What came along goes where it belongs. */
static void unpack(const fsdp__meeting *m, fsdp__traffic *traffic)
{
    const fsdp__machines_group *g = m->group;
    const fsdp__places *places = &g->world->link.places;

    for (int p = 0; p < g->columns; p++) {
        const fsdp__leg *in = &m->along[p], *out = &m->along[g->columns + p];
        const unsigned char *from = message_of(m, p) + sizeof(fsdp__header);

        for (int i = 0; i < in->count; i++) {
            memcpy(in->segments[i].data, from, in->segments[i].bytes);
            from += in->segments[i].bytes;
        }
        if (fsdp__machine_of(places, g->column[p]) == fsdp__machine_of(places, places->rank))
            continue;
        traffic->network_received += (int64_t)fsdp__leg_bytes(in);
        traffic->network_sent += (int64_t)fsdp__leg_bytes(out);
    }
}

/* ---- the messages ---- */

static fsdp_status begin(fsdp__meeting *m)
{
    const fsdp__machines_group *g = m->group;
    fsdp__segment own = {message_of(m, g->place), sizeof(fsdp__header)};
    int peers = 0;

    for (int p = 0; p < g->columns; p++) {
        const fsdp__leg *out = &m->along[g->columns + p];
        unsigned char *at = message_of(m, g->columns + p);

        if (p == g->place)
            continue;
        m->segments[p] = (fsdp__segment){message_of(m, p), MESSAGE_BYTES};
        m->segments[g->columns + p] = out->count > 0 ? (fsdp__segment){at, pack(m, out, at)} : own;
        m->legs[peers] = (fsdp__leg){g->column[p], &m->segments[g->columns + p], 1, false};
        m->legs[g->columns + peers++] = (fsdp__leg){g->column[p], &m->segments[p], 1, true};
    }
    FSDP_TRY(
        fsdp__exchange_begin(&m->exchange, m->group, FSDP__TAG_HEADER, m->legs, peers, m->legs + g->columns, peers));
    return FSDP_OK;
}

/* The group's, for all its meetings: messages, then legs, then segments. A peer that calls something else may send as
 * much as goes along in any call. */
static bool take_memory(fsdp__meeting *m)
{
    size_t columns = (size_t)m->group->columns;

    if (!m->group->messages)
        m->group->messages = fsdp__malloc(2 * columns * (MESSAGE_BYTES + 2 * sizeof *m->legs + sizeof *m->segments));
    if (!m->group->messages)
        return false;
    m->legs = (fsdp__leg *)(m->group->messages + 2 * columns * MESSAGE_BYTES);
    m->along = m->legs + 2 * columns;
    m->segments = (fsdp__segment *)(m->along + 2 * columns);
    memset(m->along, 0, 2 * columns * sizeof *m->along);
    return true;
}

fsdp_status fsdp__meeting_begin(fsdp__meeting *m, fsdp__machines_group *group, const fsdp__call *call,
                                const fsdp__header *own, const fsdp__legs *legs)
{
    fsdp__link *link = &group->world->link;
    fsdp__header *header;

    *m = (fsdp__meeting){.group = group};
    if (!take_memory(m)) {
        fsdp__link_fail(link);
        return FSDP_NO_MEMORY;
    }
    if (legs) {
        take_along(m, legs->receives, legs->receive_count, m->along);
        take_along(m, legs->sends, legs->send_count, m->along + group->columns);
    }
    header = (fsdp__header *)message_of(m, group->place);
    *header = *own;
    fsdp__signature_fill(call, &header->signature);
    return begin(m);
}

/* ---- comparing ---- */

/* Of the rank at a place and the first: the same two, whoever of the column finds it out. */
static fsdp_status fail_mismatch(const fsdp__meeting *m, int place)
{
    const fsdp__machines_group *g = m->group;
    const fsdp__signature *a = &fsdp__meeting_header(m, 0)->signature, *b = &fsdp__meeting_header(m, place)->signature;
    char first[224], second[224], text[640], number[48] = "";

    fsdp__signature_text(a, first, sizeof first);
    fsdp__signature_text(b, second, sizeof second);
    if (a->sequence != b->sequence)
        snprintf(number, sizeof number, "call %llu, ", (unsigned long long)b->sequence);
    snprintf(text, sizeof text, "ranks disagree in group '%s': call %llu is %s on rank %d but %s%s on rank %d%s",
             g->name, (unsigned long long)a->sequence, first, g->column[0], number, second, g->column[place],
             strcmp(first, second) == 0 ? " with other options or buffer sizes" : "");
    fsdp__arena_abort(g->world->link.arena, FSDP_MISMATCH, -1, text);
    fsdp__link_give_up(&g->world->link);
    return FSDP_FAIL(FSDP_MISMATCH, "%s", text);
}

static fsdp_status fail_memory(const fsdp__meeting *m, int place)
{
    const fsdp__machines_group *g = m->group;
    bool shared = fsdp__meeting_header(m, place)->shared;
    int with = shared ? place : 0, without = shared ? 0 : place;
    char text[256];

    snprintf(
        text, sizeof text,
        "ranks disagree in group '%.64s': the buffers of rank %d lie in memory that its machine's ranks see, those "
        "of rank %d do not",
        g->name, g->column[with], g->column[without]);
    fsdp__arena_abort(g->world->link.arena, FSDP_MISMATCH, -1, text);
    fsdp__link_give_up(&g->world->link);
    return FSDP_FAIL(FSDP_MISMATCH, "%s", text);
}

fsdp_status fsdp__meeting_end(fsdp__meeting *m, fsdp__traffic *traffic)
{
    const fsdp__machines_group *g = m->group;
    const fsdp__header *first = fsdp__meeting_header(m, 0);

    FSDP_TRY(fsdp__exchange_end(&m->exchange, traffic));
    for (int p = 0; p < g->columns; p++)
        if (p != g->place)
            fsdp__watch_met(&m->group->world->watch, g->column[p], g->name, g->tag,
                            &fsdp__meeting_header(m, p)->signature);
    for (int p = 1; p < g->columns; p++)
        if (memcmp(&first->signature, &fsdp__meeting_header(m, p)->signature, sizeof first->signature) != 0)
            return fail_mismatch(m, p);
    for (int p = 1; p < g->columns; p++)
        if (first->shared != fsdp__meeting_header(m, p)->shared)
            return fail_memory(m, p);
    unpack(m, traffic);
    return FSDP_OK;
}

fsdp_status fsdp__meet(fsdp__machines_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__header own = {.complete = true};
    fsdp__meeting meeting;
    fsdp_status status = fsdp__meeting_begin(&meeting, group, call, &own, NULL);

    if (status == FSDP_OK)
        status = fsdp__meeting_end(&meeting, traffic);
    fsdp__meeting_release(&meeting);
    return status;
}
