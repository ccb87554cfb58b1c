/* documents.h - reads the text of many files as pieces that can be encoded one by one, in order. */
#pragma once

#include "data/files.h"
#include "data/text_file.h"
#include "fsdp/tokenize.h"

/* Describes a piece of one file: some JSON lines, some documents of a text, or a part of one document. */
typedef struct fsdp__piece {
    char *text;
    size_t bytes, capacity;
    const char *path;
    bool json_lines;
    bool continues; /* the piece begins within a document */
    bool ends;      /* the end of the piece is the end of a document */
    int64_t offset; /* of the text in its file, after unpacking */
    int64_t line;   /* number of its first line, from 1 (JSON lines) */
} fsdp__piece;

typedef struct fsdp__documents {
    const fsdp_tokenizer *tokenizer;
    const char *separator; /* NULL: none */
    const fsdp__data_files *files;
    const fsdp__text_hash *hashes; /* one for each file; NULL: the files have not been hashed before */
    fsdp__text_hash hash;          /* the open file must have this hash at its end */
    int64_t next;                  /* index of the next file */
    int64_t done_bytes;            /* of the files before the open one */
    int64_t all_bytes;             /* of all files, as they lie on the disk */
    fsdp__text_file *file;         /* NULL: none is open */
    const char *path;              /* of the open file */
    char *rest;                    /* text read past the end of the last piece */
    size_t rest_bytes, rest_capacity;
    bool within;          /* the next piece continues a document */
    int64_t offset, line; /* of the next piece */
    size_t piece_bytes;   /* the length that pieces should have */
} fsdp__documents;

/* Prepares to read the files; everything but `documents` is borrowed. A file whose hash is no longer the one in
 * `hashes` (NULL: none) is refused. */
void fsdp__documents_open(fsdp__documents *documents, const fsdp_tokenizer *tokenizer, const fsdp__data_files *files,
                          const fsdp__text_hash *hashes, const char *separator);
/* Reads the next piece, into memory that the piece keeps from one call to the next; `*any` is false at the end. A file
 * that is changed while it is read is refused at its end. */
fsdp_status fsdp__documents_next(fsdp__documents *documents, fsdp__piece *piece, bool *any);
int64_t fsdp__documents_position(const fsdp__documents *documents); /* in bytes, of all_bytes */
void fsdp__documents_close(fsdp__documents *documents);
void fsdp__piece_release(fsdp__piece *piece);
