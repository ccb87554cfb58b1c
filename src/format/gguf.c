/* gguf.c - reads the files of llama.cpp. */
#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"

enum {
    VERSION = 3,
    LEAST_PAIR = 8 + 4 + 1, /* bytes of a pair, and of a tensor, at least */
    LEAST_TENSOR = 8 + 4 + 8 + 4 + 8,
    MOST_KEY_BYTES = 65535,
    MOST_KEYS = 1 << 16,
    MOST_ALIGNMENT = 1 << 20
};

static const char magic_bytes[] = "GGUF";
static const size_t kind_bytes[FSDP__GGUF_KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8}; /* text: of its length */

/* Holds what is left of the file. */
typedef struct cursor {
    const char *path;
    const unsigned char *begin, *at, *end;
} cursor;

static fsdp_status bad(const cursor *c, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "bad GGUF file '%s': %s at byte %zu", c->path, what, (size_t)(c->at - c->begin));
}

static fsdp_status take(cursor *c, void *out, size_t bytes)
{
    if ((size_t)(c->end - c->at) < bytes)
        return bad(c, "it ends in the middle of its header");
    memcpy(out, c->at, bytes);
    c->at += bytes;
    return FSDP_OK;
}

static fsdp_status take_u32(cursor *c, uint32_t *out)
{
    return take(c, out, sizeof *out);
}

static fsdp_status take_u64(cursor *c, uint64_t *out)
{
    return take(c, out, sizeof *out);
}

static fsdp_status take_text(cursor *c, fsdp__gguf_text *out)
{
    uint64_t bytes = 0;

    FSDP_TRY(take_u64(c, &bytes));
    if (bytes > (uint64_t)(c->end - c->at))
        return bad(c, "a text is longer than the file");
    *out = (fsdp__gguf_text){(const char *)c->at, (size_t)bytes};
    c->at += bytes;
    return FSDP_OK;
}

/* ---- keys and values ---- */

static fsdp_status take_kind(cursor *c, fsdp__gguf_kind *out)
{
    uint32_t kind = 0;

    FSDP_TRY(take_u32(c, &kind));
    if (kind >= FSDP__GGUF_KINDS)
        return bad(c, "a value of an unknown type");
    *out = (fsdp__gguf_kind)kind;
    return FSDP_OK;
}

static fsdp_status take_value(cursor *c, fsdp__gguf_value *v)
{
    fsdp__gguf_text text;

    FSDP_TRY(take_text(c, &v->key));
    if (v->key.bytes == 0 || v->key.bytes > MOST_KEY_BYTES || memchr(v->key.data, 0, v->key.bytes))
        return bad(c, "a key that is empty, too long, or has a NUL");
    FSDP_TRY(take_kind(c, &v->kind));
    v->count = 1;
    v->array = v->kind == FSDP__GGUF_ARRAY;
    if (v->array) {
        FSDP_TRY(take_kind(c, &v->kind));
        FSDP_TRY(take_u64(c, &v->count));
        if (v->kind == FSDP__GGUF_ARRAY)
            return bad(c, "an array of arrays");
    }
    v->data = c->at;
    if (v->count > (uint64_t)(c->end - c->at) / kind_bytes[v->kind])
        return bad(c, "an array is longer than the file");
    if (v->kind != FSDP__GGUF_TEXT) {
        c->at += v->count * kind_bytes[v->kind];
        return FSDP_OK;
    }
    for (uint64_t i = 0; i < v->count; i++)
        FSDP_TRY(take_text(c, &text));
    return FSDP_OK;
}

static int compare_text(fsdp__gguf_text a, fsdp__gguf_text b)
{
    int order = memcmp(a.data, b.data, FSDP__MIN(a.bytes, b.bytes));

    return order != 0 ? order : a.bytes < b.bytes ? -1 : a.bytes > b.bytes;
}

static int by_key(const void *a, const void *b)
{
    return compare_text(((const fsdp__gguf_value *)a)->key, ((const fsdp__gguf_value *)b)->key);
}

/* Takes all keys with their values, and leaves them in order. */
static fsdp_status take_values(cursor *c, fsdp__gguf *file, uint64_t count)
{
    if (count > (uint64_t)(c->end - c->at) / LEAST_PAIR || count > MOST_KEYS)
        return bad(c, "it claims more keys than it can hold");
    FSDP__TRY_NEW(file->values = fsdp__calloc((size_t)count + 1, sizeof *file->values));
    for (; file->value_count < (int64_t)count; file->value_count++)
        FSDP_TRY(take_value(c, &file->values[file->value_count]));
    qsort(file->values, (size_t)count, sizeof *file->values, by_key);
    for (int64_t i = 1; i < file->value_count; i++)
        if (by_key(&file->values[i - 1], &file->values[i]) == 0)
            return FSDP_FAIL(FSDP_FORMAT, "bad GGUF file '%s': key '%.*s' is given twice", file->path,
                             (int)FSDP__MIN(file->values[i].key.bytes, 100), file->values[i].key.data);
    return FSDP_OK;
}

/* ---- tensors ---- */

uint64_t fsdp__gguf_bytes(fsdp__gguf_type type, int64_t numel)
{
    switch (type) {
    case FSDP__GGUF_F32:
        return (uint64_t)numel * 4;
    case FSDP__GGUF_Q8_0:
        return (uint64_t)(numel / FSDP__GGUF_BLOCK) * FSDP__GGUF_BLOCK_BYTES;
    default:
        return (uint64_t)numel * 2;
    }
}

static bool is_known(uint32_t type)
{
    return type == FSDP__GGUF_F32 || type == FSDP__GGUF_F16 || type == FSDP__GGUF_Q8_0 || type == FSDP__GGUF_BF16;
}

/* Takes sizes, which the file has fastest first. */
static fsdp_status take_shape(cursor *c, fsdp__gguf_tensor *t)
{
    uint32_t ndim;

    FSDP_TRY(take_u32(c, &ndim));
    if (ndim < 1 || ndim > FSDP__GGUF_DIMS)
        return bad(c, "a tensor has not 1 to 4 dimensions");
    t->ndim = (int)ndim;
    t->numel = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        uint64_t size;

        FSDP_TRY(take_u64(c, &size));
        if (size == 0 || size > INT64_MAX / 8 / (uint64_t)t->numel)
            return bad(c, "a tensor's size is 0 or too large");
        t->shape[d] = (int64_t)size;
        t->numel *= (int64_t)size;
    }
    return FSDP_OK;
}

static fsdp_status take_tensor(cursor *c, fsdp__gguf_tensor *t)
{
    fsdp__gguf_text name;
    uint32_t type;

    FSDP_TRY(take_text(c, &name));
    if (name.bytes == 0 || name.bytes >= FSDP__GGUF_NAME_BYTES || memchr(name.data, 0, name.bytes))
        return bad(c, "a tensor's name is empty, longer than 63 bytes, or has a NUL");
    memcpy(t->name, name.data, name.bytes);
    FSDP_TRY(take_shape(c, t));
    FSDP_TRY(take_u32(c, &type));
    FSDP_TRY(take_u64(c, &t->offset));
    if (!is_known(type))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s': tensor '%s' is of type %u: f32, f16, bf16 and q8_0 can be read, other quantised types "
                         "cannot",
                         c->path, t->name, type);
    t->type = (fsdp__gguf_type)type;
    if (t->type == FSDP__GGUF_Q8_0 && t->shape[t->ndim - 1] % FSDP__GGUF_BLOCK != 0)
        return FSDP_FAIL(FSDP_FORMAT, "bad GGUF file '%s': rows of tensor '%s' are no blocks of 32", c->path, t->name);
    t->bytes = fsdp__gguf_bytes(t->type, t->numel);
    return FSDP_OK;
}

FSDP__ORDER_BY_ONE(by_offset, fsdp__gguf_tensor, offset)

static int by_name(const void *a, const void *b)
{
    return strcmp(((const fsdp__gguf_tensor *)a)->name, ((const fsdp__gguf_tensor *)b)->name);
}

/* Finds the tensors' bytes, which begin at the next multiple of the alignment; leaves the tensors in order of names. */
static fsdp_status place_tensors(const cursor *c, fsdp__gguf *file, uint64_t alignment)
{
    uint64_t all = (uint64_t)(c->end - c->begin), header = (uint64_t)(c->at - c->begin), end = 0;
    uint64_t start = FSDP__ROUND_UP(header, alignment);

    qsort(file->tensors, (size_t)file->tensor_count, sizeof *file->tensors, by_offset);
    for (int64_t i = 0; i < file->tensor_count; i++) {
        fsdp__gguf_tensor *t = &file->tensors[i];

        if (t->offset % alignment != 0 || t->offset < end)
            return FSDP_FAIL(FSDP_FORMAT, "bad GGUF file '%s': tensor '%s' is not aligned, or overlaps another",
                             file->path, t->name);
        if (start > all || t->offset > all - start || t->bytes > all - start - t->offset)
            return FSDP_FAIL(FSDP_FORMAT, "bad GGUF file '%s': it ends before the end of tensor '%s'", file->path,
                             t->name);
        end = t->offset + t->bytes;
        t->offset += start;
        t->data = c->begin + t->offset;
    }
    qsort(file->tensors, (size_t)file->tensor_count, sizeof *file->tensors, by_name);
    for (int64_t i = 1; i < file->tensor_count; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return FSDP_FAIL(FSDP_FORMAT, "bad GGUF file '%s': two tensors are called '%s'", file->path,
                             file->tensors[i].name);
    return FSDP_OK;
}

static fsdp_status parse(cursor *c, fsdp__gguf *file)
{
    uint64_t tensors, values;
    int64_t alignment = FSDP__GGUF_ALIGNMENT;
    uint32_t version;
    char magic[4];

    if (c->end - c->at < 4 || memcmp(c->at, magic_bytes, 4) != 0)
        return FSDP_FAIL(FSDP_FORMAT, "'%s' is no GGUF file: it does not begin with GGUF", c->path);
    FSDP_TRY(take(c, magic, sizeof magic));
    FSDP_TRY(take_u32(c, &version));
    if (version != 2 && version != VERSION) /* version 2 differs in nothing that is read here */
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s' is a GGUF file of version %u%s: versions 2 and 3 can be read", c->path,
                         version, (version & 0xffff) == 0 ? ", or of another byte order" : "");
    FSDP_TRY(take_u64(c, &tensors));
    FSDP_TRY(take_u64(c, &values));
    FSDP_TRY(take_values(c, file, values));
    if (tensors > (uint64_t)(c->end - c->at) / LEAST_TENSOR)
        return bad(c, "it claims more tensors than it can hold");
    FSDP__TRY_NEW(file->tensors = fsdp__calloc((size_t)tensors + 1, sizeof *file->tensors));
    for (; file->tensor_count < (int64_t)tensors; file->tensor_count++)
        FSDP_TRY(take_tensor(c, &file->tensors[file->tensor_count]));
    FSDP_TRY(fsdp__gguf_integer(file, "general.alignment", false, &alignment));
    if (alignment < 8 || alignment > MOST_ALIGNMENT || alignment % 8 != 0)
        return FSDP_FAIL(FSDP_FORMAT,
                         "bad GGUF file '%s': general.alignment is %lld: expected a multiple of 8, at most %d", c->path,
                         (long long)alignment, MOST_ALIGNMENT);
    return place_tensors(c, file, (uint64_t)alignment);
}

bool fsdp__gguf_is_file(const char *path)
{
    char magic[4] = {0};
    struct stat info;
    FILE *file = stat(path, &info) == 0 && S_ISREG(info.st_mode) ? fopen(path, "rbe") : NULL;
    bool is =
        file && fread(magic, 1, sizeof magic, file) == sizeof magic && memcmp(magic, magic_bytes, sizeof magic) == 0;

    if (file)
        fclose(file);
    return is;
}

fsdp_status fsdp__gguf_parse(const char *path, const unsigned char *data, size_t bytes, fsdp__gguf *out)
{
    cursor c = {path, data, data, data + bytes};
    fsdp_status status;

    *out = (fsdp__gguf){.path = path};
    status = parse(&c, out);
    if (status != FSDP_OK)
        fsdp__gguf_release(out);
    return status;
}

void fsdp__gguf_release(fsdp__gguf *file)
{
    FSDP__FREE_ALL(file->values, file->tensors);
    file->values = NULL;
    file->tensors = NULL;
    file->value_count = file->tensor_count = 0;
}

/* ---- looking things up ---- */

const fsdp__gguf_value *fsdp__gguf_find(const fsdp__gguf *file, const char *key)
{
    const fsdp__gguf_value wanted = {.key = {key, strlen(key)}};

    if (file->value_count == 0)
        return NULL;
    return bsearch(&wanted, file->values, (size_t)file->value_count, sizeof wanted, by_key);
}

const fsdp__gguf_tensor *fsdp__gguf_find_tensor(const fsdp__gguf *file, const char *name)
{
    fsdp__gguf_tensor key = {.ndim = 0};

    if (strlen(name) >= sizeof key.name || file->tensor_count == 0)
        return NULL;
    memcpy(key.name, name, strlen(name));
    return bsearch(&key, file->tensors, (size_t)file->tensor_count, sizeof key, by_name);
}

static fsdp_status fail_kind(const fsdp__gguf *file, const char *key, const char *must)
{
    return FSDP_FAIL(FSDP_FORMAT, "'%s': key '%s' %s", file->path, key, must);
}

/* Finds a single value; `*out` is NULL where there is none and none is required. */
static fsdp_status find_single(const fsdp__gguf *file, const char *key, bool required, const fsdp__gguf_value **out)
{
    *out = fsdp__gguf_find(file, key);
    if (!*out)
        return required ? fail_kind(file, key, "is missing") : FSDP_OK;
    return (*out)->array ? fail_kind(file, key, "is an array: expected one value") : FSDP_OK;
}

/* Returns whether a value is an integer of at most INT64_MAX. */
static bool as_integer(const fsdp__gguf_value *v, int64_t *out)
{
    uint64_t bits = 0;
    size_t bytes = kind_bytes[v->kind];
    bool with_sign = v->kind == FSDP__GGUF_I8 || v->kind == FSDP__GGUF_I16 || v->kind == FSDP__GGUF_I32;

    if (v->kind == FSDP__GGUF_REAL || v->kind == FSDP__GGUF_DOUBLE || v->kind == FSDP__GGUF_TEXT)
        return false;
    memcpy(&bits, v->data, bytes);
    if (with_sign && bits >> (8 * bytes - 1))
        bits |= ~(uint64_t)0 << (8 * bytes - 1);
    *out = (int64_t)bits;
    return v->kind != FSDP__GGUF_U64 || bits <= INT64_MAX;
}

fsdp_status fsdp__gguf_integer(const fsdp__gguf *file, const char *key, bool required, int64_t *out)
{
    const fsdp__gguf_value *v;

    FSDP_TRY(find_single(file, key, required, &v));
    return !v || as_integer(v, out) ? FSDP_OK : fail_kind(file, key, "is no whole number, or too large");
}

fsdp_status fsdp__gguf_number(const fsdp__gguf *file, const char *key, bool required, double *out)
{
    const fsdp__gguf_value *v;
    int64_t integer;
    float real;

    FSDP_TRY(find_single(file, key, required, &v));
    if (!v)
        return FSDP_OK;
    if (v->kind == FSDP__GGUF_REAL) {
        memcpy(&real, v->data, sizeof real);
        *out = (double)real;
        return FSDP_OK;
    }
    if (v->kind == FSDP__GGUF_DOUBLE) {
        memcpy(out, v->data, sizeof *out);
        return FSDP_OK;
    }
    if (!as_integer(v, &integer))
        return fail_kind(file, key, "is no number");
    *out = (double)integer;
    return FSDP_OK;
}

fsdp_status fsdp__gguf_string(const fsdp__gguf *file, const char *key, bool required, char **out)
{
    const fsdp__gguf_value *v;
    const unsigned char *at;
    fsdp__gguf_text text;

    FSDP_TRY(find_single(file, key, required, &v));
    if (!v)
        return FSDP_OK;
    if (v->kind != FSDP__GGUF_TEXT)
        return fail_kind(file, key, "is no text");
    at = v->data;
    text = fsdp__gguf_next_text(&at);
    if (memchr(text.data, 0, text.bytes))
        return fail_kind(file, key, "has a NUL");
    FSDP__TRY_NEW(*out = fsdp__calloc(text.bytes + 1, 1));
    memcpy(*out, text.data, text.bytes);
    return FSDP_OK;
}

fsdp_status fsdp__gguf_array(const fsdp__gguf *file, const char *key, fsdp__gguf_kind kind,
                             const fsdp__gguf_value **out)
{
    *out = fsdp__gguf_find(file, key);
    if (!*out)
        return fail_kind(file, key, "is missing");
    if (!(*out)->array || (*out)->kind != kind)
        return fail_kind(file, key,
                         kind == FSDP__GGUF_TEXT   ? "is no array of texts"
                         : kind == FSDP__GGUF_REAL ? "is no array of float32"
                                                   : "is no array of i32");
    return FSDP_OK;
}

fsdp__gguf_text fsdp__gguf_next_text(const unsigned char **at)
{
    fsdp__gguf_text text;
    uint64_t bytes = 0;

    memcpy(&bytes, *at, sizeof bytes);
    text = (fsdp__gguf_text){(const char *)*at + sizeof bytes, (size_t)bytes};
    *at += sizeof bytes + bytes;
    return text;
}

int32_t fsdp__gguf_i32_at(const fsdp__gguf_value *value, uint64_t index)
{
    int32_t out;

    memcpy(&out, value->data + index * sizeof out, sizeof out);
    return out;
}

float fsdp__gguf_real_at(const fsdp__gguf_value *value, uint64_t index)
{
    float out;

    memcpy(&out, value->data + index * sizeof out, sizeof out);
    return out;
}
