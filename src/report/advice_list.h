/* advice_list.h - what stands out in runs, said in words with figures. */
#ifndef REPORT_ADVICE_LIST_H
#define REPORT_ADVICE_LIST_H

#include "base/compiler.h"
#include "report/run_file.h"

enum {
    FSDP__ADVICE_TEXT = 640
};

typedef struct fsdp__advice {
    const fsdp__recorded_run *run; /* which it is about; NULL: several */
    char text[FSDP__ADVICE_TEXT];
} fsdp__advice;

typedef struct fsdp__advices {
    fsdp__advice *items;
    int64_t count, capacity;
    const char *of; /* what each begins with while it is set, NULL: nothing. Borrowed */
} fsdp__advices;

/* Adds one. */
fsdp_status FSDP_PRINTF(3, 4) fsdp__advise(fsdp__advices *all, const fsdp__recorded_run *run, const char *format, ...);
void fsdp__advices_free(fsdp__advices *advices);

#endif
