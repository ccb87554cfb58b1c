/* join_report.h - tells how far each rank has got, before there is a world to tell it in. */
#pragma once

#include "comm/health/places.h"
#include "comm/transport/network/network.h"
#include "fsdp/status.h"

enum {
    FSDP__REPORT_TEXT = 320,
    FSDP__REPORT_NOTE = 16
};

typedef struct fsdp__report {
    unsigned char note[FSDP__REPORT_NOTE]; /* for the ranks of its machine */
    int32_t status;
    char text[FSDP__REPORT_TEXT];
} fsdp__report;

/* Fills the report with `status`, and with the last error where that is a failure. */
void fsdp__report_write(fsdp__report *out, fsdp_status status);
/* Fails on all ranks if one has failed, with what the first of those says. `first` gets the report of the first rank of
 * this machine. [collective] [blocks] */
fsdp_status fsdp__report_compare(const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                                 const fsdp__report *mine, fsdp__report *first);
