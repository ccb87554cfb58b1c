/* run_starts.c - starts of runs in one file: who wrote a line, and which of them are one run. */
#include "report/run_starts.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"
#include "base/text.h"

enum {
    MOST_KEYS = 256,     /* of a step */
    MOST_STARTS = 10000, /* of a file */
    ABSENT = -1
};

/* ---- series ---- */

static fsdp_status make_room(fsdp__series *series)
{
    return fsdp__grow(&series->points, series->count + 1, &series->capacity, sizeof *series->points);
}

/* Adds the point of a step behind those of earlier steps: what is there of later ones was lost, or is done again. */
static fsdp_status add_point(fsdp__series *series, double step, double value)
{
    while (series->count > 0 && series->points[series->count - 1].step >= step)
        series->count--;
    FSDP_TRY(make_room(series));
    series->points[series->count++] = (fsdp__point_of_series){step, value};
    return FSDP_OK;
}

/* Adds a point of a start, which takes each step once: a step that is there already is the same line in a copy. Points
 * may have any order until put_in_order. */
static fsdp_status put_point(fsdp__series *series, double step, double value)
{
    FSDP_TRY(make_room(series));
    series->points[series->count++] = (fsdp__point_of_series){step, value};
    return FSDP_OK;
}

static fsdp_status add(const fsdp__start *start, fsdp__series *series, double step, double value)
{
    return start->id ? put_point(series, step, value) : add_point(series, step, value);
}

FSDP__ORDER_BY_ONE(by_step, fsdp__point_of_series, step)

/* Puts a start's points in order, and leaves out copies. */
static void put_in_order(fsdp__series *series)
{
    bool rises = true;
    int64_t kept = 0;

    for (int64_t i = 1; i < series->count && rises; i++)
        rises = series->points[i - 1].step < series->points[i].step;
    if (rises)
        return;
    qsort(series->points, (size_t)series->count, sizeof *series->points, by_step);
    for (int64_t i = 0; i < series->count; i++)
        if (kept == 0 || series->points[i].step != series->points[kept - 1].step)
            series->points[kept++] = series->points[i];
    series->count = kept;
}

/* Finds the series of a key, or makes it. The keys of a step come in the order of those before, so the right one is
 * most often at `guess`. */
static fsdp__series *series_for(fsdp__recorded_run *run, const char *name, int64_t guess)
{
    const fsdp__series *found;
    fsdp__series *made;

    if (guess < run->count && strcmp(run->series[guess].name, name) == 0)
        return &run->series[guess];
    found = fsdp__series_of(run, name);
    if (found)
        return &run->series[found - run->series];
    if (run->count == MOST_KEYS) {
        (void)FSDP_FAIL(FSDP_FORMAT, "its steps have over %d keys: no run has written it", MOST_KEYS);
        return NULL;
    }
    if (fsdp__grow(&run->series, run->count + 1, &run->capacity, sizeof *run->series) != 0)
        return NULL;
    made = &run->series[run->count];
    *made = (fsdp__series){.name = fsdp__strdup(name)};
    run->count += made->name != NULL;
    return made->name ? made : NULL;
}

/* ---- lines ---- */

/* Gives the loss of a step or validation; NaN: there is none, or it was not finite, for which runs write null. */
static fsdp_status read_loss(const json_t *line, double *out)
{
    const json_t *loss = json_object_get(line, "loss");

    *out = json_is_number(loss) ? json_number_value(loss) : NAN;
    return !loss || json_is_number(loss) || json_is_null(loss)
               ? FSDP_OK
               : FSDP_FAIL(FSDP_FORMAT, "'loss' is neither a number nor null: no run has written it");
}

/* Returns whether a key says nothing of a step that was left out. All keys that are looked at beside each other, point
 * by point, are among them. */
static bool says_of_learning(const char *name)
{
    static const char *const keys[] = {"loss", "grad_norm", "tokens_per_second", "padded_tokens_per_second",
                                       "mfu",  "step_ms",   "gather_ms",         "reduce_ms"};

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++)
        if (strcmp(keys[i], name) == 0)
            return true;
    return false;
}

static fsdp_status add_left_out(fsdp__start *start, double step)
{
    fsdp__series *series = series_for(&start->own, FSDP__LEFT_OUT, start->own.count);

    return series ? add(start, series, step, 1) : fsdp_last_status();
}

static fsdp_status add_step(fsdp__start *start, const json_t *line, double step)
{
    const char *name;
    json_t *value;
    int64_t guess = 0;
    bool left_out = json_is_true(json_object_get(line, FSDP__LEFT_OUT));
    double loss;

    FSDP_TRY(read_loss(line, &loss));
    json_object_foreach((json_t *)line, name, value)
    {
        fsdp__series *series;

        if (strcmp(name, "step") == 0 || !(json_is_number(value) || json_is_null(value)) ||
            (left_out && says_of_learning(name)))
            continue;
        series = series_for(&start->own, name, guess++);
        if (!series)
            return fsdp_last_status();
        FSDP_TRY(add(start, series, step, json_is_number(value) ? json_number_value(value) : NAN));
    }
    return left_out ? add_left_out(start, step) : FSDP_OK;
}

/* Adds a validation: its loss, and the rewards of pairs. */
static fsdp_status add_validation(fsdp__start *start, const json_t *line, double step)
{
    char key[FSDP__VALIDATION_KEY];
    const char *name;
    json_t *value;
    double loss;

    FSDP_TRY(read_loss(line, &loss));
    json_object_foreach((json_t *)line, name, value)
    {
        fsdp__series *series;

        if (!fsdp__behind(name, "reward_") || !json_is_number(value))
            continue;
        series = series_for(&start->own, fsdp__validation_key(name, key), start->own.count);
        if (!series)
            return fsdp_last_status();
        FSDP_TRY(add(start, series, step, json_number_value(value)));
    }
    return add(start, &start->own.validation, step, loss);
}

static double warned_at(const json_t *warnings, size_t i)
{
    return json_number_value(json_object_get(json_array_get(warnings, i), "warning"));
}

/* Keeps a line of what stood out, behind those of earlier steps and of its own; a copy of one is passed over. */
static fsdp_status add_warning(fsdp__recorded_run *run, const json_t *line)
{
    double step = json_number_value(json_object_get(line, "warning"));
    size_t at, low = 0;

    if (!run->warnings)
        run->warnings = json_array();
    at = json_array_size(run->warnings);
    while (low < at && warned_at(run->warnings, at - 1) > step) { /* the last one is most often the right place */
        size_t middle = low + (at - low) / 2;

        if (warned_at(run->warnings, middle) > step)
            at = middle;
        else
            low = middle + 1;
    }
    for (size_t i = at; i > 0 && warned_at(run->warnings, i - 1) == step; i--)
        if (json_equal(json_array_get(run->warnings, i - 1), line))
            return FSDP_OK;
    return run->warnings && json_array_insert(run->warnings, at, (json_t *)line) == 0 ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- whose a line is ---- */

static const char *id_of(const json_t *line)
{
    return json_string_value(json_object_get(line, "id"));
}

/* Returns the number of the last start whose lines have this id (NULL: none); ABSENT: there is no such start. */
static int64_t find(const fsdp__starts *all, const char *id)
{
    for (int64_t i = all->count - 1; i >= 0; i--) {
        const char *its = all->starts[i].id;

        if (id && its ? strcmp(its, id) == 0 : !id && !its)
            return i;
    }
    return ABSENT;
}

static fsdp_status begin(fsdp__starts *all, const json_t *line, int64_t number)
{
    fsdp__start *start;

    if (all->count == MOST_STARTS)
        return FSDP_FAIL(FSDP_INVALID, "a run was started over %d times: no run has written it", MOST_STARTS);
    FSDP_TRY(fsdp__grow(&all->starts, all->count + 1, &all->capacity, sizeof *all->starts));
    start = &all->starts[all->count++];
    *start = (fsdp__start){.parent = ABSENT, .begun = number, .last_step = -1};
    start->known = json_incref((json_t *)line);
    start->id = id_of(line);
    return FSDP_OK;
}

/* Returns the start that comes behind `ancestor` in the line that leads to `start`; ABSENT: it does not lead there. */
static int64_t next_of(const fsdp__starts *all, int64_t ancestor, int64_t start)
{
    while (start != ABSENT && all->starts[start].parent != ancestor)
        start = all->starts[start].parent;
    return start;
}

static bool leads_to(const fsdp__starts *all, int64_t ancestor, int64_t start)
{
    return start == ancestor || next_of(all, ancestor, start) != ABSENT;
}

/* Adds the header of a start. A second one with the same id is a copy. What an older version's header continues is the
 * start before it, as far as is known; and what continues a checkpoint that names no run is an older version's. */
static fsdp_status add_header(fsdp__starts *all, const json_t *header, int64_t number)
{
    const json_t *resumed = json_object_get(header, "resumed_from");
    int64_t there = id_of(header) ? find(all, id_of(header)) : ABSENT;
    int64_t before = id_of(header) ? find(all, NULL) : all->count - 1;
    fsdp__start *start;

    if (there == ABSENT) {
        FSDP_TRY(begin(all, header, number));
        there = all->count - 1;
    }
    start = &all->starts[there];
    if (start->own.header)
        return FSDP_OK;
    start->begun = number;
    start->resumed = json_is_number(resumed);
    start->step = json_number_value(resumed);
    /* Lines of a start may come before its header, and it cannot continue what continues it. */
    if (start->resumed && !json_is_string(json_object_get(header, "continues")) && !leads_to(all, there, before))
        start->parent = before;
    start->own.header = json_deep_copy(header);
    return start->own.header ? FSDP_OK : FSDP_NO_MEMORY;
}

bool fsdp__start_knows(const json_t *line)
{
    return json_object_get(line, "run") || json_is_number(json_object_get(line, "step")) ||
           json_is_number(json_object_get(line, "validation")) || json_is_number(json_object_get(line, "warning"));
}

static fsdp_status check_range(const json_t *line, const char *key, double least, double most)
{
    const json_t *value = json_object_get(line, key);
    double number = json_number_value(value);

    if (value && !json_is_number(value) && !json_is_null(value))
        return FSDP_FAIL(FSDP_FORMAT, "'%s' is no number: no run has written it", key);
    return json_is_number(value) && !(number >= least && number <= most)
               ? FSDP_FAIL(FSDP_FORMAT, "'%s' is %.15g, which no run has written", key, number)
               : FSDP_OK;
}

/* Checks that numbers that are counted by, and amounts, are such as a run writes. */
static fsdp_status check_ranges(const json_t *line)
{
    static const char *const ranks[] = {"world_size", "machines"};
    static const char *const steps[] = {"steps", "resumed_from", "step", "validation", "warning"};
    static const char *const amounts[] = {"parameters",
                                          "device_bytes",
                                          "grad_norm",
                                          "lr",
                                          "epoch",
                                          "tokens",
                                          "skipped",
                                          "loss_scale",
                                          "mfu",
                                          "tokens_per_second",
                                          "step_ms",
                                          "ms",
                                          "gather_ms",
                                          "reduce_ms",
                                          "padded_tokens_per_second",
                                          "memory_live_bytes",
                                          "memory_peak_bytes",
                                          "bytes_sent",
                                          "network_sent",
                                          "network_received"};

    for (size_t i = 0; i < FSDP__COUNT_OF(ranks); i++)
        FSDP_TRY(check_range(line, ranks[i], 1, 1 << 24));
    for (size_t i = 0; i < FSDP__COUNT_OF(steps); i++)
        FSDP_TRY(check_range(line, steps[i], 0, 1e15));
    for (size_t i = 0; i < FSDP__COUNT_OF(amounts); i++)
        FSDP_TRY(check_range(line, amounts[i], 0, DBL_MAX));
    return FSDP_OK;
}

/* Checks that what a header says in words is text. */
static fsdp_status check_words(const json_t *header)
{
    static const char *const keys[] = {"started", "model", "device", "version", "id", "continues"};

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++)
        if (json_is_number(json_object_get(header, keys[i])))
            return FSDP_FAIL(FSDP_FORMAT, "'%s' is no text: no run has written it", keys[i]);
    return FSDP_OK;
}

fsdp_status fsdp__starts_add(fsdp__starts *all, const json_t *line, int64_t number)
{
    const json_t *step = json_object_get(line, "step"), *validation = json_object_get(line, "validation");
    int64_t whose;
    fsdp__start *start;

    FSDP_TRY(check_ranges(line));
    if (json_object_get(line, "run")) {
        FSDP_TRY(check_words(line));
        return add_header(all, line, number);
    }
    whose = find(all, id_of(line));
    if (whose == ABSENT) {
        FSDP_TRY(begin(all, line, number));
        whose = all->count - 1;
    }
    start = &all->starts[whose];
    if (json_is_number(json_object_get(line, "warning")))
        return add_warning(&start->own, line);
    if (!json_is_number(step))
        return add_validation(start, line, json_number_value(validation));
    if (!start->id || json_number_value(step) > start->last_step) /* otherwise it is a copy */
        start->ended = number;
    start->last_step = fmax(start->last_step, json_number_value(step));
    return add_step(start, line, json_number_value(step));
}

/* ---- what continues what ---- */

/* Finds the start that each names by id; no start continues itself. */
static void find_parents(fsdp__starts *all)
{
    for (int64_t i = 0; i < all->count; i++) {
        fsdp__start *start = &all->starts[i];
        const char *id = json_string_value(json_object_get(start->own.header, "continues"));
        int64_t parent = start->resumed && id ? find(all, id) : ABSENT;

        if (parent != ABSENT && !leads_to(all, i, parent))
            start->parent = parent;
    }
}

/* Returns whether a start has taken all steps that it was to take. */
static bool is_complete(const fsdp__start *start)
{
    double steps = fsdp__header_number(&start->own, "steps");

    return start->last_step >= steps; /* not if it is not known: NaN */
}

/* Returns the folder that a start keeps its checkpoints in; "": its header does not say. */
static const char *folder_of(const fsdp__start *start)
{
    const json_t *settings = json_object_get(start->own.header, "settings");
    const char *folder = json_string_value(json_object_get(settings, "checkpoint.folder"));

    return folder ? folder : "";
}

/* Returns whether what `before` did after the step that `after` goes on from is gone: a crash has cost it, or its
 * checkpoints were set aside for `after`. It is not if both went on at once, if they keep their checkpoints in
 * different folders, or if `before` had come to its end: then they are two runs that have begun as one. */
static bool gives_way(const fsdp__start *before, const fsdp__start *after)
{
    if (!after->id || fmax(before->last_step, before->resumed ? before->step : 0) <= after->step)
        return true;
    return before->ended < after->begun && !is_complete(before) && strcmp(folder_of(before), folder_of(after)) == 0;
}

/* Marks the starts that are no longer the end of a run: those that `after` continues, and those that have gone on from
 * the same place, or from a later one of the same start, before it. */
static void take_over(fsdp__starts *all, int64_t after)
{
    const fsdp__start *by = &all->starts[after];

    for (int64_t i = 0; by->parent != ABSENT && i < all->count; i++) {
        fsdp__start *start = &all->starts[i];
        int64_t next = i < after && !start->over ? next_of(all, by->parent, i) : ABSENT;
        bool from_there = i == by->parent || (next != ABSENT && all->starts[next].step >= by->step);

        if (!start->over && from_there && !leads_to(all, after, i))
            start->over = gives_way(start, by);
    }
}

/* ---- runs ---- */

#define THEN ", then "

/* Adds what a start says to what those before it have said, if it differs from the last of them. What follows a text's
 * last comma does not count: of a GPU it is the memory that was free. */
static fsdp_status add_saying(char **all, const char *now)
{
    const char *last = *all, *comma = strrchr(now, ',');
    char *longer;

    for (const char *at = last; at && (at = strstr(at, THEN));)
        last = at += strlen(THEN);
    if (last && (comma ? strncmp(last, now, (size_t)(comma - now) + 1) : strcmp(last, now)) == 0)
        return FSDP_OK;
    longer = last ? fsdp__sprintf("%s" THEN "%s", *all, now) : fsdp__strdup(now);
    FSDP__TRY_NEW(longer);
    fsdp__free(*all);
    *all = longer;
    return FSDP_OK;
}

static fsdp_status add_sayings(fsdp__recorded_run *run, const json_t *header)
{
    const json_t *ranks = json_object_get(header, "world_size");
    const char *device = json_string_value(json_object_get(header, "device"));
    char number[24];

    if (!run->starts)
        run->starts = json_array();
    if (!run->starts || json_array_append(run->starts, (json_t *)header) != 0)
        return FSDP_NO_MEMORY;
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(ranks));
    if (json_is_integer(ranks))
        FSDP_TRY(add_saying(&run->ranks, number));
    return device ? add_saying(&run->devices, device) : FSDP_OK;
}

static void cut_after(fsdp__series *series, double step)
{
    while (series->count > 0 && series->points[series->count - 1].step > step)
        series->count--;
}

static void cut_warnings(json_t *warnings, double step)
{
    for (size_t i = json_array_size(warnings); i-- > 0;)
        if (json_number_value(json_object_get(json_array_get(warnings, i), "warning")) > step)
            json_array_remove(warnings, i);
}

/* Continues a run from a checkpoint, whose later steps do not belong to it. */
static fsdp_status continue_run(fsdp__recorded_run *run, const json_t *header, double step)
{
    fsdp_status status = FSDP_OK;
    json_t *started;

    for (int64_t i = 0; i < run->count; i++)
        cut_after(&run->series[i], step);
    cut_after(&run->validation, step);
    cut_warnings(run->warnings, step);
    run->continued++;
    FSDP_TRY(add_point(&run->resumes, step, 0));
    started = json_incref(json_object_get(run->header, "started"));
    if (json_object_update(run->header, (json_t *)header) != 0 ||
        (started && json_object_set(run->header, "started", started) != 0))
        status = FSDP_NO_MEMORY;
    json_decref(started);
    return status;
}

static fsdp_status add_points(fsdp__series *to, const fsdp__series *from)
{
    for (int64_t i = 0; i < from->count; i++)
        FSDP_TRY(add_point(to, from->points[i].step, from->points[i].value));
    return FSDP_OK;
}

/* Adds a start to the run that it begins or continues. */
static fsdp_status add_start(fsdp__recorded_run *run, const fsdp__start *start, bool first)
{
    const fsdp__recorded_run *own = &start->own;
    const json_t *line;
    size_t i;

    if (!first)
        FSDP_TRY(continue_run(run, own->header, start->step));
    if (own->header)
        FSDP_TRY(add_sayings(run, own->header));
    for (int64_t k = 0; k < own->count; k++) {
        fsdp__series *series = series_for(run, own->series[k].name, k);

        if (!series)
            return fsdp_last_status();
        FSDP_TRY(add_points(series, &own->series[k]));
    }
    FSDP_TRY(add_points(&run->validation, &own->validation));
    json_array_foreach(own->warnings, i, line) FSDP_TRY(add_warning(run, line));
    return FSDP_OK;
}

/* Gives all that a start has written to its run, if that has no other and no other run has it. */
static bool take_all(const fsdp__starts *all, int64_t number, fsdp__recorded_run *run)
{
    fsdp__recorded_run *own = &all->starts[number].own;

    for (int64_t i = 0; i < all->count; i++)
        if (all->starts[i].parent == number)
            return false;
    run->series = own->series;
    run->count = own->count;
    run->capacity = own->capacity;
    run->validation = own->validation;
    run->warnings = own->warnings;
    *own = (fsdp__recorded_run){.header = own->header};
    return true;
}

/* Makes the run that ends with a start: what it has written, behind what those before it wrote up to where the next one
 * goes on. */
static fsdp_status make_run(const fsdp__starts *all, int64_t last, const char *path, fsdp__recorded_runs *out)
{
    fsdp__recorded_run *run;
    int64_t at = last;

    if (out->count == FSDP__MOST_RUNS)
        return FSDP_FAIL(FSDP_INVALID, "more than %d runs: name fewer files, or files with fewer runs",
                         FSDP__MOST_RUNS);
    FSDP_TRY(fsdp__grow(&out->runs, out->count + 1, &out->capacity, sizeof *out->runs));
    run = &out->runs[out->count++];
    *run = (fsdp__recorded_run){.path = fsdp__strdup(path)};
    while (all->starts[at].parent != ABSENT)
        at = all->starts[at].parent;
    run->header = all->starts[at].own.header ? json_deep_copy(all->starts[at].own.header) : json_object();
    if (!run->path || !run->header)
        return FSDP_NO_MEMORY;
    if (at == last && take_all(all, last, run))
        return all->starts[last].own.header ? add_sayings(run, all->starts[last].own.header) : FSDP_OK;
    for (bool first = true;; first = false) {
        FSDP_TRY(add_start(run, &all->starts[at], first));
        if (at == last)
            return FSDP_OK;
        at = next_of(all, at, last);
    }
}

static void order_points(fsdp__start *start)
{
    for (int64_t k = 0; k < start->own.count; k++)
        put_in_order(&start->own.series[k]);
    put_in_order(&start->own.validation);
}

fsdp_status fsdp__starts_join(fsdp__starts *all, const char *path, fsdp__recorded_runs *out)
{
    find_parents(all);
    for (int64_t i = 0; i < all->count; i++) {
        order_points(&all->starts[i]);
        take_over(all, i);
    }
    for (int64_t i = 0; i < all->count; i++)
        if (!all->starts[i].over)
            FSDP_TRY(make_run(all, i, path, out));
    return FSDP_OK;
}

void fsdp__starts_free(fsdp__starts *all)
{
    for (int64_t i = 0; i < all->count; i++) {
        fsdp__recorded_run_release(&all->starts[i].own);
        json_decref(all->starts[i].known);
    }
    fsdp__free(all->starts);
    *all = (fsdp__starts){0};
}
