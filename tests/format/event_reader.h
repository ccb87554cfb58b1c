/* event_reader.h - reads event files with a reader of its own: every checksum is compared, and every field is known. */
#pragma once

#include "support/test.h"

/* What an event holds; one with several values is several of these. */
typedef struct read_event {
    char kind; /* 'v' file version, 's' start of a session, 'n' number, 'h' histogram, 't' text */
    int64_t step;
    double wall_time;
    char tag[200];
    double number;                      /* of a number */
    double min, max, num, sum, squares; /* of a histogram */
    double limits[2100], buckets[2100];
    int bucket_count;
    char *text; /* of a version, or of a text; ends with a zero */
    bool dashboard;
} read_event;

typedef struct read_events {
    read_event *items;
    int count;
} read_events;

/* Reads a whole file; one that does not end behind a record fails. */
read_events events_read(const char *path);
/* Reads the only event file of a folder; its path is written, if asked for. */
read_events events_read_folder(const char *folder, char *path, size_t path_bytes);
void events_free(read_events *events);
/* Finds the one with this tag at a step; fails if there is none. NULL where `must` is false. */
const read_event *events_find(const read_events *events, const char *tag, int64_t step, bool must);
