/* gguf.h - files of llama.cpp: keys with values, and tensors (ggml's docs/gguf.md), version 3, little-endian.
 *
 * The reader checks all that it reads, and names file and key or tensor in errors. Tensors are float32, float16,
 * bfloat16 or q8_0: blocks of 32 along a row, each a float16 scale and 32 signed bytes. */
#pragma once

#include "fsdp/status.h"

typedef enum fsdp__gguf_kind {
    FSDP__GGUF_U8,
    FSDP__GGUF_I8,
    FSDP__GGUF_U16,
    FSDP__GGUF_I16,
    FSDP__GGUF_U32,
    FSDP__GGUF_I32,
    FSDP__GGUF_REAL,
    FSDP__GGUF_BOOL,
    FSDP__GGUF_TEXT,
    FSDP__GGUF_ARRAY,
    FSDP__GGUF_U64,
    FSDP__GGUF_I64,
    FSDP__GGUF_DOUBLE,
    FSDP__GGUF_KINDS
} fsdp__gguf_kind;

/* Types of tensors, with the format's numbers. */
typedef enum fsdp__gguf_type {
    FSDP__GGUF_F32 = 0,
    FSDP__GGUF_F16 = 1,
    FSDP__GGUF_Q8_0 = 8,
    FSDP__GGUF_BF16 = 30
} fsdp__gguf_type;

enum {
    FSDP__GGUF_BLOCK = 32,       /* values of a block of q8_0 */
    FSDP__GGUF_BLOCK_BYTES = 34, /* and its bytes */
    FSDP__GGUF_ALIGNMENT = 32,
    FSDP__GGUF_NAME_BYTES = 64, /* of a tensor's name with its end */
    FSDP__GGUF_DIMS = 4
};

/* A run of bytes, borrowed from the file. */
typedef struct fsdp__gguf_text {
    const char *data;
    size_t bytes;
} fsdp__gguf_text;

typedef struct fsdp__gguf_value {
    fsdp__gguf_text key;
    fsdp__gguf_kind kind; /* of an array: that of its elements */
    bool array;
    uint64_t count;            /* of an array's elements; otherwise 1 */
    const unsigned char *data; /* of the first, in the file; not aligned */
} fsdp__gguf_value;

typedef struct fsdp__gguf_tensor {
    char name[FSDP__GGUF_NAME_BYTES];
    int ndim;
    int64_t shape[FSDP__GGUF_DIMS]; /* the slowest dimension first, as elsewhere here */
    int64_t numel;
    fsdp__gguf_type type;
    uint64_t offset, bytes; /* in the file */
    const unsigned char *data;
} fsdp__gguf_tensor;

typedef struct fsdp__gguf {
    const char *path; /* borrowed */
    fsdp__gguf_value *values;
    int64_t value_count;
    fsdp__gguf_tensor *tensors;
    int64_t tensor_count;
} fsdp__gguf;

/* Returns whether a regular file begins as a GGUF file does, whatever its name. */
bool fsdp__gguf_is_file(const char *path);
/* Parses a file whose bytes are in memory, and stay there. */
fsdp_status fsdp__gguf_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__gguf *out);
void fsdp__gguf_release(fsdp__gguf *file);

const fsdp__gguf_value *fsdp__gguf_find(const fsdp__gguf *file, const char *key); /* NULL: there is none */
const fsdp__gguf_tensor *fsdp__gguf_find_tensor(const fsdp__gguf *file, const char *name);
/* Read a value. An absent key leaves `*out` as it is, or is an error where `required`; so is a value of another kind.
 */
fsdp_status fsdp__gguf_integer(const fsdp__gguf *file, const char *key, bool required, int64_t *out);
fsdp_status fsdp__gguf_number(const fsdp__gguf *file, const char *key, bool required, double *out);
/* Gives a text without NUL; fsdp__free it. */
fsdp_status fsdp__gguf_string(const fsdp__gguf *file, const char *key, bool required, char **out);
/* Gets an array of texts, or of integers of any kind, whose count is value->count. */
fsdp_status fsdp__gguf_array(const fsdp__gguf *file, const char *key, fsdp__gguf_kind kind,
                             const fsdp__gguf_value **out);
/* Takes the text at `*at` of an array, and moves `*at` behind it. */
fsdp__gguf_text fsdp__gguf_next_text(const unsigned char **at);
/* Return element `index` of an array of i32, or of float32. */
int32_t fsdp__gguf_i32_at(const fsdp__gguf_value *value, uint64_t index);
float fsdp__gguf_real_at(const fsdp__gguf_value *value, uint64_t index);

/* Returns the type's name: "float16", "q8_0". */
const char *fsdp__gguf_type_name(fsdp__gguf_type type);
/* Finds the type of a name, also "f16" and the like. Returns false if there is none. */
bool fsdp__gguf_type_of(const char *name, fsdp__gguf_type *out);
/* Returns the bytes of `numel` elements: for q8_0 a multiple of a block. */
uint64_t fsdp__gguf_bytes(fsdp__gguf_type type, int64_t numel);
/* Convert between f32 and blocks of q8_0, as ggml does: scale = largest / 127, rounded half away from zero by the scale
 * before it is stored as float16. */
void fsdp__gguf_to_blocks(const float *from, int64_t numel, unsigned char *to);
void fsdp__gguf_from_blocks(const unsigned char *from, int64_t numel, float *to);

/* ---- writing (gguf_write.c) ---- */

/* Holds a header in the making. A failure to allocate is remembered until fsdp__gguf_header_finish. */
typedef struct fsdp__gguf_header {
    unsigned char *data;
    int64_t bytes, capacity;
    uint64_t values, tensors;
    uint64_t data_bytes; /* of all tensors so far, aligned */
    bool failed;
} fsdp__gguf_header;

/* Begins with the magic and room for counts. All values come before all tensors. */
void fsdp__gguf_header_begin(fsdp__gguf_header *header);
void fsdp__gguf_put_integer(fsdp__gguf_header *header, const char *key, fsdp__gguf_kind kind, int64_t value);
void fsdp__gguf_put_real(fsdp__gguf_header *header, const char *key, float value);
void fsdp__gguf_put_text(fsdp__gguf_header *header, const char *key, const char *text);
/* Begins an array, whose elements follow by fsdp__gguf_add_*. */
void fsdp__gguf_put_array(fsdp__gguf_header *header, const char *key, fsdp__gguf_kind kind, uint64_t count);
void fsdp__gguf_add_text(fsdp__gguf_header *header, const char *text, size_t bytes);
void fsdp__gguf_add_i32(fsdp__gguf_header *header, int32_t value);
void fsdp__gguf_add_real(fsdp__gguf_header *header, float value);
/* Adds a tensor, and gives where its bytes go behind the header. */
void fsdp__gguf_add_tensor(fsdp__gguf_header *header, const char *name, int ndim, const int64_t *shape,
                           fsdp__gguf_type type, uint64_t *offset);
/* Sets the counts, and aligns the end, where the tensors' bytes begin. Fails if anything before has failed. */
fsdp_status fsdp__gguf_header_finish(fsdp__gguf_header *header);
void fsdp__gguf_header_release(fsdp__gguf_header *header);
