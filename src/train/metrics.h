/* metrics.h - metrics.jsonl of a run; fsdp/train.h describes its format. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include <stdio.h>

#include "fsdp/train.h"

/* Checks that it can be written, is not an input of the run, and contains metrics if anything. Opens nothing for
 * writing. */
fsdp_status fsdp__metrics_check(const fsdp_train_config *config);

typedef struct fsdp__metrics fsdp__metrics;

/* Begins a run's metrics and adds its header. `config` is borrowed. */
fsdp_status fsdp__metrics_begin(const fsdp_train_config *config, const fsdp_train_summary *summary,
                                fsdp__metrics **out);
fsdp_status fsdp__metrics_write(fsdp__metrics *metrics, const fsdp_train_report *report);
fsdp_status fsdp__metrics_write_validation(fsdp__metrics *metrics, const fsdp_train_validation *validation);
fsdp_status fsdp__metrics_end(fsdp__metrics *metrics); /* NULL is allowed */

/* Writes a JSON object of the keys whose values are not the default: "section.name", and the value as in YAML. */
fsdp_status fsdp__train_write_settings(const fsdp_train_config *config, FILE *out);

#endif
