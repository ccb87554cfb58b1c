/* documents.h - the text of many files as pieces that can be encoded one by one, in their order. */
#ifndef DATA_DOCUMENTS_H
#define DATA_DOCUMENTS_H

#include "data/files.h"
#include "data/text_file.h"
#include "fsdp/tokenize.h"

/* Some lines of a file of JSON lines, some documents of a text, or a part of one. */
typedef struct fsdp__piece {
    char *text;
    size_t bytes, capacity;
    const char *path;
    bool json_lines;
    bool continues; /* begins within a document */
    bool ends;      /* ends one */
    int64_t offset; /* of the text in its file, unpacked */
    int64_t line;   /* of its first line, from 1 (JSON lines) */
} fsdp__piece;

typedef struct fsdp__documents {
    const fsdp_tokenizer *tokenizer;
    const char *separator; /* NULL: none */
    const fsdp__data_files *files;
    const fsdp__text_hash *hashes; /* of each, NULL: nobody has looked at them before */
    fsdp__text_hash hash;          /* what that of the open one must be at its end */
    int64_t next;                  /* the file that comes next */
    int64_t done_bytes;            /* of files before the one that is open */
    int64_t all_bytes;             /* of all files, packed as they are */
    fsdp__text_file *file;         /* NULL: none is open */
    const char *path;              /* of the open one */
    char *rest;                    /* what was read behind the last piece */
    size_t rest_bytes, rest_capacity;
    bool within;          /* the next piece continues a document */
    int64_t offset, line; /* of the next piece */
    size_t piece_bytes;   /* how long pieces should be */
} fsdp__documents;

/* All but `documents` is borrowed. `hashes` (NULL: none): a file that has another than its own there is refused. */
void fsdp__documents_open(fsdp__documents *documents, const fsdp_tokenizer *tokenizer, const fsdp__data_files *files,
                          const fsdp__text_hash *hashes, const char *separator);
/* A file that is changed while it is read is refused at its end. The next piece, into memory that the piece keeps from
 * one call to the next; `*any` is false at the end. */
fsdp_status fsdp__documents_next(fsdp__documents *documents, fsdp__piece *piece, bool *any);
int64_t fsdp__documents_position(const fsdp__documents *documents); /* of all_bytes */
void fsdp__documents_close(fsdp__documents *documents);
void fsdp__piece_release(fsdp__piece *piece);

#endif
