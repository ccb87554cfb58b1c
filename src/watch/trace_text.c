/* trace_text.c - rows, slices, arrows and counters. */
#include "watch/trace_text.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/host.h"
#include "base/text.h"
#include "device/kernels.h"
#include "fsdp/comm.h"
#include "watch/trace_spans.h"

enum {
    TITLE = 400
};
#define PLANNABLE "all but workspace"

typedef struct writer {
    FILE *out;
    const fsdp__recorder *recorder;
    const fsdp__trace_clock *clock;
    const fsdp__trace_lane *lanes;
    const fsdp__trace_spans *spans;
    const fsdp__trace_plan *plan;
    int rank;
    int devices; /* whose memory was counted */
} writer;

int64_t fsdp__trace_time(const fsdp__trace_clock *c, int64_t ns)
{
    double part = c->ended > c->begun ? (double)(ns - c->begun) / (double)(c->ended - c->begun) : 0;
    int64_t offset = c->begun_offset + (int64_t)((double)(c->ended_offset - c->begun_offset) * part);

    return FSDP__MAX(ns - offset - c->start, 0);
}

static const char *name_of(const writer *w, uint32_t number)
{
    return fsdp__recorder_name(w->recorder, number);
}

/* ---- names ---- */

/* Names what was done, or issued. */
static void work_title(const writer *w, const fsdp__note *n, char *title)
{
    const char *name = name_of(w, n->name), *label = name_of(w, n->label);

    switch (n->point) {
    case FSDP__POINT_KERNEL_ISSUED:
    case FSDP__POINT_KERNEL_BEGUN:
        snprintf(title, TITLE, "%s", n->kind < FSDP__KERNELS ? fsdp__kernel_infos[n->kind].name : name);
        break;
    case FSDP__POINT_COLLECTIVE_ISSUED:
    case FSDP__POINT_COLLECTIVE_BEGUN:
        if (n->kind < FSDP_OBJECTS)
            name = fsdp_collective_name((fsdp_collective)n->kind);
        snprintf(title, TITLE, "%s%s%s", name, *label ? " " : "", label);
        break;
    case FSDP__POINT_STAGE_BEGUN:
        if (strcmp(name, "step") == 0)
            snprintf(title, TITLE, "step %llu", (unsigned long long)n->number);
        else
            snprintf(title, TITLE, "%s", name);
        break;
    case FSDP__POINT_STEP_BEGUN:
        snprintf(title, TITLE, "optimizer step");
        break;
    case FSDP__POINT_BATCH_BEGUN:
        snprintf(title, TITLE, "batch %llu", (unsigned long long)n->number);
        break;
    case FSDP__POINT_PART_BEGUN:
        snprintf(title, TITLE, "write %s", name);
        break;
    default:
        snprintf(title, TITLE, "%s", name);
    }
}

static void span_title(const writer *w, const fsdp__trace_span *s, char title[TITLE])
{
    static const char *const verbs[] = {[FSDP__SPAN_WORK] = "",
                                        [FSDP__SPAN_ISSUE] = "issue ",
                                        [FSDP__SPAN_WAIT] = "wait for ",
                                        [FSDP__SPAN_FORWARD] = "forward ",
                                        [FSDP__SPAN_BACKWARD] = "backward ",
                                        [FSDP__SPAN_WHOLE] = "whole: ",
                                        [FSDP__SPAN_ACTIVITY] = ""};
    const char *unit = name_of(w, s->note->name);
    char what[TITLE - 16] = "the stream";

    if (s->kind == FSDP__SPAN_WORK || s->kind == FSDP__SPAN_ISSUE)
        work_title(w, s->note, what);
    else if (s->kind == FSDP__SPAN_ACTIVITY)
        snprintf(what, sizeof what, "%s", *unit ? unit : "a kernel without a name");
    else if (s->kind == FSDP__SPAN_WAIT && s->other)
        work_title(w, s->other, what);
    else if (s->kind != FSDP__SPAN_WAIT)
        snprintf(what, sizeof what, "%s", *unit ? unit : "the model");
    snprintf(title, TITLE, "%s%s", verbs[s->kind], what);
}

static const char *category(const fsdp__trace_span *s)
{
    static const char *const kinds[] = {[FSDP__SPAN_ISSUE] = "issue",
                                        [FSDP__SPAN_WAIT] = "wait",
                                        [FSDP__SPAN_FORWARD] = "unit",
                                        [FSDP__SPAN_BACKWARD] = "unit",
                                        [FSDP__SPAN_WHOLE] = "whole"};
    static const char *const activities[] = {[FSDP__ACTIVITY_KERNEL] = "gpu_kernel",
                                             [FSDP__ACTIVITY_COPY] = "gpu_memcpy",
                                             [FSDP__ACTIVITY_FILL] = "gpu_memset"};

    if (s->kind == FSDP__SPAN_ACTIVITY)
        return activities[s->note->kind];
    if (s->kind != FSDP__SPAN_WORK)
        return kinds[s->kind];
    switch (s->note->point) {
    case FSDP__POINT_KERNEL_BEGUN:
        return "kernel";
    case FSDP__POINT_COPY_BEGUN:
        return "copy";
    case FSDP__POINT_COLLECTIVE_BEGUN:
        return "collective";
    case FSDP__POINT_STEP_BEGUN:
        return "optimizer";
    case FSDP__POINT_BATCH_BEGUN:
        return "data";
    case FSDP__POINT_PART_BEGUN:
        return "checkpoint";
    default:
        return "stage";
    }
}

/* ---- events ---- */

static void write_time(const writer *w, const char *key, int64_t ns)
{
    fprintf(w->out, ",\"%s\":%lld.%03d", key, (long long)(ns / 1000), (int)(ns % 1000));
}

/* Begins an event of a row, `lane`, at a time of the trace. */
static void begin_event(const writer *w, const char *phase, int lane, int64_t at)
{
    fprintf(w->out, "{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", phase, w->rank + 1, lane + 1);
    write_time(w, "ts", at);
}

static void write_text(const writer *w, const char *before, const char *text)
{
    fputs(before, w->out);
    fsdp__print_json_string(fsdp__shown(text, FSDP__ROOM(TITLE)), w->out);
}

/* ---- slices ---- */

static void write_work_args(const writer *w, const fsdp__trace_span *s)
{
    const fsdp__note *n = s->note;
    fsdp__traced_ranks ranks = fsdp__recorder_ranks(w->recorder, n->group);

    if (n->point == FSDP__POINT_KERNEL_BEGUN && n->number > 0) {
        fprintf(w->out, ",\"flops\":%llu", (unsigned long long)n->number);
        if (s->end > s->begin) /* operations in a nanosecond */
            fprintf(w->out, ",\"gflops_per_s\":%.1f", (double)n->number / (double)(s->end - s->begin));
    } else if (n->point == FSDP__POINT_COLLECTIVE_BEGUN) {
        write_text(w, ",\"call\":", name_of(w, n->name));
        write_text(w, ",\"group\":", name_of(w, n->group));
        fprintf(w->out, ",\"ranks\":%d,\"number\":%llu", ranks.count, (unsigned long long)n->number);
        if (ranks.step > 0)
            fprintf(w->out, ",\"first_rank\":%d,\"rank_step\":%d", ranks.first, ranks.step);
        if (n->dtype != FSDP_DTYPE_NONE)
            write_text(w, ",\"dtype\":", fsdp_dtype_name((fsdp_dtype)n->dtype));
    }
    if (n->bytes > 0)
        fprintf(w->out, ",\"bytes\":%llu", (unsigned long long)n->bytes);
}

/* Writes the arguments; the first says nothing, so that the others can begin with a comma. */
static void write_args(const writer *w, const fsdp__trace_span *s)
{
    fprintf(w->out, ",\"args\":{\"ns\":%lld", (long long)(s->end - s->begin));
    if (s->kind == FSDP__SPAN_WORK)
        write_work_args(w, s);
    else if (s->kind == FSDP__SPAN_ACTIVITY && s->note->bytes > 0)
        fprintf(w->out, ",\"bytes\":%llu", (unsigned long long)s->note->bytes);
    else if (s->kind == FSDP__SPAN_FORWARD)
        fprintf(w->out, ",\"activations_kept\":%lld", (long long)s->kept);
    if (s->unfinished)
        fputs(",\"unfinished\":true", w->out);
    fputc('}', w->out);
}

static void write_span(const writer *w, const fsdp__trace_span *s, int64_t index)
{
    int64_t begin = fsdp__trace_time(w->clock, s->begin), end = fsdp__trace_time(w->clock, s->end);
    char title[TITLE];

    span_title(w, s, title);
    begin_event(w, s->apart ? "b" : "X", s->lane, begin);
    if (s->apart)
        fprintf(w->out, ",\"id2\":{\"local\":\"0x%llx\"}", (unsigned long long)index + 1);
    else
        write_time(w, "dur", end - begin);
    fprintf(w->out, ",\"cat\":\"%s\"", category(s));
    write_text(w, ",\"name\":", title);
    write_args(w, s);
    fputs("},\n", w->out);
    if (!s->apart)
        return;
    begin_event(w, "e", s->lane, end);
    fprintf(w->out, ",\"id2\":{\"local\":\"0x%llx\"},\"cat\":\"%s\"", (unsigned long long)index + 1, category(s));
    write_text(w, ",\"name\":", title);
    fputs("},\n", w->out);
}

static void write_arrow(const writer *w, int64_t index)
{
    const fsdp__trace_arrow *a = &w->spans->arrows[index];
    const fsdp__trace_span *from = &w->spans->spans[a->from], *to = &w->spans->spans[a->to];
    long long id = (long long)w->rank << 32 | (index + 1);

    if (from->apart || to->apart) /* a reader looks for the ends of arrows in rows of threads */
        return;
    begin_event(w, "s", from->lane, fsdp__trace_time(w->clock, from->begin));
    fprintf(w->out, ",\"id\":%lld,\"cat\":\"issue\",\"name\":\"issue\"},\n", id);
    begin_event(w, "f", to->lane, fsdp__trace_time(w->clock, to->begin));
    fprintf(w->out, ",\"bp\":\"e\",\"id\":%lld,\"cat\":\"issue\",\"name\":\"issue\"},\n", id);
}

/* ---- memory ---- */

static void write_counter(const writer *w, int device, const char *what, const char *of, int64_t ns, int64_t bytes)
{
    char title[TITLE];

    snprintf(title, sizeof title, "%s: %s%s%s%s", what, of, w->devices > 1 ? " (" : "",
             w->devices > 1 ? w->lanes[device].device : "", w->devices > 1 ? ")" : "");
    begin_event(w, "C", 0, fsdp__trace_time(w->clock, ns));
    write_text(w, ",\"name\":", title);
    fprintf(w->out, ",\"args\":{\"bytes\":%lld}},\n", (long long)bytes);
}

static bool is_memory(const fsdp__note *n)
{
    return n->point == FSDP__POINT_MEMORY_COUNTED || n->point == FSDP__NOTE_LEDGER;
}

static void write_kinds(const writer *w, const fsdp__note *notes, int64_t count)
{
    int64_t live[FSDP__LANES][FSDP_MEMORY_KINDS + 1] = {{0}}; /* the last is their sum */

    for (int64_t i = 0; i < count; i++) {
        const fsdp__note *n = &notes[i];
        int64_t *of = live[n->lane], before = of[n->kind % FSDP_MEMORY_KINDS];

        if (!is_memory(n))
            continue;
        of[n->kind] = n->point == FSDP__NOTE_LEDGER ? (int64_t)n->bytes : before + (int64_t)n->number;
        of[FSDP_MEMORY_KINDS] += of[n->kind] - before;
        write_counter(w, n->lane, "memory", fsdp_memory_kind_name((fsdp_memory_kind)n->kind), n->ns, of[n->kind]);
        write_counter(w, n->lane, "memory", "all", n->ns, of[FSDP_MEMORY_KINDS]);
        if (n->kind != FSDP_MEMORY_WORKSPACE)
            write_counter(w, n->lane, "measured", PLANNABLE, n->ns, of[FSDP_MEMORY_KINDS] - of[FSDP_MEMORY_WORKSPACE]);
    }
}

static void write_module(const writer *w, uint32_t name, int64_t ns, int64_t bytes)
{
    char title[TITLE];

    snprintf(title, sizeof title, "memory of %s", name_of(w, name));
    begin_event(w, "C", 0, fsdp__trace_time(w->clock, ns));
    write_text(w, ",\"name\":", title);
    fprintf(w->out, ",\"args\":{\"bytes\":%lld}},\n", (long long)bytes);
}

/* Forgets the modules' memory from before a pause; live memory is noted anew after it. */
static void forget(const writer *w, int64_t *live, uint32_t names, int64_t ns)
{
    for (uint32_t name = 1; name < names; name++)
        if (live[name] != 0) {
            live[name] = 0;
            write_module(w, name, ns, 0);
        }
}

/* Writes the memory of each module, or block of modules, on all devices together. */
static fsdp_status write_modules(const writer *w, const fsdp__note *notes, int64_t count)
{
    uint32_t names = fsdp__recorder_names(w->recorder) + 1;
    FSDP__FREED int64_t *live = fsdp__calloc(names, sizeof *live);

    FSDP__TRY_NEW(live);
    for (int64_t i = 0; i < count; i++) {
        const fsdp__note *n = &notes[i];
        bool owned = n->point == FSDP__NOTE_OWNED;

        if (n->point == FSDP__NOTE_LEDGER && n->number > 0)
            forget(w, live, names, n->ns);
        if (n->name == 0 || !(owned || n->point == FSDP__POINT_MEMORY_COUNTED))
            continue;
        live[n->name] += owned ? (int64_t)n->bytes : (int64_t)n->number;
        write_module(w, n->name, n->ns, live[n->name]);
    }
    return FSDP_OK;
}

/* Writes what a kind, and all, should be. */
static void write_planned_kind(const writer *w, int lane, const int64_t live[FSDP_MEMORY_KINDS], int changed,
                               int64_t ns)
{
    int64_t all = 0;

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        all += live[kind];
    write_counter(w, lane, "planned", fsdp_memory_kind_name((fsdp_memory_kind)changed), ns, live[changed]);
    write_counter(w, lane, "planned", PLANNABLE, ns, all);
}

/* Lets a planned course go on by one change. */
static void write_planned(const writer *w, int lane, int64_t *at, int64_t live[FSDP_MEMORY_KINDS], int64_t ns)
{
    const fsdp__memory_change *change = &w->plan->course.changes[(*at)++];

    live[change->kind] += change->bytes;
    write_planned_kind(w, lane, live, change->kind, ns);
}

static bool is_step(const writer *w, const fsdp__note *n)
{
    return strcmp(name_of(w, n->name), "step") == 0;
}

/* Writes the planned line beside the measured one: each change of the plan at the time of the change of the ledger that
 * it foretells. They are the same ones in the same order; should one have more than the other, the line ends early, or
 * with the step. */
static void write_plan(const writer *w, const fsdp__note *notes, int64_t count)
{
    const fsdp__memory_course *course = &w->plan->course;
    int64_t live[FSDP_MEMORY_KINDS] = {0}, at = course->count;
    int lane = 0;

    while (lane < FSDP__LANES - 1 && (!w->plan->device || strcmp(w->lanes[lane].device, w->plan->device) != 0))
        lane++;
    for (int64_t i = 0; i < count && w->plan->device; i++) {
        const fsdp__note *n = &notes[i];

        if (n->point == FSDP__POINT_STAGE_BEGUN && is_step(w, n)) {
            at = 0;
            for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
                live[kind] = (int64_t)course->live[kind];
            for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
                if (kind != FSDP_MEMORY_WORKSPACE)
                    write_planned_kind(w, lane, live, kind, n->ns);
        } else if (n->point == FSDP__POINT_MEMORY_COUNTED && n->kind != FSDP_MEMORY_WORKSPACE && at < course->count &&
                   strcmp(w->lanes[n->lane].device, w->plan->device) == 0) {
            write_planned(w, lane, &at, live, n->ns);
        }
        while (n->point == FSDP__POINT_STAGE_DONE && is_step(w, n) && at < course->count)
            write_planned(w, lane, &at, live, n->ns);
    }
}

static fsdp_status write_memory(writer *w)
{
    bool counted[FSDP__LANES] = {false};
    int64_t count = 0;
    const fsdp__note *notes = fsdp__recorder_notes(w->recorder, &count);

    for (int64_t i = 0; i < count; i++)
        if (is_memory(&notes[i]))
            counted[notes[i].lane] = true;
    for (int i = 0; i < FSDP__LANES; i++)
        w->devices += counted[i];
    write_kinds(w, notes, count);
    write_plan(w, notes, count);
    return write_modules(w, notes, count);
}

/* ---- rows ---- */

static void write_meta(const writer *w, const char *what, int lane, const char *text, int order)
{
    fprintf(w->out, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s_name\",\"args\":{\"name\":", w->rank + 1,
            lane + 1, what);
    write_text(w, "", text);
    fprintf(w->out,
            "}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%d}},\n",
            w->rank + 1, lane + 1, what, order);
}

static bool is_collective(const fsdp__trace_span *s)
{
    return s->kind == FSDP__SPAN_WORK && s->note->point == FSDP__POINT_COLLECTIVE_BEGUN;
}

/* Names a row by what was done there first, or by collectives. */
static void name_lane(const writer *w, int lane, const fsdp__trace_span *first)
{
    const char *device = w->lanes[lane].device;
    uint32_t own = w->lanes[lane].own;
    char title[TITLE];

    if (lane == 0)
        snprintf(title, sizeof title, "host");
    else if (own > 0)
        snprintf(title, sizeof title, "%s's own record: stream %u", device, own - 1);
    else if (*device)
        snprintf(title, sizeof title, "%s stream: %ss", device, category(first));
    else
        snprintf(title, sizeof title, "thread: %s", category(first));
    write_meta(w, "thread", lane, title, lane + 1);
}

static void write_rows(const writer *w)
{
    const fsdp__trace_span *first[FSDP__LANES] = {NULL};
    char title[TITLE];

    for (int64_t i = 0; i < w->spans->count; i++) {
        const fsdp__trace_span *s = &w->spans->spans[i], **place = &first[s->lane];

        if (!*place || (is_collective(s) && !is_collective(*place)))
            *place = s;
    }
    snprintf(title, sizeof title, "rank %d on %s", w->rank, FSDP__HOST_NAME);
    if (w->clock->uncertain > 0)
        snprintf(title, sizeof title, "rank %d on %s (clock within %lld us)", w->rank, FSDP__HOST_NAME,
                 (long long)(w->clock->uncertain / 1000 + 1));
    write_meta(w, "process", 0, title, w->rank + 1); /* 0 would be the last */
    for (int i = 0; i < FSDP__LANES; i++)
        if (first[i])
            name_lane(w, i, first[i]);
}

fsdp_status fsdp__trace_write(FILE *out, const fsdp__recorder *recorder, const fsdp__trace_clock *clock,
                              const fsdp__trace_plan *plan)
{
    FSDP__SCOPED(fsdp__trace_spans_release) fsdp__trace_spans spans = {.spans = NULL};
    writer w = {.out = out,
                .recorder = recorder,
                .clock = clock,
                .lanes = fsdp__recorder_lanes(recorder),
                .spans = &spans,
                .plan = plan,
                .rank = fsdp_context_rank(fsdp__recorder_context(recorder))};
    fsdp_status status = fsdp__trace_spans_create(recorder, &spans);

    if (status == FSDP_OK) {
        write_rows(&w);
        for (int64_t i = 0; i < spans.count; i++)
            write_span(&w, &spans.spans[i], i);
        for (int64_t i = 0; i < spans.arrow_count; i++)
            write_arrow(&w, i);
        status = write_memory(&w);
    }
    return status;
}
