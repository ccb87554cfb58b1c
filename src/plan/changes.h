/* changes.h - what a run on paper would better have otherwise: changes of its config, each tried by a dry run. */
#pragma once

#include "plan/planned.h"

/* Holds what a step costs a rank. */
typedef struct fsdp__change_figures {
    size_t bytes;   /* of its device at the peak */
    size_t needed;  /* fsdp__needed_bytes, which fit or do not */
    int64_t sent;   /* bytes by a ring; on several machines those over the network, sent or received */
    int64_t calls;  /* collectives */
    double flops;   /* with recomputation */
    double seconds; /* 0: there are no prices */
    double tokens;  /* of all ranks, which the others are of */
} fsdp__change_figures;

/* A key of the config, "section.name", and its value. */
typedef struct fsdp__change_setting {
    const char *key;
    char value[24];
} fsdp__change_setting;

enum {
    FSDP__CHANGE_SETTINGS = 3,
    FSDP__CHANGES = 24
};

typedef struct fsdp__change {
    fsdp__change_setting settings[FSDP__CHANGE_SETTINGS];
    int setting_count;
    const char *why, *price;            /* sentences; price NULL: the figures have all of it */
    fsdp__change_figures before, after; /* before: with all changes that are listed before it */
} fsdp__change;

/* Rows that do not divide evenly: what is gathered and reduced as padding. */
typedef struct fsdp__padding {
    double share;        /* of all elements that are gathered */
    char parameter[120]; /* that has most of it */
    int64_t rows, ranks; /* that share them */
    int better;          /* a smaller number of ranks with less padding; 0: none was found */
    double better_share; /* with so many */
} fsdp__padding;

typedef struct fsdp__changes {
    fsdp__change_figures first, last; /* of the config as it is, and with all changes */
    int count, tried;
    fsdp__change items[FSDP__CHANGES];
    double room; /* bytes of a rank; 0: not known */
    bool several_machines;
    int64_t frozen, numel; /* parameters (elements) that are not trained, and all */
    fsdp__padding padding;
} fsdp__changes;

/* Tries changes of the config one by one. What is worth its price is kept, the most useful first, and the others are
 * tried again on top of it. With prices that is what makes a step faster; without, what sends less, computes less or
 * needs less memory without costing much of another. If the config needs more than the room, what saves memory comes
 * first, whatever it costs. */
fsdp_status fsdp__changes_find(const fsdp_train_config *config, const fsdp__plan_options *options, double room,
                               fsdp__changes *out);

/* Says what a run waits for. */
typedef enum fsdp__change_wait {
    FSDP__CHANGE_GATHERS,
    FSDP__CHANGE_REDUCTIONS
} fsdp__change_wait;

/* Tries what may shorten such waits, and keeps the best of it alone, if any is worth its price. */
fsdp_status fsdp__changes_of_wait(const fsdp_train_config *config, const fsdp__plan_options *options,
                                  fsdp__change_wait wait, fsdp__changes *out);
/* Tries one setting, and keeps it whatever it costs, unless the engine refuses it. `key` is borrowed. */
fsdp_status fsdp__changes_of_setting(const fsdp_train_config *config, const fsdp__plan_options *options,
                                     const char *key, const char *value, fsdp__changes *out);

/* ---- changes_text.c ---- */

/* Writes the first change's settings, its reason if it has one, and its figures as one paragraph: "a.b=c: Reason.
 * Memory 12 MiB, was 24 MiB; a step 3 ms, was 4 ms." Returns `text`. */
const char *fsdp__change_text(const fsdp__changes *changes, char *text, size_t bytes);

/* Prints them as text of at most 100 columns, and the lines of all for a config. */
fsdp_status fsdp__changes_print(const fsdp__changes *changes, FILE *out);
/* Prints the explanation as JSON, with the changes. */
fsdp_status fsdp__changes_json(const fsdp__changes *changes, const fsdp_explanation *e, FILE *out);
