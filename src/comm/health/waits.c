/* waits.c - finds out who waits for whom. */
#include "comm/health/waits.h"

#include <stdio.h>

#include "base/hash.h"
#include "comm/health/calls.h"
#include "comm/health/region.h"

/* ---- places ---- */

static uint32_t next_generation(const fsdp__board *board, int group)
{
    return (atomic_load_explicit(&fsdp__group_at(board, group)->generation, memory_order_acquire) &
            ~(uint32_t)FSDP__GENERATION_BROKEN) +
           2;
}

static fsdp__rank_set ranks_of(const fsdp__board *board, int group)
{
    const fsdp__board_group *shared = fsdp__group_at(board, group);
    fsdp__rank_set set = {{0}};

    for (size_t i = 0; i < sizeof set.bits / sizeof *set.bits && atomic_load(&shared->key) != 0; i++)
        set.bits[i] = atomic_load_explicit(&shared->ranks[i], memory_order_relaxed);
    return set;
}

/* Returns whether the rank stands in the group's meeting `next`. */
static bool stands_in(const fsdp__board *board, int group, int rank, uint32_t next)
{
    return atomic_load(&fsdp__desk_at(board, group, rank)->counted) == next;
}

static bool meeting_of(const fsdp__board *board, int group, int rank, fsdp__wait_place *out)
{
    fsdp__rank_set ranks = ranks_of(board, group);
    uint32_t next = next_generation(board, group);

    if (!fsdp__rank_set_has(&ranks, rank) || !stands_in(board, group, rank, next))
        return false;
    *out = (fsdp__wait_place){.group = group, .mark = next};
    return true;
}

static const fsdp__shared_header *header_at(const fsdp__board *board, uint64_t region)
{
    return (const fsdp__shared_header *)(const void *)((const char *)board + region);
}

static bool write_of(const fsdp__board *board, int rank, bool by_program, fsdp__wait_place *out)
{
    uint64_t region = atomic_load(&fsdp__row_at(board, rank)->awaited[by_program]);

    if (!region)
        return false;
    *out = (fsdp__wait_place){.group = -1,
                              .region = region,
                              .mark = atomic_load(&header_at(board, region)->readers[rank].awaited[by_program])};
    return true;
}

static const fsdp__reader *writer_at(const fsdp__board *board, int rank, const fsdp__wait_place *write)
{
    return &header_at(board, write->region)->readers[rank];
}

/* Finds a write in the work of the stream that the program waits for. */
static bool awaited_write_of(const fsdp__board *board, int rank, fsdp__wait_place *out)
{
    uint64_t worker = atomic_load(&fsdp__row_at(board, rank)->awaited_worker);

    return worker != 0 && write_of(board, rank, false, out) &&
           atomic_load(&writer_at(board, rank, out)->worker) == worker;
}

bool fsdp__program_place(const fsdp__board *board, int rank, fsdp__wait_place *out)
{
    uint32_t in = atomic_load_explicit(&fsdp__row_at(board, rank)->program_in, memory_order_acquire);

    if (in == 0)
        return false;
    return write_of(board, rank, true, out) || awaited_write_of(board, rank, out) ||
           (in != FSDP__IN_ELSEWHERE && meeting_of(board, (int)in - 1, rank, out));
}

/* Lists all places of a rank: at most one meeting for each group, and one write each of the program and of a worker. */
static int places_of(const fsdp__board *board, int rank, fsdp__wait_place out[FSDP__BOARD_GROUPS + 2])
{
    int count = 0;

    for (int g = 0; g < FSDP__BOARD_GROUPS; g++)
        count += meeting_of(board, g, rank, &out[count]);
    count += write_of(board, rank, true, &out[count]);
    count += write_of(board, rank, false, &out[count]);
    return count;
}

/* ---- who is awaited there ---- */

/* Returns whether the rank's next call of the group stands behind a write that its program waits for. */
static bool is_held_up(const fsdp__board *board, int group, int rank)
{
    fsdp__wait_place write;

    return awaited_write_of(board, rank, &write) &&
           atomic_load(&writer_at(board, rank, &write)->in) == (uint32_t)group + 1 &&
           atomic_load(&fsdp__desk_at(board, group, rank)->done) >=
               atomic_load(&writer_at(board, rank, &write)->issued);
}

static bool is_awaited_in_meeting(const fsdp__board *board, const fsdp__wait_place *place, int rank, bool surely)
{
    return !stands_in(board, place->group, rank, (uint32_t)place->mark) &&
           !(surely && fsdp__call_is_on_its_way(board, place->group, rank) && !is_held_up(board, place->group, rank));
}

static bool is_awaited_by_writer(const fsdp__board *board, const fsdp__wait_place *place, int rank, bool surely)
{
    const fsdp__reader *reader = &header_at(board, place->region)->readers[rank];

    return reader->member && atomic_load(surely ? &reader->ended : &reader->done) < place->mark;
}

fsdp__rank_set fsdp__place_awaits(const fsdp__board *board, int rank, const fsdp__wait_place *place, bool surely)
{
    fsdp__rank_set members = {{0}}, awaited = {{0}};

    if (!place->region)
        members = ranks_of(board, place->group);
    for (int r = 0; r < board->world; r++) {
        if (r == rank)
            continue;
        if (place->region ? is_awaited_by_writer(board, place, r, surely)
                          : fsdp__rank_set_has(&members, r) && is_awaited_in_meeting(board, place, r, surely))
            fsdp__rank_set_add(&awaited, r);
    }
    return awaited;
}

bool fsdp__stands_first(const fsdp__board *board, int rank, const fsdp__wait_place *place)
{
    fsdp__rank_set members = {{0}};

    if (place->region)
        return true;
    members = ranks_of(board, place->group);
    for (int r = 0; r < rank; r++)
        if (fsdp__rank_set_has(&members, r) && stands_in(board, place->group, r, (uint32_t)place->mark))
            return false;
    return true;
}

static uint64_t hash_place(uint64_t hash, int rank, const fsdp__wait_place *place)
{
    hash = fsdp__mix(fsdp__mix(hash, (uint64_t)rank), (uint64_t)(int64_t)place->group);
    return fsdp__mix(fsdp__mix(hash, place->region), place->mark);
}

/* ---- circles ---- */

/* Collects the ranks from the first one to `last`, by who led to whom. */
static void trace_back(const fsdp__board *board, const int16_t *led_by, int last, fsdp__circle *out)
{
    out->length = 0;
    for (int r = last; r >= 0; r = led_by[r])
        out->length++;
    for (int r = last, at = out->length; r >= 0; r = led_by[r])
        out->ranks[--at] = (int16_t)r;
    for (int i = 0; i < out->length; i++) {
        fsdp__wait_place place;

        if (!fsdp__program_place(board, out->ranks[i], &place)) {
            out->length = 0; /* it has gone on meanwhile */
            return;
        }
        out->hash = hash_place(out->hash, out->ranks[i], &place);
    }
}

void fsdp__find_circle(const fsdp__board *board, int rank, fsdp__circle *out)
{
    int16_t queue[FSDP__BOARD_RANKS], led_by[FSDP__BOARD_RANKS];
    fsdp__rank_set seen = {{0}}, awaited;
    int first = 0, end = 0;
    fsdp__wait_place place;

    *out = (fsdp__circle){.length = 0};
    queue[end++] = (int16_t)rank;
    led_by[rank] = -1;
    while (first < end) {
        int at = queue[first++];

        if (!fsdp__program_place(board, at, &place))
            continue;
        awaited = fsdp__place_awaits(board, at, &place, true);
        if (at != rank && fsdp__rank_set_has(&awaited, rank)) {
            trace_back(board, led_by, at, out);
            return;
        }
        for (int r = 0; r < board->world; r++) {
            if (!fsdp__rank_set_has(&awaited, r) || fsdp__rank_set_has(&seen, r) || r == rank)
                continue;
            fsdp__rank_set_add(&seen, r);
            led_by[r] = (int16_t)at;
            queue[end++] = (int16_t)r;
        }
    }
}

static int hop_text(const fsdp__board *board, int rank, int next, char *text, size_t bytes)
{
    int who = fsdp__board_global(board, rank), whom = fsdp__board_global(board, next);
    char call[224];
    fsdp__wait_place place;

    if (!fsdp__program_place(board, rank, &place))
        return snprintf(text, bytes, "rank %d waits for rank %d", who, whom);
    if (place.region)
        return snprintf(text, bytes, "rank %d cannot write to memory that rank %d still reads", who, whom);
    if (!fsdp__call_text_of(board, place.group, rank, call, sizeof call))
        snprintf(call, sizeof call, "the first meeting of all ranks");
    return snprintf(text, bytes, "rank %d waits for rank %d in %s", who, whom, call);
}

void fsdp__circle_text(const fsdp__board *board, const fsdp__circle *circle, char *text, size_t bytes)
{
    size_t at = 0;

    text[0] = '\0';
    for (int i = 0; i < circle->length && at < bytes; i++) {
        at += (size_t)snprintf(text + at, bytes - at, "%s", i == 0 ? "" : i + 1 < circle->length ? ", " : ", and ");
        if (at < bytes)
            at += (size_t)hop_text(board, circle->ranks[i], circle->ranks[(i + 1) % circle->length], text + at,
                                   bytes - at);
    }
    if (at < bytes)
        snprintf(text + at, bytes - at, ": all ranks must make the same calls in the same order");
}

/* ---- all that is waited for ---- */

static void add_awaited(const fsdp__board *board, int rank, const fsdp__wait_place *place, fsdp__rank_set *seen,
                        fsdp__reach *reach)
{
    fsdp__rank_set awaited = fsdp__place_awaits(board, rank, place, false);

    reach->hash = hash_place(reach->hash, rank, place);
    for (int r = 0; r < board->world; r++) {
        if (!fsdp__rank_set_has(&awaited, r) || fsdp__rank_set_has(seen, r))
            continue;
        fsdp__rank_set_add(seen, r);
        reach->ranks[reach->count++] = (int16_t)r;
    }
}

void fsdp__find_reach(const fsdp__board *board, int rank, const fsdp__wait_place *place, fsdp__reach *out)
{
    fsdp__wait_place places[FSDP__BOARD_GROUPS + 2];
    fsdp__rank_set seen = {{0}};

    *out = (fsdp__reach){.count = 0};
    add_awaited(board, rank, place, &seen, out);
    for (int i = 0; i < out->count; i++) {
        int count = places_of(board, out->ranks[i], places);

        out->stands[i] = count > 0;
        for (int p = 0; p < count; p++)
            add_awaited(board, out->ranks[i], &places[p], &seen, out);
    }
}
