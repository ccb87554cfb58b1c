/* planned.c - what was planned, beside what was measured. */
#include "report/planned.h"

#include <math.h>

#include "base/text.h"
#include "fsdp/device.h"
#include "report/figures.h"

static double number_at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Returns the median of a series without its first step; NaN: there is none. */
static double usual_value(const fsdp__recorded_run *run, const char *name)
{
    const fsdp__series *series = run ? fsdp__series_of(run, name) : NULL;

    return series ? fsdp__median(series, series->count > 1, series->count) : NAN;
}

static double largest(const fsdp__recorded_run *run, const char *name)
{
    const fsdp__series *series = run ? fsdp__series_of(run, name) : NULL;
    double most = NAN;

    for (int64_t i = 0; series && i < series->count; i++)
        most = fmax(most, series->points[i].value);
    return most;
}

static void add(fsdp__planned *rows, int *count, fsdp__planned row)
{
    if (!isnan(row.planned) && *count < FSDP__PLANNED_ROWS)
        rows[(*count)++] = row;
}

int fsdp__planned_rows(const json_t *plan, const fsdp__recorded_run *run, fsdp__planned rows[FSDP__PLANNED_ROWS])
{
    const json_t *time = json_object_get(plan, "time"), *peak = json_object_get(plan, "peak");
    const json_t *kinds = json_object_get(plan, "peak_bytes"), *sent = json_object_get(plan, "bytes_sent"), *value;
    const char *kind;
    double all = json_is_object(sent) ? 0 : NAN;
    int count = 0;

    json_object_foreach((json_t *)sent, kind, value) all += json_number_value(value);
    add(rows, &count,
        (fsdp__planned){"a usual step (median)", FSDP__UNIT_MS, 1000 * number_at(time, "step_seconds"),
                        usual_value(run, "step_ms")});
    add(rows, &count,
        (fsdp__planned){"tokens a second", FSDP__UNIT_COUNT, number_at(time, "tokens_per_second"),
                        run ? fsdp__tokens_per_second(run, 0, INT64_MAX) : NAN});
    add(rows, &count,
        (fsdp__planned){"peak memory, planned without workspace", FSDP__UNIT_BYTES, number_at(peak, "bytes"),
                        largest(run, "memory_peak_bytes")});
    for (int k = 0; k < FSDP_MEMORY_KINDS; k++) {
        fsdp__planned row = {.unit = FSDP__UNIT_BYTES};
        char key[FSDP__JSON_NAME], name[2 * FSDP__JSON_NAME];

        fsdp__json_name(fsdp_memory_kind_name((fsdp_memory_kind)k), key, sizeof key);
        snprintf(row.what, sizeof row.what, "most %s", fsdp_memory_kind_name((fsdp_memory_kind)k));
        row.planned = number_at(kinds, key);
        row.measured = largest(run, fsdp__peak_key(k, name, sizeof name));
        if (row.planned > 0)
            add(rows, &count, row);
    }
    add(rows, &count,
        (fsdp__planned){"sent by rank 0 in a step", FSDP__UNIT_BYTES, all, usual_value(run, "bytes_sent")});
    return count;
}
