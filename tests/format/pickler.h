/* pickler.h - pickles as torch.save writes them, and archives around them, made by hand. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct pickler {
    unsigned char data[16384];
    size_t bytes;
} pickler;

/* A tensor as a view of a storage. */
typedef struct pickled_view {
    const char *name, *storage_type, *key; /* "FloatStorage", "0" */
    int64_t storage_numel, offset;
    int ndim;
    int64_t shape[4], strides[4];
} pickled_view;

/* Any bytes: opcodes, and what follows them. */
void pickle_bytes(pickler *p, const void *data, size_t bytes);
#define PICKLE(p, text) pickle_bytes((p), (text), sizeof(text) - 1)
void pickle_text(pickler *p, const char *text);
void pickle_integer(pickler *p, int64_t value);
/* "(name, " as a key, and the calls that make the tensor. */
void pickle_view(pickler *p, const pickled_view *view);
/* {name: view, ...}, whole. */
void pickle_state_dict(pickler *p, const pickled_view *views, int count);

typedef struct archived {
    const char *name;
    const void *data;
    size_t bytes;
    int compressed;
} archived;

/* Writes a zip archive. */
void write_archive(const char *path, const archived *members, int count);
/* The file of torch.save with these views, and `numel` floats 0, 1, 2, ... as each of the storages "0", "1", ... */
void write_torch_file(const char *path, const pickled_view *views, int count, int storages, int numel);
