/* shard/log.h - what a rank saw in a run of a random test, and whether another run showed the same. */
#pragma once

#include "support/test.h"

typedef struct log_entry {
    int call; /* index */
    int model, param;
    const char *what;
    int64_t count;
    float *values;
} log_entry;

typedef struct run_log {
    log_entry *entries;
    int64_t count;
} run_log;

/* Takes over the entry's values. */
void run_log_add(run_log *log, const log_entry *entry);
void run_log_free(run_log *log);

typedef enum log_equality {
    LOG_BITS,
    LOG_VALUES, /* -0 equals 0, NaN equals NaN; of a norm, which adds over ranks in an order of its own, CLOSE */
    LOG_CLOSE,  /* f32 sums were made in another order */
    LOG_ROUGH   /* sums were rounded to a 16-bit dtype in another order */
} log_equality;

/* Says what the first difference is (at most `bytes`). `*call` becomes the one that showed it. */
bool run_log_same(const run_log *a, const run_log *b, log_equality how, int *call, char *text, size_t bytes);
