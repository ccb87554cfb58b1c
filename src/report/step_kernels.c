/* step_kernels.c - which kernels take the time of a step, and the gaps between them, in which nothing is computed. */
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "device/kernel_args.h"
#include "report/step_parts.h"

/* Returns the row of a name; NULL: there is no more room, and the kernel is not listed. */
static fsdp__step_kernel *row_of(fsdp__traced_step *step, const char *name, int kind)
{
    for (int i = 0; i < step->kernel_count; i++)
        if (strcmp(step->kernels[i].name, name) == 0)
            return &step->kernels[i];
    if (step->kernel_count == FSDP__STEP_KERNELS)
        return NULL;
    step->kernels[step->kernel_count] = (fsdp__step_kernel){.name = name, .kind = kind};
    return &step->kernels[step->kernel_count++];
}

static void add_kernel(fsdp__traced_step *step, const fsdp__traced_span *span, int64_t ns)
{
    fsdp__step_kernel *row = row_of(step, step->trace.names[span->name], span->kind);

    if (!row)
        return;
    row->calls++;
    row->ns += ns;
    row->flops += (double)span->number;
}

static void add_gap(fsdp__step_rank *rank, int64_t ns, const char *after, const char *before)
{
    rank->gaps++;
    rank->gap_ns += ns;
    if (ns <= rank->longest_gap)
        return;
    rank->longest_gap = ns;
    rank->gap_after = after;
    rank->gap_before = before;
}

/* Goes through what the rank's device computes. Kernels may lie in each other, as those that a copy takes do. */
static void look(fsdp__step_parts *p, int number)
{
    const fsdp__step_place *place = &p->places[number];
    fsdp__traced_step *step = p->step;
    const char *last = NULL;
    int lane = fsdp__step_computing_lane(p, number);
    int64_t busy = 0;

    for (int64_t i = place->first; i < place->last; i++) {
        const fsdp__traced_span *span = &step->trace.spans[i];
        int64_t begin = FSDP__MAX(span->begin, place->begin), end = FSDP__MIN(span->end, place->end);
        bool kernel = span->sort == FSDP__TRACED_KERNEL;

        if (span->lane != lane || (!kernel && span->sort != FSDP__TRACED_COPY) || begin >= end)
            continue;
        if (last && begin > busy)
            add_gap(&step->ranks[number], begin - busy, last, step->trace.names[span->name]);
        if (kernel && span->kind != FSDP__KERNEL_CLASS_COMMUNICATION)
            add_kernel(step, span, end - begin);
        last = !last || end > busy ? step->trace.names[span->name] : last;
        busy = FSDP__MAX(busy, end);
    }
}

/* Puts the longest first. */
static int by_time(const void *a, const void *b)
{
    const fsdp__step_kernel *x = a, *y = b;

    return x->ns != y->ns ? (x->ns < y->ns ? 1 : -1) : strcmp(x->name, y->name);
}

void fsdp__step_find_kernels(fsdp__step_parts *parts)
{
    fsdp__traced_step *step = parts->step;

    for (int r = 0; r < step->trace.rank_count; r++)
        look(parts, r);
    qsort(step->kernels, (size_t)step->kernel_count, sizeof *step->kernels, by_time);
}
