/* packing.h - which rows share a window of seq_len tokens, and what such a window is.
 *
 * Rows stand one after the other in a window and are not cut; what is left of it at its end is padding. Which rows are
 * in which window depends on the lengths of the rows alone. Each row is a document of its own: positions begin at 0 in
 * it, and the target of its last token is none. Padding is a document of one token at each place. */
#pragma once

#include "data/rows.h"
#include "fsdp/data.h"

typedef struct fsdp__packing_options {
    int64_t seq_len;
    fsdp_packing packing; /* BEST_FIT: windows by their first row; PAIRS: the rows are pairs, and left out in pairs */
    fsdp_long_row long_row;
    bool all;                     /* all tokens are learned, whatever the rows say, except the first of each */
    int64_t first_row, row_count; /* use these rows; count 0: from the first to the end */
    int64_t row_most;             /* of pairs: tokens of a row, at most; 0: seq_len */
} fsdp__packing_options;

enum {
    FSDP__NO_TARGET = -100 /* what losses ignore */
};

/* Describes a row in a window, or a part of one that is too long. */
typedef struct fsdp__packed_row {
    int64_t row;
    int64_t first; /* token of the row */
    int64_t count;
    bool goes_on; /* the next part begins with the target of the last token */
} fsdp__packed_row;

typedef struct fsdp__packed {
    const fsdp__rows *rows; /* borrowed */
    fsdp__packing_options options;
    fsdp__packed_row *parts;
    int64_t *begins; /* window w has the parts from begins[w] up to begins[w + 1] */
    int64_t windows;
    int64_t row_count; /* of rows that are used */
    int64_t long_rows; /* thereof, or left out: longer than seq_len */
    int64_t left_out;  /* tokens of these that are not used */
    int64_t tokens;    /* in the windows, without padding */
} fsdp__packed;

/* Packs rows; those that are pairs only by FSDP_PACKING_PAIRS. A row that is too long is FSDP_INVALID where they are
 * refused; the message names the first and says how many there are. `rows` must outlive the packed rows. */
fsdp_status fsdp__pack(const fsdp__rows *rows, const fsdp__packing_options *options, fsdp__packed **out);
void fsdp__packed_free(fsdp__packed *packed); /* NULL is allowed */

/* Returns the row behind those that were to be packed. */
int64_t fsdp__packed_end(const fsdp__packed *packed);
/* Reads a window: three arrays of seq_len; `positions` may be NULL. Padding has token 0. Targets that are not learned
 * are FSDP__NO_TARGET. A token of `vocab_size` or more is an error that names its row; 0: not checked.
 * [thread-safe] */
fsdp_status fsdp__packed_read(const fsdp__packed *packed, int64_t vocab_size, int64_t window, int32_t *inputs,
                              int32_t *targets, int32_t *positions);
/* Counts the targets of a window that are learned. [thread-safe] */
fsdp_status fsdp__packed_answers(const fsdp__packed *packed, int64_t window, int64_t *out);
/* Counts the tokens of a window that are no padding. */
int64_t fsdp__packed_tokens(const fsdp__packed *packed, int64_t window);
