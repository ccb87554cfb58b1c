/* log.c - adding to logs and comparing them. */
#include "shard/log.h"

#include <math.h>

void run_log_add(run_log *log, const log_entry *entry)
{
    log->entries = realloc(log->entries, (size_t)(log->count + 1) * sizeof *log->entries);
    log->entries[log->count++] = *entry;
}

void run_log_free(run_log *log)
{
    for (int64_t i = 0; i < log->count; i++)
        free(log->entries[i].values);
    free(log->entries);
    *log = (run_log){0};
}

/* ---- comparing ---- */

/* What values of an entry that were rounded otherwise may differ by. A sum of 16-bit values is off by a few of its
 * largest term's last places (2^-8 in bf16), however small the sum is, and what is computed from it by as much again:
 * the entry's largest value stands for the term; of a few elements none may be as large as that. It is enough to tell a
 * gradient that is missing, or divided wrongly. In f32, too, small elements are as far off as the largest. */
static float tolerance_of(const log_entry *entry, log_equality how)
{
    float largest = 0, few = entry->count < 4 ? 3 : 1;

    for (int64_t i = 0; i < entry->count; i++)
        largest = fmaxf(largest, fabsf(entry->values[i]));
    return how == LOG_ROUGH ? few * (0.02f + 0.12f * largest) : 1e-5f * fmaxf(1, largest);
}

static bool equal(float a, float b, log_equality how, float tolerance)
{
    if (how == LOG_BITS)
        return memcmp(&a, &b, sizeof a) == 0;
    if (a == b || (isnan(a) && isnan(b)))
        return true;
    return how != LOG_VALUES && fabsf(a - b) <= tolerance + 1e-4f * fabsf(b);
}

static bool same_entry(const log_entry *a, const log_entry *b)
{
    return a->call == b->call && a->model == b->model && a->param == b->param && a->count == b->count &&
           strcmp(a->what, b->what) == 0;
}

static bool same_values(const log_entry *a, const log_entry *b, log_equality how, char *text, size_t bytes)
{
    log_equality wanted = how == LOG_VALUES && strcmp(a->what, "norm") == 0 ? LOG_CLOSE : how;
    float tolerance = tolerance_of(b, wanted);

    for (int64_t k = 0; k < a->count; k++)
        if (!equal(a->values[k], b->values[k], wanted, tolerance)) {
            snprintf(text, bytes, "model %c: %s of parameter %d, element %lld: %.9g, not %.9g (within %g)",
                     'A' + a->model, a->what, a->param, (long long)k, (double)a->values[k], (double)b->values[k],
                     (double)tolerance);
            return false;
        }
    return true;
}

bool run_log_same(const run_log *a, const run_log *b, log_equality how, int *call, char *text, size_t bytes)
{
    if (!test_has_cpu_bits() && how != LOG_ROUGH) /* bits depend on where operands lie */
        how = LOG_CLOSE;
    for (int64_t i = 0; i < a->count && i < b->count; i++) {
        const log_entry *x = &a->entries[i], *y = &b->entries[i];

        *call = x->call;
        if (!same_entry(x, y)) {
            snprintf(text, bytes, "saw '%s' (model %c, parameter %d, %lld values), not '%s' (%d, %lld values)", x->what,
                     'A' + x->model, x->param, (long long)x->count, y->what, y->param, (long long)y->count);
            return false;
        }
        if (!same_values(x, y, how, text, bytes))
            return false;
    }
    if (a->count != b->count)
        snprintf(text, bytes, "saw %lld things, not %lld", (long long)a->count, (long long)b->count);
    return a->count == b->count;
}
