/* watch/reading.h - reads a trace as its readers do, and checks what they demand of any. */
#pragma once

#include <jansson.h>

#include "support/test.h"

typedef struct reading {
    json_t *root, *events; /* events: borrowed */
} reading;

/* Reads a trace, packed or not, and checks it: slices of a row lie in each other or apart, what begins in a row of its
 * own ends there, arrows have both ends, each in a slice, and no row is 0. Release it. */
reading reading_of(const char *path);
void reading_release(reading *r);

/* Counts the events of a rank (-1: all) with this phase, category and beginning of a name (NULL: any). */
int reading_count(const reading *r, int rank, const char *phase, const char *category, const char *name);
/* Returns the first of these events; NULL: there is none. */
json_t *reading_find(const reading *r, int rank, const char *phase, const char *category, const char *name);
/* Returns the last value of a counter; fails if there is none. */
int64_t reading_counter(const reading *r, int rank, const char *name);
/* Returns a number or text from what the file says of itself, or of a rank. */
json_t *reading_fact(const reading *r, const char *name);
json_t *reading_rank_fact(const reading *r, int rank, const char *name);
