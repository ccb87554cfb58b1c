/* advice_list.h - what stands out in runs, said in words with figures. */
#pragma once

#include "base/compiler.h"
#include "report/run_file.h"

enum {
    FSDP__ADVICE_TEXT = 1000,
    FSDP__PLANNED_TEXT = 560
};

typedef struct fsdp__advice {
    const fsdp__recorded_run *run; /* which it is about; NULL: several */
    char text[FSDP__ADVICE_TEXT];
} fsdp__advice;

/* Plans a recorded run again with other settings. Both functions write sentences of at most FSDP__PLANNED_TEXT bytes
 * with what they end with, also where the run cannot be planned; they fail only without memory. */
typedef struct fsdp__advice_planner {
    /* Finds which setting shortens waits for gathers, or for reductions, what it costs in memory and wins in time. */
    fsdp_status (*shorten)(void *arg, const fsdp__recorded_run *run, bool gathers, char *text);
    /* Says what one setting costs and wins. */
    fsdp_status (*price)(void *arg, const fsdp__recorded_run *run, const char *key, const char *value, char *text);
    void *arg;
} fsdp__advice_planner;

typedef struct fsdp__advices {
    const fsdp__advice_planner *planner; /* NULL: nothing is planned */
    fsdp__advice *items;
    int64_t count, capacity;
    const char *of; /* what each begins with while it is set, NULL: nothing. Borrowed */
} fsdp__advices;

/* Adds one. */
fsdp_status FSDP_PRINTF(3, 4) fsdp__advise(fsdp__advices *all, const fsdp__recorded_run *run, const char *format, ...);
void fsdp__advices_free(fsdp__advices *advices);
