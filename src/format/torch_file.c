/* torch_file.c - the tensors of a file that torch.save wrote. */
#include "format/torch_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "format/archive.h"
#include "format/lfs_pointer.h"
#include "format/pickle.h"
#include "tensor/tensor.h"

FSDP__SCOPED_POINTER(fsdp__torch_file, fsdp__torch_file_close)

#define PICKLE_NAME "data.pkl"

enum {
    MAX_PICKLE_BYTES = 64 << 20,
    WINDOW_BYTES = 1 << 22,
    MEMBER_BYTES = 300 /* of a member's name */
};

struct fsdp__torch_file {
    char *path;
    fsdp__archive *archive;
    char folder[MEMBER_BYTES]; /* the beginning of its members' names: "archive/" */
    fsdp__torch_tensor *tensors;
    int64_t count, capacity;
};

#define BAD_TENSOR(file, name, format, ...) \
    FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': tensor '%s': " format, (file)->path, (name), __VA_ARGS__)

/* A pickle that is being read. */
typedef struct reader {
    fsdp__torch_file *file;
    fsdp__pickle pickle;
    char name[FSDP__NAME_TEXT]; /* of the tensor, for messages */
} reader;

typedef const fsdp__pickle_value value;

/* ---- storages ---- */

/* Returns the dtype of a storage; FSDP_DTYPE_NONE: PyTorch has it and this library has not. */
static fsdp_dtype storage_dtype(int64_t name, size_t *out_bytes)
{
    static const struct {
        fsdp_dtype dtype;
        size_t bytes;
    } types[FSDP__PICKLE_NAME_COUNT] = {
        [FSDP__PICKLE_FLOAT_STORAGE] = {FSDP_F32, 4},        [FSDP__PICKLE_BFLOAT16_STORAGE] = {FSDP_BF16, 2},
        [FSDP__PICKLE_HALF_STORAGE] = {FSDP_F16, 2},         [FSDP__PICKLE_DOUBLE_STORAGE] = {FSDP_DTYPE_NONE, 8},
        [FSDP__PICKLE_LONG_STORAGE] = {FSDP_I64, 8},         [FSDP__PICKLE_INT_STORAGE] = {FSDP_I32, 4},
        [FSDP__PICKLE_SHORT_STORAGE] = {FSDP_DTYPE_NONE, 2}, [FSDP__PICKLE_CHAR_STORAGE] = {FSDP_DTYPE_NONE, 1},
        [FSDP__PICKLE_BYTE_STORAGE] = {FSDP_U8, 1},          [FSDP__PICKLE_BOOL_STORAGE] = {FSDP_BOOL, 1},
        [FSDP__PICKLE_UNTYPED_STORAGE] = {FSDP_U8, 1},       [FSDP__PICKLE_UNTYPED_STORAGE_TOO] = {FSDP_U8, 1},
    };

    *out_bytes = types[name].bytes;
    return types[name].dtype;
}

static bool text_is(value *v, const char *text)
{
    return v && v->kind == FSDP__PICKLE_TEXT && (size_t)v->integer == strlen(text) &&
           memcmp(v->text, text, strlen(text)) == 0;
}

static bool has_kind(value *v, fsdp__pickle_kind kind)
{
    return v && v->kind == kind;
}

/* Finds the member that has the storage's bytes. */
static fsdp_status find_storage(const reader *r, value *key, fsdp__torch_tensor *tensor)
{
    char member[2 * MEMBER_BYTES];

    if (key->integer > 64)
        return BAD_TENSOR(r->file, r->name, "the name of its storage has %lld characters", (long long)key->integer);
    snprintf(member, sizeof member, "%sdata/%.*s", r->file->folder, (int)key->integer, key->text);
    tensor->storage = fsdp__archive_find(r->file->archive, member);
    if (tensor->storage < 0)
        return BAD_TENSOR(r->file, r->name, "the archive lacks '%s', which should hold its elements",
                          FSDP__SHOWN_NAME(member));
    return FSDP_OK;
}

/* Reads ('storage', its type, its name, where it was, elements). */
static fsdp_status read_storage(const reader *r, value *persistent, fsdp__torch_tensor *tensor, int64_t *out_numel)
{
    value *id = has_kind(persistent, FSDP__PICKLE_PERSISTENT) ? fsdp__pickle_item(&r->pickle, persistent, 0) : NULL;
    value *type, *key, *numel;
    uint64_t held = 0;

    if (!has_kind(id, FSDP__PICKLE_TUPLE) || id->integer != 5 ||
        !text_is(fsdp__pickle_item(&r->pickle, id, 0), "storage"))
        return BAD_TENSOR(r->file, r->name, "%s", "what it is a view of is not a storage");
    type = fsdp__pickle_item(&r->pickle, id, 1);
    key = fsdp__pickle_item(&r->pickle, id, 2);
    numel = fsdp__pickle_item(&r->pickle, id, 4);
    if (type->kind != FSDP__PICKLE_GLOBAL || type->integer < FSDP__PICKLE_FLOAT_STORAGE ||
        key->kind != FSDP__PICKLE_TEXT || numel->kind != FSDP__PICKLE_INTEGER || numel->integer < 0)
        return BAD_TENSOR(r->file, r->name, "%s", "its storage is not a type, a name and a number of elements");
    tensor->dtype = storage_dtype(type->integer, &tensor->element_bytes);
    tensor->dtype_name = tensor->dtype == FSDP_DTYPE_NONE ? fsdp__pickle_name_text((fsdp__pickle_name)type->integer)
                                                          : fsdp_dtype_name(tensor->dtype);
    FSDP_TRY(find_storage(r, key, tensor));
    FSDP_TRY(fsdp__archive_size(r->file->archive, tensor->storage, &held));
    if (held / tensor->element_bytes != (uint64_t)numel->integer || held % tensor->element_bytes != 0)
        return BAD_TENSOR(r->file, r->name, "'%s' has %llu bytes, but should hold %lld elements of %s",
                          FSDP__SHOWN_NAME(fsdp__archive_name(r->file->archive, tensor->storage)),
                          (unsigned long long)held, (long long)numel->integer, tensor->dtype_name);
    *out_numel = numel->integer;
    return FSDP_OK;
}

/* ---- tensors ---- */

/* Reads a tuple of sizes, or of strides. */
static fsdp_status read_sizes(const reader *r, value *tuple, const char *what, int64_t *out, int *out_count)
{
    if (!has_kind(tuple, FSDP__PICKLE_TUPLE))
        return BAD_TENSOR(r->file, r->name, "its %s is not a tuple", what);
    if (tuple->integer > FSDP_MAX_DIMS)
        return BAD_TENSOR(r->file, r->name, "%lld dimensions: at most %d are supported", (long long)tuple->integer,
                          FSDP_MAX_DIMS);
    *out_count = (int)tuple->integer;
    for (int i = 0; i < *out_count; i++) {
        value *size = fsdp__pickle_item(&r->pickle, tuple, i);

        if (size->kind != FSDP__PICKLE_INTEGER || size->integer < 0)
            return BAD_TENSOR(r->file, r->name, "number %d of its %s is not a whole number", i, what);
        out[i] = size->integer;
    }
    return FSDP_OK;
}

/* Checks that the view's last element lies in a storage of `storage_numel` elements; products are checked for
 * overflow. */
static fsdp_status check_view(const reader *r, const fsdp__torch_tensor *tensor, int64_t storage_numel)
{
    int64_t numel = fsdp__shape_numel(tensor->ndim, tensor->shape), last = tensor->offset, span;

    if (numel < 0 || numel > INT64_MAX / 8)
        return BAD_TENSOR(r->file, r->name, "%s", "its shape is too large");
    for (int i = 0; i < tensor->ndim && numel > 0; i++)
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->strides[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return BAD_TENSOR(r->file, r->name, "%s", "its strides are too large");
    if (numel > 0 && last >= storage_numel)
        return BAD_TENSOR(r->file, r->name, "its last element is number %lld of a storage of %lld", (long long)last,
                          (long long)storage_numel);
    return FSDP_OK;
}

/* Reads (storage, offset, size, stride, whether it needs a gradient, hooks[, metadata]). */
static fsdp_status read_view(const reader *r, value *arguments, fsdp__torch_tensor *tensor)
{
    value *offset = fsdp__pickle_item(&r->pickle, arguments, 1);
    int64_t storage_numel = 0;
    int strides = 0;

    if (arguments->integer < 4 || offset->kind != FSDP__PICKLE_INTEGER || offset->integer < 0)
        return BAD_TENSOR(r->file, r->name, "%s", "it is not made of storage, offset, size and stride");
    tensor->offset = offset->integer;
    FSDP_TRY(read_storage(r, fsdp__pickle_item(&r->pickle, arguments, 0), tensor, &storage_numel));
    FSDP_TRY(read_sizes(r, fsdp__pickle_item(&r->pickle, arguments, 2), "size", tensor->shape, &tensor->ndim));
    FSDP_TRY(read_sizes(r, fsdp__pickle_item(&r->pickle, arguments, 3), "stride", tensor->strides, &strides));
    if (strides != tensor->ndim)
        return BAD_TENSOR(r->file, r->name, "%d strides for %d dimensions", strides, tensor->ndim);
    return check_view(r, tensor, storage_numel);
}

/* Reads a call that makes a tensor; a call that makes a parameter has the tensor as its first argument. */
static fsdp_status read_tensor(const reader *r, value *call, fsdp__torch_tensor *tensor)
{
    for (int depth = 0; has_kind(call, FSDP__PICKLE_CALL) && depth < 2; depth++) {
        value *name = fsdp__pickle_item(&r->pickle, call, 0), *arguments = fsdp__pickle_item(&r->pickle, call, 1);

        if (name->integer == FSDP__PICKLE_REBUILD_TENSOR)
            return read_view(r, arguments, tensor);
        call = name->integer == FSDP__PICKLE_REBUILD_PARAMETER ? fsdp__pickle_item(&r->pickle, arguments, 0) : NULL;
    }
    return BAD_TENSOR(r->file, r->name, "%s", "it is not a tensor, and a state dict holds nothing else");
}

static fsdp_status add_tensor(reader *r, value *key, value *call)
{
    fsdp__torch_tensor tensor = {.ndim = 0};
    fsdp__torch_file *file = r->file;

    if (!has_kind(key, FSDP__PICKLE_TEXT) || memchr(key->text, '\0', (size_t)key->integer))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': byte %zu of " PICKLE_NAME ": a key that is not a name",
                         file->path, key->at);
    if (fsdp__grow(&file->tensors, file->count, &file->capacity, sizeof *file->tensors) != FSDP_OK ||
        !(tensor.name = fsdp__sprintf("%.*s", (int)FSDP__MIN(key->integer, MAX_PICKLE_BYTES), key->text)))
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", file->path);
    file->tensors[file->count++] = tensor;
    fsdp__shown(tensor.name, r->name, sizeof r->name);
    return read_tensor(r, call, &file->tensors[file->count - 1]);
}

static fsdp_status read_state_dict(reader *r)
{
    value *result = r->pickle.result, *key = NULL;
    fsdp__torch_file *file = r->file;

    if (result->kind != FSDP__PICKLE_DICT)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it holds no state dict", file->path);
    for (int32_t at = result->first; at >= 0; at = r->pickle.links[at].next) {
        value *item = &r->pickle.values[r->pickle.links[at].value];

        if (key)
            FSDP_TRY(add_tensor(r, key, item));
        key = key ? NULL : item;
    }
    if (file->count > 1)
        qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, fsdp__by_name);
    for (int64_t i = 1; i < file->count; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return BAD_TENSOR(file, FSDP__SHOWN_NAME(file->tensors[i].name), "%s", "it is there twice");
    return FSDP_OK;
}

/* ---- the archive ---- */

/* Finds the folder that contains the pickle. */
static fsdp_status find_folder(fsdp__torch_file *file)
{
    const char *end = "/" PICKLE_NAME;
    size_t end_length = strlen(end);

    for (int64_t i = 0; i < fsdp__archive_count(file->archive); i++) {
        const char *name = fsdp__archive_name(file->archive, i);
        size_t length = strlen(name), folder = length - end_length + 1;

        if (length <= end_length || strcmp(name + length - end_length, end) != 0 || folder >= sizeof file->folder ||
            memchr(name, '/', folder - 1))
            continue;
        memcpy(file->folder, name, folder);
        file->folder[folder] = '\0';
        return FSDP_OK;
    }
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a zip archive, but not one of torch.save: it has no " PICKLE_NAME,
                     file->path);
}

static int64_t find_member(const fsdp__torch_file *file, const char *name)
{
    char member[2 * MEMBER_BYTES];

    snprintf(member, sizeof member, "%s%s", file->folder, name);
    return fsdp__archive_find(file->archive, member);
}

static fsdp_status check_kind(const fsdp__torch_file *file)
{
    int64_t order = find_member(file, "byteorder");
    char text[6] = "little";
    uint64_t bytes = sizeof text;

    if (find_member(file, "constants.pkl") >= 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': it is a program of TorchScript, not a state dict",
                         file->path);
    if (order >= 0) { /* absent in files of older versions, which are little-endian */
        FSDP_TRY(fsdp__archive_size(file->archive, order, &bytes));
        if (bytes == sizeof text)
            FSDP_TRY(fsdp__archive_read(file->archive, order, 0, text, sizeof text));
    }
    if (bytes != sizeof text || memcmp(text, "little", sizeof text) != 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': its byteorder is not little", file->path);
    return FSDP_OK;
}

static fsdp_status read_pickle(fsdp__torch_file *file)
{
    FSDP__SCOPED(fsdp__pickle_release) fsdp__pickle pickle = {0};
    int64_t member = find_member(file, PICKLE_NAME);
    uint64_t bytes = 0;
    FSDP__FREED void *data = NULL;

    FSDP_TRY(fsdp__archive_size(file->archive, member, &bytes));
    if (bytes > MAX_PICKLE_BYTES)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': a " PICKLE_NAME " of %llu bytes is over the limit of %d",
                         file->path, (unsigned long long)bytes, MAX_PICKLE_BYTES);
    data = fsdp__malloc((size_t)bytes);
    if (!data)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", file->path);
    FSDP_TRY(fsdp__archive_read(file->archive, member, 0, data, (size_t)bytes));
    FSDP_TRY(fsdp__pickle_parse(file->path, data, (size_t)bytes, &pickle));
    return read_state_dict(&(reader){.file = file, .pickle = pickle});
}

/* ---- what else such a file may be ---- */

/* Recognises other formats by the first bytes, as far as they are there. */
static fsdp_status check_magic(const char *path, const unsigned char *data, size_t bytes)
{
    /* A pickle of protocol 2 that begins with the integer 0x1950a86a20f9469cfc6c. */
    static const unsigned char legacy[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46};
    enum {
        TAR_MAGIC = 257
    };

    if (bytes >= 4 && memcmp(data, "PK\3\4", 4) == 0)
        return FSDP_OK;
    if (bytes >= sizeof legacy && memcmp(data, legacy, sizeof legacy) == 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot read '%s': it is in the format that torch.save used before PyTorch 1.6: load it and "
                         "save it again with a newer version, or convert it to safetensors",
                         path);
    if (bytes >= TAR_MAGIC + 5 && memcmp(data + TAR_MAGIC, "ustar", 5) == 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot read '%s': it is a tar file: unpack it, or convert its tensors to safetensors", path);
    FSDP_TRY(fsdp__lfs_pointer_refuse(path, data, bytes));
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s': it does not begin as a file of torch.save does, which is a zip archive", path);
}

static fsdp_status check_file(const char *path)
{
    unsigned char head[512];
    size_t bytes = 0;
    FSDP__CLOSED int fd = -1;

    FSDP_TRY(fsdp__file_open(path, &fd, &bytes));
    bytes = FSDP__MIN(bytes, sizeof head);
    FSDP_TRY(fsdp__file_pread(fd, path, head, bytes, 0));
    return check_magic(path, head, bytes);
}

/* Opens the archive, which is taken over, also on failure. */
static fsdp_status open_archive(const char *path, fsdp__archive *archive, fsdp__torch_file **out)
{
    FSDP__SCOPED(fsdp__torch_file_close_at) fsdp__torch_file *file = fsdp__calloc(1, sizeof *file);

    if (!file) {
        fsdp__archive_close(archive);
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", path);
    }
    file->archive = archive;
    file->path = fsdp__strdup(path);
    if (!file->path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", path);
    FSDP_TRY(find_folder(file));
    FSDP_TRY(check_kind(file));
    FSDP_TRY(read_pickle(file));
    *out = fsdp__take(&file);
    return FSDP_OK;
}

fsdp_status fsdp__torch_file_open(const char *path, fsdp__torch_file **out)
{
    fsdp__archive *archive = NULL;

    FSDP_TRY(check_file(path));
    FSDP_TRY(fsdp__archive_open(path, &archive));
    return open_archive(path, archive, out);
}

void fsdp__torch_file_close(fsdp__torch_file *file)
{
    if (!file)
        return;
    for (int64_t i = 0; i < file->count; i++)
        fsdp__free(file->tensors[i].name);
    fsdp__free(file->tensors);
    fsdp__archive_close(file->archive);
    FSDP__FREE_ALL(file->path, file);
}

int64_t fsdp__torch_file_count(const fsdp__torch_file *file)
{
    return file->count;
}

const fsdp__torch_tensor *fsdp__torch_file_at(const fsdp__torch_file *file, int64_t index)
{
    return &file->tensors[index];
}

/* ---- elements ---- */

/* Describes a view in the order in which its elements lie in the storage: dimensions by descending strides. */
typedef struct walk {
    int ndim;
    int64_t shape[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS]; /* in the storage */
    int64_t steps[FSDP_MAX_DIMS];                         /* in the row-major order */
    int64_t first, numel;                                 /* the wanted elements, in row-major order */
    size_t size;
    char *out;
} walk;

static bool is_row_major(const fsdp__torch_tensor *tensor)
{
    int64_t step = 1;

    for (int i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != step)
            return false;
        step *= tensor->shape[i];
    }
    return true;
}

static walk walk_of(const fsdp__torch_tensor *tensor)
{
    walk w = {.ndim = tensor->ndim, .size = tensor->element_bytes};
    int64_t step = 1;

    for (int i = tensor->ndim - 1; i >= 0; i--) {
        int at = tensor->ndim - 1 - i;

        for (; at > 0 && w.strides[at - 1] < tensor->strides[i]; at--) {
            w.shape[at] = w.shape[at - 1];
            w.strides[at] = w.strides[at - 1];
            w.steps[at] = w.steps[at - 1];
        }
        w.shape[at] = tensor->shape[i];
        w.strides[at] = tensor->strides[i];
        w.steps[at] = step;
        step *= tensor->shape[i];
    }
    return w;
}

/* Holds a piece of the storage. */
typedef struct window {
    fsdp__torch_file *file;
    const fsdp__torch_tensor *tensor;
    int64_t storage_numel, first, numel; /* in elements */
    char *data;
} window;

static fsdp_status move_window(window *piece, int64_t to)
{
    size_t size = piece->tensor->element_bytes;

    piece->first = to;
    piece->numel = FSDP__MIN((int64_t)(WINDOW_BYTES / size), piece->storage_numel - to);
    return fsdp__archive_read(piece->file->archive, piece->tensor->storage, (uint64_t)to * size, piece->data,
                              (size_t)piece->numel * size);
}

/* Gathers one element after the other, in the order of the storage. */
static fsdp_status gather(const walk *w, window *piece)
{
    int64_t at[FSDP_MAX_DIMS] = {0}, from = piece->tensor->offset, to = 0;

    for (;;) {
        int dim = w->ndim - 1;

        if (to >= w->first && to < w->first + w->numel) {
            if (from < piece->first || from >= piece->first + piece->numel)
                FSDP_TRY(move_window(piece, from));
            memcpy(w->out + (size_t)(to - w->first) * w->size, piece->data + (size_t)(from - piece->first) * w->size,
                   w->size);
        }
        for (; dim >= 0 && ++at[dim] == w->shape[dim]; dim--) {
            from -= (w->shape[dim] - 1) * w->strides[dim];
            to -= (w->shape[dim] - 1) * w->steps[dim];
            at[dim] = 0;
        }
        if (dim < 0)
            return FSDP_OK;
        from += w->strides[dim];
        to += w->steps[dim];
    }
}

static fsdp_status read_strided(fsdp__torch_file *file, const fsdp__torch_tensor *tensor, int64_t first, int64_t numel,
                                void *out)
{
    FSDP__FREED void *data = NULL;
    window piece = {.file = file, .tensor = tensor, .first = 0, .numel = 0};
    walk w = walk_of(tensor);
    uint64_t bytes = 0;

    w.first = first;
    w.numel = numel;
    w.out = out;
    FSDP_TRY(fsdp__archive_size(file->archive, tensor->storage, &bytes));
    piece.storage_numel = (int64_t)(bytes / w.size);
    piece.data = data = fsdp__malloc(FSDP__MIN((size_t)bytes, (size_t)WINDOW_BYTES));
    if (!data)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", file->path);
    return gather(&w, &piece);
}

fsdp_status fsdp__torch_file_read(fsdp__torch_file *file, const fsdp__torch_tensor *tensor, int64_t first,
                                  int64_t numel, void *out)
{
    size_t size = tensor->element_bytes;
    fsdp_status status;

    if (numel == 0)
        return FSDP_OK;
    if (is_row_major(tensor))
        status = fsdp__archive_read(file->archive, tensor->storage, (uint64_t)(tensor->offset + first) * size, out,
                                    (size_t)numel * size);
    else
        status = read_strided(file, tensor, first, numel, out);
    return fsdp_fail_prefix(status, "tensor '%s'", FSDP__SHOWN_NAME(tensor->name));
}
