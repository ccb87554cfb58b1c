#include "watch/reading.h"

#include <math.h>
#include <zlib.h>

static json_t *field(const json_t *event, const char *name)
{
    return json_object_get(event, name);
}

static const char *text(const json_t *event, const char *name)
{
    const char *value = json_string_value(field(event, name));

    return value ? value : "";
}

static bool is(const json_t *event, const char *phase)
{
    return strcmp(text(event, "ph"), phase) == 0;
}

/* Times have three digits behind the point. */
static int64_t ns_of(const json_t *event, const char *name)
{
    return (int64_t)llround(json_number_value(field(event, name)) * 1000);
}

static char *read_all(const char *path, size_t *bytes)
{
    gzFile file = gzopen(path, "rb"); /* reads what is not packed as it is */
    size_t capacity = 1 << 20;
    char *all = malloc(capacity);
    int got;

    CHECK(file && all);
    for (*bytes = 0; (got = gzread(file, all + *bytes, (unsigned)(capacity - *bytes))) > 0;) {
        *bytes += (size_t)got;
        if (*bytes == capacity)
            all = realloc(all, capacity *= 2);
    }
    CHECK_EQ(got, 0);
    gzclose(file);
    return all;
}

/* ---- what readers demand ---- */

static int compare_slices(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    int64_t keys[2][4] = {
        {json_integer_value(field(x, "pid")), json_integer_value(field(x, "tid")), ns_of(x, "ts"), -ns_of(x, "dur")},
        {json_integer_value(field(y, "pid")), json_integer_value(field(y, "tid")), ns_of(y, "ts"), -ns_of(y, "dur")}};

    for (int i = 0; i < 4; i++)
        if (keys[0][i] != keys[1][i])
            return keys[0][i] < keys[1][i] ? -1 : 1;
    return 0;
}

/* Checks that the slices of a row lie in each other or apart, by those that are open. */
static void check_slices(json_t **slices, size_t count)
{
    int64_t open[64];
    int depth = 0;

    for (size_t i = 0; i < count; i++) {
        int64_t begin = ns_of(slices[i], "ts"), end = begin + ns_of(slices[i], "dur");

        if (i > 0 && (json_integer_value(field(slices[i], "pid")) != json_integer_value(field(slices[i - 1], "pid")) ||
                      json_integer_value(field(slices[i], "tid")) != json_integer_value(field(slices[i - 1], "tid"))))
            depth = 0;
        while (depth > 0 && open[depth - 1] <= begin)
            depth--;
        if (depth > 0 && end > open[depth - 1])
            TEST_FAIL("'%s' lies only partly in the slice around it", text(slices[i], "name"));
        CHECK(depth < 64);
        open[depth++] = end;
    }
}

/* Begins with the place of an event: its row and its time. */
typedef struct place {
    int64_t pid, tid, at;
} place;

static place place_of(const json_t *e)
{
    return (place){json_integer_value(field(e, "pid")), json_integer_value(field(e, "tid")), ns_of(e, "ts")};
}

static int compare_place(const void *key, const void *slice)
{
    place a = *(const place *)key, b = place_of(*(json_t *const *)slice);

    return a.pid != b.pid   ? (a.pid < b.pid ? -1 : 1)
           : a.tid != b.tid ? (a.tid < b.tid ? -1 : 1)
           : a.at != b.at   ? (a.at < b.at ? -1 : 1)
                            : 0;
}

/* One end of an arrow, or of what has a row of its own. */
typedef struct pair_end {
    char phase;
    int64_t key[2], at;
} pair_end;

static int compare_ends(const void *a, const void *b)
{
    const pair_end *x = a, *y = b;
    bool arrows[] = {x->phase == 's' || x->phase == 'f', y->phase == 's' || y->phase == 'f'};

    if (arrows[0] != arrows[1])
        return arrows[0] ? -1 : 1;
    for (int i = 0; i < 2; i++)
        if (x->key[i] != y->key[i])
            return x->key[i] < y->key[i] ? -1 : 1;
    return (x->phase == 'f' || x->phase == 'e') - (y->phase == 'f' || y->phase == 'e');
}

static pair_end end_of(const json_t *e)
{
    pair_end end = {.phase = *text(e, "ph"), .at = ns_of(e, "ts")};

    end.key[0] = end.phase == 's' || end.phase == 'f' ? json_integer_value(field(e, "id")) : place_of(e).pid;
    if (end.phase == 'b' || end.phase == 'e')
        end.key[1] = strtoll(text(field(e, "id2"), "local"), NULL, 16);
    return end;
}

/* Checks that each end has its other end behind it, and that arrows begin and end where slices do. */
static void check_pairs(const reading *r, json_t *const *slices, size_t slice_count)
{
    pair_end *ends = calloc(json_array_size(r->events) + 1, sizeof *ends);
    size_t count = 0, i;
    json_t *e;

    json_array_foreach(r->events, i, e)
    {
        place at = place_of(e);

        CHECK(at.pid > 0 && at.tid > 0);
        if (is(e, "s") || is(e, "f"))
            CHECK(bsearch(&at, slices, slice_count, sizeof *slices, compare_place) != NULL);
        if (is(e, "s") || is(e, "f") || is(e, "b") || is(e, "e"))
            ends[count++] = end_of(e);
    }
    qsort(ends, count, sizeof *ends, compare_ends);
    CHECK_EQ(count % 2, 0);
    for (i = 0; i < count; i += 2) {
        CHECK((ends[i].phase == 's' && ends[i + 1].phase == 'f') || (ends[i].phase == 'b' && ends[i + 1].phase == 'e'));
        CHECK(ends[i].key[0] == ends[i + 1].key[0] && ends[i].key[1] == ends[i + 1].key[1]);
        CHECK(ends[i].at <= ends[i + 1].at);
    }
    free(ends);
}

static void check(const reading *r)
{
    size_t count = 0, i;
    json_t **slices = calloc(json_array_size(r->events), sizeof *slices), *e;

    json_array_foreach(r->events, i, e) if (is(e, "X")) slices[count++] = e;
    qsort(slices, count, sizeof *slices, compare_slices);
    check_slices(slices, count);
    check_pairs(r, slices, count);
    free(slices);
}

/* ---- reading ---- */

reading reading_of(const char *path)
{
    reading r;
    json_error_t error;
    size_t bytes;
    char *all = read_all(path, &bytes);

    r.root = json_loadb(all, bytes, 0, &error);
    free(all);
    if (!r.root)
        TEST_FAIL("'%s' is no JSON: line %d: %s", path, error.line, error.text);
    r.events = json_object_get(r.root, "traceEvents");
    CHECK(json_is_array(r.events));
    check(&r);
    return r;
}

void reading_release(reading *r)
{
    json_decref(r->root);
}

static bool fits(const json_t *e, int rank, const char *phase, const char *category, const char *name)
{
    return is(e, phase) && (rank < 0 || json_integer_value(field(e, "pid")) == rank + 1) &&
           (!category || strcmp(text(e, "cat"), category) == 0) &&
           (!name || strncmp(text(e, "name"), name, strlen(name)) == 0);
}

int reading_count(const reading *r, int rank, const char *phase, const char *category, const char *name)
{
    int count = 0;
    size_t i;
    json_t *e;

    json_array_foreach(r->events, i, e) count += fits(e, rank, phase, category, name);
    return count;
}

json_t *reading_find(const reading *r, int rank, const char *phase, const char *category, const char *name)
{
    size_t i;
    json_t *e;

    json_array_foreach(r->events, i, e) if (fits(e, rank, phase, category, name)) return e;
    return NULL;
}

int64_t reading_counter(const reading *r, int rank, const char *name)
{
    const json_t *last = NULL;
    size_t i;
    json_t *e;

    json_array_foreach(r->events, i, e) if (fits(e, rank, "C", NULL, name)) last = e;
    if (!last)
        TEST_FAIL("rank %d has no counter '%s'", rank, name);
    return json_integer_value(field(field(last, "args"), "bytes"));
}

json_t *reading_fact(const reading *r, const char *name)
{
    return field(field(r->root, "otherData"), name);
}

json_t *reading_rank_fact(const reading *r, int rank, const char *name)
{
    return field(json_array_get(reading_fact(r, "ranks"), (size_t)rank), name);
}
