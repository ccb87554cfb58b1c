/* rows.h - a file of rows: texts of unequal length as tokens, with a bit for each token that says whether it is
 * learned.
 *
 * A file is a header of FSDP__TOKEN_HEADER_BYTES (the mark, the width, counts, a note), then what follows, each part
 * from a multiple of 8 bytes on: the tokens of all rows, uint16 or uint32; their bits, the lowest of a byte first;
 * where each row ends, as uint64 in tokens; then the checksums of all this (token_sums.h). */
#pragma once

#include "base/file.h"
#include "data/token_sums.h"
#include "data/token_writer.h"

/* ---- writing ---- */

typedef struct fsdp__rows_writer {
    fsdp__token_writer file;
    unsigned char *bits;
    uint64_t *ends;
    int64_t bit_capacity, end_capacity;
    int64_t rows, learned;
    bool pairs; /* to be set before the end: see fsdp__rows */
} fsdp__rows_writer;

/* Opens a writer for tokens of `width` bytes, 2 or 4. The file replaces whatever has its name when it is finished, and
 * does not exist before. `path` is borrowed. The caller closes the writer, also on failure. */
fsdp_status fsdp__rows_writer_open(fsdp__rows_writer *writer, const char *path, int width);
/* Adds a row of `count` tokens, at least 1. `learned` says of each whether a model is to learn to predict it; the first
 * never is, because nothing is before it, whatever `learned` says. NULL: all of them are. A token that does not fit the
 * width is FSDP_INVALID. */
fsdp_status fsdp__rows_writer_add(fsdp__rows_writer *writer, const int32_t *ids, const bool *learned, int64_t count);
/* Completes the file with a note ("": none; at most FSDP__TOKEN_NOTE_BYTES - 1 are kept), syncs it to the disk and
 * gives it its name. A file of no rows is FSDP_INVALID. */
fsdp_status fsdp__rows_writer_finish(fsdp__rows_writer *writer, const char *note);
void fsdp__rows_writer_close(fsdp__rows_writer *writer); /* removes what is not finished */

/* ---- reading ---- */

/* An open file, mapped; may be shared by threads. */
typedef struct fsdp__rows {
    char *path;
    char *text; /* the name of the text that the rows were made of; NULL: not known */
    fsdp__mapping map;
    fsdp__token_sums sums;
    int width;
    int64_t count;   /* of rows */
    int64_t tokens;  /* of all rows */
    int64_t learned; /* of these */
    bool pairs;      /* rows 2 i and 2 i + 1 have a better and a worse answer to one prompt */
    size_t bits_at, ends_at;
} fsdp__rows;

/* Returns whether these first bytes are those of a file of rows. */
bool fsdp__rows_begin(const void *data, size_t bytes);
/* Finds out whether a regular file begins so; nothing, or anything else, of that name does not. */
fsdp_status fsdp__rows_are_at(const char *path, bool *out);
/* Opens a file, and compares header and ends of rows with their checksums; rows are compared as they are read. A file
 * that is damaged, cut, or has something else in it is FSDP_FORMAT. */
fsdp_status fsdp__rows_open(const char *path, fsdp__rows **out);
/* Opens a file of the cache: one made under this name, by this user or root (fsdp__token_file_open_own). */
fsdp_status fsdp__rows_open_own(const char *path, fsdp__rows **out);
void fsdp__rows_close(fsdp__rows *rows); /* NULL is allowed */

/* Notes which text the rows were made of; and returns it, or the rows' own path, for messages about rows. */
void fsdp__rows_name_text(fsdp__rows *rows, const char *path);
const char *fsdp__rows_text(const fsdp__rows *rows);

int64_t fsdp__rows_count(const fsdp__rows *rows);
/* Returns the number of tokens of a row, which must exist. */
int64_t fsdp__rows_length(const fsdp__rows *rows, int64_t row);
/* Reads tokens [first, first + count) of a row, and for each whether it is learned; either place may be NULL. Bytes
 * that do not fit their checksum are FSDP_FORMAT, which names the file and the place. [thread-safe] */
fsdp_status fsdp__rows_get(const fsdp__rows *rows, int64_t row, int64_t first, int64_t count, int32_t *ids,
                           bool *learned);
/* Counts the tokens [first, first + count) of a row that are learned. [thread-safe] */
fsdp_status fsdp__rows_learned(const fsdp__rows *rows, int64_t row, int64_t first, int64_t count, int64_t *out);
/* Returns the note of the writer; it belongs to the rows. */
const char *fsdp__rows_note(const fsdp__rows *rows);
/* Computes a hash of all rows, from their checksums: two files of one hash have the same rows. */
void fsdp__rows_digest(const fsdp__rows *rows, uint64_t out[2]);
/* Compares all of the file with its checksums. [blocks] */
fsdp_status fsdp__rows_check(const fsdp__rows *rows);
