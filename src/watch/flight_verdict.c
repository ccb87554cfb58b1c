/* flight_verdict.c - says in words which rank the others wait for, or where ranks differ. */

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "watch/flight_read.h"

enum {
    LINE_BYTES = 1200,
    MOST_SPAN = 1 << 16, /* numbers of a group's calls that are compared */
    MOST_WAITS = 16,     /* of a rank: it has one for each stream */
    MOST_HOPS = 8
};

#define OLD_NS INT64_C(10000000000) /* a record that is older than this is not from the end of the run */

/* A group as all ranks know it. */
typedef struct group {
    const fsdp__flight_group *of; /* as one of them knows it */
    int nth;                      /* of the groups with this name and these members: programs may make several */
    int *at;                      /* by log: its place in the log's groups; -1: the rank does not know it */
} group;

typedef struct judge {
    const fsdp__flight_logs *logs;
    group *groups;
    int group_count;
    fsdp__flight_verdict *out;
} judge;

/* A rank that has begun a call which is not done. */
typedef struct wait {
    const fsdp__flight_log *log;
    const fsdp__flight_record *record;
    const group *group;
    bool lacks; /* a member of the group has not begun it */
} wait;

static fsdp_status add_line(judge *j, const char *line)
{
    if (j->out->count == FSDP__FLIGHT_FINDINGS)
        return FSDP_OK;
    j->out->lines[j->out->count] = fsdp__strdup(line);
    FSDP__TRY_NEW(j->out->lines[j->out->count]);
    j->out->count++;
    return FSDP_OK;
}

/* ---- groups ---- */

static bool same_group(const fsdp__flight_group *a, const fsdp__flight_group *b)
{
    return a->check == b->check && a->size == b->size && strcmp(a->name, b->name) == 0 &&
           memcmp(a->run, b->run, sizeof a->run) == 0;
}

static int nth_of(const fsdp__flight_log *log, int at)
{
    int nth = 0;

    for (int i = 0; i < at; i++)
        nth += same_group(&log->groups[i], &log->groups[at]);
    return nth;
}

static fsdp_status add_group(judge *j, const fsdp__flight_group *of, int nth, group **out)
{
    group *grown = fsdp__realloc(j->groups, (size_t)(j->group_count + 1) * sizeof *grown);

    FSDP__TRY_NEW(grown);
    j->groups = grown;
    *out = &grown[j->group_count];
    **out = (group){.of = of, .nth = nth, .at = fsdp__malloc((size_t)j->logs->count * sizeof *grown->at)};
    if (!(*out)->at)
        return FSDP_NO_MEMORY;
    for (int i = 0; i < j->logs->count; i++)
        (*out)->at[i] = -1;
    j->group_count++;
    return FSDP_OK;
}

static fsdp_status find_groups(judge *j)
{
    for (int i = 0; i < j->logs->count; i++) {
        const fsdp__flight_log *log = &j->logs->logs[i];

        for (int at = 0; at < log->group_count; at++) {
            int nth = nth_of(log, at), g = 0;
            group *found;

            while (g < j->group_count && (j->groups[g].nth != nth || !same_group(j->groups[g].of, &log->groups[at])))
                g++;
            found = &j->groups[g];
            if (g == j->group_count)
                FSDP_TRY(add_group(j, &log->groups[at], nth, &found));
            found->at[i] = at;
        }
    }
    return FSDP_OK;
}

static const group *group_of(const judge *j, int log, uint32_t at)
{
    for (int g = 0; g < j->group_count; g++)
        if (j->groups[g].at[log] == (int)at)
            return &j->groups[g];
    return NULL; /* not reached: all groups of all logs were added */
}

/* ---- processes that are gone ---- */

/* Returns whether the process ended by itself, and nobody had told it that its world was broken. */
static bool died(const fsdp__flight_log *log)
{
    return log->end.ending[0] && log->end.state == FSDP__FLIGHT_RUNS_ON;
}

static fsdp_status find_dead(judge *j)
{
    for (int i = 0; i < j->logs->count; i++) {
        const fsdp__flight_log *log = &j->logs->logs[i];
        char line[LINE_BYTES], place[320];

        if (!died(log))
            continue;
        fsdp__flight_place_text(log, place, sizeof place);
        snprintf(line, sizeof line, "%s; it was last %s", log->end.ending, place);
        FSDP_TRY(add_line(j, line));
    }
    return FSDP_OK;
}

/* ---- calls that differ ---- */

/* The descriptions that ranks give of the same call of a group. */
typedef struct told {
    const fsdp__flight_log *log;
    const fsdp__flight_record *record;
} told;

static bool differ(const fsdp__flight_record *a, const fsdp__flight_record *b)
{
    return strcmp(a->name, b->name) != 0 || a->bytes != b->bytes || a->dtype != b->dtype ||
           (a->labelled && b->labelled && strcmp(a->module, b->module) != 0);
}

static fsdp_status tell_difference(judge *j, const group *g, uint64_t number, const told *first)
{
    char line[LINE_BYTES], mine[320], theirs[320];
    fsdp__rank_list with = {.count = 0}, against = {.count = 0};
    told t, other = {NULL, NULL};

    for (int i = 0; i < j->logs->count; i++) {
        t.log = &j->logs->logs[i];
        for (int64_t k = 0; k < t.log->count; k++) {
            t.record = &t.log->records[k];
            if ((int)t.record->group != g->at[i] || t.record->number != number)
                continue;
            if (!differ(first->record, t.record)) {
                fsdp__rank_list_add(&with, t.log->head.rank);
                continue;
            }
            fsdp__rank_list_add(&against, t.log->head.rank);
            if (!other.record)
                other = t;
        }
    }
    fsdp__flight_call_text(first->log, first->record, mine, sizeof mine);
    fsdp__flight_call_text(other.log, other.record, theirs, sizeof theirs);
    snprintf(line, sizeof line, "ranks make different calls: %s make%s %s, but %s make%s %s",
             fsdp__rank_list_text(&with, FSDP__ROOM(160)), with.count == 1 ? "s" : "", mine,
             fsdp__rank_list_text(&against, FSDP__ROOM(160)), against.count == 1 ? "s" : "", theirs);
    return add_line(j, line);
}

/* Finds the first call of a group that two ranks describe differently. */
static fsdp_status find_difference(judge *j, const group *g)
{
    uint64_t last = 0, worst = 0;
    FSDP__FREED told *seen = NULL;
    told first = {NULL, NULL};

    for (int i = 0; i < j->logs->count; i++)
        for (int64_t k = 0; k < j->logs->logs[i].count; k++)
            if ((int)j->logs->logs[i].records[k].group == g->at[i] && j->logs->logs[i].records[k].number > last)
                last = j->logs->logs[i].records[k].number;
    FSDP__TRY_NEW(seen = fsdp__calloc(MOST_SPAN, sizeof *seen));
    for (int i = 0; i < j->logs->count; i++)
        for (int64_t k = 0; k < j->logs->logs[i].count; k++) {
            const fsdp__flight_record *r = &j->logs->logs[i].records[k];
            told *before = &seen[r->number % MOST_SPAN];

            if ((int)r->group != g->at[i] || last - r->number >= MOST_SPAN)
                continue;
            if (!before->record)
                *before = (told){&j->logs->logs[i], r};
            else if (differ(before->record, r) && (worst == 0 || r->number < worst)) {
                worst = r->number;
                first = *before;
            }
        }
    return worst > 0 ? tell_difference(j, g, worst, &first) : FSDP_OK;
}

/* ---- calls that some have not come to ---- */

/* Returns whether a member of the call's group has not begun it. */
static bool is_missing(const judge *j, const wait *w, int rank)
{
    const fsdp__flight_log *log = fsdp__flight_log_of(j->logs, rank);
    int at;

    if (!fsdp__flight_is_member(w->group->of, rank))
        return false;
    if (!log)
        return true;
    at = w->group->at[log - j->logs->logs];
    return at < 0 || log->groups[at].begun < w->record->number;
}

static bool lacks_a_rank(const judge *j, const wait *w)
{
    for (int r = 0; r < j->logs->world; r++)
        if (is_missing(j, w, r))
            return true;
    return false;
}

/* Lists the calls of all ranks that are begun and not done. */
static fsdp_status find_waits(const judge *j, wait **out, int64_t *out_count)
{
    int64_t count = 0, capacity = 0;
    FSDP__FREED wait *waits = NULL;

    for (int i = 0; i < j->logs->count; i++) {
        const fsdp__flight_log *log = &j->logs->logs[i];
        int own = 0;

        for (int64_t k = log->count; k-- > 0 && own < MOST_WAITS;) {
            const fsdp__flight_record *r = &log->records[k];
            const group *g = group_of(j, i, r->group);

            if (r->begun == 0 || r->done != 0 || !g || g->of->size == 1)
                continue;
            FSDP_TRY(fsdp__grow(&waits, count, &capacity, sizeof *waits));
            waits[count] = (wait){log, r, g, false};
            waits[count].lacks = lacks_a_rank(j, &waits[count]);
            count++;
            own++;
        }
    }
    *out = fsdp__take(&waits);
    *out_count = count;
    return FSDP_OK;
}

/* Returns the call in which the rank itself waits for others; NULL: none. */
static const wait *held_up(const wait *waits, int64_t count, int rank)
{
    for (int64_t i = 0; i < count; i++)
        if (waits[i].log->head.rank == rank && waits[i].lacks)
            return &waits[i];
    return NULL;
}

/* Returns by how much a file is older than the newest one of its machine; 0: it is no file of its own, or hardly older.
 * An older file was asked for earlier, and the rank has left none at the end. */
static int64_t age_of(const judge *j, const fsdp__flight_log *log)
{
    int64_t wall = fsdp__flight_wall(log, log->now), age = 0;

    for (int i = 0; i < j->logs->count && log->end.written_ns > 0 && wall > 0; i++) {
        const fsdp__flight_log *other = &j->logs->logs[i];

        if (strcmp(other->head.host, log->head.host) == 0)
            age = FSDP__MAX(age, fsdp__flight_wall(other, other->now) - wall);
    }
    return age > OLD_NS ? age : 0;
}

static void absent_text(const judge *j, const wait *w, int rank, char *text, size_t bytes)
{
    const fsdp__flight_log *log = fsdp__flight_log_of(j->logs, rank);
    int at = log ? w->group->at[log - j->logs->logs] : -1;
    int64_t age = log ? age_of(j, log) : 0;
    char place[320];

    if (!log) {
        snprintf(text, bytes, "it has left no record: its process was killed, or its file lies elsewhere");
        return;
    }
    if (died(log)) {
        snprintf(text, bytes, "it is gone");
        return;
    }
    fsdp__flight_place_text(log, place, sizeof place);
    if (age > 0) {
        snprintf(text, bytes,
                 "its record is %s older than the last, and there is none of what it did since; then it was %s",
                 fsdp__flight_time_text(age, FSDP__ROOM(32)), place);
        return;
    }
    snprintf(text, bytes, "%sit is %s",
             at >= 0 && log->groups[at].issued >= w->record->number
                 ? "it has issued the call, behind others that are not done; "
                 : "",
             place);
}

/* Says which rank the others wait for, if nobody holds that rank up. */
static fsdp_status tell_missing(judge *j, const wait *waits, int64_t count, int rank)
{
    char line[LINE_BYTES], call[320], does[480];
    const wait *longest = NULL;
    fsdp__rank_list waiting = {.count = 0};
    int64_t most = -1;

    for (int64_t i = 0; i < count; i++)
        if (is_missing(j, &waits[i], rank) && waits[i].log->now - waits[i].record->begun > most) {
            longest = &waits[i];
            most = waits[i].log->now - waits[i].record->begun;
        }
    if (!longest)
        return FSDP_OK;
    for (int64_t i = 0; i < count; i++)
        if (waits[i].group == longest->group && waits[i].record->number == longest->record->number)
            fsdp__rank_list_add(&waiting, waits[i].log->head.rank);
    fsdp__flight_call_text(longest->log, longest->record, call, sizeof call);
    absent_text(j, longest, rank, does, sizeof does);
    snprintf(line, sizeof line, "the others wait for rank %d: it has not come to %s, where %s %s waited %s; %s", rank,
             call, fsdp__rank_list_text(&waiting, FSDP__ROOM(160)), waiting.count == 1 ? "has" : "have",
             fsdp__flight_time_text(most, FSDP__ROOM(32)), does);
    return add_line(j, line);
}

/* Says that all awaited ranks wait themselves, each for another. */
static fsdp_status tell_circle(judge *j, const wait *waits, int64_t count)
{
    const wait *first = waits, *w;
    char line[LINE_BYTES] = "ranks wait for each other: ";
    size_t at = strlen(line);

    while (!first->lacks)
        first++;
    w = first;
    for (int hops = 0; hops < MOST_HOPS && w && at + 400 < sizeof line; hops++) {
        const wait *next = NULL;
        char call[320];
        int rank = 0;

        while (!is_missing(j, w, rank))
            rank++;
        next = held_up(waits, count, rank);
        fsdp__flight_call_text(w->log, w->record, call, sizeof call);
        at += (size_t)snprintf(line + at, sizeof line - at, "%srank %d waits for rank %d in %s", hops ? ", and " : "",
                               w->log->head.rank, rank, call);
        if (!next || next->log == first->log)
            break;
        w = next;
    }
    return add_line(j, line);
}

/* Says that all ranks have begun a call which is not done. One may be stuck in it, which the records do not show. */
static fsdp_status tell_inside(judge *j, const wait *waits, int64_t count)
{
    char line[LINE_BYTES], call[320];
    const wait *longest = &waits[0];

    for (int64_t i = 1; i < count; i++)
        if (waits[i].log->now - waits[i].record->begun > longest->log->now - longest->record->begun)
            longest = &waits[i];
    fsdp__flight_call_text(longest->log, longest->record, call, sizeof call);
    snprintf(line, sizeof line, "no rank is missing: all have come to %s, in which rank %d has been for %s", call,
             longest->log->head.rank,
             fsdp__flight_time_text(longest->log->now - longest->record->begun, FSDP__ROOM(32)));
    return add_line(j, line);
}

/* Says how a rank is waited for: one that has issued the call itself comes to it when others let it. */
typedef enum absence {
    ABSENT,  /* it has not issued some call that others are in */
    DELAYED, /* it has issued them all */
    PRESENT
} absence;

static absence absence_of(const judge *j, const wait *waits, int64_t count, int rank)
{
    const fsdp__flight_log *log = fsdp__flight_log_of(j->logs, rank);
    absence found = PRESENT;

    for (int64_t i = 0; i < count && found != ABSENT; i++) {
        int at = log ? waits[i].group->at[log - j->logs->logs] : -1;

        if (is_missing(j, &waits[i], rank))
            found = at >= 0 && log->groups[at].issued >= waits[i].record->number ? DELAYED : ABSENT;
    }
    return found;
}

static fsdp_status find_missing(judge *j)
{
    int64_t count = 0, missing = 0;
    FSDP__FREED wait *waits = NULL;
    int before = j->out->count;

    FSDP_TRY(find_waits(j, &waits, &count));
    for (int how = ABSENT; how < PRESENT && count > 0; how++)
        for (int rank = 0; rank < j->logs->world; rank++) {
            bool awaited = absence_of(j, waits, count, rank) == (absence)how;

            missing += awaited;
            if (awaited && !held_up(waits, count, rank) && j->out->count < FSDP__FLIGHT_FINDINGS)
                FSDP_TRY(tell_missing(j, waits, count, rank));
        }
    if (missing > 0 && j->out->count == before)
        FSDP_TRY(tell_circle(j, waits, count));
    return count > 0 && j->out->count == 0 ? tell_inside(j, waits, count) : FSDP_OK;
}

/* ---- what ranks said ---- */

/* Adds why the world was broken, as the first rank knew it; a rank that has died needs no other reason. */
static fsdp_status find_reason(judge *j)
{
    const fsdp__flight_log *first = NULL;
    char line[LINE_BYTES];

    for (int i = 0; i < j->logs->count; i++) {
        const fsdp__flight_log *log = &j->logs->logs[i];

        if (died(log))
            return FSDP_OK;
        if (log->end.state == FSDP__FLIGHT_BROKEN &&
            (!first || log->end.broken_ns + log->head.wall_ns < first->end.broken_ns + first->head.wall_ns))
            first = log;
    }
    if (!first)
        return FSDP_OK;
    snprintf(line, sizeof line, "rank %d was the first to report: %s", first->head.rank, first->end.why);
    return add_line(j, line);
}

static fsdp_status find_all(judge *j)
{
    FSDP_TRY(find_groups(j));
    FSDP_TRY(find_dead(j));
    for (int g = 0; g < j->group_count; g++)
        FSDP_TRY(find_difference(j, &j->groups[g]));
    FSDP_TRY(find_missing(j));
    if (j->out->count == 0)
        FSDP_TRY(add_line(j, "no rank waits for another one: each call that has begun is done"));
    return find_reason(j);
}

fsdp_status fsdp__flight_judge(const fsdp__flight_logs *logs, fsdp__flight_verdict *out)
{
    judge j = {.logs = logs, .out = out};
    fsdp_status status;

    *out = (fsdp__flight_verdict){.count = 0};
    status = find_all(&j);
    for (int g = 0; g < j.group_count; g++)
        fsdp__free(j.groups[g].at);
    fsdp__free(j.groups);
    if (status != FSDP_OK)
        fsdp__flight_verdict_release(out);
    return status;
}

void fsdp__flight_verdict_release(fsdp__flight_verdict *verdict)
{
    for (int i = 0; i < verdict->count; i++)
        fsdp__free(verdict->lines[i]);
    verdict->count = 0;
}
