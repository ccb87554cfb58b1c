/* normalizer.h - changes a text before it is split into words, step by step. */
#pragma once

#include "tokenizer/nfc.h"

/* Stands for a space in the tokens of SentencePiece: U+2581. */
#define FSDP__SPACE_MARK "\xe2\x96\x81"

typedef enum fsdp__normalizer_kind {
    FSDP__NORMALIZE_NFC,
    FSDP__NORMALIZE_PREPEND,       /* `with`, unless the text is empty */
    FSDP__NORMALIZE_PREPEND_FIRST, /* the same where nothing came before it */
    FSDP__NORMALIZE_REPLACE,       /* each `what` by `with` */
    FSDP__NORMALIZE_SINGLE_SPACES, /* several spaces are one, and none is left at the ends */
    FSDP__NORMALIZE_TABLE          /* by SentencePiece's table of characters */
} fsdp__normalizer_kind;

typedef struct fsdp__normalizer_step {
    fsdp__normalizer_kind kind;
    char *what, *with; /* owned; of a table `what` are its bytes */
    size_t what_bytes;
} fsdp__normalizer_step;

enum {
    FSDP__NORMALIZER_STEPS = 8
};
typedef struct fsdp__normalizer {
    fsdp__normalizer_step steps[FSDP__NORMALIZER_STEPS];
    int count;
} fsdp__normalizer;

/* Adds a step, with copies of the bytes, which may be NULL. FSDP_UNSUPPORTED: there are too many; FSDP_FORMAT: it is no
 * table. The last error has neither file nor place. */
fsdp_status fsdp__normalizer_add(fsdp__normalizer *normalizer, fsdp__normalizer_kind kind, const char *what,
                                 size_t what_bytes, const char *with);
/* Normalizes a passage, which is UTF-8; `first`: nothing came before it. `*out` is `in` itself if nothing changes;
 * otherwise it lies in one of the scratches. */
fsdp_status fsdp__normalize(const fsdp__normalizer *normalizer, bool first, const fsdp__passage *in,
                            fsdp__text scratch[2], fsdp__passage *out);
void fsdp__normalizer_release(fsdp__normalizer *normalizer);
