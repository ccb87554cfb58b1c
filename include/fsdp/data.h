/* fsdp/data.h - token streams and the batches cut from them.
 *
 * A token file is raw uint16 or uint32 (little-endian), or has llm.c's header: 256 int32 (1,024 bytes), of them magic
 * 20240520, version 1, token count, then uint16 tokens (magic 20240801, version 7: uint32). A text file is its bytes:
 * token = byte, vocabulary 256; it is text in any encoding that extends ASCII, a byte order mark included. Several
 * files are one stream, in the order given.
 *
 * A path is a file, a folder, or, where nothing has that name, a pattern as of a shell (`*`, `?`, `[a-z]`). A folder is
 * those of its own files, hidden ones left out, whose names fit the format (.txt; .bin, .u16, .u32; either, not both;
 * JSON lines only where a tokenizer reads: fsdp/tokenize.h); a pattern is all files that match. Both are taken in the
 * order of their names, byte by byte. A folder's other files are passed over, but for those that may hold data: what is
 * by its first bytes or its name packed, an archive or a table (Parquet, Arrow, ORC, Avro, NumPy, HDF5, SQLite), and
 * what is no text in a name such as "a.jsonl.br", is FSDP_FORMAT; a hidden file never is.
 *
 * A window is seq_len tokens and the same shifted by one as targets. Sequential order: with A microbatches a step, W
 * ranks and B sequences per microbatch and rank, sequence b of rank r in microbatch a of step s (from 0) starts at
 * token
 * (((s * A + a) * W + r) * B + b) * seq_len. The stream has n = (tokens - 1) / seq_len windows, rounded down: window
 * number g is window g mod n of epoch g / n, so past the end it starts again at 0. Shuffled order sends g mod n through
 * a permutation that depends on (seed, epoch, n) alone: every window once per epoch, in an order that does not depend
 * on A, W or B.
 */
#ifndef FSDP_DATA_H
#define FSDP_DATA_H

#include "fsdp/status.h"

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

/* AUTO: llm.c's header, or by name: .txt and unknown text is TEXT, .bin and .u16 UINT16, .u32 UINT32. BINARY: tokens;
 * by the header, or by name, or uint16. UINT16, UINT32: of that width whatever the name says; a header that says
 * otherwise is an error. TEXT: the bytes. Errors name the file and, where it matters, the offset: missing, empty, no
 * regular file (a FIFO, a device), no whole number of tokens, a header that does not fit the size; what is packed, or
 * known to be neither text nor tokens, by its kind and with what to do; tokens or a NUL byte where text is read, text
 * where tokens are, JSON lines (.jsonl, .ndjson, .json: fsdp/tokenize.h reads what they hold). Files are mapped one by
 * one and need no descriptors; a process may have some 65,000. */
FSDP_API fsdp_status fsdp_tokens_open(const char *const *paths, int count, fsdp_token_format format, fsdp_tokens **out);
FSDP_API void fsdp_tokens_close(fsdp_tokens *tokens);
/* What the first bytes of the files say against reading them so: they look like uint32, and are read as uint16. The
 * first such file, and how many there are; else that some are text and some tokens. NULL: nothing. */
FSDP_API const char *fsdp_tokens_warning(const fsdp_tokens *tokens);
/* Whether a file among them is read as text. */
FSDP_API bool fsdp_tokens_have_text(const fsdp_tokens *tokens);
FSDP_API int64_t fsdp_tokens_count(const fsdp_tokens *tokens);
/* `count` tokens from `position` on; the range must be inside. */
FSDP_API fsdp_status fsdp_tokens_read(const fsdp_tokens *tokens, int64_t position, int64_t count, int32_t *out);
/* A 128-bit hash of all tokens in their order, however they are spread over files and in whatever width: a stream that
 * differs in one token has another. Reads all of it, some 2 GB a second of files that are in memory. [blocks] */
FSDP_API fsdp_status fsdp_tokens_digest(const fsdp_tokens *tokens, uint64_t out[2]);
/* Name of the file that holds the token, and its position there (in tokens, from 0), for messages. */
FSDP_API const char *fsdp_tokens_locate(const fsdp_tokens *tokens, int64_t position, int64_t *position_in_file);

typedef struct fsdp_loader_options {
    int64_t seq_len;
    int64_t local_batch;  /* sequences per microbatch and rank (B) */
    int64_t microbatches; /* per step (A) */
    int rank, world_size;
    bool shuffle;
    uint64_t seed;
    int64_t vocab_size;   /* a token at or beyond it is an error naming file and position; 0: not checked */
    int workers;          /* threads that read ahead; 0: read in the caller */
    int64_t start_window; /* of the order, from 0: batches begin there, as after fsdp_loader_position windows */
    int64_t token_count;  /* of the stream only so many, from its begin; 0: all */
} fsdp_loader_options;

typedef struct fsdp_loader fsdp_loader;

/* Fails when the stream is too short for one window per rank and sequence: says how many tokens are needed. `tokens` is
 * borrowed. */
FSDP_API fsdp_status fsdp_loader_create(const fsdp_tokens *tokens, const fsdp_loader_options *options,
                                        fsdp_loader **out);
FSDP_API void fsdp_loader_free(fsdp_loader *loader);

typedef struct fsdp_batch {
    const int32_t *inputs, *targets; /* (local_batch, seq_len), valid until the next call */
    int64_t microbatch;              /* running number of this loader's, from 0 */
    int64_t epoch;                   /* of the microbatch's first window over all ranks */
} fsdp_batch;

/* A failure (a token beyond the vocabulary) comes at the batch it belongs to and stays: the loader does not go past it.
 */
FSDP_API fsdp_status fsdp_loader_next(fsdp_loader *loader, fsdp_batch *out);
/* Windows of the order that all ranks together have had, over all epochs, once each has made as many calls as this one.
 * A loader of the same stream, seq_len, order and seed that starts there goes on without losing or repeating one, with
 * any number of ranks, batches and workers. */
FSDP_API int64_t fsdp_loader_position(const fsdp_loader *loader);

#ifdef __cplusplus
}
#endif
#endif
