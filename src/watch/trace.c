/* trace.c - a trace of all ranks: each records by itself, and at the end rank 0 writes one file.
 *
 * [Note: one file]
 * Each rank makes the text of its own events, packed if the file is. Such texts may follow one another, so rank 0 only
 * writes them, piece by piece as they are broadcast: it needs no more memory for many ranks than for one, and machines
 * need no common folder. */
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/host.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "fsdp/comm.h"
#include "fsdp/trace.h"
#include "watch/clocks.h"
#include "watch/memory_file.h"
#include "watch/trace_file.h"
#include "watch/trace_text.h"

enum {
    PIECE = 1 << 20,       /* bytes that travel at once */
    LEAST_BYTES = 64 << 10 /* of memory: room for the beginning, at least */
};
#define USUAL_BYTES ((int64_t)64 << 20)

struct fsdp_trace {
    fsdp_context *context;
    fsdp__recorder *recorder; /* the context's */
    char *path, *run;         /* run: NULL, it has no name */
    bool packs, records;
    fsdp__trace_clock clock;
    fsdp__clock_offset *begun, *ended; /* of each rank */
    fsdp__trace_plan plan;
};

/* Holds what rank 0 must know of a rank. */
typedef struct facts {
    int64_t bytes, events, dropped;
    fsdp__own_record own;
    int32_t machine;
    char host[FSDP__HOST_BYTES];
} facts;

/* ---- begin ---- */

static void trace_free(fsdp_trace *t)
{
    if (!t)
        return;
    if (t->recorder)
        fsdp__recorder_close(t->recorder);
    fsdp__memory_course_release(&t->plan.course);
    FSDP__FREE_ALL(t->path, t->run, t->begun, t->ended, t);
}

/* Does all that can fail on one rank alone. */
static fsdp_status prepare(fsdp_context *context, const char *path, const fsdp_trace_options *options, fsdp_trace **out)
{
    int64_t most = options && options->most_bytes ? options->most_bytes : USUAL_BYTES;
    size_t ranks = (size_t)fsdp_context_world_size(context);
    fsdp__recorder *recorder;
    fsdp_trace *t;

    if (most < LEAST_BYTES)
        return FSDP_FAIL(FSDP_INVALID, "cannot record a trace in %lld bytes: at least %d are needed", (long long)most,
                         LEAST_BYTES);
    if (fsdp_context_rank(context) == 0)
        FSDP_TRY(fsdp__trace_file_check(path));
    t = *out = fsdp__calloc(1, sizeof *t);
    recorder = fsdp__recorder_of(context);
    if (!t || !recorder)
        return FSDP_NO_MEMORY;
    t->context = context;
    t->path = fsdp__strdup(path);
    t->packs = fsdp__ends_with(path, ".gz");
    t->begun = fsdp__calloc(ranks, sizeof *t->begun);
    t->ended = fsdp__calloc(ranks, sizeof *t->ended);
    if (options && options->run && !(t->run = fsdp__strdup(options->run)))
        return FSDP_NO_MEMORY;
    if (!t->path || !t->begun || !t->ended)
        return FSDP_NO_MEMORY;
    FSDP_TRY(fsdp__recorder_open(recorder, most));
    t->recorder = recorder;
    return FSDP_OK;
}

/* Notes by how much this rank's clock is ahead now. */
static fsdp_status compare_clocks(fsdp_trace *t, fsdp__clock_offset *offsets, int64_t *ns, int64_t *offset)
{
    FSDP_TRY(fsdp__clocks_compare(t->context, offsets));
    *ns = fsdp__clock_ns();
    *offset = offsets[fsdp_context_rank(t->context)].ns;
    return FSDP_OK;
}

/* Agrees on when the trace starts: now, by the clock of rank 0. */
static fsdp_status agree_on_start(fsdp_trace *t, fsdp_process_group *world)
{
    int64_t now = fsdp__clock_ns();
    void **all = NULL;
    size_t *bytes = NULL;

    FSDP_TRY(fsdp_gather_objects(world, &now, sizeof now, &all, &bytes));
    memcpy(&t->clock.start, all[0], sizeof t->clock.start);
    fsdp_objects_free(world, all, bytes);
    FSDP_TRY(compare_clocks(t, t->begun, &t->clock.begun, &t->clock.begun_offset));
    t->clock.uncertain = t->begun[fsdp_context_rank(t->context)].uncertain;
    return FSDP_OK;
}

fsdp_status fsdp_trace_begin(fsdp_context *context, const char *path, const fsdp_trace_options *options,
                             fsdp_trace **out)
{
    fsdp_process_group *world = context ? fsdp_world(context) : NULL;
    fsdp_trace *t = NULL;
    fsdp_status status = FSDP_OK;

    if (out)
        *out = NULL;
    if (!context || !path || !*path || !out)
        status = FSDP_FAIL(FSDP_INVALID, "cannot begin a trace: a context, a path and a place for it are required");
    if (!world)
        return context ? fsdp_last_status() : status;
    status = fsdp_agree(world, status == FSDP_OK ? prepare(context, path, options, &t) : status);
    if (status == FSDP_OK)
        status = agree_on_start(t, world);
    if (status != FSDP_OK) {
        trace_free(t);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    fsdp_trace_pause(t, false);
    *out = t;
    return FSDP_OK;
}

void fsdp__trace_plan_memory(fsdp_trace *t, const fsdp_device *device, fsdp__memory_course *course)
{
    fsdp__memory_course_release(&t->plan.course);
    t->plan = (fsdp__trace_plan){fsdp_device_name(device), *course};
    *course = (fsdp__memory_course){.changes = NULL};
}

void fsdp_trace_pause(fsdp_trace *t, bool paused)
{
    if (!t || t->records == !paused)
        return;
    t->records = !paused;
    if (paused)
        fsdp__recorder_stop(t->recorder);
    else
        fsdp__recorder_start(t->recorder);
}

/* ---- the file ---- */

/* Writes how complete the own record of a rank's GPU is. */
static void write_own(FILE *out, const fsdp__own_record *own)
{
    fprintf(out, ",\"gpu_record\":{\"told\":%lld,\"issued\":%lld,\"dropped\":%lld", (long long)own->sum.told,
            (long long)own->sum.issued, (long long)own->sum.dropped);
    if (*own->missing) {
        fputs(",\"missing\":", out);
        fsdp__print_json_string(own->missing, out);
    }
    fputc('}', out);
}

static void write_rank(FILE *out, const fsdp_trace *t, const facts *f, int rank)
{
    fprintf(out, "%s\n{\"rank\":%d,\"host\":", rank ? "," : "", rank);
    fsdp__print_json_string(fsdp__shown(f->host, FSDP__ROOM(FSDP__HOST_BYTES)), out);
    fprintf(out,
            ",\"machine\":%d,\"clock_offset_ns\":%lld,\"clock_uncertain_ns\":%lld,\"events\":%lld,\"dropped\":%lld",
            f->machine, (long long)t->begun[rank].ns, (long long)t->begun[rank].uncertain, (long long)f->events,
            (long long)f->dropped);
    if (f->own.wanted)
        write_own(out, &f->own);
    fputc('}', out);
}

/* Writes whose trace it is, and when it was begun. */
static void write_origin(FILE *out, const fsdp_trace *t)
{
    time_t begun = time(NULL) - (time_t)((fsdp__clock_ns() - t->clock.start) / 1000000000);
    char started[40] = "";
    struct tm utc;

    if (t->run) {
        fputs(",\"run\":", out);
        fsdp__print_json_string(fsdp__shown(t->run, FSDP__ROOM(FSDP__NAME_TEXT)), out);
    }
    if (gmtime_r(&begun, &utc))
        strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &utc);
    fprintf(out, ",\"started\":\"%s\"", started);
}

/* Writes the head of the file, before the events: what the file is, and how exact its clock is. */
static void write_head(FILE *out, const fsdp_trace *t, void *const *all, int ranks, const char *missing)
{
    fprintf(out, FSDP__TRACE_HEAD ",\"version\":\"%s\",\"world_size\":%d", FSDP_VERSION,
            fsdp_context_world_size(t->context));
    write_origin(out, t);
    if (missing) {
        fputs(",\"incomplete\":", out);
        fsdp__print_json_string(missing, out);
    }
    fputs(",\"ranks\":[", out);
    for (int r = 0; r < ranks; r++)
        write_rank(out, t, all[r], r);
    fputs("]},\"traceEvents\":[\n", out);
}

/* Adds a piece of the file's own text. */
static fsdp_status add_text(const fsdp_trace *t, fsdp__trace_file *file, void *const *all, int ranks,
                            const char *missing)
{
    FSDP__SCOPED(fsdp__memory_file_release) fsdp__memory_file text = {.data = NULL};

    FSDP_TRY(fsdp__memory_file_open(&text, t->packs, ranks > 0 ? FSDP__TRACE_FORMAT : NULL));
    if (ranks > 0)
        write_head(text.stream, t, all, ranks, missing);
    else /* the last event has no comma */
        fputs("{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":1}}\n]}\n",
              text.stream);
    FSDP_TRY(fsdp__memory_file_finish(&text));
    return fsdp__trace_file_add(file, text.data, (size_t)text.bytes);
}

/* Makes the text of this rank's events. */
static fsdp_status make_text(const fsdp_trace *t, fsdp__memory_file *text)
{
    FSDP_TRY(fsdp__memory_file_open(text, t->packs, NULL));
    FSDP_TRY(fsdp__trace_write(text->stream, t->recorder, &t->clock, &t->plan));
    return fsdp__memory_file_finish(text);
}

static facts facts_of(const fsdp_trace *t, const fsdp__memory_file *text)
{
    facts f = {
        .bytes = text->bytes, .dropped = fsdp__recorder_dropped(t->recorder), .own = *fsdp__recorder_own(t->recorder)};

    f.machine = fsdp_context_machine(t->context);
    (void)fsdp__recorder_notes(t->recorder, &f.events);
    fsdp__host_name(f.host);
    return f;
}

/* ---- collecting ---- */

/* Adds the text of rank `from`, which all receive and rank 0 keeps. `*mine` is the outcome of this rank's own work; if
 * that failed, the rank only takes part. */
static fsdp_status pass_text(fsdp_process_group *world, int from, int64_t bytes, const unsigned char *text,
                             unsigned char *piece, fsdp__trace_file *file, fsdp_status *mine)
{
    fsdp_stream *host = fsdp__process_group_host_stream(world);
    int rank = fsdp_process_group_rank(world);

    if (!host)
        return fsdp_last_status();
    for (int64_t at = 0; at < bytes; at += PIECE) {
        size_t count = (size_t)FSDP__MIN(bytes - at, (int64_t)PIECE);

        if (rank == from)
            memcpy(piece, text + at, count);
        if (from > 0) {
            FSDP_TRY(fsdp_broadcast(world, piece, (int64_t)count, FSDP_U8, from, host));
            FSDP_TRY(fsdp_stream_synchronize(host));
        }
        if (rank == 0 && *mine == FSDP_OK)
            *mine = fsdp__trace_file_add(file, piece, count);
    }
    return FSDP_OK;
}

static void warn_of_dropped(const fsdp_trace *t, void *const *all, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        const facts *f = all[r];

        if (f->dropped > 0) {
            fsdp_log(t->context, FSDP_LOG_WARNING,
                     "the trace '%s' ends early on rank %d: there was room for %lld events, and %lld came after them",
                     t->path, r, (long long)f->events, (long long)f->dropped);
            return;
        }
    }
}

/* Warns of GPUs whose own record is missing or incomplete. */
static void warn_of_own(const fsdp_trace *t, void *const *all, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        const fsdp__own_record *own = &((const facts *)all[r])->own;
        bool lacks = own->sum.dropped > 0 || own->sum.told < own->sum.issued;

        if (*own->missing)
            fsdp_log(t->context, FSDP_LOG_WARNING,
                     "the trace '%s' has no record of what the GPU itself ran, but only the times of what was issued "
                     "(rank %d): %s",
                     t->path, r, own->missing);
        else if (lacks)
            fsdp_log(t->context, FSDP_LOG_WARNING,
                     "the trace '%s' lacks some of what the GPU of rank %d ran: its own record has %lld of at least "
                     "%lld kernels, copies and fills, and %lld were dropped because memory ran out: trace fewer steps",
                     t->path, r, (long long)own->sum.told, (long long)own->sum.issued, (long long)own->sum.dropped);
        if (*own->missing || lacks)
            return;
    }
}

/* Writes the file with the texts of all ranks, which meet here. */
static fsdp_status collect(fsdp_trace *t, fsdp_process_group *world, const fsdp__memory_file *text, void *const *all)
{
    int ranks = fsdp_process_group_size(world), rank = fsdp_process_group_rank(world);
    FSDP__FREED unsigned char *piece = fsdp__malloc(PIECE);
    fsdp__trace_file file = {.fd = -1};
    fsdp_status status, mine = piece ? FSDP_OK : FSDP_NO_MEMORY;

    if (rank == 0 && mine == FSDP_OK)
        mine = fsdp__trace_file_open(t->path, &file);
    if (rank == 0 && mine == FSDP_OK)
        mine = add_text(t, &file, all, ranks, NULL);
    FSDP_TRY_GOTO(status, fsdp_agree(world, mine), out);
    for (int r = 0; r < ranks; r++)
        FSDP_TRY_GOTO(status, pass_text(world, r, ((const facts *)all[r])->bytes, text->data, piece, &file, &mine),
                      out);
    if (rank == 0 && mine == FSDP_OK)
        mine = add_text(t, &file, NULL, 0, NULL);
    if (rank == 0 && mine == FSDP_OK)
        mine = fsdp__trace_file_finish(&file);
    if (rank == 0 && mine == FSDP_OK) {
        warn_of_dropped(t, all, ranks);
        warn_of_own(t, all, ranks);
    }
    status = fsdp_agree(world, mine);
out:
    if (rank == 0)
        fsdp__trace_file_release(&file);
    return status;
}

/* Ends a trace whose ranks are all there. */
static fsdp_status end(fsdp_trace *t, fsdp_process_group *world, fsdp__memory_file *text)
{
    void **all = NULL;
    size_t *bytes = NULL;
    facts mine;
    fsdp_status status;

    FSDP_TRY(compare_clocks(t, t->ended, &t->clock.ended, &t->clock.ended_offset));
    FSDP_TRY(fsdp_agree(world, make_text(t, text)));
    mine = facts_of(t, text);
    FSDP_TRY(fsdp_gather_objects(world, &mine, sizeof mine, &all, &bytes));
    status = collect(t, world, text, all);
    fsdp_objects_free(world, all, bytes);
    return status;
}

/* Writes the file with what rank 0 has. */
static fsdp_status write_alone(fsdp_trace *t)
{
    FSDP__SCOPED(fsdp__trace_file_release) fsdp__trace_file file = {.fd = -1};
    FSDP__SCOPED(fsdp__memory_file_release) fsdp__memory_file text = {.data = NULL};
    facts mine;
    void *all[] = {&mine};

    FSDP_TRY(make_text(t, &text));
    mine = facts_of(t, &text);
    FSDP_TRY(fsdp__trace_file_open(t->path, &file));
    FSDP_TRY(add_text(t, &file, all, 1, "the other ranks have not come: only rank 0 is here"));
    FSDP_TRY(fsdp__trace_file_add(&file, text.data, (size_t)text.bytes));
    FSDP_TRY(add_text(t, &file, NULL, 0, NULL));
    return fsdp__trace_file_finish(&file);
}

void fsdp_trace_abandon(fsdp_trace *t)
{
    fsdp__error_aside aside;

    fsdp__put_error_aside(&aside);
    fsdp_trace_pause(t, true);
    if (t && fsdp_context_rank(t->context) == 0 && write_alone(t) != FSDP_OK)
        fsdp_log(t->context, FSDP_LOG_WARNING, "the trace '%s' could not be written: %s", t->path, fsdp_last_error());
    trace_free(t);
    fsdp__put_error_back(&aside);
}

fsdp_status fsdp_trace_end(fsdp_trace *t)
{
    fsdp_process_group *world = t ? fsdp_world(t->context) : NULL;
    FSDP__SCOPED(fsdp__memory_file_release) fsdp__memory_file text = {.data = NULL};
    fsdp_status status;

    if (!t)
        return FSDP_FAIL(FSDP_INVALID, "cannot end a trace: it is NULL");
    fsdp_trace_pause(t, true);
    status = world ? end(t, world, &text) : fsdp_last_status();
    if (status == FSDP_COMM || status == FSDP_MISMATCH) {
        fsdp_trace_abandon(t);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    trace_free(t);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}
