/* circle.c - from one waiting rank to the next, by what was heard of them. */
#include "comm/machines/circle.h"

#include <stdio.h>

#include "base/alloc.h"

enum {
    SAME_BEATS = 3 /* of every rank of a circle, in which it has waited so: so they all did at one time */
};

/* Whom the program of `rank` waits for where that one will not come unless its own program goes on: no call of it is on
 * its way but the one that it waits in, which is another. -1: it does not wait so. */
static int surely_waits_for(fsdp__hear *hear, void *arg, int rank)
{
    fsdp__heard one, other;

    if (!hear(arg, rank, &one) || one.waiting.whom < 0 || one.same < SAME_BEATS)
        return -1;
    if (!hear(arg, (int)one.waiting.whom, &other) || other.waiting.whom < 0 || other.doing.issued > 1)
        return -1;
    if (other.doing.tag == one.doing.tag && other.doing.sequence == one.doing.sequence)
        return -1;
    return (int)one.waiting.whom;
}

/* The ranks of a circle that begins with the first of them; 0: there is none. */
static int follow(fsdp__hear *hear, void *arg, int *circle, int ranks)
{
    int rank = circle[0], count = 0;

    do {
        if (count == ranks)
            return 0;
        circle[count++] = rank;
        rank = surely_waits_for(hear, arg, rank);
        if (rank < 0)
            return 0;
    } while (rank != circle[0]);
    return count;
}

static void write_text(fsdp__hear *hear, void *arg, const int *circle, int count, char *text, size_t bytes)
{
    size_t at = 0;

    for (int i = 0; i < count && at < bytes; i++) {
        const char *before = i == 0 ? "" : i + 1 < count ? ", " : ", and ";
        fsdp__heard heard;
        char doing[320] = "in a call that is not known";

        if (hear(arg, circle[i], &heard))
            fsdp__doing_text(&heard.doing, doing, sizeof doing);
        at += (size_t)snprintf(text + at, bytes - at, "%srank %d waits for rank %d %s", before, circle[i],
                               circle[(i + 1) % count], doing);
    }
    if (at < bytes)
        snprintf(text + at, bytes - at, ": all ranks must make the same calls in the same order");
}

bool fsdp__circle_find(fsdp__hear *hear, void *arg, int rank, int ranks, char *text, size_t bytes)
{
    int *circle = fsdp__calloc((size_t)ranks, sizeof *circle), count = 0;

    if (circle) {
        circle[0] = rank;
        count = follow(hear, arg, circle, ranks);
    }
    if (count > 1)
        write_text(hear, arg, circle, count, text, bytes);
    fsdp__free(circle);
    return count > 1;
}
