/* pickle.h - reads the values of a pickle of tensors, as torch.save writes it, without executing anything in it.
 *
 * A pickle is a program for a machine with a stack: its writer may call any function of its reader. Here it can only
 * make values. Only the opcodes that torch.save needs are known, and only the names in the list below; anything else
 * ends the reading, before it is looked up anywhere. A call is a value too: which name, with what arguments. */
#pragma once

#include "fsdp/status.h"

/* Names that a pickle may use: identifier, module, name. Storages come last. */
#define FSDP__PICKLE_NAMES(X)                                  \
    X(ORDERED_DICT, "collections", "OrderedDict")              \
    X(REBUILD_TENSOR, "torch._utils", "_rebuild_tensor_v2")    \
    X(REBUILD_PARAMETER, "torch._utils", "_rebuild_parameter") \
    X(FLOAT_STORAGE, "torch", "FloatStorage")                  \
    X(BFLOAT16_STORAGE, "torch", "BFloat16Storage")            \
    X(HALF_STORAGE, "torch", "HalfStorage")                    \
    X(DOUBLE_STORAGE, "torch", "DoubleStorage")                \
    X(LONG_STORAGE, "torch", "LongStorage")                    \
    X(INT_STORAGE, "torch", "IntStorage")                      \
    X(SHORT_STORAGE, "torch", "ShortStorage")                  \
    X(CHAR_STORAGE, "torch", "CharStorage")                    \
    X(BYTE_STORAGE, "torch", "ByteStorage")                    \
    X(BOOL_STORAGE, "torch", "BoolStorage")                    \
    X(UNTYPED_STORAGE, "torch", "UntypedStorage")              \
    X(UNTYPED_STORAGE_TOO, "torch.storage", "UntypedStorage")

typedef enum fsdp__pickle_name {
#define FSDP__PICKLE_NAME(identifier, module, name) FSDP__PICKLE_##identifier,
    FSDP__PICKLE_NAMES(FSDP__PICKLE_NAME)
#undef FSDP__PICKLE_NAME
    FSDP__PICKLE_NAME_COUNT
} fsdp__pickle_name;

/* Returns a text like "_rebuild_tensor_v2". */
const char *fsdp__pickle_name_text(fsdp__pickle_name name);

typedef enum fsdp__pickle_kind {
    FSDP__PICKLE_NONE,
    FSDP__PICKLE_BOOL,
    FSDP__PICKLE_INTEGER,
    FSDP__PICKLE_REAL, /* its value is not kept */
    FSDP__PICKLE_TEXT,
    FSDP__PICKLE_GLOBAL,    /* a name from the list */
    FSDP__PICKLE_TUPLE,     /* items */
    FSDP__PICKLE_LIST,      /* items */
    FSDP__PICKLE_DICT,      /* items: key, value, key, value, ... */
    FSDP__PICKLE_CALL,      /* items: the global, a tuple of arguments */
    FSDP__PICKLE_PERSISTENT /* items: what the file's own reader knows it by */
} fsdp__pickle_kind;

typedef struct fsdp__pickle_value {
    fsdp__pickle_kind kind;
    size_t at;           /* byte of the pickle that made it, for messages */
    int64_t integer;     /* BOOL, INTEGER; GLOBAL: fsdp__pickle_name; TEXT: bytes; others: number of items */
    const char *text;    /* TEXT: points into the pickle, not terminated */
    int32_t first, last; /* links of its items; -1: none */
} fsdp__pickle_value;

typedef struct fsdp__pickle_link {
    int32_t value, next;
} fsdp__pickle_link;

/* All values that the pickle has made; `result` is the value of the whole pickle. A value may contain itself. */
typedef struct fsdp__pickle {
    fsdp__pickle_value *values;
    fsdp__pickle_link *links;
    int64_t value_count, value_capacity, link_count, link_capacity;
    const fsdp__pickle_value *result;
} fsdp__pickle;

/* Parses a pickle; `path` is for messages. The caller must keep the bytes for as long as the values. */
fsdp_status fsdp__pickle_parse(const char *path, const void *data, size_t bytes, fsdp__pickle *out);
void fsdp__pickle_release(fsdp__pickle *pickle);

/* Returns item `index` of a value with items, NULL beyond the last; it walks the list. */
const fsdp__pickle_value *fsdp__pickle_item(const fsdp__pickle *pickle, const fsdp__pickle_value *value, int64_t index);
