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

static bool lies_in_a_slice(json_t *const *slices, size_t count, const json_t *end)
{
    for (size_t i = 0; i < count; i++)
        if (json_equal(field(slices[i], "pid"), field(end, "pid")) &&
            json_equal(field(slices[i], "tid"), field(end, "tid")) && ns_of(slices[i], "ts") <= ns_of(end, "ts") &&
            ns_of(end, "ts") <= ns_of(slices[i], "ts") + ns_of(slices[i], "dur"))
            return true;
    return false;
}

/* Finds the event of another phase with the same `key`. */
static const json_t *partner(const reading *r, const json_t *event, const char *phase, const char *key)
{
    size_t i;
    json_t *other;

    json_array_foreach(r->events, i, other) if (is(other, phase) && json_equal(field(other, key), field(event, key)) &&
                                                strcmp(text(other, "name"), text(event, "name")) == 0 &&
                                                (strcmp(phase, "s") == 0 || strcmp(phase, "f") == 0 ||
                                                 json_equal(field(other, "pid"), field(event, "pid")))) return other;
    return NULL;
}

static void check_pairs(const reading *r, json_t *const *slices, size_t slice_count)
{
    size_t i;
    json_t *e;

    json_array_foreach(r->events, i, e)
    {
        const json_t *other = is(e, "s")   ? partner(r, e, "f", "id")
                              : is(e, "f") ? partner(r, e, "s", "id")
                              : is(e, "b") ? partner(r, e, "e", "id2")
                              : is(e, "e") ? partner(r, e, "b", "id2")
                                           : e;

        CHECK(other != NULL);
        CHECK(json_integer_value(field(e, "pid")) > 0 && json_integer_value(field(e, "tid")) > 0);
        if (is(e, "s") || is(e, "f"))
            CHECK(lies_in_a_slice(slices, slice_count, e));
        if (is(e, "s") || is(e, "b"))
            CHECK(ns_of(e, "ts") <= ns_of(other, "ts"));
    }
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
