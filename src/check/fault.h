/* fault.h - "fail the n-th": tests make one use of a resource fail and check that nothing leaks, hangs or crashes. The
 * switch belongs to the calling thread, so ranks that are threads fail one by one; it goes along with work that the
 * thread lends to another one (FSDP__POINT_WORK_LENT), except for collectives'. */
#pragma once

#include "base/probe.h"

typedef enum fsdp__fault_kind {
    FSDP__FAULT_ALLOCATION, /* host memory and device memory */
    FSDP__FAULT_COLLECTIVE,
    FSDP__FAULT_WRITE,  /* creating files, writes, fsyncs, renames */
    FSDP__FAULT_FOLDER, /* creating folders, removing files and folders, including clean-ups, which ignore failures */
    FSDP__FAULT_KINDS
} fsdp__fault_kind;

/* Says what an armed use of one of the last two kinds does. */
typedef enum fsdp__fault_act {
    FSDP__FAULT_FAILS, /* fails, with the errno that was set, at first ENOSPC */
    /* a write writes one byte less than half of its bytes, and goes on; other uses do nothing unusual */
    FSDP__FAULT_SHORTENS,
    FSDP__FAULT_KILLS,      /* the process is killed before the use */
    FSDP__FAULT_KILLS_HALF, /* the process is killed after the use, or after half of a write */
    FSDP__FAULT_DELAYS,     /* the use takes 20 ms longer */
} fsdp__fault_act;

/* Makes the n-th use (from 1) of `kind` on this thread fail; 0 switches it off. */
void fsdp__fault_arm(fsdp__fault_kind kind, long nth);
/* Makes each use fail, until it is armed with a number. */
void fsdp__fault_arm_all(fsdp__fault_kind kind);
/* Returns whether an armed fault has fired since it was armed. */
bool fsdp__fault_hit(fsdp__fault_kind kind);
/* Stops faults on this thread until it is called with false as often: uses neither fail nor count meanwhile. For code
 * that only checks. */
void fsdp__fault_rest(bool on);
/* Returns the number of uses since it was armed; armed with a number that is not reached, it only counts. */
long fsdp__fault_uses(fsdp__fault_kind kind);
/* Sets what armed uses of files and folders do on this thread from now on. */
void fsdp__fault_set_act(fsdp__fault_act act, int error);
