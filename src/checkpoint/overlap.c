/* overlap.c - finds what two parts share, run by run.
 *
 * Elements that are consecutive in the whole tensor, and all belong to a part, are consecutive in the part, too. */
#include "checkpoint/overlap.h"

#include "base/compiler.h"

typedef struct walk {
    int ndim;
    const int64_t *shape;
    const fsdp__extent *a, *b;
    int64_t first, end; /* runs are limited to these elements of the whole tensor */
    fsdp__overlap_run run;
    void *arg;
} walk;

/* Returns where an element of the whole tensor lies in a part that contains it. */
static int64_t place_in(const walk *w, const fsdp__extent *part, int64_t global)
{
    int64_t place = 0, stride = 1;

    if (part->flat)
        return global - part->offset[0];
    for (int d = w->ndim - 1; d >= 0; d--) {
        place += (global % w->shape[d] - part->offset[d]) * stride;
        stride *= part->size[d];
        global /= w->shape[d];
    }
    return place;
}

static fsdp_status run_cut(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const walk *w = arg;
    int64_t first = FSDP__MAX(global, w->first), end = FSDP__MIN(global + numel, w->end);

    (void)local;
    if (first >= end)
        return FSDP_OK;
    return w->run(w->arg, place_in(w, w->a, first), place_in(w, w->b, first), end - first);
}

fsdp_status fsdp__overlap_runs(int ndim, const int64_t *shape, const fsdp__extent *a, const fsdp__extent *b,
                               fsdp__overlap_run run, void *arg)
{
    walk w = {.ndim = ndim, .shape = shape, .a = a, .b = b, .end = INT64_MAX, .run = run, .arg = arg};
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    const fsdp__extent *box = a->flat ? b : a, *flat = a->flat ? a : b;

    if (!a->flat && !b->flat)
        return fsdp_box_intersect(ndim, a->offset, a->size, b->offset, b->size, offset, size)
                   ? fsdp_box_runs(ndim, shape, offset, size, run_cut, &w)
                   : FSDP_OK;
    w.first = flat->offset[0];
    w.end = w.first + flat->size[0];
    if (box->flat)
        return run_cut(&w, box->offset[0], 0, box->size[0]);
    return fsdp_box_runs(ndim, shape, box->offset, box->size, run_cut, &w);
}
