/* metrics_places.h - the places that metrics are written to, one for each key that names a file or folder. */
#pragma once

#include "fsdp/train.h"
#include "train/histograms.h"

/* The run that begins. */
typedef struct fsdp__metrics_run {
    fsdp_context *context;
    const fsdp_train_config *config;
    const fsdp_train_summary *summary; /* only while it begins, but its `run` as long as there are metrics */
} fsdp__metrics_run;

typedef struct fsdp__metrics_place {
    const char *key;  /* "metrics.csv" */
    const char *what; /* what the run goes on without after a failure */
    size_t path;      /* offset of the key's text in the config */
    bool every_step;  /* it is told every step, and not only those that are logged */
    size_t bytes;     /* of what is kept of it; zero when it begins, and freed after it has ended */
    fsdp_status (*check)(const char *path);
    fsdp_status (*begin)(const fsdp__metrics_run *run, const char *path, void *place); /* `path` is borrowed */
    fsdp_status (*step)(void *place, const fsdp_train_report *report);
    fsdp_status (*validation)(void *place, const fsdp_train_validation *validation);
    fsdp_status (*histograms)(void *place, int64_t at, const fsdp__histograms *d);   /* NULL: it takes none */
    fsdp_status (*text)(void *place, int64_t at, const char *tag, const char *text); /* the same */
    fsdp_status (*end)(void *place); /* after a failure of `begin`, too */
} fsdp__metrics_place;

extern const fsdp__metrics_place fsdp__metrics_jsonl, fsdp__metrics_csv, fsdp__metrics_prometheus,
    fsdp__metrics_tensorboard;
