/* memory_course.h - how the memory of a device goes up and down in a step: all changes of its ledger in their order,
 * scratch left out, which depends on threads and cards. The same step has the same course wherever it is taken, also
 * where nothing is computed: so the course of a dry step is what a real one should have. */
#pragma once

#include "base/probe.h"
#include "fsdp/device.h"
#include "fsdp/trace.h"

typedef struct fsdp__memory_change {
    int64_t bytes;
    fsdp_memory_kind kind;
} fsdp__memory_change;

typedef struct fsdp__memory_course {
    size_t live[FSDP_MEMORY_KINDS]; /* when it begins */
    fsdp__memory_change *changes;
    int64_t count, capacity;
    /* while it is recorded */
    fsdp__subscriber *subscriber;
    const fsdp_device *device;
    fsdp_status status;
} fsdp__memory_course;

/* Records the changes of a device's ledger from now on. Call it on the context's own thread, as the end. */
fsdp_status fsdp__memory_course_begin(fsdp__memory_course *course, fsdp_device *device);
/* Ends that; returns the first failure. */
fsdp_status fsdp__memory_course_end(fsdp__memory_course *course);
/* Returns after how many changes the most is live, for the first time, and how much that is. */
int64_t fsdp__memory_course_peak(const fsdp__memory_course *course, size_t *bytes);
void fsdp__memory_course_release(fsdp__memory_course *course);

/* Lets a trace show, beside the memory of a device, what each step of a run should do there. The trace takes the course
 * over, and the device outlives it. */
void fsdp__trace_plan_memory(fsdp_trace *trace, const fsdp_device *device, fsdp__memory_course *course);
