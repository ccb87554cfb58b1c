/* circle.c - goes from one waiting rank to the next, by what was heard of them. */
#include "comm/health/circle.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/compiler.h"

enum {
    /* each rank of a circle must have waited for this many beats, which shows that all waited at one time */
    SAME_BEATS = 3
};

/* What a search is given. */
typedef struct search {
    fsdp__hear *hear;
    void *arg;
    const fsdp__places *places;
    int64_t half;
} search;

/* A rank that waits for another one, which is waiting too. */
typedef struct link {
    int next;
    bool differs; /* the two are in different calls */
} link;

/* Returns whether nothing is on its way to `rank` that the other one sent before it began to wait: see the note. */
static bool has_all(const search *s, int rank, const fsdp__heard *one, const fsdp__heard *other)
{
    int whom = (int)one->waiting.whom;

    if (fsdp__machine_of(s->places, rank) == fsdp__machine_of(s->places, whom))
        return true;
    if (fsdp__are_counterparts(s->places, rank, whom))
        return one->waiting.heard + (uint64_t)other->same >= other->beats;
    return other->same >= FSDP__MAX(s->half, SAME_BEATS);
}

/* Finds whom the program of `rank` waits for. That rank's program must be waiting, too, with no call on its way but the
 * one that it waits in. If something still came from there it would be another wait: see fsdp__watch_waits. */
static bool follow_one(const search *s, int rank, link *out)
{
    fsdp__heard one, other;

    if (!s->hear(s->arg, rank, &one) || one.waiting.whom < 0 || one.same < SAME_BEATS)
        return false;
    if (!s->hear(s->arg, (int)one.waiting.whom, &other) || other.waiting.whom < 0 || other.doing.issued > 1)
        return false;
    *out = (link){.next = (int)one.waiting.whom,
                  .differs = other.doing.tag != one.doing.tag || other.doing.sequence != one.doing.sequence ||
                             other.doing.name != one.doing.name};
    return has_all(s, rank, &one, &other);
}

/* Finds the ranks of a circle that begins with circle[0]; returns their number, 0: there is none. Ranks in one call
 * wait for each other in turn, as its phases go on: only a circle over two different calls ends for nobody. */
static int follow(const search *s, int *circle)
{
    link at = {.next = circle[0]};
    bool differs = false;
    int count = 0;

    do {
        if (count == s->places->ranks)
            return 0;
        circle[count++] = at.next;
        if (!follow_one(s, at.next, &at))
            return 0;
        differs = differs || at.differs;
    } while (at.next != circle[0]);
    return differs ? count : 0;
}

static void write_text(const search *s, const int *circle, int count, char *text, size_t bytes)
{
    size_t at = 0;

    for (int i = 0; i < count && at < bytes; i++) {
        const char *before = i == 0 ? "" : i + 1 < count ? ", " : ", and ";
        fsdp__heard heard;
        char doing[320] = "in a call that is not known";

        if (s->hear(s->arg, circle[i], &heard))
            fsdp__doing_text(&heard.doing, doing, sizeof doing);
        at += (size_t)snprintf(text + at, bytes - at, "%srank %d waits for rank %d %s", before, circle[i],
                               circle[(i + 1) % count], doing);
    }
    if (at < bytes)
        snprintf(text + at, bytes - at, ": all ranks must make the same calls in the same order");
}

bool fsdp__circle_find(fsdp__hear *hear, void *arg, const fsdp__places *places, int64_t half, char *text, size_t bytes)
{
    search s = {hear, arg, places, half};
    int *circle = fsdp__calloc((size_t)places->ranks, sizeof *circle), count = 0;

    if (circle) {
        circle[0] = places->rank;
        count = follow(&s, circle);
    }
    if (count > 1)
        write_text(&s, circle, count, text, bytes);
    fsdp__free(circle);
    return count > 1;
}
