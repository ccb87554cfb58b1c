/* explain_text.c - prints an explanation as text of at most 100 columns. */
#include <string.h>

#include "base/text.h"
#include "comm/transport/network/shape.h"
#include "explain/show.h"

enum {
    NAME_COLUMNS = 30,
    MOST_UNITS = 40 /* rows of a table */
};

/* ---- head ---- */

static void put_head(const fsdp_explanation *e, FILE *out)
{
    fprintf(out, "%s: %s parameters in %lld unit%s, %d rank%s", e->model, FSDP__THOUSANDS(e->model_numel),
            (long long)e->unit_count, fsdp__plural(e->unit_count), e->world_size, fsdp__plural(e->world_size));
    if (e->machines > 1)
        fprintf(out, " on %d machines", e->machines);
    if (e->replicas > 1 && e->replicas < e->world_size)
        fprintf(out, " in %d copies", e->replicas);
    if (e->team > 1)
        fprintf(out, ", %d for each sequence", e->team);
    if (!e->strategy) {
        fprintf(out, "; this is rank %d\n", e->rank);
        return;
    }
    fprintf(out, "\nstrategy %s, units by %s, computed in %s, reduced in %s", e->strategy, e->policy,
            fsdp_dtype_name(e->param_dtype), fsdp_dtype_name(e->reduce_dtype));
    fprintf(out, "\na step: %lld microbatch%s", (long long)e->microbatches, e->microbatches == 1 ? "" : "es");
    if (e->local_batch)
        fprintf(out, " of %lld sequence%s of %lld tokens", (long long)e->local_batch, fsdp__plural(e->local_batch),
                (long long)e->seq_len);
    fprintf(out, " on each %s, as rank %d takes it\n", e->team > 1 ? "team of ranks" : "rank", e->rank);
    fputs("Counted by the engine itself, in a step without bytes: no rank was started, no weights were read.\n", out);
}

static void put_tree(const fsdp_explanation *e, FILE *out)
{
    fputs("\nModules, with their units\n\n", out);
    for (const char *line = e->tree; *line;) {
        int length = (int)strcspn(line, "\n");

        fprintf(out, "  %.*s%s\n", length > 98 ? 95 : length, line, length > 98 ? "..." : "");
        line += length + (line[length] != '\0');
    }
}

/* ---- units ---- */

static void put_name(const fsdp_explanation *e, int64_t first, int64_t count, FILE *out)
{
    char shown[NAME_COLUMNS + 1];

    fsdp__name_end(fsdp__units_name(e, first, count, FSDP__ROOM(120)), NAME_COLUMNS, shown);
    fprintf(out, "  %-*s", NAME_COLUMNS, shown);
}

static void put_unit(const fsdp_explanation *e, int64_t first, int64_t count, FILE *out)
{
    const fsdp_explained_unit *u = &e->units[first];

    put_name(e, first, count, out);
    fprintf(out, " %-22.22s %6lld %13s", u->type, (long long)u->parameter_count, FSDP__THOUSANDS(u->numel));
    fprintf(out, " %8s %13s\n", FSDP__THOUSANDS(u->padded_numel - u->numel), FSDP__THOUSANDS(u->shard_numel));
}

/* Writes a number of operations: "1.23M", "0.5k". */
static const char *flops_text(double flops, char *text, size_t bytes)
{
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    int unit = 0;

    while (flops >= 1000 && unit < 5) {
        flops /= 1000;
        unit++;
    }
    snprintf(text, bytes, "%.*f%s", unit ? 2 : 0, flops, units[unit]);
    return text;
}

/* Returns what was computed while the unit was whole, as a percentage of all that the step computes. */
static double share_of_step(const fsdp_explanation *e, const fsdp_explained_unit *u)
{
    double flops = 0;

    for (int64_t i = 0; i < u->life_count; i++)
        flops += u->lives[i].flops;
    return e->step.flops > 0 ? 100 * flops / e->step.flops : 0;
}

static void put_costs(const fsdp_explanation *e, int64_t first, int64_t count, FILE *out)
{
    const fsdp_explained_unit *u = &e->units[first];

    put_name(e, first, count, out);
    fprintf(out, " %7lld %9s", (long long)u->gathers, FSDP__BYTES(u->gathered_bytes));
    fprintf(out, " %7lld %9s", (long long)u->reductions, FSDP__BYTES(u->reduced_bytes));
    fprintf(out, " %8s", flops_text(u->flops, FSDP__ROOM(40)));
    fprintf(out, " %10s", u->gathered_bytes ? flops_text(u->flops / (double)u->gathered_bytes, FSDP__ROOM(40)) : "-");
    if (u->life_count > 0)
        fprintf(out, " %5.1f%%\n", share_of_step(e, u));
    else
        fprintf(out, " %6s\n", "-");
}

typedef void put_row(const fsdp_explanation *e, int64_t first, int64_t count, FILE *out);

static void put_rows(const fsdp_explanation *e, put_row *put, FILE *out)
{
    int rows = 0;

    for (int64_t first = 0, count; first < e->unit_count; first += count) {
        count = fsdp__alike_units(e, first);
        if (rows++ < MOST_UNITS)
            put(e, first, count, out);
    }
    if (rows > MOST_UNITS)
        fprintf(out, "  and %d more\n", rows - MOST_UNITS);
}

static void put_units(const fsdp_explanation *e, FILE *out)
{
    fprintf(out, "\nUnits: parameters that are sharded, gathered and reduced together\n\n");
    fprintf(out, "  %-*s %-22s %6s %13s %8s %13s\n", NAME_COLUMNS, "", "module", "params", "elements", "padding",
            "this rank's");
    put_rows(e, put_unit, out);
}

/* Says what the ranks of a team send each other: mostly activations. */
static void put_team(const fsdp_explanation *e, FILE *out)
{
    const fsdp_explained_step *s = &e->step;
    int64_t reduced = s->team_bytes_sent[FSDP_REDUCE_SCATTER] + s->team_bytes_sent[FSDP_ALL_REDUCE];

    fprintf(out, "  Beside that, within its team: %lld gathers, %s;", (long long)s->team_calls[FSDP_ALL_GATHER],
            FSDP__BYTES(s->team_bytes_sent[FSDP_ALL_GATHER]));
    fprintf(out, " %lld reductions, %s",
            (long long)(s->team_calls[FSDP_REDUCE_SCATTER] + s->team_calls[FSDP_ALL_REDUCE]), FSDP__BYTES(reduced));
    if (s->team_calls[FSDP_BROADCAST] > 0) /* of keys and values */
        fprintf(out, "; %lld broadcasts, %s; %lld exchanges, %s", (long long)s->team_calls[FSDP_BROADCAST],
                FSDP__BYTES(s->team_bytes_sent[FSDP_BROADCAST]), (long long)s->team_calls[FSDP_ALL_TO_ALL],
                FSDP__BYTES(s->team_bytes_sent[FSDP_ALL_TO_ALL]));
    fputc('\n', out);
}

static void put_unit_costs(const fsdp_explanation *e, FILE *out)
{
    fprintf(out, "\nWhat each costs in a step; bytes are what this rank sends%s%s\n\n",
            e->machines > 1 ? ", were no memory shared" : "",
            e->unit_count > 1 && fsdp__alike_units(e, 1) > 1 ? ", for each one" : "");
    fprintf(out, "  %-*s %7s %9s %7s %9s %8s %10s %6s\n", NAME_COLUMNS, "", "gathers", "bytes", "reduces", "bytes",
            "FLOPs", "FLOPs/byte", "whole");
    put_rows(e, put_costs, out);
    fputs("\n  FLOPs/byte: of its products, to a byte gathered; whole: while so much of the step is computed\n", out);
    if (e->team > 1)
        put_team(e, out);
}

/* ---- memory ---- */

static void put_memory(const fsdp_explanation *e, FILE *out)
{
    static const char *const names[] = {[FSDP_MEMORY_PARAMETER_SHARD] = "parameters, this rank's part",
                                        [FSDP_MEMORY_UNSHARDED_PARAMETER] = "whole parameters",
                                        [FSDP_MEMORY_GRADIENT] = "gradients",
                                        [FSDP_MEMORY_OPTIMIZER_STATE] = "optimizer state",
                                        [FSDP_MEMORY_ACTIVATION] = "activations",
                                        [FSDP_MEMORY_WORKSPACE] = NULL};
    const fsdp_explained_step *s = &e->step;
    size_t between = 0;

    fprintf(out, "\nMemory of rank %d\n\n  %-30s %16s %16s\n", e->rank, "", "between steps", "at most");
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        if (!names[kind])
            continue;
        between += s->live_bytes[kind];
        fprintf(out, "  %-30s %16s", names[kind], FSDP__BYTES(s->live_bytes[kind]));
        fprintf(out, " %16s\n", FSDP__BYTES(s->peak_bytes[kind]));
    }
    fprintf(out, "  %-30s %16s", "all together", FSDP__BYTES(between));
    fprintf(out, " %16s\n", FSDP__BYTES(s->peak_total_bytes));
    if (s->reserved_bytes > 0)
        fprintf(out, "  %-30s %16s %16s\n", "reserved on the GPU", "", FSDP__BYTES(s->reserved_bytes));
    fputs("\n  Peaks of kinds need not fall together. Kernels' scratch, which the machine decides, is left out.\n",
          out);
}

/* ---- network ---- */

static int64_t sum_of(const int64_t numbers[FSDP_COLLECTIVES], int first, int last)
{
    int64_t sum = 0;

    for (int kind = first; kind <= last; kind++)
        sum += numbers[kind];
    return sum;
}

static void put_traffic(const fsdp_explained_network *n, const char *name, int first, int last, FILE *out)
{
    if (sum_of(n->messages, first, last) + sum_of(n->received, first, last) == 0)
        return;
    fprintf(out, "  %-30s %16s", name, FSDP__BYTES(sum_of(n->sent, first, last)));
    fprintf(out, " %16s", FSDP__BYTES(sum_of(n->received, first, last)));
    fprintf(out, " %16s\n", FSDP__THOUSANDS(sum_of(n->messages, first, last)));
}

static void put_network_of(const fsdp_explained_network *n, const char *who, FILE *out)
{
    fprintf(out, "  %s\n", who);
    put_traffic(n, "  gathers", FSDP_ALL_GATHER, FSDP_ALL_GATHER, out);
    put_traffic(n, "  reductions", FSDP_REDUCE_SCATTER, FSDP_ALL_REDUCE, out);
    put_traffic(n, "  other calls", FSDP_BROADCAST, FSDP_OBJECTS, out);
    put_traffic(n, "  all", 0, FSDP_COLLECTIVES - 1, out);
}

static void put_network(const fsdp_explanation *e, FILE *out)
{
    int ranks = e->world_size / e->machines;
    char who[60];

    fprintf(out, "\nOver the network in a step, between %d machines of %d rank%s%s\n\n", e->machines, ranks,
            fsdp__plural(ranks), e->one_level ? ", each rank for itself" : "");
    fprintf(out, "  %-30s %16s %16s %16s\n", "", "sent", "received", "messages sent");
    snprintf(who, sizeof who, "rank %d", e->rank);
    put_network_of(&e->step.network, who, out);
    snprintf(who, sizeof who, "its machine, %d rank%s", ranks, fsdp__plural(ranks));
    put_network_of(&e->machine, who, out);
    fprintf(out, "\n  Bytes of buffers; messages: of at most %d KiB of them, and headers of calls.\n",
            FSDP__PIECE_BYTES >> 10);
}

/* ---- other units ---- */

static void put_variant(const fsdp_explained_variant *v, FILE *out)
{
    int64_t reductions = v->step.calls[FSDP_REDUCE_SCATTER] + v->step.calls[FSDP_ALL_REDUCE];
    int64_t bytes = v->step.bytes_sent[FSDP_REDUCE_SCATTER] + v->step.bytes_sent[FSDP_ALL_REDUCE];

    fprintf(out, "%c %-16.16s %5lld", v->asked ? '>' : ' ', v->policy, (long long)v->units);
    fprintf(out, " %14s", FSDP__THOUSANDS(v->largest));
    fprintf(out, " %7lld %9s", (long long)v->step.calls[FSDP_ALL_GATHER],
            FSDP__BYTES(v->step.bytes_sent[FSDP_ALL_GATHER]));
    fprintf(out, " %7lld %9s", (long long)reductions, FSDP__BYTES(bytes));
    fprintf(out, " %10s %9s\n", FSDP__BYTES(fsdp__parameter_bytes(&v->step)), FSDP__BYTES(v->step.peak_total_bytes));
}

static const fsdp_explained_variant *find_variant(const fsdp_explanation *e, const char *policy)
{
    for (int64_t i = 0; i < e->variant_count; i++)
        if (strcmp(e->variants[i].policy, policy) == 0)
            return &e->variants[i];
    return NULL;
}

/* Returns the best of the variants that are shown. */
static const fsdp_explained_variant *least_parameters(const fsdp_explanation *e)
{
    const fsdp_explained_variant *best = &e->variants[0];

    for (int64_t i = 1; i < e->variant_count; i++)
        if (fsdp__parameter_bytes(&e->variants[i].step) < fsdp__parameter_bytes(&best->step))
            best = &e->variants[i];
    return best;
}

static void put_root_alone(const fsdp_explanation *e, FILE *out)
{
    const fsdp_explained_variant *root = find_variant(e, "root"), *ddp = find_variant(e, "ddp");
    const fsdp_explained_variant *best = least_parameters(e);
    size_t shard = root ? root->step.live_bytes[FSDP_MEMORY_PARAMETER_SHARD] : 0;

    if (!root || e->world_size == 1 || root->step.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER] == 0)
        return;
    fprintf(out, "\n  The root alone rests sharded, %s of parameters on this rank, but it is one unit: a forward\n",
            FSDP__SIZE(shard));
    fprintf(out, "  gathers all of it, %s, and %s.", FSDP__SIZE(root->step.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER]),
            root->step.calls[FSDP_ALL_GATHER] > e->microbatches ? "a backward does so again"
                                                                : "that stays until the last gradient is there");
    if (ddp)
        fprintf(out, " ddp holds %s all\n  the time: at its peak the root alone has no less.",
                FSDP__SIZE(fsdp__parameter_bytes(&ddp->step)));
    if (best != root && best != ddp)
        fprintf(out, " With the units of '%s' only a\n  few are whole at a time, which take %s.", best->policy,
                FSDP__SIZE(fsdp__parameter_bytes(&best->step)));
    fputc('\n', out);
}

static void put_variants(const fsdp_explanation *e, FILE *out)
{
    fputs("\nThe same model in other units (ddp: in none), in one step; coarser ones above\n\n", out);
    fprintf(out, "  %-16s %5s %14s %7s %9s %7s %9s %10s %9s\n", "", "units", "largest", "gathers", "bytes", "reduces",
            "bytes", "parameters", "all");
    for (int64_t i = 0; i < e->variant_count; i++)
        put_variant(&e->variants[i], out);
    fputs("\n  >: what was asked for; largest: elements of the largest unit; reduces: with the all-reduce of the\n"
          "  norm; parameters and all: bytes at most\n",
          out);
    put_root_alone(e, out);
}

/* ---- all ---- */

fsdp_status fsdp_explanation_print(const fsdp_explanation *e, FILE *out)
{
    if (!e || !out)
        return FSDP_FAIL(FSDP_INVALID, "there is no explanation, or no stream, to print");
    put_head(e, out);
    put_tree(e, out);
    put_units(e, out);
    fputc('\n', out);
    fsdp__picture_parts(e, out);
    if (e->microbatches > 0) {
        put_unit_costs(e, out);
        fputc('\n', out);
        fsdp__picture_lives(e, out);
        put_memory(e, out);
        if (e->machines > 1)
            put_network(e, out);
    }
    if (e->variant_count > 0)
        put_variants(e, out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot print the explanation") : FSDP_OK;
}
