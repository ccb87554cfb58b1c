/* owners.h - whose memory is live: the table that is printed when there is none left. It is made of what the ledger
 * notes anyway, only when somebody asks. */
#pragma once

#include "base/context.h"
#include "fsdp/device.h"

enum {
    FSDP__OWNERS_SHOWN = 10,
    FSDP__ACCOUNTS = 512,
    FSDP__OWNERS_TEXT = 2048
};

/* Blocks of one kind that the same owner has taken for the same operation. */
typedef struct fsdp__owned {
    fsdp_memory_kind kind;
    fsdp__taker taker;
    size_t bytes;
    int64_t count;
} fsdp__owned;

typedef struct fsdp__owners {
    fsdp__owned rows[FSDP__OWNERS_SHOWN]; /* the largest first */
    int count;
    size_t live_bytes, other_bytes; /* of all; of those that are not listed */
    int64_t other_count;
} fsdp__owners;

/* Sums up `count` items, which it sorts. */
void fsdp__owners_of(fsdp__owned *items, int64_t count, size_t live_bytes, fsdp__owners *out);
/* Writes the table, a line each, without a line end behind the last. It begins with `where`; names are those of the
 * context's modules now. Returns `text`. */
const char *fsdp__owners_text(const fsdp_context *context, const fsdp__owners *owners, const char *where, char *text,
                              size_t bytes);

/* ---- memory from elsewhere, by owner and kind; for allocator.c, under its mutex ---- */

typedef struct fsdp__accounts {
    fsdp__owned items[FSDP__ACCOUNTS]; /* there is always room for nobody's */
    int64_t count, last;
} fsdp__accounts;

/* Adds bytes, or takes them away. When there are many owners, the bytes of a new one are nobody's. */
void fsdp__accounts_add(fsdp__accounts *accounts, const void *owner, fsdp_memory_kind kind, int64_t bytes);
