/* fsdp/tokenize.h - converts text files to a token file, on all cores.
 *
 * Files are plain, gzip or zstd, according to their first bytes. Several members or frames are allowed, and zeros after
 * those of gzip. Files that are packed in another way, or twice, that are known not to be text (archives, pickles, PDF,
 * UTF-16, programs, ...), or that have a packed file's name but are not packed, are refused; the error names the kind
 * and what to do. Text with a NUL byte is refused, too.
 *
 * A file named .jsonl, .ndjson or .json (before .gz or .zst) contains JSON lines: each line is an object, whose text
 * field is a document. Lines are read as by Python's json module: other fields may contain NaN, Infinity, numbers of
 * any size, unpaired surrogates and any depth, and of a repeated key the last one counts. A line is bad if it is not
 * such an object, lacks the field, has something other than a string in it, is not UTF-8, or has an unpaired surrogate
 * in that field. The rows of a Parquet file named .parquet are such lines; libparquet-glib of Arrow reads it, and
 * without that library it is FSDP_UNSUPPORTED (docs/data.md has the types). Any other file is text: one document, or
 * several if a separator is given. It is used unchanged, including CRLF, except for a byte order mark at its beginning
 * (also at the beginning of a JSON line). A folder stands for its files named .txt, .jsonl or .ndjson, also with .gz or
 * .zst, or .parquet, and a packed file of another name (a.json.gz) in it is refused; otherwise paths are as in
 * fsdp/data.h.
 *
 * The ids are those of each whole document, whatever the number of threads, and each document is followed by the
 * end-of-text token. Documents without text are skipped. Memory is a few MiB per thread, whatever the size of the
 * files, except that a document which cannot be split (see fsdp_tokenize_files) is held whole. */
#ifndef FSDP_TOKENIZE_H
#define FSDP_TOKENIZE_H

#include "fsdp/chat.h"
#include "fsdp/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_tokenize_options {
    const char *field;     /* for JSON lines; NULL: "text" */
    const char *separator; /* separates a text file's documents, part of none; NULL: a file is one document */
    bool no_eos;           /* put nothing between documents */
    bool plain_specials;   /* as in fsdp_encode_options */
    /* Bytes that are not UTF-8, and unpaired surrogates, become U+FFFD; otherwise they are an error. They are an error
     * in any case if they make up a quarter of the text. */
    bool replace_invalid;
    bool skip_bad_lines; /* skip and count bad JSON lines; otherwise the first is an error */
    int threads;         /* 0: one for each core */
    /* Called on the caller's thread from time to time with the bytes of files read so far (of compressed files the
     * compressed bytes), the total, and the tokens so far. NULL: not called. */
    void (*progress)(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens);
    void *progress_arg;
    /* Every JSON line is a conversation of the kind `chat_kind` (NONE: of any kind), and becomes a row, in which a bit
     * of each token says whether it is learned; `out` is then a file of rows, which `fsdp train` reads. Other files are
     * refused. NULL: lines are documents. */
    const fsdp_chat *chat;
    fsdp_chat_kind chat_kind;
    bool learn_all; /* all tokens of a row are learned: for templates that give no mask */
} fsdp_tokenize_options;

enum {
    FSDP_LEFT_OUT_BYTES = 512
};

typedef struct fsdp_tokenize_summary {
    int64_t files, documents, text_bytes, tokens;
    int64_t left_out_bytes;                   /* bytes without a token */
    int width;                                /* bytes per token: 2 if the vocabulary fits, otherwise 4 */
    int64_t lines, left_out_lines;            /* JSON lines that are not blank, and the bad ones among them */
    char first_left_out[FSDP_LEFT_OUT_BYTES]; /* the first bad line, "FILE:LINE: why" */
    int64_t learned_tokens;                   /* of conversations */
} fsdp_tokenize_summary;

/* Tokenizes files into `out`, a token file with llm.c's header (fsdp/data.h), which is written beside it and renamed
 * when it is complete. An existing file of that name is replaced if this function wrote it, and is otherwise an error;
 * so is one of the inputs. Errors name the file, and the line (JSON lines) or the offset in its text. `options` and
 * `summary` may be NULL.
 *
 * Each file is read twice, first for a hash (XXH3, a small part of the time). What was tokenized must have the same
 * hash, so a file that something writes to meanwhile is an error (FSDP_IO), whatever its times and size say.
 *
 * A long document is split where the tokenizer's split pattern is certain to begin a new word, which is known for the
 * patterns of GPT-2, Llama 3, Qwen2 and GPT-4o. With another pattern, or without such a place, a document has at most 1
 * GiB. */
FSDP_API fsdp_status fsdp_tokenize_files(const fsdp_tokenizer *tokenizer, const char *const *paths, int count,
                                         const char *out, const fsdp_tokenize_options *options,
                                         fsdp_tokenize_summary *summary);

#ifdef __cplusplus
}
#endif
#endif
