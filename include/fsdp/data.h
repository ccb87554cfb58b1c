/* fsdp/data.h - token streams and the batches cut from them.
 *
 * A token file is raw uint16 or uint32 (little-endian), or has llm.c's header: 256 int32 (1,024 bytes) that begin with
 * magic 20240520, version 1 and the token count, then uint16 tokens (magic 20240801, version 7: uint32). In a text file
 * every byte is a token, with vocabulary 256; it may be in any encoding that extends ASCII, and a byte order mark is
 * part of it. Several files form one stream, in the order given.
 *
 * A path is a file, a folder, or, if nothing has that name, a shell pattern (`*`, `?`, `[a-z]`). A folder stands for
 * the files directly in it that are not hidden and whose names match the format (.txt; or .bin, .u16, .u32; not both;
 * JSON lines and Parquet only if a tokenizer reads them: fsdp/tokenize.h); a pattern stands for all files that match.
 * Both are read in bytewise order of their names. Other files of a folder are skipped, unless they may hold data, which
 * is FSDP_FORMAT: files that are, by their first bytes or name, packed, an archive or a table (Parquet, Arrow, ORC,
 * Avro, NumPy, HDF5, SQLite), and files named like "a.jsonl.br" that are not text. Hidden files are always skipped.
 *
 * A window is seq_len tokens, with the same shifted by one as targets. In sequential order, with A microbatches per
 * step, W ranks and B sequences per microbatch and rank, sequence b of rank r in microbatch a of step s (from 0) starts
 * at token (((s * A + a) * W + r) * B + b) * seq_len. The stream has n = (tokens - 1) / seq_len windows, rounded down:
 * window number g is window g mod n of epoch g / n, so after the end it starts again at 0. In shuffled order g mod n is
 * mapped by a permutation that depends only on (seed, epoch, n): every window occurs once per epoch, in an order that
 * does not depend on A, W or B.
 */
#ifndef FSDP_DATA_H
#define FSDP_DATA_H

#include "fsdp/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_token_format {
    FSDP_TOKENS_AUTO,
    FSDP_TOKENS_TEXT,
    FSDP_TOKENS_UINT16,
    FSDP_TOKENS_UINT32,
    FSDP_TOKENS_BINARY
} fsdp_token_format;

typedef struct fsdp_tokens fsdp_tokens; /* memory-mapped, read-only; may be shared by threads */

/* Opens files as one stream of tokens. AUTO: by llm.c's header, or by name: .txt and text of any other name are TEXT,
 * .bin and .u16 UINT16, .u32 UINT32. BINARY: tokens, by header or name, otherwise uint16. UINT16, UINT32: of that
 * width, whatever the name says; a header that contradicts it is an error. TEXT: the bytes. Errors name the file and,
 * if it matters, the offset: a file that is missing, empty or not regular (a FIFO, a device), does not contain a whole
 * number of tokens, or has a header that does not match its size; a packed file, or one known to be neither text nor
 * tokens (the error names its kind and what to do); tokens or a NUL byte read as text, text read as tokens; JSON lines
 * (.jsonl, .ndjson, .json: fsdp/tokenize.h reads them). Files are mapped one by one and need no descriptors; a process
 * may have some 65,000. */
FSDP_API fsdp_status fsdp_tokens_open(const char *const *paths, int count, fsdp_token_format format, fsdp_tokens **out);
FSDP_API void fsdp_tokens_close(fsdp_tokens *tokens);
/* Returns a warning if the first bytes of the files contradict how they are read: files look like uint32 but are read
 * as uint16 (it names the first and says how many), or else some are text and some tokens. NULL: no warning. */
FSDP_API const char *fsdp_tokens_warning(const fsdp_tokens *tokens);
/* Returns whether any of the files is read as text. */
FSDP_API bool fsdp_tokens_have_text(const fsdp_tokens *tokens);
FSDP_API int64_t fsdp_tokens_count(const fsdp_tokens *tokens);
/* Reads `count` tokens from `position` on; the range must be inside the stream. */
FSDP_API fsdp_status fsdp_tokens_read(const fsdp_tokens *tokens, int64_t position, int64_t count, int32_t *out);
/* Computes a 128-bit hash of all tokens in order, whatever their width and however they are split into files: a stream
 * that differs in one token has another hash. It reads everything, some 2 GB per second if the files are in memory.
 * [blocks] */
FSDP_API fsdp_status fsdp_tokens_digest(const fsdp_tokens *tokens, uint64_t out[2]);
/* Returns the name of the file that contains the token at `position`, and its position there (in tokens, from 0), for
 * messages. */
FSDP_API const char *fsdp_tokens_locate(const fsdp_tokens *tokens, int64_t position, int64_t *position_in_file);

/* Says how rows, which are texts of unequal length (conversations), share windows. */
typedef enum fsdp_packing {
    FSDP_PACKING_PAD,      /* one row in a window, with padding after it */
    FSDP_PACKING_NEXT_FIT, /* a row goes to the last window, or begins another: windows are in the order of the rows */
    FSDP_PACKING_BEST_FIT, /* the longest rows first, each to the fullest window that has room */
    FSDP_PACKING_PAIRS     /* two rows in a window, which are compared */
} fsdp_packing;
/* Says what happens to a row that is longer than a window. */
typedef enum fsdp_long_row {
    FSDP_LONG_ROW_ERROR,
    FSDP_LONG_ROW_TRUNCATE, /* its first seq_len tokens are used */
    FSDP_LONG_ROW_SPLIT,    /* it becomes several rows of seq_len tokens, and one of the rest */
    FSDP_LONG_ROW_SKIP      /* it is left out */
} fsdp_long_row;

typedef struct fsdp_loader_options {
    int64_t seq_len;
    int64_t local_batch;  /* sequences per microbatch and rank (B) */
    int64_t microbatches; /* per step (A) */
    int rank, world_size;
    bool shuffle;
    uint64_t seed;
    int64_t vocab_size;   /* a token id this high is an error that names file and position; 0: not checked */
    int workers;          /* threads that read ahead; 0: the caller reads */
    int64_t start_window; /* batches begin at this window of the order, from 0, as after fsdp_loader_position windows */
    int64_t token_count;  /* use only this many tokens from the start of the stream; 0: all */
    const fsdp_context *context; /* whose trace shows the batches (fsdp/trace.h), until the loader is freed; or NULL */
} fsdp_loader_options;

typedef struct fsdp_loader fsdp_loader;

/* Creates a loader. It fails if the stream is too short for one window per rank and sequence, and says how many tokens
 * are needed. `tokens` is borrowed. */
FSDP_API fsdp_status fsdp_loader_create(const fsdp_tokens *tokens, const fsdp_loader_options *options,
                                        fsdp_loader **out);
FSDP_API void fsdp_loader_free(fsdp_loader *loader);

typedef struct fsdp_batch {
    const int32_t *inputs, *targets; /* (local_batch, seq_len), valid until the next call */
    int64_t microbatch;              /* counted by this loader, from 0 */
    int64_t epoch;                   /* of the microbatch's last window, over all ranks */
    /* If several documents share a window, these are the positions of the tokens in their own documents: 0 begins a
     * document. NULL: each window is one document. */
    const int32_t *positions;
    int64_t answers; /* targets that are learned; the others are -100 */
    int64_t tokens;  /* inputs that are no padding */
} fsdp_batch;

/* Returns the next batch. A failure (a token beyond the vocabulary) is returned at its batch and again from then on:
 * the loader does not go past it. */
FSDP_API fsdp_status fsdp_loader_next(fsdp_loader *loader, fsdp_batch *out);
/* Returns how many windows of the order all ranks together have had, over all epochs, once each has made as many calls
 * as this one. A loader that starts there, with the same stream, seq_len, order and seed, continues without losing or
 * repeating a window, with any number of ranks, batches and workers. */
FSDP_API int64_t fsdp_loader_position(const fsdp_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
