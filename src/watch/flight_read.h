/* flight_read.h - reads the records of ranks, and finds out who is to blame. Files are taken for anybody's: all that is
 * used of them is checked. */
#pragma once

#include <stdio.h>

#include "fsdp/status.h"
#include "watch/flight_file.h"

/* Holds the record of a rank, which was checked: texts end, numbers are in their ranges, and each record's group is
 * there. */
typedef struct fsdp__flight_log {
    char *path;
    fsdp__flight_head head;
    fsdp__flight_end end;
    fsdp__flight_place place; /* turn 0: not known */
    fsdp__flight_group groups[FSDP__FLIGHT_GROUPS];
    int group_count;
    fsdp__flight_record *records; /* oldest first */
    int64_t count, damaged;       /* damaged: records that are torn or changed, and left out */
    uint64_t unlisted;
    /* Tells when this was so: when the world was broken or the record frozen, or else the file was written. In a file
     * that the rank itself writes to: now, if its process lives; otherwise when it did something last. */
    int64_t now;
} fsdp__flight_log;

typedef struct fsdp__flight_logs {
    fsdp__flight_log *logs; /* of one run, by rank; at most one for each */
    int count, world;
    int left_out;   /* files of an earlier run, or of a rank of which a newer one is there */
    int64_t failed; /* files of the folder that could not be read; `error` is why the first could not */
    char error[512];
} fsdp__flight_logs;

/* Reads what `paths` name: files, and folders with rank-N.flight, or with a folder
 * NAME.flight or flight that has them. A file that is named and cannot be read is an error;
 * one in a folder is left out if there are others. */
fsdp_status fsdp__flight_logs_read(const char *const *paths, int count, fsdp__flight_logs *out);
void fsdp__flight_logs_release(fsdp__flight_logs *logs);
/* Checks one file, whose content `data` is. */
fsdp_status fsdp__flight_log_parse(const char *path, const void *data, size_t bytes, fsdp__flight_log *out);
void fsdp__flight_log_release(fsdp__flight_log *log);
/* Returns the record of a rank, or NULL. */
const fsdp__flight_log *fsdp__flight_log_of(const fsdp__flight_logs *logs, int rank);

/* Returns a time of a record as nanoseconds since 1970; 0: it is out of range. */
int64_t fsdp__flight_wall(const fsdp__flight_log *log, int64_t ns);
/* Returns whether a rank is a member, as far as the record says. */
bool fsdp__flight_is_member(const fsdp__flight_group *group, int rank);

/* ---- flight_words.c ---- */

/* Write "call 13 of group 'world' (all_gather_coalesced for 'layers.1', 18.2KiB bfloat16)", and "step 3, microbatch 1,
 * in the forward of 'layers.0'". */
void fsdp__flight_call_text(const fsdp__flight_log *log, const fsdp__flight_record *record, char *text, size_t bytes);
void fsdp__flight_place_text(const fsdp__flight_log *log, char *text, size_t bytes);
/* Writes "12.3 s". */
const char *fsdp__flight_time_text(int64_t ns, char *text, size_t bytes);
/* Writes "18.2KiB bfloat16"; "": the call moves no tensors. */
const char *fsdp__flight_bytes_text(const fsdp__flight_record *record, char *text, size_t bytes);

/* ---- flight_verdict.c ---- */

enum {
    FSDP__FLIGHT_FINDINGS = 8
};

/* Holds what was found, a line each, the likeliest cause first. */
typedef struct fsdp__flight_verdict {
    char *lines[FSDP__FLIGHT_FINDINGS];
    int count;
} fsdp__flight_verdict;

fsdp_status fsdp__flight_judge(const fsdp__flight_logs *logs, fsdp__flight_verdict *out);
void fsdp__flight_verdict_release(fsdp__flight_verdict *verdict);

/* ---- flight_text.c ---- */

/* Prints what was found, and the last `calls` calls of each rank. */
fsdp_status fsdp__flight_print(const fsdp__flight_logs *logs, int calls, FILE *out);
/* Prints all there is as JSON. */
fsdp_status fsdp__flight_print_json(const fsdp__flight_logs *logs, FILE *out);
