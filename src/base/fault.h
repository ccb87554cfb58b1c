/* fault.h - "fail the n-th": tests let one resource of a kind fail and check that nothing leaks, hangs or crashes.
 * The switch belongs to the calling thread, so ranks that are threads fail one by one. Off costs one load. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>

typedef enum fsdp__fault_kind {
    FSDP__FAULT_ALLOCATION, /* host memory and device memory */
    FSDP__FAULT_COLLECTIVE,
    FSDP__FAULT_WRITE, /* writes, fsyncs, renames */
    FSDP__FAULT_KINDS
} fsdp__fault_kind;

/* The n-th use (from 1) of `kind` on this thread fails; 0 switches off. */
void fsdp__fault_arm(fsdp__fault_kind kind, long nth);
/* Whether an armed fault has fired since it was armed. */
bool fsdp__fault_hit(fsdp__fault_kind kind);
/* Until it is called with false as often: uses on this thread neither fail nor count. For what only checks. */
void fsdp__fault_rest(bool on);
/* Asked by the resource itself: true when this use must fail. */
bool fsdp__fault(fsdp__fault_kind kind);

#endif
