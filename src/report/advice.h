/* advice.h - what stands out in runs, said in words with figures. */
#ifndef REPORT_ADVICE_H
#define REPORT_ADVICE_H

#include "report/run_file.h"

enum {
    FSDP__ADVICE_TEXT = 600
};

typedef struct fsdp__advice {
    const fsdp__recorded_run *run; /* which it is about; NULL: several */
    char text[FSDP__ADVICE_TEXT];
} fsdp__advice;

typedef struct fsdp__advices {
    fsdp__advice *items;
    int64_t count, capacity;
} fsdp__advices;

/* Lists what stands out, run by run, the gravest first. */
fsdp_status fsdp__advices_of(const fsdp__recorded_runs *all, fsdp__advices *out);
void fsdp__advices_free(fsdp__advices *advices);

#endif
