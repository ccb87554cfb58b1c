/* fsdp/tokenize.h - files of text to a file of tokens, on all cores.
 *
 * Files are plain, gzip or zstd, by their first bytes, also of several members or frames, with zeros behind those of
 * gzip. What is packed in another way, or twice, or is known to be no text (archives, Parquet, pickles, PDF, UTF-16,
 * programs, ...), or has a packed file's name and is none, is refused by its kind, with what to do. So is text with a
 * NUL byte in it.
 *
 * A file named .jsonl, .ndjson or .json (before .gz or .zst) is JSON lines: each line an object, and a document its
 * text field. Lines are read as by Python's json module: in other fields NaN, Infinity, numbers of any size, halves of
 * surrogate pairs and any depth are taken, and a key that is given twice counts as its last. A line is bad that is no
 * such object, has no such field or not a string in it, is no UTF-8, or has half a surrogate pair in that field. Any
 * other file is text: one document, or several where a separator is given. It is taken as it is, CRLF included; but a
 * byte order mark at its beginning is no part of it (nor at the beginning of a JSON line). A folder is those of its
 * files that are named .txt, .jsonl or .ndjson, also with .gz or .zst; paths are otherwise as in fsdp/data.h, and what
 * is packed under another name (a.json.gz) is refused.
 *
 * The ids are those of each document as a whole, whatever the number of threads, and behind each document comes the
 * end-of-text token. Documents without text are left out. Memory: a few MiB a thread, whatever the files' size, but a
 * document that has no place to part it (see fsdp_tokenize_files) is held whole. */
#ifndef FSDP_TOKENIZE_H
#define FSDP_TOKENIZE_H

#include "fsdp/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_tokenize_options {
    const char *field;     /* of JSON lines; NULL: "text" */
    const char *separator; /* between the documents of a text file, and part of none; NULL: a file is one document */
    bool no_eos;           /* nothing is put between documents */
    bool plain_specials;   /* as in fsdp_encode_options */
    bool replace_invalid;  /* bytes that are no UTF-8, and halves of surrogate pairs, become U+FFFD; otherwise they are
                              an error, and so are they where they are a quarter of the text */
    bool skip_bad_lines;   /* bad JSON lines are left out and counted; otherwise the first is an error */
    int threads;           /* 0: one for each core */
    /* From the caller's thread, now and then: bytes of files (compressed ones as they are) that were read, of how many,
     * and tokens so far. NULL: nobody asks. */
    void (*progress)(void *arg, int64_t bytes, int64_t all_bytes, int64_t tokens);
    void *progress_arg;
} fsdp_tokenize_options;

enum {
    FSDP_LEFT_OUT_BYTES = 512
};

typedef struct fsdp_tokenize_summary {
    int64_t files, documents, text_bytes, tokens;
    int64_t left_out_bytes;                   /* that no token stands for */
    int width;                                /* bytes per token: 2 where the vocabulary fits, else 4 */
    int64_t lines, left_out_lines;            /* JSON lines that hold anything, and the bad ones of them */
    char first_left_out[FSDP_LEFT_OUT_BYTES]; /* the first of these, "FILE:LINE: why" */
} fsdp_tokenize_summary;

/* Writes `out`: a token file with llm.c's header (fsdp/data.h), made beside it and renamed when it is whole. A file of
 * that name is replaced where this function has made it, and else refused; so is one of the inputs. Errors name the
 * file, and the line (JSON lines) or offset in its text. `options` and `summary` may be NULL.
 *
 * A long document is parted where the tokenizer's split pattern begins a new word for certain, which is known of
 * GPT-2's, Llama 3's, Qwen2's and GPT-4o's; with another pattern, or without such a place, a document has at most
 * 1 GiB. */
FSDP_API fsdp_status fsdp_tokenize_files(const fsdp_tokenizer *tokenizer, const char *const *paths, int count,
                                         const char *out, const fsdp_tokenize_options *options,
                                         fsdp_tokenize_summary *summary);

#ifdef __cplusplus
}
#endif
#endif
