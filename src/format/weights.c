/* weights.c - the tensors of a model folder, in safetensors or in files of torch.save. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "format/gguf.h"
#include "format/journal.h"
#include "format/safetensors.h"
#include "format/torch_file.h"
#include "tensor/tensor.h"

#define TORCH_NAME "pytorch_model.bin"
#define TORCH_INDEX TORCH_NAME ".index.json"
#define INDEX_LIMIT_BYTES ((size_t)100 << 20)

/* A file of torch.save; safetensors files are kept in `safetensors`. */
typedef struct torch_part {
    char *path;
    fsdp__torch_file *file;
} torch_part;

struct fsdp_weights {
    fsdp_safetensors *safetensors; /* NULL: all tensors are in `parts` */
    torch_part *parts;
    int64_t part_count, part_capacity;
    fsdp_weights_entry *entries; /* by name */
    int64_t count, capacity;
    const char *open_path; /* the safetensors file that was read last; NULL: none */
    int open_fd;
};

static fsdp_status out_of_memory(const char *path)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", path);
}

static fsdp_status add_entry(fsdp_weights *weights, const fsdp_weights_entry *entry)
{
    if (fsdp__grow(&weights->entries, weights->count, &weights->capacity, sizeof *weights->entries) != 0)
        return out_of_memory(entry->file);
    weights->entries[weights->count++] = *entry;
    return FSDP_OK;
}

/* ---- safetensors ---- */

static fsdp_status open_safetensors(fsdp_weights *weights, const char *path)
{
    FSDP_TRY(fsdp_safetensors_open(path, &weights->safetensors));
    for (int64_t i = 0; i < fsdp_safetensors_count(weights->safetensors); i++) {
        const fsdp_safetensors_entry *from = fsdp_safetensors_at(weights->safetensors, i);
        fsdp_weights_entry entry = {.name = from->name,
                                    .dtype = from->dtype,
                                    .dtype_name = from->dtype_name,
                                    .unlisted = from->unlisted,
                                    .ndim = from->ndim,
                                    .bytes = from->bytes,
                                    .file = from->file,
                                    .offset = fsdp__safetensors_offset(weights->safetensors, from)};

        memcpy(entry.shape, from->shape, sizeof entry.shape);
        FSDP_TRY(add_entry(weights, &entry));
    }
    return FSDP_OK;
}

/* Opens a file to read rows of it. Another run may export to the folder meanwhile: its rows must not be mixed with
 * those of this file. */
static fsdp_status open_for_rows(fsdp_weights *weights, const char *path)
{
    if (weights->open_path == path)
        return FSDP_OK;
    if (weights->open_path)
        close(weights->open_fd);
    weights->open_path = NULL;
    FSDP_TRY(fsdp__file_open(path, &weights->open_fd, NULL));
    if (fsdp__safetensors_is_open(weights->safetensors, path, weights->open_fd)) {
        weights->open_path = path;
        return FSDP_OK;
    }
    close(weights->open_fd);
    return FSDP_FAIL(FSDP_STATE, "cannot read '%s': it has been replaced since it was opened: start again", path);
}

/* Reads rows, but not through the map: what is read from that counts as this process's memory. */
static fsdp_status read_safetensors(fsdp_weights *weights, const fsdp_weights_entry *entry, int64_t first,
                                    int64_t numel, void *out)
{
    size_t size = fsdp_dtype_size(entry->dtype);

    FSDP_TRY(open_for_rows(weights, entry->file));
    return fsdp__file_pread(weights->open_fd, entry->file, out, (size_t)numel * size,
                            entry->offset + (uint64_t)first * size);
}

/* ---- files of torch.save ---- */

/* Adds a file. `path` is taken over, also on failure. */
static fsdp_status add_part(fsdp_weights *weights, char *path)
{
    FSDP__FREED char *own = path;
    torch_part *part;

    if (!path ||
        fsdp__grow(&weights->parts, weights->part_count, &weights->part_capacity, sizeof *weights->parts) != FSDP_OK)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open a file of weights");
    part = &weights->parts[weights->part_count++];
    *part = (torch_part){.path = fsdp__take(&own)};
    FSDP_TRY(fsdp__torch_file_open(path, &part->file));
    for (int64_t i = 0; i < fsdp__torch_file_count(part->file); i++) {
        const fsdp__torch_tensor *from = fsdp__torch_file_at(part->file, i);
        fsdp_weights_entry entry = {.name = from->name,
                                    .dtype = from->dtype,
                                    .dtype_name = from->dtype_name,
                                    .ndim = from->ndim,
                                    .file = path,
                                    .offset = (uint64_t)from->offset * from->element_bytes,
                                    .part = weights->part_count - 1,
                                    .index = i};

        memcpy(entry.shape, from->shape, sizeof entry.shape);
        entry.bytes = (size_t)fsdp__shape_numel(entry.ndim, entry.shape) * from->element_bytes;
        FSDP_TRY(add_entry(weights, &entry));
    }
    return FSDP_OK;
}

static fsdp_status add_listed(fsdp_weights *weights, const char *index_path, const char *directory,
                              const fsdp__index *index)
{
    for (int64_t at = 0, count; at < index->count; at += count) {
        int64_t first = weights->count;
        fsdp_weights_entry *held;
        char *path;

        count = fsdp__index_run(index, at);
        FSDP_TRY(fsdp__index_file(index_path, directory, index->entries + at, count, &path));
        FSDP_TRY(add_part(weights, path));
        held = weights->count > first ? weights->entries + first : NULL;
        FSDP_TRY(fsdp__index_compare(index_path, weights->parts[weights->part_count - 1].path, index->entries + at,
                                     count, held ? &held->name : NULL, held ? &held->unlisted : NULL, sizeof *held,
                                     weights->count - first));
    }
    return FSDP_OK;
}

static fsdp_status open_torch_index(fsdp_weights *weights, const char *path)
{
    FSDP__FREED char *directory = fsdp__path_parent(path), *text = NULL;
    FSDP__SCOPED(fsdp__index_release) fsdp__index index = {0};
    size_t bytes = 0;

    if (!directory)
        return out_of_memory(path);
    FSDP_TRY(fsdp__journal_check(directory));
    FSDP_TRY(fsdp__file_read(path, INDEX_LIMIT_BYTES, &text, &bytes));
    FSDP_TRY(fsdp__index_parse(path, text, bytes, &index));
    return add_listed(weights, path, directory, &index);
}

/* Opens a folder: safetensors where there are both, as transformers does. */
static fsdp_status open_folder(fsdp_weights *weights, const char *folder)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", TORCH_NAME, TORCH_INDEX};

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        FSDP__FREED char *path = fsdp__path_join(folder, names[i]);

        if (!path)
            return out_of_memory(folder);
        if (!fsdp__path_exists(path))
            continue;
        if (i < 2)
            return open_safetensors(weights, folder);
        return i == 2 ? add_part(weights, fsdp__take(&path)) : open_torch_index(weights, path);
    }
    return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has no weights: neither %s, %s, %s nor %s%s", folder, names[0], names[1],
                     names[2], names[3], fsdp__weights_hint(folder, FSDP__ROOM(FSDP__HINT_TEXT)));
}

static fsdp_status open_any(fsdp_weights *weights, const char *path)
{
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        FSDP_TRY(fsdp__journal_check(path));
        return open_folder(weights, path);
    }
    if (fsdp__gguf_is_file(path))
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "cannot read '%s': it is a GGUF file, of llama.cpp: fsdp convert %s -o FOLDER makes a folder of "
            "it",
            path, FSDP__SHELL_WORD(path));
    if (fsdp__ends_with(path, ".bin.index.json"))
        return open_torch_index(weights, path);
    if (fsdp__ends_with(path, ".bin") || fsdp__ends_with(path, ".pt") || fsdp__ends_with(path, ".pth"))
        return add_part(weights, fsdp__strdup(path));
    return open_safetensors(weights, path);
}

/* ---- public ---- */

static fsdp_status sort(fsdp_weights *weights)
{
    fsdp_weights_entry *first = weights->entries;

    if (weights->count < 2)
        return FSDP_OK;
    qsort(first, (size_t)weights->count, sizeof *first, fsdp__by_name);
    return fsdp__index_check_names(&first->name, &first->file, sizeof *first, weights->count);
}

fsdp_status fsdp_weights_open(const char *path, fsdp_weights **out)
{
    FSDP__SCOPED(fsdp_weights_close_at) fsdp_weights *weights = NULL;

    if (!path || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open weights: path and out are required");
    *out = NULL;
    weights = fsdp__calloc(1, sizeof *weights);
    if (!weights)
        return out_of_memory(path);
    FSDP_TRY(open_any(weights, path));
    FSDP_TRY(sort(weights));
    *out = fsdp__take(&weights);
    return FSDP_OK;
}

void fsdp_weights_close(fsdp_weights *weights)
{
    if (!weights)
        return;
    if (weights->open_path)
        close(weights->open_fd);
    for (int64_t i = 0; i < weights->part_count; i++) {
        fsdp__torch_file_close(weights->parts[i].file);
        fsdp__free(weights->parts[i].path);
    }
    FSDP__FREE_ALL(weights->parts, weights->entries);
    fsdp_safetensors_close(weights->safetensors);
    fsdp__free(weights);
}

int64_t fsdp_weights_file_count(const fsdp_weights *weights)
{
    if (!weights)
        return 0;
    return weights->safetensors ? fsdp_safetensors_file_count(weights->safetensors) : weights->part_count;
}

int64_t fsdp_weights_count(const fsdp_weights *weights)
{
    return weights ? weights->count : 0;
}

const fsdp_weights_entry *fsdp_weights_at(const fsdp_weights *weights, int64_t index)
{
    return index >= 0 && index < fsdp_weights_count(weights) ? &weights->entries[index] : NULL;
}

const fsdp_weights_entry *fsdp_weights_find(const fsdp_weights *weights, const char *name)
{
    fsdp_weights_entry key = {.name = name};

    if (!name || fsdp_weights_count(weights) == 0)
        return NULL;
    return bsearch(&key, weights->entries, (size_t)weights->count, sizeof key, fsdp__by_name);
}

fsdp_status fsdp_weights_read(fsdp_weights *weights, const fsdp_weights_entry *entry, int64_t first, int64_t numel,
                              void *out)
{
    fsdp__torch_file *file;

    if (weights && entry && entry->dtype == FSDP_DTYPE_NONE)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot read '%s': tensor '%s' is %s, which is not supported: float32, bfloat16, float16, "
                         "int32, int64, uint8 and bool are",
                         entry->file, FSDP__SHOWN_NAME(entry->name), entry->dtype_name);
    if (!weights || !entry || first < 0 || numel < 0 ||
        numel > (int64_t)(entry->bytes / fsdp_dtype_size(entry->dtype)) - first || (!out && numel > 0))
        return FSDP_FAIL(FSDP_INVALID, "cannot read %lld elements from %lld on of tensor '%s'", (long long)numel,
                         (long long)first, entry ? FSDP__SHOWN_NAME(entry->name) : "");
    if (weights->safetensors)
        return read_safetensors(weights, entry, first, numel, out);
    file = weights->parts[entry->part].file;
    return fsdp__torch_file_read(file, fsdp__torch_file_at(file, entry->index), first, numel, out);
}
