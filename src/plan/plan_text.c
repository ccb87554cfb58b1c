/* plan_text.c - prints a plan as text of at most 100 columns. */

#include "base/text.h"
#include "explain/show.h"
#include "plan/show_plan.h"

enum {
    MOST_OPS = 8 /* rows of the table of activations */
};

/* ---- head ---- */

static void put_head(const fsdp_explanation *e, FILE *out)
{
    fprintf(out, "%s: %s parameters, %s, units by %s, %d rank%s", e->model, FSDP__THOUSANDS(e->model_numel),
            e->strategy, e->policy, e->world_size, fsdp__plural(e->world_size));
    if (e->machines > 1)
        fprintf(out, " on %d machines", e->machines);
    fprintf(out, "\na step: %lld microbatch%s of %lld sequence%s of %lld tokens on each %s", (long long)e->microbatches,
            e->microbatches == 1 ? "" : "es", (long long)e->local_batch, fsdp__plural(e->local_batch),
            (long long)e->seq_len, e->team > 1 ? "team of ranks" : "rank");
    fprintf(out, ", computed in %s\n", fsdp_dtype_name(e->param_dtype));
}

/* ---- will it fit ---- */

static void put_moment(const fsdp__plan *plan, FILE *out)
{
    const fsdp__plan_peak *peak = &plan->peak;

    fprintf(out, "  reached in the %s", fsdp__phase_name(peak->phase));
    if (plan->e->microbatches > 1)
        fprintf(out, " of microbatch %lld", (long long)peak->microbatch + 1);
    if (peak->unit >= 0)
        fprintf(out, ", in %s", fsdp__units_name(plan->e, peak->unit, 1, FSDP__ROOM(120)));
    if (peak->op)
        fprintf(out, ", before %s", peak->op);
    fputs("\n\n", out);
}

static void put_kinds(const fsdp__plan *plan, FILE *out)
{
    static const char *const names[] = {[FSDP_MEMORY_PARAMETER_SHARD] = "parameters, a rank's part",
                                        [FSDP_MEMORY_UNSHARDED_PARAMETER] = "whole parameters",
                                        [FSDP_MEMORY_GRADIENT] = "gradients",
                                        [FSDP_MEMORY_OPTIMIZER_STATE] = "optimizer state",
                                        [FSDP_MEMORY_ACTIVATION] = "activations",
                                        [FSDP_MEMORY_WORKSPACE] = NULL};
    const fsdp_explained_step *s = &plan->e->step;
    double between = 0;

    fprintf(out, "  %-28s %14s %14s %14s\n", "", "at the peak", "at most", "between steps");
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        if (!names[kind])
            continue;
        between += (double)s->live_bytes[kind];
        fprintf(out, "  %-28s %14s", names[kind], FSDP__BYTES(plan->peak.bytes[kind]));
        fprintf(out, " %14s %14s\n", FSDP__BYTES(s->peak_bytes[kind]), FSDP__BYTES(s->live_bytes[kind]));
    }
    fprintf(out, "  %-28s %14s %14s", "all together", FSDP__BYTES(plan->peak.total), "");
    fprintf(out, " %14s\n", FSDP__BYTES(between));
    fprintf(out, "  %-28s %14s", "beside it, workspace", FSDP__BYTES(plan->peak.workspace));
    fprintf(out, " %14s\n", FSDP__BYTES(s->peak_bytes[FSDP_MEMORY_WORKSPACE]));
    fprintf(out, "  %-28s %14s", "both together", FSDP__BYTES(plan->peak.total + plan->peak.workspace));
    fprintf(out, " %14s\n", FSDP__BYTES(s->peak_with_workspace_bytes));
}

static void put_verdict(const fsdp__plan *plan, const fsdp__plan_question *q, FILE *out)
{
    char room[160];
    bool fits = fsdp__plan_fits(&plan->e->step, q, room, sizeof room);

    if (room[0])
        fprintf(out, "\n%s: %s%s\n", fits ? "It fits" : "It does not fit", room,
                fits ? "" : ": 'fsdp plan --fit SIZE' lists settings that fit");
}

/* Says whose memory it is, as far as that matters. */
static void put_whose(const fsdp__plan *plan, FILE *out)
{
    if (plan->unsearched)
        fputs("\nMemory of rank 0 (which rank has the most is not known: they are too many to try) at its peak: ", out);
    else if (plan->e->rank > 0)
        fprintf(out, "\nMemory of rank %d, which has the most, at its peak: ", plan->e->rank);
    else
        fputs("\nMemory of a rank at its peak: ", out);
}

static void put_memory(const fsdp__plan *plan, const fsdp__plan_question *q, FILE *out)
{
    put_whose(plan, out);
    fprintf(out, "%s (%s bytes),\nto the byte what a run's ledger will show without workspace\n",
            FSDP__SIZE(plan->peak.total), FSDP__THOUSANDS(plan->peak.total));
    put_moment(plan, out);
    put_kinds(plan, out);
    if (plan->e->step.reserved_bytes > 0)
        fprintf(out, "  %-28s %14s\n", "reserved on the GPU", FSDP__BYTES(plan->e->step.reserved_bytes));
    if (plan->host_bytes > 0)
        fprintf(out, "  %-28s %14s\n", "beside it, on the host", FSDP__BYTES(plan->host_bytes));
    fputs("\n  Workspace is what operations take for themselves. On top of all of it come the kernels' scratch,\n"
          "  which a run's ledger counts with the workspace and which depends on threads and card, and the\n"
          "  program itself.\n",
          out);
    if (plan->validates)
        fputs("  Validations are not counted; with a larger validation.local_batch_size they may need more.\n", out);
    put_verdict(plan, q, out);
}

/* ---- activations ---- */

/* Returns the kernel with the most of them that has no more than `below`, or of those with as many a later one. */
static int next_op(const fsdp__plan_peak *peak, int before)
{
    int best = -1;

    for (int op = 0; op < FSDP__KERNELS; op++) {
        bool after = before < 0 || peak->by_op[op] < peak->by_op[before] ||
                     (peak->by_op[op] == peak->by_op[before] && op > before);

        if (after && peak->by_op[op] > 0 && (best < 0 || peak->by_op[op] > peak->by_op[best]))
            best = op;
    }
    return best;
}

static void put_op(const char *name, double bytes, double all, FILE *out)
{
    fprintf(out, "  %-28s %14s %6.1f%%\n", name, FSDP__BYTES(bytes), 100 * bytes / all);
}

static void put_activations(const fsdp__plan *plan, FILE *out)
{
    double all = (double)plan->peak.bytes[FSDP_MEMORY_ACTIVATION], rest = all;
    int op = -1;

    if (all <= 0)
        return;
    fputs("\nActivations at the peak, by the operation that they were taken for\n\n", out);
    for (int row = 0; row < MOST_OPS && (op = next_op(&plan->peak, op)) >= 0; row++) {
        put_op(fsdp__kernel_infos[op].name, (double)plan->peak.by_op[op], all, out);
        rest -= (double)plan->peak.by_op[op];
    }
    if (rest > 0)
        put_op("others", rest, all, out);
}

/* ---- communication ---- */

static void put_call(const fsdp__plan *plan, const char *name, int first, int last, FILE *out)
{
    const fsdp_explained_step *s = &plan->e->step;
    int64_t calls = 0, bytes = 0, sent = 0, received = 0, messages = 0;

    for (int kind = first; kind <= last; kind++) {
        calls += s->calls[kind];
        bytes += s->bytes_sent[kind];
        sent += s->network.sent[kind];
        received += s->network.received[kind];
        messages += s->network.messages[kind];
    }
    fprintf(out, "  %-28s %9lld %14s", name, (long long)calls, FSDP__BYTES(bytes));
    if (plan->e->machines > 1)
        fprintf(out, " %12s %12s %10s", FSDP__BYTES(sent), FSDP__BYTES(received), FSDP__THOUSANDS(messages));
    fputc('\n', out);
}

/* Says what of a row is sent within a team, if there are teams. */
static void put_team(const fsdp__plan *plan, int first, int last, FILE *out)
{
    const fsdp_explained_step *s = &plan->e->step;
    int64_t calls = 0, bytes = 0;

    for (int kind = first; kind <= last; kind++) {
        calls += s->team_calls[kind];
        bytes += s->team_bytes_sent[kind];
    }
    if (plan->e->team > 1 && (calls > 0 || first != FSDP_BROADCAST))
        fprintf(out, "  %-28s %9lld %14s\n", "  of them within its team", (long long)calls, FSDP__BYTES(bytes));
}

static void put_calls(const fsdp__plan *plan, FILE *out)
{
    const fsdp__plan_crossing *c = &plan->crossing;

    fprintf(out, "\nCommunication of a rank in a step\n\n  %-28s %9s %14s", "", "calls", "by a ring");
    if (plan->e->machines > 1)
        fprintf(out, " %12s %12s %10s", "to machines", "from them", "messages");
    fputc('\n', out);
    put_call(plan, "gathers", FSDP_ALL_GATHER, FSDP_ALL_GATHER, out);
    put_team(plan, FSDP_ALL_GATHER, FSDP_ALL_GATHER, out);
    put_call(plan, "reductions", FSDP_REDUCE_SCATTER, FSDP_ALL_REDUCE, out);
    put_team(plan, FSDP_REDUCE_SCATTER, FSDP_ALL_REDUCE, out);
    put_call(plan, "other calls", FSDP_BROADCAST, FSDP_OBJECTS, out);
    put_team(plan, FSDP_BROADCAST, FSDP_OBJECTS, out);
    if (plan->e->machines == 1)
        return;
    fprintf(out, "\n  Its machine, all ranks: %s in, %s out", FSDP__SIZE(c->in), FSDP__SIZE(c->out));
    if (c->least > 0)
        fprintf(out, "; the least possible is %s", FSDP__SIZE(c->least));
    fputc('\n', out);
}

/* ---- how long ---- */

static void put_parts(const fsdp__plan_time *t, FILE *out)
{
    for (int part = 0; part < FSDP__PLAN_PARTS; part++) {
        double hidden = fsdp__plan_hidden(t, (fsdp__plan_part)part);

        if (t->parts[part] + hidden <= 0)
            continue;
        fprintf(out, "  %-28s %14s %6.1f%%", fsdp__plan_part_name((fsdp__plan_part)part), FSDP__SECONDS(t->parts[part]),
                100 * t->parts[part] / t->step);
        if (hidden > 0)
            fprintf(out, "  and %s hidden behind other work", FSDP__SECONDS(hidden));
        fputc('\n', out);
    }
}

static void put_run(const fsdp__plan *plan, const fsdp__plan_question *q, FILE *out)
{
    double seconds = plan->time.step * (double)plan->steps;

    fprintf(out, "\n%s steps (training.steps): %s", FSDP__THOUSANDS(plan->steps), FSDP__SECONDS(seconds));
    if (q->price > 0)
        fprintf(out, "; they cost %.2f, at %g an hour for each %s", fsdp__plan_price(plan, q), q->price,
                plan->gpu ? "GPU" : "machine");
    fputc('\n', out);
}

void fsdp__plan_put_source(const fsdp__prices *prices, int64_t ranks, FILE *out)
{
    fprintf(out, "an estimate by rates of %s (%s)\n", prices->device, prices->source);
    if (!prices->gpu || ranks < 2)
        return;
    if (prices->peers.per_second > 0)
        fprintf(out, "GPUs of a machine exchange %.0f GB/s each way", prices->peers.per_second / 1e9);
    else
        fprintf(out, "GPUs of a machine exchange through the host, %.0f GB/s", prices->host.per_second / 1e9);
    fprintf(out, ", machines %.3g GB/s\n", prices->network.per_second / 1e9);
}

static void put_time(const fsdp__plan *plan, const fsdp__plan_question *q, FILE *out)
{
    const fsdp__plan_time *t = &plan->time;

    if (!q->prices || t->step <= 0)
        return;
    fprintf(out, "\nTime of a step: %s, %s tokens/s", FSDP__SECONDS(t->step),
            FSDP__THOUSANDS((int64_t)(plan->tokens_per_step / t->step)));
    fputs(";\n", out);
    fsdp__plan_put_source(q->prices, plan->e->world_size, out);
    if (q->prices->busy > FSDP__PRICES_BUSY)
        fprintf(out,
                "Caution: while they were measured other work had the processor for %.0f %% of the time,\n"
                "and rates differ that much from one time to the next: measure again when it is idle\n",
                100 * q->prices->busy);
    fputc('\n', out);
    put_parts(t, out);
    put_run(plan, q, out);
}

fsdp_status fsdp__plan_print(const fsdp__plan *plan, const fsdp__plan_question *question, FILE *out)
{
    put_head(plan->e, out);
    put_memory(plan, question, out);
    put_activations(plan, out);
    if (plan->e->world_size > 1)
        put_calls(plan, out);
    put_time(plan, question, out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot print the plan") : FSDP_OK;
}
