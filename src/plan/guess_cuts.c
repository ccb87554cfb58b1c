/* guess_cuts.c - the dynamic programme that guesses cuts.
 *
 * A unit's gather runs beside what the unit before it computes; in the backward its reduction, and the gather of the
 * unit before it, run beside what both compute. What takes longer than that is exposed. So the cost of a cut depends on
 * the two units that it separates, and the best cost of all atoms up to one depends on where the last unit begins. */
#include <math.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "plan/schedule_atoms.h"

enum {
    LONGEST = 96 /* atoms of a unit */
};

/* Holds what is known of the best cuts of the first atoms, if their last unit begins at a given one. */
typedef struct cell {
    double cost;
    int64_t before; /* where the unit before the last one begins */
} cell;

typedef struct programme {
    const fsdp__atoms *atoms;
    double most;
    bool stays;
    int64_t first, end;                 /* atoms that are not the root's */
    double *numel, *forward, *backward; /* sums over the atoms before */
    cell *cells;                        /* [end of the last unit][its length] */
} programme;

static cell *cell_of(const programme *p, int64_t begin, int64_t end)
{
    return &p->cells[(end - p->first) * LONGEST + (end - begin - 1)];
}

static double gather(const programme *p, int64_t begin, int64_t end)
{
    return p->atoms->gather.latency + p->atoms->gather.each * (p->numel[end] - p->numel[begin]);
}

static double reduce(const programme *p, int64_t begin, int64_t end)
{
    return p->atoms->reduce.latency + p->atoms->reduce.each * (p->numel[end] - p->numel[begin]);
}

static bool may_be_unit(const programme *p, int64_t begin, int64_t end)
{
    return end - begin <= LONGEST && (end - begin == 1 || p->numel[end] - p->numel[begin] <= p->most);
}

/* Returns what is exposed where the unit from `at` to `end` follows the one from `begin`. */
static double exposed(const programme *p, int64_t begin, int64_t at, int64_t end)
{
    double forward = gather(p, at, end) - (p->forward[at] - p->forward[begin]);
    double backward =
        (p->stays ? 0 : gather(p, begin, at)) + reduce(p, at, end) - (p->backward[end] - p->backward[begin]) / 2;

    return fmax(forward, 0) + fmax(backward, 0);
}

/* Returns the time of the first unit that nothing hides: its gather, less the root's computation before it, and its
 * reduction. */
static double exposed_first(const programme *p, int64_t end)
{
    return fmax(gather(p, p->first, end) - p->forward[p->first], 0) + reduce(p, p->first, end);
}

static void fill(const programme *p)
{
    for (int64_t end = p->first + 1; end <= p->end; end++)
        for (int64_t at = FSDP__MAX(p->first, end - LONGEST); at < end; at++) {
            cell *c = cell_of(p, at, end);

            *c = (cell){INFINITY, -1};
            if (!may_be_unit(p, at, end))
                continue;
            if (at == p->first)
                c->cost = exposed_first(p, end);
            for (int64_t begin = FSDP__MAX(p->first, at - LONGEST); begin < at; begin++) {
                double cost = cell_of(p, begin, at)->cost + exposed(p, begin, at, end);

                if (cost < c->cost)
                    *c = (cell){cost, begin};
            }
            c->cost += (p->atoms->gather.latency + p->atoms->reduce.latency) / 100; /* fewer calls are better */
        }
}

/* Marks the cuts of the best cell, from the end back. */
static void mark(const programme *p, fsdp__draft *draft)
{
    int64_t end = p->end, at = -1;
    double best = INFINITY;

    for (int64_t begin = FSDP__MAX(p->first, end - LONGEST); begin < end; begin++) {
        double cost = cell_of(p, begin, end)->cost + (p->stays ? 0 : gather(p, begin, end));

        if (cost < best) {
            best = cost;
            at = begin;
        }
    }
    while (at >= p->first) {
        int64_t before = cell_of(p, at, end)->before;

        draft->places[at] |= FSDP__DRAFT_CUT;
        end = at;
        at = before;
    }
}

static void add_up(programme *p)
{
    for (int64_t i = 0; i < p->atoms->count; i++) {
        p->numel[i + 1] = p->numel[i] + p->atoms->items[i].numel;
        p->forward[i + 1] = p->forward[i] + p->atoms->items[i].forward;
        p->backward[i + 1] = p->backward[i] + p->atoms->items[i].backward;
    }
    fill(p);
}

fsdp_status fsdp__draft_guess(const fsdp__atoms *atoms, double most, bool stays, fsdp__draft *draft)
{
    size_t sums = (size_t)atoms->count + 1;
    FSDP__FREED double *numbers = fsdp__calloc(3 * sums, sizeof *numbers);
    FSDP__FREED cell *cells = fsdp__calloc(sums * LONGEST, sizeof *cells);
    programme p = {.atoms = atoms, .most = most, .stays = stays, .end = atoms->count, .cells = cells};

    if (!numbers || !cells)
        return FSDP_NO_MEMORY;
    p.numel = numbers;
    p.forward = numbers + sums;
    p.backward = numbers + 2 * sums;
    while (p.first < p.end && (draft->places[p.first] & FSDP__DRAFT_ROOT))
        p.first++;
    while (p.end > p.first && (draft->places[p.end - 1] & FSDP__DRAFT_ROOT))
        p.end--;
    for (int64_t i = p.first; i < p.end; i++)
        draft->places[i] = stays ? FSDP__DRAFT_STAYS : 0;
    add_up(&p);
    if (p.end > p.first)
        mark(&p, draft);
    return FSDP_OK;
}
