/* continuation.h - what `fsdp generate` does on each rank: the model from its folder, tokens one by one. */
#ifndef CLI_CONTINUATION_H
#define CLI_CONTINUATION_H

#include "cli/line.h"
#include "cli/prompt.h"
#include "cli/token_text.h"
#include "fsdp/generate.h"
#include "train/model_folder.h"

typedef struct fsdp__continuation {
    const char *path, *tokenizer; /* as given; the second may be NULL */
    const char *ids;              /* NULL: the prompt is a text */
    fsdp__prompt prompt;
    fsdp_dtype dtype; /* of the weights */
    double comm_timeout;
    bool ignore_eos;
    fsdp__line line;
    bool as_rank; /* started by another process of this program, which says what went wrong */
    bool joined;  /* the other ranks */
    bool left;    /* whoever read what was printed has gone */
    fsdp__model_folder folder;
    fsdp_generate_options options;
    fsdp_model_config config;
    fsdp_hub_stop_tokens stops;
    fsdp__token_text text;
    int32_t *tokens; /* prompt, then what is generated; room for all */
    int64_t count;
} fsdp__continuation;

/* Reads what is small: config, stop tokens and tokenizer of the folder; and makes tokens of the prompt. */
fsdp_status fsdp__continuation_prepare(fsdp__continuation *c);
/* Joins the other ranks, loads the model and prints what it says: text as it comes, or all ids in the end. On rank 0;
 * all ranks call it. `ranks` NULL: this program has started them. */
fsdp_status fsdp__continuation_run(fsdp__continuation *c, const fsdp__ranks *ranks);
void fsdp__continuation_release(fsdp__continuation *c);

#endif
