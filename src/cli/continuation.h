/* continuation.h - what `fsdp generate` does on each rank: loads the model from its folder and makes tokens one by
 * one. */
#pragma once

#include "cli/folder_model.h"
#include "cli/line.h"
#include "cli/prompt.h"
#include "cli/talk.h"
#include "cli/token_text.h"
#include "fsdp/generate.h"
#include "train/model_folder.h"

typedef struct fsdp__continuation {
    const char *path, *tokenizer; /* as given; the second may be NULL */
    const char *ids;              /* NULL: the prompt is text */
    fsdp__prompt prompt;
    fsdp_dtype dtype;        /* of the weights */
    const char *device;      /* NULL: the CPU */
    int team;                /* as in fsdp__folder_model_options */
    fsdp__adapters adapters; /* each continues the prompt; none: the model does */
    double comm_timeout;
    bool ignore_eos;
    bool chat;                          /* the prompt is a user's message; without one, they are read line by line */
    const char *system, *chat_template; /* NULL: none; the folder's */
    fsdp__talk talk;
    fsdp__line line;
    bool as_rank; /* another process of this program started this one, and prints what went wrong */
    bool joined;  /* the other ranks have been joined */
    bool left;    /* the reader of the output has gone */
    fsdp__model_folder folder;
    fsdp_generate_options options;
    fsdp_model_config config;
    fsdp_hub_stop_tokens stops;
    fsdp__token_text text;
    int32_t *tokens; /* the prompt, then what is generated; room for all */
    int64_t count;
} fsdp__continuation;

/* Reads what is small (config, stop tokens and tokenizer of the folder) and turns the prompt into tokens. */
fsdp_status fsdp__continuation_prepare(fsdp__continuation *c);
/* Joins the other ranks, loads the model and prints what it generates: text as it comes, or all ids at the end. Only
 * rank 0 prints; all ranks call it. `ranks` NULL: this program has started them. */
fsdp_status fsdp__continuation_run(fsdp__continuation *c, const fsdp__ranks *ranks);
void fsdp__continuation_release(fsdp__continuation *c);
