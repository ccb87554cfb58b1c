/* disk.h - what a disk may hold after a power cut.
 *
 * While a recording runs, calls of this program that change what is below a folder, or wait until it is on the disk,
 * are made and written down. A cut behind the first n of them leaves what was waited for: the bytes of a file by an
 * fsync of it, a name that came or went by an fsync of its folder. Of the rest it leaves any part: no more is promised.
 * A rename happens or does not, and a folder that is not empty is not gone.
 *
 * A program that calls disk_record gets calls of its own for those of the C library: see disk.c for which. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    DISK_NONE = -1 /* no file or folder */
};

typedef struct disk_change {
    int folder, from, to; /* what the name stood for, and what it stands for now */
    char name[NAME_MAX + 1];
} disk_change;

typedef struct disk_call {
    enum {
        DISK_NAMES_CHANGE,
        DISK_WRITE,
        DISK_RESIZE,
        DISK_SYNC
    } kind;
    int change_count;
    disk_change changes[2];
    int node; /* of the other kinds */
    uint64_t offset;
    size_t bytes;
    unsigned char *data;
} disk_call;

/* A file or folder that was there at the start, or was made since. */
typedef struct disk_node {
    dev_t device;
    ino_t number;
    bool folder, gone; /* gone: another may have its number now */
    size_t bytes;      /* at the start */
    unsigned char *data;
} disk_node;

typedef struct disk {
    disk_node *nodes; /* the first is the folder that is watched */
    int node_count;
    disk_change *names; /* at the start */
    int name_count;
    disk_call *calls;
    int count;
} disk;

/* What there is below `folder` is on the disk. One recording at a time. */
disk *disk_record(const char *folder);
/* Counts the calls up to now; from any thread. */
int disk_calls(const disk *d);
void disk_stop(void);
void disk_free(disk *d);

/* Says what becomes of calls that nobody waited for. */
typedef enum disk_luck {
    DISK_ALL,
    DISK_NOTHING,
    DISK_ONLY_NAMES, /* files have their names, and are empty */
    DISK_ONLY_BYTES,
    DISK_SOME /* and more: each for itself, drawn anew for each number from here on; writes also by half */
} disk_luck;

/* Says whether a cut behind the first `calls` leaves the same with any luck. */
bool disk_is_sure(const disk *d, int calls);
/* Makes `folder`, which is not there, what the watched one is after the cut. */
void disk_cut(const disk *d, int calls, int luck, const char *folder);
