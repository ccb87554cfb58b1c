/* metrics.h - what a run writes of its steps and validations, to all places that its config names; fsdp/train.h
 * describes the formats. */
#pragma once

#include <stdio.h>

#include "fsdp/train.h"
#include "train/histograms.h"

/* Checks that every place can be written, and contains metrics if anything. Opens nothing for writing, but
 * makes the folders of files. */
fsdp_status fsdp__metrics_check(const fsdp_train_config *config);
/* Returns whether the config names any place; and whether one of them is told every step. */
bool fsdp__metrics_any(const fsdp_train_config *config);
bool fsdp__metrics_every_step(const fsdp_train_config *config);

typedef struct fsdp__metrics fsdp__metrics;

/* Begins a run's metrics and adds its headers. `config` and the summary's `run` are borrowed. */
fsdp_status fsdp__metrics_begin(fsdp_context *context, const fsdp_train_config *config,
                                const fsdp_train_summary *summary, fsdp__metrics **out);
/* Write to all places; NULL does nothing. A full disk does not cost the model: after the first failure of a place,
 * which is logged as a warning, nothing more is written there, and fsdp__metrics_end reports it. Returns a failure of
 * this call. */
fsdp_status fsdp__metrics_write(fsdp__metrics *metrics, const fsdp_train_report *report);
fsdp_status fsdp__metrics_write_validation(fsdp__metrics *metrics, const fsdp_train_validation *validation);
fsdp_status fsdp__metrics_write_histograms(fsdp__metrics *metrics, int64_t at, const fsdp__histograms *d);
#define FSDP__WARNING_TAG "warning/" /* begins the tags of what stands out: see warnings.c */
fsdp_status fsdp__metrics_write_text(fsdp__metrics *metrics, int64_t at, const char *tag, const char *text);
/* Closes all places and frees the metrics. Returns the first failure there was. NULL is allowed. */
fsdp_status fsdp__metrics_end(fsdp__metrics *metrics);

/* Writes a JSON object of the keys whose values are not the default: "section.name", and the value as in YAML. */
fsdp_status fsdp__train_write_settings(const fsdp_train_config *config, FILE *out);
/* Sets a key to what such an object has for it. */
fsdp_status fsdp__train_read_setting(fsdp_train_config *config, const char *name, const char *value);
/* Writes the default of the key "section.name" as YAML, or "not set". Returns false, without a last error, if there is
 * no such key, or when out of memory. */
bool fsdp__train_usual_setting(const char *name, char *text, size_t text_bytes);
