/* meeting.c - headers. */
#include "comm/machines/meeting.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/symmetric/watch.h"

void fsdp__meeting_release(fsdp__meeting *m)
{
    fsdp__exchange_give_up(&m->exchange); /* where what went with it has failed before its end */
    fsdp__free(m->headers);
    fsdp__free(m->segments);
    fsdp__free(m->legs);
    *m = (fsdp__meeting){0};
}

static fsdp_status begin(fsdp__meeting *m)
{
    const fsdp__machines_group *g = m->group;
    int peers = 0;

    for (int p = 0; p < g->columns; p++) {
        m->segments[p] = (fsdp__segment){&m->headers[p], sizeof *m->headers};
        if (p == g->place)
            continue;
        m->legs[peers] = (fsdp__leg){g->column[p], &m->segments[g->place], 1};
        m->legs[g->columns + peers++] = (fsdp__leg){g->column[p], &m->segments[p], 1};
    }
    FSDP_TRY(
        fsdp__exchange_begin(&m->exchange, m->group, FSDP__TAG_HEADER, m->legs, peers, m->legs + g->columns, peers));
    return FSDP_OK;
}

fsdp_status fsdp__meeting_begin(fsdp__meeting *m, fsdp__machines_group *group, const fsdp__call *call,
                                const fsdp__header *own)
{
    size_t columns = (size_t)group->columns;
    fsdp__link *link = &group->world->link;

    *m = (fsdp__meeting){.group = group,
                         .headers = fsdp__calloc(columns, sizeof *m->headers),
                         .segments = fsdp__calloc(columns, sizeof *m->segments),
                         .legs = fsdp__calloc(2 * columns, sizeof *m->legs)};
    if (!m->headers || !m->segments || !m->legs) {
        fsdp__arena_abort(link->arena, FSDP_NO_MEMORY, link->places.rank, fsdp_last_error());
        return FSDP_NO_MEMORY;
    }
    m->headers[group->place] = *own;
    fsdp__signature_fill(call, &m->headers[group->place].signature);
    return begin(m);
}

/* Of the rank at a place and the first: the same two, whoever of the column finds it out. */
static fsdp_status fail_mismatch(const fsdp__meeting *m, int place)
{
    const fsdp__machines_group *g = m->group;
    const fsdp__signature *a = &m->headers[0].signature, *b = &m->headers[place].signature;
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
    int with = m->headers[place].shared ? place : 0, without = m->headers[place].shared ? 0 : place;
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
    const fsdp__header *first = &m->headers[0];

    FSDP_TRY(fsdp__exchange_end(&m->exchange, traffic));
    for (int p = 0; p < m->group->columns; p++)
        fsdp__watch_met(&m->group->world->watch, m->group->column[p], m->group->name, m->group->tag,
                        &m->headers[p].signature);
    for (int p = 1; p < m->group->columns; p++)
        if (memcmp(&first->signature, &m->headers[p].signature, sizeof first->signature) != 0)
            return fail_mismatch(m, p);
    for (int p = 1; p < m->group->columns; p++)
        if (first->shared != m->headers[p].shared)
            return fail_memory(m, p);
    return FSDP_OK;
}

fsdp_status fsdp__meet(fsdp__machines_group *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__header own = {.complete = true};
    fsdp__meeting meeting;
    fsdp_status status = fsdp__meeting_begin(&meeting, group, call, &own);

    if (status == FSDP_OK)
        status = fsdp__meeting_end(&meeting, traffic);
    fsdp__meeting_release(&meeting);
    return status;
}
