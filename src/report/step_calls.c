/* step_calls.c - who comes last to each collective, and what these move from rank to rank. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"
#include "report/step_parts.h"

/* ---- who comes last ---- */

/* Orders calls by group and number. */
static int by_call(const void *a, const void *b)
{
    const fsdp__traced_span *x = *(const fsdp__traced_span *const *)a, *y = *(const fsdp__traced_span *const *)b;

    FSDP__ORDER_BY(x->group, y->group);
    FSDP__ORDER_BY(x->number, y->number);
    return FSDP__COMPARE(x->rank, y->rank);
}

static bool is_same_call(const fsdp__traced_span *a, const fsdp__traced_span *b)
{
    return a->group == b->group && a->number == b->number;
}

/* Notes who came last to a call, of which there is a span for each member: if there are more, several groups have the
 * name, and if there are fewer, the one that is missing may be it. */
static void match(fsdp__step_parts *p, const fsdp__traced_span *const *spans, int64_t count)
{
    const fsdp__trace *t = &p->step->trace;
    const fsdp__traced_span *last = spans[0];

    if (count != t->groups[spans[0]->group].count)
        return;
    for (int64_t i = 1; i < count; i++)
        if (spans[i]->begin > last->begin)
            last = spans[i];
    for (int64_t i = 0; i < count; i++)
        p->comers[spans[i] - t->spans] = (fsdp__last_comer){last->begin, last->rank};
}

static bool is_call(const fsdp__traced_span *span)
{
    return span->sort == FSDP__TRACED_COLLECTIVE;
}

/* Lists the trace's collectives, in this order. The caller frees them. */
static fsdp_status list_calls(const fsdp__trace *t, int (*order)(const void *a, const void *b),
                              const fsdp__traced_span ***out, int64_t *out_count)
{
    const fsdp__traced_span **calls;
    int64_t count = 0;

    for (int64_t i = 0; i < t->span_count; i++)
        count += is_call(&t->spans[i]);
    calls = fsdp__malloc((size_t)FSDP__MAX(count, 1) * sizeof *calls);
    FSDP__TRY_NEW(calls);
    count = 0;
    for (int64_t i = 0; i < t->span_count; i++)
        if (is_call(&t->spans[i]))
            calls[count++] = &t->spans[i];
    if (count > 0)
        qsort(calls, (size_t)count, sizeof *calls, order);
    *out = calls;
    *out_count = count;
    return FSDP_OK;
}

fsdp_status fsdp__step_match_calls(fsdp__step_parts *p)
{
    FSDP__FREED const fsdp__traced_span **calls = NULL;
    int64_t count = 0;

    FSDP_TRY(list_calls(&p->step->trace, by_call, &calls, &count));
    for (int64_t first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && is_same_call(calls[first], calls[next]);)
            next++;
        match(p, calls + first, next - first);
    }
    return FSDP_OK;
}

/* ---- what moves ---- */

static int by_traffic(const void *a, const void *b)
{
    const fsdp__traced_span *x = *(const fsdp__traced_span *const *)a, *y = *(const fsdp__traced_span *const *)b;

    FSDP__ORDER_BY(x->rank, y->rank);
    FSDP__ORDER_BY(x->group, y->group);
    return FSDP__COMPARE(x->kind, y->kind);
}

/* Returns how many times a member's part of a call becomes each other member's: a reduction scatters parts of sums, and
 * an all-reduce then gathers them. 0: it has a root, which the trace does not name. */
static int parts_of(int kind)
{
    switch (kind) {
    case FSDP_ALL_GATHER:
    case FSDP_REDUCE_SCATTER:
    case FSDP_ALL_TO_ALL:
        return 1;
    case FSDP_ALL_REDUCE:
        return 2;
    default:
        return 0;
    }
}

/* Returns the side of the matrix on which a rank is. */
static int side_of(const fsdp__traced_step *step, int rank)
{
    const fsdp__trace *t = &step->trace;

    if (!step->matrix_of_machines)
        return rank / step->matrix_fold;
    return rank < t->rank_count ? t->ranks[rank].machine / step->matrix_fold : 0;
}

static void set_sides(fsdp__traced_step *step)
{
    const fsdp__trace *t = &step->trace;
    int machines = 1, sides = t->world;

    for (int r = 0; r < t->rank_count; r++)
        machines = FSDP__MAX(machines, t->ranks[r].machine + 1);
    if (t->world > FSDP__MATRIX && machines > 1 && t->rank_count == t->world) {
        step->matrix_of_machines = true;
        sides = machines;
    }
    step->matrix_fold = (sides + FSDP__MATRIX - 1) / FSDP__MATRIX;
    step->matrix_sides = (sides + step->matrix_fold - 1) / step->matrix_fold;
}

/* Adds what a rank's calls of one kind and group, of `bytes` together, bring to the others. */
static void add_to_matrix(fsdp__traced_step *step, const fsdp__traced_span *of, int64_t calls, int64_t bytes)
{
    const fsdp__traced_group *g = &step->trace.groups[of->group];
    double part = (double)parts_of(of->kind) * (double)bytes / (double)g->count;

    if (bytes == 0 || g->count < 2)
        return;
    if (part <= 0 || g->step == 0) {
        step->matrix_left_out += calls;
        return;
    }
    for (int i = 0; i < g->count; i++) {
        int to = g->first + i * g->step;

        if (to != of->rank)
            step->matrix[side_of(step, of->rank)][side_of(step, to)] += part;
    }
}

/* Adds what all ranks have of one kind and group, before it is divided by them. */
static fsdp_status add_to_table(fsdp__traced_step *step, const fsdp__traced_span *of, int64_t calls, int64_t bytes)
{
    const fsdp__traced_group *g = &step->trace.groups[of->group];
    const char *name = step->trace.names[g->name];
    fsdp__step_traffic *row = NULL;

    for (int64_t i = 0; i < step->traffic_count; i++)
        if (step->traffic[i].kind == of->kind && step->traffic[i].ranks == g->count &&
            strcmp(step->traffic[i].group, name) == 0)
            row = &step->traffic[i];
    if (!row) {
        FSDP_TRY(fsdp__grow(&step->traffic, step->traffic_count, &step->traffic_capacity, sizeof *row));
        row = &step->traffic[step->traffic_count++];
        *row = (fsdp__step_traffic){.group = name, .ranks = g->count, .kind = of->kind};
    }
    row->members++;
    row->calls += calls;
    row->bytes += bytes;
    return FSDP_OK;
}

FSDP__ORDER_DOWN_BY(by_bytes, fsdp__step_traffic, bytes)

static void finish_table(fsdp__traced_step *step)
{
    for (int64_t i = 0; i < step->traffic_count; i++) {
        fsdp__step_traffic *row = &step->traffic[i];
        int parts = parts_of(row->kind);

        row->calls = (row->calls + row->members / 2) / row->members;
        row->bytes /= row->members;
        row->sent = row->bytes == 0 ? 0 : parts == 0 ? -1 : parts * (row->bytes / row->ranks) * (row->ranks - 1);
    }
    if (step->traffic_count > 0)
        qsort(step->traffic, (size_t)step->traffic_count, sizeof *step->traffic, by_bytes);
}

static bool is_in_step(const fsdp__step_parts *p, const fsdp__traced_span *span)
{
    return span->begin >= p->places[span->rank].begin && span->begin < p->places[span->rank].end;
}

fsdp_status fsdp__step_add_traffic(fsdp__step_parts *p)
{
    FSDP__FREED const fsdp__traced_span **calls = NULL;
    int64_t count = 0;
    fsdp_status status;

    set_sides(p->step);
    status = list_calls(&p->step->trace, by_traffic, &calls, &count);
    for (int64_t first = 0, next; status == FSDP_OK && first < count; first = next) {
        int64_t made = 0, bytes = 0;

        for (next = first; next < count && by_traffic(&calls[first], &calls[next]) == 0; next++)
            if (is_in_step(p, calls[next])) {
                made++;
                bytes += calls[next]->bytes;
            }
        if (made == 0)
            continue;
        add_to_matrix(p->step, calls[first], made, bytes);
        status = add_to_table(p->step, calls[first], made, bytes);
    }
    finish_table(p->step);
    return status;
}
