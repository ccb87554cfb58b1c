/* eval.h - the inside of fsdp eval. */
#pragma once

#include "cli/cli.h"
#include "cli/folder_model.h"
#include "cli/line.h"
#include "cli/torchrun.h"
#include "data/open_data.h"
#include "data/packing.h"
#include "train/dpo.h"
#include "train/model_folder.h"

/* Tells a rank where the tokens are that were made. */
#define FSDP__EVAL_RANK_DATA "rank-data"

typedef struct fsdp__eval {
    const char *path, *data, *seq_len_text, *batch_text, *steps_text, *format_text, *ranks_text, *dtype_text, *device,
        *timeout_text, *cache, *tokenizer, *field, *bad_line_text, *adapters_text, *chat_template, *train_on,
        *long_row_text, *reference, *beta_text, *tp_text, *cp_text;
    /* What a rank that was started uses in place of `path` and `data`; NULL: those. */
    const char *rank_path, *rank_data;
    fsdp__model_folder folder;
    fsdp__torchrun torchrun;
    fsdp__ranks ranks;
    fsdp__line line;
    fsdp_token_format format;
    fsdp_evaluate_options options;
    fsdp_model_config config;
    fsdp__open_data opened; /* tokens, or rows: conversations */
    fsdp__packing_options packing;
    fsdp__packed *packed; /* of rows; otherwise NULL */
    char *own_cache;      /* used if `cache` is not given */
    char *tokens_path;    /* of tokens that the model's tokenizer has made of text; NULL: the data is used as it is */
    fsdp_dtype dtype;
    double comm_timeout;
    int tp, cp; /* as in fsdp__folder_model_options */
    fsdp__bar bar;
    bool skips_bad_lines;
    fsdp__adapters adapters;
    /* Of pairs. */
    fsdp__model_folder reference_folder;
    fsdp_model_config reference_config;
    float *reference_sums, *sums; /* two numbers for each pair: fsdp__evaluate_pairs */
    double beta;
} fsdp__eval;

/* ---- eval_data.c ---- */

/* Opens what is evaluated: tokens, or the rows of conversations or pairs, in windows. */
fsdp_status fsdp__eval_open_data(fsdp__eval *e);
void fsdp__eval_print_data(const fsdp__eval *e);

/* ---- eval_pairs.c: does nothing where the data is no pairs ---- */

bool fsdp__eval_is_pairs(const fsdp__eval *e);
/* Finds what pairs are compared with; refuses a reference where there are none. */
fsdp_status fsdp__eval_find_reference(fsdp__eval *e);
void fsdp__eval_facts_of_reference(const fsdp__eval *e, FILE *out);
/* Computes the reference of all pairs. [collective] */
fsdp_status fsdp__eval_reference(fsdp__eval *e, fsdp_context *context, fsdp_device *device);
/* Compares the pairs; `found` gets their loss, tokens and seconds. [collective] */
fsdp_status fsdp__eval_compare(fsdp__eval *e, fsdp_module *model, fsdp_evaluation *found, fsdp__rewards *rewards);
