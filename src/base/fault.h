/* fault.h - "fail the n-th": tests let one resource of a kind fail and check that nothing leaks, hangs or crashes.
 * The switch belongs to the calling thread, so ranks that are threads fail one by one. Off costs one load. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>
#include <stddef.h>

typedef enum fsdp__fault_kind {
    FSDP__FAULT_ALLOCATION, /* host memory and device memory */
    FSDP__FAULT_COLLECTIVE,
    FSDP__FAULT_WRITE,  /* files made, writes, fsyncs, renames */
    FSDP__FAULT_FOLDER, /* folders made, files and folders removed: as well clean-ups, which go on without */
    FSDP__FAULT_KINDS
} fsdp__fault_kind;

/* What an armed use of the last two does. */
typedef enum fsdp__fault_act {
    FSDP__FAULT_FAILS,      /* with the errno that was set, ENOSPC at first */
    FSDP__FAULT_SHORTENS,   /* a write writes one byte less than half of it, and goes on; the others do as always */
    FSDP__FAULT_KILLS,      /* the process is killed in front of it */
    FSDP__FAULT_KILLS_HALF, /* the process is killed after it, or after half of a write */
    FSDP__FAULT_DELAYS,     /* it takes 20 ms longer */
} fsdp__fault_act;

/* The n-th use (from 1) of `kind` on this thread fails; 0 switches off. */
void fsdp__fault_arm(fsdp__fault_kind kind, long nth);
/* Whether an armed fault has fired since it was armed. */
bool fsdp__fault_hit(fsdp__fault_kind kind);
/* Until it is called with false as often: uses on this thread neither fail nor count. For what only checks. */
void fsdp__fault_rest(bool on);
/* Uses of it since it was armed; armed with a number that is not reached, it counts. */
long fsdp__fault_uses(fsdp__fault_kind kind);
/* What armed uses of files and folders do on this thread from now on. */
void fsdp__fault_set_act(fsdp__fault_act act, int error);

/* The switches of a thread but those of collectives, for one that works in its place: they move there, and back. */
typedef struct fsdp__fault_switch {
    long left, armed; /* uses until the fault, 0: off; and how many there were at first */
    bool hit;
} fsdp__fault_switch;
typedef struct fsdp__fault_switches {
    fsdp__fault_switch kinds[FSDP__FAULT_KINDS];
    fsdp__fault_act act;
    int error;
    bool killing; /* the next use of a file is never reached */
} fsdp__fault_switches;
void fsdp__fault_take(fsdp__fault_switches *out);
void fsdp__fault_give(const fsdp__fault_switches *from);

/* Asked by the resource itself: true when this use must fail. */
bool fsdp__fault(fsdp__fault_kind kind);
/* The same by who makes, writes or removes files and folders: true, with errno set. `*bytes` of a write, which may
 * become less; NULL: it is none. */
bool fsdp__fault_file(fsdp__fault_kind kind, size_t *bytes);

#endif
