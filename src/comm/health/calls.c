/* calls.c - where each rank is in the calls of its groups. A rank writes this into its own row and desks, and anybody
 * may read it there at any time. */
#include "comm/health/calls.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/lock.h"

enum {
    LEAST_TICKS = 2 /* at least, in a timeout: what one look shows may be chance */
};

void fsdp__health_set_timeout(fsdp__health *health, int64_t timeout_ms, int64_t tick_ms)
{
    atomic_store(&health->tick_ms, tick_ms);
    atomic_store(&health->timeout_ms, timeout_ms);
    atomic_store(&health->timeout_ticks,
                 timeout_ms > 0 ? FSDP__MAX(LEAST_TICKS, (timeout_ms + tick_ms - 1) / tick_ms) : 0);
}

/* ---- writing ---- */

/* Sets the fields without a format, since this runs for every call. */
void fsdp__doing_set(fsdp__doing *doing, const char *group, int tag, uint64_t sequence, int32_t name, const char *label)
{
    size_t length = strnlen(group, sizeof doing->group - 1);

    doing->tag = tag;
    doing->sequence = sequence;
    doing->name = name;
    memcpy(doing->group, group, length);
    memset(doing->group + length, 0, sizeof doing->group - length);
    memcpy(doing->label, label, sizeof doing->label);
}

static void begin(fsdp__health *health, int index, const char *group, int tag, const fsdp__call *call)
{
    fsdp__row *row = fsdp__row_at(health->board, health->rank);
    fsdp__doing doing;

    fsdp__doing_set(&doing, group, tag, call->sequence, (int32_t)call->name, call->label);
    if (index >= 0) {
        fsdp__cell_write(fsdp__desk_at(health->board, index, health->rank)->doing, &doing, sizeof doing);
    } else {
        FSDP__HELD(&health->mutex);
        fsdp__cell_write(row->elsewhere, &doing, sizeof doing);
    }
    atomic_store_explicit(&row->last, index < 0 ? FSDP__IN_ELSEWHERE : (uint32_t)index + 1, memory_order_release);
}

void fsdp__health_note(fsdp__health *health, int index, const char *group, int tag, const fsdp__call *call,
                       fsdp__moment moment)
{
    fsdp__desk *desk = index < 0 ? NULL : fsdp__desk_at(health->board, index, health->rank);

    if (moment == FSDP__CALL_BEGUN)
        begin(health, index, group, tag, call);
    else if (desk)
        atomic_store_explicit(moment == FSDP__CALL_ISSUED ? &desk->issued : &desk->done, call->sequence,
                              memory_order_release);
}

void fsdp__health_program_waits(fsdp__health *health, int index, const fsdp_stream *worker, bool waits)
{
    fsdp__row *own = fsdp__row_at(health->board, health->rank);

    if (index >= 0)
        atomic_store(&own->awaited_worker, waits ? (uintptr_t)worker : 0);
    /* A context may be made on another thread than the one that uses it. */
    if (waits && (!health->program_known || !pthread_equal(health->program, pthread_self()))) {
        health->program = pthread_self();
        health->program_known = true;
        atomic_store_explicit(&own->thread, gettid(), memory_order_relaxed);
    }
    atomic_store_explicit(&own->program_in,
                          !waits      ? 0
                          : index < 0 ? FSDP__IN_ELSEWHERE
                                      : (uint32_t)index + 1,
                          memory_order_release);
}

void fsdp__health_looked(const fsdp__health *health, int64_t cpu_ns)
{
    atomic_fetch_add_explicit(&fsdp__row_at(health->board, health->rank)->looked_ns, cpu_ns, memory_order_relaxed);
}

/* ---- reading ---- */

bool fsdp__call_is_on_its_way(const fsdp__board *board, int group, int rank)
{
    const fsdp__desk *desk = fsdp__desk_at(board, group, rank);

    return atomic_load_explicit(&desk->done, memory_order_acquire) !=
           atomic_load_explicit(&desk->issued, memory_order_acquire);
}

bool fsdp__call_last(const fsdp__board *board, int group, int rank, fsdp__doing *out)
{
    const fsdp__row *row = fsdp__row_at(board, rank);
    bool whole = true;

    *out = (fsdp__doing){.sequence = 0};
    if (group < 0)
        group = (int)atomic_load_explicit(&row->last, memory_order_acquire) - 1;
    if (group >= 0)
        whole = fsdp__cell_read(group == FSDP__BOARD_GROUPS ? row->elsewhere : fsdp__desk_at(board, group, rank)->doing,
                                out, sizeof *out);
    out->group[sizeof out->group - 1] = out->label[sizeof out->label - 1] = '\0';
    return whole;
}

static void write_text(const fsdp__doing *doing, char *text, size_t bytes)
{
    snprintf(text, bytes, "call %llu of group '%s' (%s%s%s%s)", (unsigned long long)doing->sequence, doing->group,
             fsdp__call_text((fsdp__call_name)doing->name), doing->label[0] ? " for '" : "", doing->label,
             doing->label[0] ? "'" : "");
}

bool fsdp__call_text_of(const fsdp__board *board, int group, int rank, char *text, size_t bytes)
{
    fsdp__doing last;

    fsdp__call_last(board, group, rank, &last);
    if (last.sequence == 0)
        return false;
    write_text(&last, text, bytes);
    return true;
}

void fsdp__doing_text(const fsdp__doing *doing, int in, char *text, size_t bytes)
{
    char call[FSDP__CALL_BYTES];

    write_text(doing, call, sizeof call);
    if (doing->sequence == 0)
        snprintf(text, bytes, "before its first call");
    else
        snprintf(text, bytes, "%s %s", in > 0 ? "in" : "after", call);
}
