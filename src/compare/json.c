/* json.c - a comparison as JSON. */
#include "compare/json.h"

#include <math.h>

#include "base/text.h"

static void print_number(double value, FILE *out)
{
    if (isfinite(value))
        fprintf(out, "%.17g", value);
    else
        fputs("null", out);
}

static void print_time(const char *name, double value, FILE *out)
{
    fprintf(out, ", \"%s\": ", name);
    print_number(value, out);
}

static void print_memory(const char *when, const size_t *kinds, size_t total, FILE *out)
{
    char key[FSDP__JSON_NAME];

    fprintf(out, ",\n   \"memory_%s\": {", when);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        fprintf(out, "\"%s\": %zu, ", fsdp__json_name(fsdp_memory_kind_name((fsdp_memory_kind)kind), key, sizeof key),
                kinds[kind]);
    fprintf(out, "\"total\": %zu}", total);
}

static void print_collectives(const char *name, const int64_t *values, FILE *out)
{
    fprintf(out, ",\n   \"%s\": {", name);
    for (int kind = 0; kind < FSDP_BARRIER; kind++)
        fprintf(out, "%s\"%s\": %lld", kind ? ", " : "", fsdp_collective_name((fsdp_collective)kind),
                (long long)values[kind]);
    fputc('}', out);
}

static void print_figures(const fsdp__comparison *c, const fsdp__figures *f, FILE *out)
{
    int digits = fsdp__figures_agree(&c->figures[fsdp__comparison_first(c)], f);

    fprintf(out, ",\n   \"units\": %lld, \"microbatches\": %lld, \"tokens_per_step\": %lld", (long long)f->units,
            (long long)f->microbatches, (long long)f->tokens_per_step);
    fputs(",\n   \"losses\": [", out);
    for (int i = 0; i < f->loss_count; i++) {
        fputs(i ? ", " : "", out);
        print_number(f->losses[i], out);
    }
    fprintf(out, "], \"equal_digits\": %d, \"same_bits\": %s, \"starts_agree\": %s", digits,
            digits == FSDP__SAME_BITS ? "true" : "false", f->starts_agree ? "true" : "false");
    fprintf(out, ",\n   \"measured_steps\": %lld", (long long)f->step_count);
    print_time("step_ms", f->step_ms, out);
    print_time("spread_ms", f->spread_ms, out);
    print_time("gather_ms", f->gather_ms, out);
    print_time("reduce_ms", f->reduce_ms, out);
    print_time("tokens_per_second", f->tokens_per_second, out);
    print_collectives("calls", f->comm.calls, out);
    print_collectives("bytes_sent", f->comm.bytes_sent, out);
    print_memory("peak", f->memory.peak_bytes, f->memory.peak_total_bytes, out);
    print_memory("rest", f->memory.live_bytes, f->memory.live_total_bytes, out);
    fprintf(out, ",\n   \"resident_bytes\": %zu, \"resident_peak_bytes\": %zu", f->resident_bytes,
            f->resident_peak_bytes);
}

static void print_world(const fsdp__comparison *c, int variant, int world, FILE *out)
{
    const fsdp_explained_step *step = &c->worlds.figures[variant][world].step;

    fprintf(out, "%s\n   {\"ranks\": %d", world ? "," : "", c->worlds.ranks[world]);
    if (c->worlds.figures[variant][world].peak_bytes < 0) {
        fputs("}", out);
        return;
    }
    print_collectives("calls", step->calls, out);
    print_collectives("bytes_sent", step->bytes_sent, out);
    print_memory("peak", step->peak_bytes, step->peak_total_bytes, out);
    fputc('}', out);
}

static void print_worlds(const fsdp__comparison *c, int variant, FILE *out)
{
    fputs(",\n   \"worlds\": [", out);
    for (int i = 0; i < c->worlds.count; i++)
        print_world(c, variant, i, out);
    fputc(']', out);
}

static void print_text(const char *name, const char *text, FILE *out)
{
    fprintf(out, ", \"%s\": ", name);
    fsdp__print_json_string(text, out);
}

static void print_variant(const fsdp__comparison *c, int i, FILE *out)
{
    const fsdp__variant *v = &c->variants.items[i];
    const fsdp__figures *f = &c->figures[i];

    fprintf(out, "%s\n  {\"strategy\": ", i ? "," : "");
    fsdp__print_json_string(v->strategy, out);
    if (v->policy[0])
        print_text("policy", v->policy, out);
    if (f->has)
        print_figures(c, f, out);
    else
        print_text(v->refused[0] ? "left_out" : "failed", v->refused[0] ? v->refused : f->failure, out);
    print_worlds(c, i, out);
    fputc('}', out);
}

void fsdp__comparison_print_json(const fsdp__comparison *c, FILE *out)
{
    const char *model = c->config->model.path ? c->config->model.path : c->config->model.preset;

    fputs("{\"version\": 1", out);
    print_text("model", model, out);
    fprintf(out, ", \"ranks\": %d, \"steps\": %d, \"warmup_steps\": %d, \"rounds\": %d,\n \"variants\": [", c->ranks,
            c->steps, FSDP__WARMUP_STEPS, c->rounds);
    for (int i = 0; i < c->variants.count; i++)
        print_variant(c, i, out);
    fputs("\n ]}\n", out);
}
