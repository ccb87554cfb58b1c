/* blame.h - ranks that record, one of which others wait for; and what a reader says of them. */
#pragma once

#include <stdatomic.h>

#include "base/probe.h"
#include "support/ranks.h"
#include "watch/flight_read.h"

/* Reads the records of a folder; the caller releases them. */
fsdp__flight_logs read_logs(const char *folder);
/* All findings, a line each; free() it. */
char *judge(const fsdp__flight_logs *logs);
/* Checks that the findings about a folder contain `part`. */
void check_verdict(const char *folder, const char *part);
/* Tells the probes what has happened to a module. */
void tell_change(fsdp_context *context, const void *state, const char *word, const char *name);

typedef struct blame {
    const char *folder;
    int late;
    _Atomic int begun; /* ranks that are in the call, and have recorded it */
    atomic_bool over;
} blame;

/* Counts the calls that a rank begins from now on, after its recorder has heard of them. */
fsdp__subscriber *count_calls(fsdp_context *context, blame *b);
void await_begun(const blame *b, int count);
/* An all-reduce of up to 8 numbers. */
fsdp_status add_up(fsdp_process_group *group, int64_t count);
/* All but one rank come to the second call. The one sees that they are there, and breaks the world. */
void one_does_not_come(fsdp_context *context, void *arg);
