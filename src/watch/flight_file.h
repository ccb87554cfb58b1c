/* flight_file.h - the record of a rank, as it lies in memory, in a file, and in memory that the launcher shares.
 *
 * Its rank alone writes it. Others read it meanwhile, and after the rank has died in the middle of a write. So what is
 * written again and again, a record or the place, begins with its turn, which is 0 while it is written, and has a check
 * over turn and content: whoever has read half of one and half of another sees that. Times of a call and counts of a
 * group are words, which are written whole. Numbers are those of the machine, which the version also shows. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/build.h"
#include "base/hash.h"
#include "base/host.h"

#define FSDP__FLIGHT_MAGIC "fsdpfly"

enum {
    FSDP__FLIGHT_VERSION = 2,
    FSDP__FLIGHT_RECORDS = 4096,
    FSDP__FLIGHT_GROUPS = 64,
    FSDP__FLIGHT_RUNS = 8, /* of a group's ranks */
    FSDP__FLIGHT_NAME = 64,
    FSDP__FLIGHT_WORD = 24,
    FSDP__FLIGHT_TEXT = 1024,
    FSDP__FLIGHT_OWNERS = 2048
};

/* Holds what stays the same from the start. */
typedef struct fsdp__flight_head {
    char magic[8];
    uint32_t version;
    uint32_t record_bytes; /* size of an fsdp__flight_record */
    int32_t rank, world, machine, machines, pid, unused;
    int64_t started_ns; /* on the clock of base/clock.h, as all times here */
    int64_t wall_ns;    /* to be added for the time of day, since 1970 */
    char host[(FSDP__HOST_BYTES + 7) / 8 * 8], build[FSDP__BUILD_BYTES];
    uint64_t check; /* of all before it */
} fsdp__flight_head;

typedef enum fsdp__flight_state {
    FSDP__FLIGHT_EMPTY,
    FSDP__FLIGHT_RUNS_ON,
    FSDP__FLIGHT_SETTLED, /* the rank has left in good order, or failed as all others did, which needs no culprit */
    FSDP__FLIGHT_BROKEN   /* its world was broken: `why` */
} fsdp__flight_state;

/* Holds what is written once or twice in a run. */
typedef struct fsdp__flight_end {
    _Atomic uint64_t state;
    _Atomic int64_t written_ns; /* when this file was written; 0: it is the memory itself */
    _Atomic int64_t broken_ns;
    _Atomic int64_t frozen_ns; /* from here on the launcher wants the record to stay as it is; 0: it does not */
    char why[FSDP__FLIGHT_TEXT];
    char ending[232]; /* how the process ended, by the launcher: "rank 1 was killed by signal 9 (Killed)" */
    char id[24];      /* of the run that trained (fsdp_train_summary.run); "": not known */
    char owners[FSDP__FLIGHT_OWNERS]; /* who had the memory, in lines, where that had run out; otherwise "" */
    char run[FSDP__FLIGHT_NAME];
    char folder[FSDP__FLIGHT_TEXT]; /* where it is to be written; "": nowhere */
} fsdp__flight_end;

/* Says where the rank's program was last seen. */
typedef struct fsdp__flight_place {
    _Atomic uint64_t turn;
    uint64_t check;
    int64_t ns;
    uint64_t step; /* from 1, 0: before the first */
    uint64_t microbatch;
    char word[FSDP__FLIGHT_WORD]; /* what happened: "pre_forward" */
    char module[FSDP__FLIGHT_NAME];
} fsdp__flight_place;

/* Ranks first, first + step, ...: so many. */
typedef struct fsdp__flight_run {
    int32_t first, step, count;
} fsdp__flight_run;

typedef struct fsdp__flight_group {
    /* Numbers of the group's last call that was issued, begun and done, and of the last one whose record is gone. */
    _Atomic uint64_t issued, begun, done, dropped;
    uint64_t check; /* of what follows; 0: there is no group */
    int32_t size, runs;
    fsdp__flight_run run[FSDP__FLIGHT_RUNS]; /* members; those that do not fit are not known */
    char name[FSDP__FLIGHT_NAME];
} fsdp__flight_group;

typedef struct fsdp__flight_record {
    _Atomic uint64_t turn;       /* number of the record, from 1 */
    _Atomic int64_t begun, done; /* 0: not yet */
    uint64_t check;
    int64_t issued;
    uint64_t number; /* in its group */
    uint64_t bytes;
    uint64_t step, microbatch;
    uint32_t group; /* its place in `groups` */
    uint8_t kind, dtype;
    uint8_t labelled; /* `module` is what the call is for; otherwise it is where the program was when it made it */
    uint8_t on_host;  /* it is made on no stream */
    char name[FSDP__FLIGHT_WORD + 8];
    char module[FSDP__FLIGHT_NAME];
} fsdp__flight_record;

typedef struct fsdp__flight_file {
    fsdp__flight_head head;
    fsdp__flight_end end;
    fsdp__flight_place place;
    fsdp__flight_group groups[FSDP__FLIGHT_GROUPS];
    _Atomic uint64_t unlisted;                         /* calls of groups for which there was no room */
    fsdp__flight_record records[FSDP__FLIGHT_RECORDS]; /* record n at (n - 1) % FSDP__FLIGHT_RECORDS */
} fsdp__flight_file;

/* Returns a hash of `bytes` bytes, whole words; never 0. */
static inline uint64_t fsdp__flight_hash(uint64_t hash, const void *data, size_t bytes)
{
    uint64_t word;

    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, (const char *)data + i, sizeof word);
        hash = fsdp__mix(hash, word);
    }
    return hash ? hash : 1;
}

/* Return what the check of each must be. */
static inline uint64_t fsdp__flight_head_check(const fsdp__flight_head *head)
{
    return fsdp__flight_hash(FSDP__FLIGHT_VERSION, head, offsetof(fsdp__flight_head, check));
}

static inline uint64_t fsdp__flight_place_check(const fsdp__flight_place *place, uint64_t turn)
{
    return fsdp__flight_hash(turn, &place->ns, sizeof *place - offsetof(fsdp__flight_place, ns));
}

static inline uint64_t fsdp__flight_group_check(const fsdp__flight_group *group)
{
    return fsdp__flight_hash(FSDP__FLIGHT_VERSION, &group->size, sizeof *group - offsetof(fsdp__flight_group, size));
}

static inline uint64_t fsdp__flight_record_check(const fsdp__flight_record *record, uint64_t turn)
{
    return fsdp__flight_hash(turn, &record->issued, sizeof *record - offsetof(fsdp__flight_record, issued));
}
