/* row_fixture.h - files of rows for tests. */
#pragma once

#include "data/packing.h"

typedef struct row_file {
    char *folder, *path;
    fsdp__rows *rows;
    fsdp__packed *packed; /* NULL until row_file_pack */
} row_file;

/* Makes a file of rows of these lengths: row r has the tokens 100 (r + 1), 100 (r + 1) + 1 and so on, of which every
 * third is learned, from the fourth on. */
void row_file_of_lengths(row_file *f, const int64_t *lengths, int count);
/* Makes one of the conversations in tests/reference/finetune. */
void row_file_of_reference(row_file *f);
/* Packs the rows, in place of the packing before. */
void row_file_pack(row_file *f, const fsdp__packing_options *options);
void row_file_close(row_file *f);

/* Writes the conversations of sft-tokens.json to a file. */
void row_file_write_reference(const char *path);
