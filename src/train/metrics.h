/* metrics.h - metrics.jsonl of a run; its format stands in fsdp/train.h. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include "fsdp/train.h"

/* That it can be written, is no input of the run, and holds metrics if anything. Opens nothing for writing. */
fsdp_status fsdp__metrics_check(const fsdp_train_config *config);

typedef struct fsdp__metrics fsdp__metrics;

/* Adds the header of a run that begins now. `config` is borrowed. */
fsdp_status fsdp__metrics_begin(const fsdp_train_config *config, const fsdp_train_summary *summary,
                                fsdp__metrics **out);
fsdp_status fsdp__metrics_write(fsdp__metrics *metrics, const fsdp_train_report *report);
fsdp_status fsdp__metrics_write_validation(fsdp__metrics *metrics, const fsdp_train_validation *validation);
fsdp_status fsdp__metrics_end(fsdp__metrics *metrics); /* NULL is allowed */

#endif
