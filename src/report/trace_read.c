/* trace_read.c - reads a trace: its head, then a line for each event. */
#include "report/trace_read.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "device/kernels.h"
#include "format/json.h"
#include "fsdp/comm.h"
#include "watch/trace_file.h"

enum {
    LINE = 1 << 14,            /* the longest line of an event */
    HEAD = 1 << 25,            /* the longest head: it has a line for each rank */
    MOST_SPANS = 10 * 1000000, /* of all ranks */
    MOST_NAMES = 1 << 20,      /* ours have some thousands */
    MOST_RANKS = 1 << 17,
    MOST_LANES = 1 << 10
};

/* Allows three hours and half a terabyte: nobody traces for longer or moves more at once, and sums over all spans and
 * ranks have room. */
static const double most_us = 1e10;
static const int64_t most_bytes = INT64_C(1) << 39;

#define HEAD_ENDS "\"traceEvents\":["

typedef struct reading {
    fsdp__trace *trace;
    gzFile file;
    char *line;
    int64_t number;           /* of the line */
    fsdp__traced_span *apart; /* the last span that its own line ends */
    bool ended;
} reading;

/* ---- names ---- */

static fsdp_status grow_table(fsdp__trace *t)
{
    int64_t size = t->table_size ? 2 * t->table_size : 1024;
    uint32_t *table = fsdp__calloc((size_t)size, sizeof *table);

    FSDP__TRY_NEW(table);
    for (int64_t n = 0; n < t->name_count; n++) {
        uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, t->names[n], strlen(t->names[n]));

        while (table[hash % (uint64_t)size])
            hash++;
        table[hash % (uint64_t)size] = (uint32_t)n + 1;
    }
    fsdp__free(t->table);
    t->table = table;
    t->table_size = size;
    return FSDP_OK;
}

static fsdp_status number_of(fsdp__trace *t, const char *name, uint32_t *out)
{
    uint64_t at = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, name, strlen(name));

    if (2 * (t->name_count + 1) > t->table_size)
        FSDP_TRY(grow_table(t));
    for (;; at++) {
        uint32_t *place = &t->table[at % (uint64_t)t->table_size];

        if (*place && strcmp(t->names[*place - 1], name) == 0) {
            *out = *place - 1;
            return FSDP_OK;
        }
        if (*place)
            continue;
        if (t->name_count == MOST_NAMES)
            return FSDP_FAIL(FSDP_FORMAT, "it has over %d names", MOST_NAMES);
        if (fsdp__grow(&t->names, t->name_count, &t->name_capacity, sizeof *t->names) != 0 ||
            !(t->names[t->name_count] = fsdp__strdup(name)))
            return FSDP_NO_MEMORY;
        *out = (uint32_t)t->name_count++;
        *place = *out + 1;
        return FSDP_OK;
    }
}

/* ---- values ---- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static int64_t integer_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* Gets a time in nanoseconds. */
static fsdp_status time_of(const json_t *event, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(event, key);
    double us = json_number_value(value);

    if (!json_is_number(value) || !(us >= 0 && us <= most_us))
        return FSDP_FAIL(FSDP_FORMAT, "its '%s' is no time", key);
    *out = llround(us * 1000);
    return FSDP_OK;
}

/* Gets an integer that is counted or an index. */
static fsdp_status index_of(const json_t *object, const char *key, int64_t least, int64_t most, int64_t *out)
{
    int64_t value = integer_of(object, key);

    if (!json_is_integer(json_object_get(object, key)) || value < least || value > most)
        return FSDP_FAIL(FSDP_FORMAT, "its '%s' is no number from %lld to %lld", key, (long long)least,
                         (long long)most);
    *out = value;
    return FSDP_OK;
}

/* Gets a number of bytes; 0 where there is none. */
static fsdp_status bytes_of(const json_t *args, int64_t *out)
{
    return json_object_get(args, "bytes") ? index_of(args, "bytes", 0, most_bytes, out) : FSDP_OK;
}

/* Returns the collective that a text begins with; FSDP_COLLECTIVES: none. */
static uint8_t collective_of(const char *text)
{
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++) {
        const char *rest = fsdp__behind(text, fsdp_collective_name((fsdp_collective)kind));

        if (rest && strchr(" ", *rest))
            return (uint8_t)kind;
    }
    return FSDP_COLLECTIVES;
}

/* Returns the class of a kernel by its name; CLASSES: a function that is in no list. */
static uint8_t class_of(const char *name)
{
    for (int k = 0; k < FSDP__KERNELS; k++)
        if (strcmp(fsdp__kernel_infos[k].name, name) == 0)
            return (uint8_t)fsdp__kernel_infos[k].class;
    return FSDP__KERNEL_CLASSES;
}

/* ---- events ---- */

static fsdp_status take_group(fsdp__trace *t, const json_t *args, int32_t *out)
{
    fsdp__traced_group group = {.count = 0};
    int64_t count, first = 0, step = 0;

    FSDP_TRY(index_of(args, "ranks", 1, MOST_RANKS, &count));
    if (json_object_get(args, "first_rank")) {
        FSDP_TRY(index_of(args, "first_rank", 0, t->world - 1, &first));
        FSDP_TRY(index_of(args, "rank_step", 1, MOST_RANKS, &step));
        if (first + (count - 1) * step >= t->world)
            return FSDP_FAIL(FSDP_FORMAT, "its group has ranks beyond the run's %d", t->world);
    } else if (count == t->world) {
        step = 1;
    }
    FSDP_TRY(number_of(t, text_of(args, "group"), &group.name));
    group = (fsdp__traced_group){group.name, (int32_t)count, (int32_t)first, (int32_t)step};
    for (int64_t g = 0; g < t->group_count; g++)
        if (memcmp(&t->groups[g], &group, sizeof group) == 0) {
            *out = (int32_t)g;
            return FSDP_OK;
        }
    if (t->group_count == MOST_RANKS)
        return FSDP_FAIL(FSDP_FORMAT, "it has over %d groups", MOST_RANKS);
    FSDP_TRY(fsdp__grow(&t->groups, t->group_count, &t->group_capacity, sizeof *t->groups));
    *out = (int32_t)t->group_count;
    t->groups[t->group_count++] = group;
    return FSDP_OK;
}

static int sort_of(const char *category)
{
    static const char *const names[] = {"kernel",     "copy",  "collective", "optimizer", "data",
                                        "checkpoint", "stage", "wait",       "unit",      "whole"};

    for (int s = 0; s < FSDP__TRACED_SORTS; s++)
        if (strcmp(names[s], category) == 0)
            return s;
    return -1;
}

/* Fills what only some spans have. */
static fsdp_status take_kind(fsdp__trace *t, const json_t *event, const char *name, fsdp__traced_span *span)
{
    const json_t *args = json_object_get(event, "args");
    const char *waited = fsdp__behind(name, "wait for ");

    FSDP_TRY(bytes_of(args, &span->bytes));
    span->number = integer_of(args, span->sort == FSDP__TRACED_KERNEL ? "flops" : "number");
    if (span->sort == FSDP__TRACED_KERNEL)
        span->kind = class_of(name);
    if (span->sort == FSDP__TRACED_WAIT)
        span->kind = collective_of(waited ? waited : name);
    if (span->sort != FSDP__TRACED_COLLECTIVE)
        return FSDP_OK;
    span->kind = collective_of(name);
    return take_group(t, args, &span->group);
}

static fsdp_status take_span(reading *r, const json_t *event, fsdp__traced_span *span, bool apart)
{
    fsdp__trace *t = r->trace;
    const char *name = text_of(event, "name");
    int sort = sort_of(text_of(event, "cat"));
    int64_t length = 0;

    FSDP_TRY(time_of(event, "ts", &span->begin));
    if (!apart)
        FSDP_TRY(time_of(event, "dur", &length));
    if (sort < 0)
        return FSDP_OK;
    span->end = span->begin + length;
    span->sort = (uint8_t)sort;
    span->group = -1;
    FSDP_TRY(take_kind(t, event, name, span));
    FSDP_TRY(number_of(t, name, &span->name));
    if (t->span_count == MOST_SPANS)
        return FSDP_FAIL(FSDP_FORMAT, "it has over %d spans: trace fewer steps", MOST_SPANS);
    FSDP_TRY(fsdp__grow(&t->spans, t->span_count, &t->span_capacity, sizeof *t->spans));
    t->spans[t->span_count++] = *span;
    r->apart = apart ? &t->spans[t->span_count - 1] : NULL;
    return FSDP_OK;
}

/* Ends the span that the line before has begun. */
static fsdp_status end_span(reading *r, const json_t *event)
{
    if (sort_of(text_of(event, "cat")) < 0)
        return FSDP_OK;
    if (!r->apart)
        return FSDP_FAIL(FSDP_FORMAT, "it ends what the line before has not begun");
    FSDP_TRY(time_of(event, "ts", &r->apart->end));
    if (r->apart->end < r->apart->begin)
        return FSDP_FAIL(FSDP_FORMAT, "it ends before it has begun");
    r->apart = NULL;
    return FSDP_OK;
}

static fsdp_status take_device(fsdp__trace *t, const char *name, uint8_t *out)
{
    uint32_t number;
    int d = 0;

    FSDP_TRY(number_of(t, name, &number));
    while (d < t->device_count && t->devices[d] != number)
        d++;
    if (d == FSDP__TRACED_DEVICES)
        return FSDP_FAIL(FSDP_FORMAT, "it counts the memory of over %d devices", FSDP__TRACED_DEVICES);
    if (d == t->device_count)
        t->devices[t->device_count++] = number;
    *out = (uint8_t)d;
    return FSDP_OK;
}

/* Takes the bytes of a counter "memory: activation (cuda:0)". */
static fsdp_status take_bytes(fsdp__trace *t, const json_t *event, int rank)
{
    const char *name = fsdp__behind(text_of(event, "name"), "memory: "), *device;
    fsdp__traced_bytes taken = {.rank = rank, .kind = FSDP_MEMORY_KINDS};
    size_t length;

    if (!name)
        return FSDP_OK;
    device = strstr(name, " (");
    length = device ? (size_t)(device - name) : strlen(name);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        const char *known = fsdp_memory_kind_name((fsdp_memory_kind)kind);

        if (strlen(known) == length && strncmp(name, known, length) == 0)
            taken.kind = (uint8_t)kind;
    }
    FSDP_TRY(time_of(event, "ts", &taken.at));
    FSDP_TRY(bytes_of(json_object_get(event, "args"), &taken.bytes));
    FSDP_TRY(take_device(t, device ? device : "", &taken.device));
    if (t->bytes_count == MOST_SPANS)
        return FSDP_FAIL(FSDP_FORMAT, "it counts memory over %d times: trace fewer steps", MOST_SPANS);
    FSDP_TRY(fsdp__grow(&t->bytes, t->bytes_count, &t->bytes_capacity, sizeof *t->bytes));
    t->bytes[t->bytes_count++] = taken;
    return FSDP_OK;
}

static fsdp_status take_event(reading *r, const json_t *event)
{
    const char *phase = text_of(event, "ph");
    fsdp__traced_span span = {.bytes = 0};
    int64_t pid, tid;

    if (strcmp(phase, "M") == 0 || strcmp(phase, "s") == 0 || strcmp(phase, "f") == 0)
        return FSDP_OK;
    FSDP_TRY(index_of(event, "pid", 1, r->trace->rank_count, &pid));
    FSDP_TRY(index_of(event, "tid", 1, MOST_LANES, &tid));
    span.rank = (int32_t)pid - 1;
    span.lane = (int32_t)tid - 1;
    if (strcmp(phase, "X") == 0 || strcmp(phase, "b") == 0)
        return take_span(r, event, &span, *phase == 'b');
    if (strcmp(phase, "e") == 0)
        return end_span(r, event);
    return strcmp(phase, "C") == 0 ? take_bytes(r->trace, event, span.rank) : FSDP_OK;
}

/* Parses a part of the file. */
static fsdp_status parse(const reading *r, const char *text, size_t bytes, json_t **out)
{
    fsdp_status status = fsdp__json_parse(r->trace->path, text, bytes, out);

    return status == FSDP_OK || status == FSDP_NO_MEMORY ? status : FSDP_FAIL(FSDP_FORMAT, "it is no JSON object");
}

/* ---- the head ---- */

static fsdp_status take_rank(fsdp__trace *t, const json_t *rank)
{
    fsdp__traced_rank *made = &t->ranks[t->rank_count];
    int64_t machine;

    if (integer_of(rank, "rank") != t->rank_count)
        return FSDP_FAIL(FSDP_FORMAT, "its ranks are not listed from 0 on");
    FSDP_TRY(index_of(rank, "machine", 0, MOST_RANKS, &machine));
    made->host = fsdp__strdup(text_of(rank, "host"));
    FSDP__TRY_NEW(made->host);
    t->rank_count++;
    made->machine = (int)machine;
    made->uncertain = integer_of(rank, "clock_uncertain_ns");
    made->dropped = integer_of(rank, "dropped");
    return FSDP_OK;
}

/* Copies a text that the head may have. */
static fsdp_status take_text(const json_t *other, const char *key, char **out)
{
    if (json_object_get(other, key) && !(*out = fsdp__strdup(text_of(other, key))))
        return FSDP_NO_MEMORY;
    return FSDP_OK;
}

static fsdp_status take_head(fsdp__trace *t, const json_t *head)
{
    const json_t *other = json_object_get(head, "otherData"), *ranks = json_object_get(other, "ranks");
    int64_t world;

    if (strcmp(text_of(other, "format"), FSDP__TRACE_FORMAT) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "it is no trace of fsdp");
    FSDP_TRY(index_of(other, "world_size", 1, MOST_RANKS, &world));
    if (json_array_size(ranks) == 0 || json_array_size(ranks) > (size_t)world)
        return FSDP_FAIL(FSDP_FORMAT, "its head lists %zu ranks of %lld", json_array_size(ranks), (long long)world);
    t->world = (int)world;
    t->ranks = fsdp__calloc(json_array_size(ranks), sizeof *t->ranks);
    FSDP__TRY_NEW(t->ranks);
    FSDP_TRY(take_text(other, "incomplete", &t->incomplete));
    FSDP_TRY(take_text(other, "run", &t->run));
    FSDP_TRY(take_text(other, "started", &t->started));
    for (size_t i = 0; i < json_array_size(ranks); i++)
        FSDP_TRY(take_rank(t, json_array_get(ranks, i)));
    return FSDP_OK;
}

/* ---- lines ---- */

/* Reads the next line without its end. Returns its characters; -1: the file ends, or is damaged. */
static int64_t next_line(reading *r, char *text, int64_t room)
{
    int64_t length;

    if (!gzgets(r->file, text, (int)room))
        return -1;
    r->number++;
    length = (int64_t)strlen(text);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r'))
        text[--length] = '\0';
    return length;
}

static fsdp_status read_head(reading *r)
{
    int64_t used = 0, length, capacity = 0;
    FSDP__FREED char *text = NULL;
    json_t *head = NULL;
    fsdp_status status = FSDP_OK;

    do {
        if (used + LINE > HEAD || fsdp__grow(&text, used + LINE, &capacity, 1) != 0) {
            status = used + LINE > HEAD ? FSDP_FAIL(FSDP_FORMAT, "its head has no end") : FSDP_NO_MEMORY;
            break;
        }
        length = next_line(r, text + used, LINE);
        used += FSDP__MAX(length, 0);
        if (length < 0)
            status = FSDP_FAIL(FSDP_FORMAT, "it is cut short, or no trace of fsdp");
    } while (status == FSDP_OK &&
             (used < (int64_t)strlen(HEAD_ENDS) || strcmp(text + used - strlen(HEAD_ENDS), HEAD_ENDS) != 0));
    if (status == FSDP_OK) {
        memcpy(text + used, "]}", sizeof "]}");
        status = parse(r, text, (size_t)used + 2, &head);
    }
    if (status == FSDP_OK)
        status = take_head(r->trace, head);
    json_decref(head);
    return status;
}

static fsdp_status read_event(reading *r, int64_t length)
{
    json_t *event = NULL;
    fsdp_status status;

    if (strcmp(r->line, "]}") == 0) {
        r->ended = true;
        return FSDP_OK;
    }
    if (length > 0 && r->line[length - 1] == ',')
        length--;
    FSDP_TRY(parse(r, r->line, (size_t)length, &event));
    status = take_event(r, event);
    json_decref(event);
    return status;
}

static fsdp_status read_lines(reading *r)
{
    int64_t length;

    FSDP_TRY(read_head(r));
    while (!r->ended && (length = next_line(r, r->line, LINE)) >= 0)
        FSDP_TRY(read_event(r, length));
    return r->ended ? FSDP_OK : FSDP_FAIL(FSDP_FORMAT, "it is cut short");
}

fsdp_status fsdp__trace_read(const char *path, fsdp__trace *out)
{
    reading r = {.trace = out};
    fsdp_status status;
    int fd = -1;

    *out = (fsdp__trace){.path = path};
    FSDP_TRY(fsdp__file_open(path, &fd, NULL));
    r.line = fsdp__malloc(LINE);
    r.file = r.line ? gzdopen(fd, "rb") : NULL;
    if (!r.file) {
        (void)close(fd);
        status = FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    } else {
        status = read_lines(&r);
        (void)gzclose(r.file);
    }
    fsdp__free(r.line);
    if (status != FSDP_OK && status != FSDP_NO_MEMORY)
        fsdp_fail_prefix(status, "cannot read '%s': line %lld", path, (long long)r.number);
    return status;
}

void fsdp__trace_release(fsdp__trace *t)
{
    for (int i = 0; i < t->rank_count; i++)
        fsdp__free(t->ranks[i].host);
    for (int64_t i = 0; i < t->name_count; i++)
        fsdp__free(t->names[i]);
    FSDP__FREE_ALL(t->ranks, t->names, t->table, t->spans, t->bytes, t->groups, t->incomplete, t->run, t->started);
    *t = (fsdp__trace){.path = NULL};
}

fsdp_status fsdp__is_trace(const char *path, bool *out)
{
    char head[sizeof FSDP__TRACE_HEAD] = "";
    bool held = fsdp_hold_error(true);
    gzFile file = NULL;
    int fd = -1;
    fsdp_status status = fsdp__file_open(path, &fd, NULL);

    *out = false;
    if (status == FSDP_OK) {
        file = gzdopen(fd, "rb");
        *out = file && gzread(file, head, sizeof head - 1) == (int)sizeof head - 1 &&
               memcmp(head, FSDP__TRACE_HEAD, sizeof head - 1) == 0;
        (void)(file ? gzclose(file) : close(fd));
    }
    fsdp_release_error(held);
    return status == FSDP_NO_MEMORY ? FSDP_FAIL(FSDP_NO_MEMORY, "out of memory") : FSDP_OK;
}
