/* spill.c - copies tensors into memory that does not count as the process's own. */
#include "cli/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/finite_values.h"
#include "tensor/tensor.h"
#include "train/checkpoint_values.h"

enum {
    WINDOW = 1 << 20, /* elements */
    ALIGNMENT = 64
};

/* A copy in progress. */
typedef struct spiller {
    fsdp__tensor_source *source;
    fsdp_context *context; /* for conversions */
    fsdp__spill *spill;
    fsdp__spill_progress progress;
    void *arg;
    char *path; /* for messages */
    int fd;
    void *read, *converted; /* one window each */
} spiller;

static bool is_converted(const fsdp__tensor_source *source, const fsdp__source_tensor *tensor, fsdp_dtype dtype)
{
    const fsdp_checkpoint_tensor *entry = tensor->entry;

    return dtype != FSDP_DTYPE_NONE && fsdp_dtype_is_floating(tensor->dtype) &&
           (!source->reader || strcmp(entry->section, FSDP__SECTION_MODEL) == 0);
}

static fsdp_status plan(const fsdp__tensor_source *source, fsdp_dtype dtype, fsdp__spill *out)
{
    out->items = fsdp__calloc((size_t)source->count + 1, sizeof *out->items);
    if (!out->items)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    for (int64_t i = 0; i < source->count; i++) {
        fsdp__spilled *item = &out->items[i];

        item->tensor = &source->tensors[i];
        item->dtype = is_converted(source, item->tensor, dtype) ? dtype : item->tensor->dtype;
        item->offset = out->bytes;
        out->bytes += (size_t)item->tensor->numel * fsdp_dtype_size(item->dtype);
        out->bytes = FSDP__ROUND_UP(out->bytes, ALIGNMENT);
    }
    out->count = source->count;
    return FSDP_OK;
}

/* Creates the file and allocates all of its space now, so that a full disk is found here, and not when the mapping is
 * read. */
static fsdp_status create_file(spiller *s, const char *folder)
{
    fsdp__directory *held = &s->spill->folder;
    int error;

    s->path = fsdp__sprintf("%s/(a temporary file)", folder);
    if (!s->path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    FSDP_TRY(fsdp__directory_make_path(folder, held, &s->spill->made));
    FSDP_TRY(fsdp__directory_make_nameless(held, &s->fd));
    error = s->spill->bytes > 0 ? posix_fallocate(s->fd, 0, (off_t)s->spill->bytes) : 0;
    if (error != 0)
        return FSDP_FAIL(FSDP_IO, "cannot take %llu bytes for a temporary file in '%s': %s%s",
                         (unsigned long long)s->spill->bytes, folder, strerrordesc_np(error),
                         fsdp__limit_behind(error));
    return FSDP_OK;
}

static fsdp_status convert(const spiller *s, fsdp_dtype from, fsdp_dtype to, int64_t n)
{
    fsdp_tensor *tensor;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(s->context));
    tensor = fsdp_from_data(fsdp_cpu(s->context), from, FSDP_SHAPE(n), s->read);
    status = tensor ? fsdp_tensor_read(tensor, to, s->converted) : fsdp_last_status();
    fsdp_scope_end(s->context, NULL);
    return status;
}

/* Checks that the converted values of a window are finite where the originals were. */
static fsdp_status check_converted(const spiller *s, const fsdp__spilled *item, int64_t first, int64_t n)
{
    size_t size = fsdp_dtype_size(item->dtype), read_size = fsdp_dtype_size(item->tensor->dtype);

    for (int64_t i = 0; i < n; i++) {
        i += fsdp__first_not_finite((const char *)s->converted + (size_t)i * size, n - i, item->dtype);
        if (i < n && fsdp__first_not_finite((const char *)s->read + (size_t)i * read_size, 1, item->tensor->dtype) == 1)
            return FSDP_FAIL(
                FSDP_INVALID,
                "cannot convert tensor '%s': its element %lld is too large for %s: take bfloat16 or float32",
                FSDP__SHOWN_NAME(item->tensor->name), (long long)(first + i), fsdp_dtype_name(item->dtype));
    }
    return FSDP_OK;
}

static void look_at(spiller *s, const fsdp__spilled *item, int64_t first, int64_t n)
{
    int64_t at = s->spill->not_finite ? n : fsdp__first_not_finite(s->read, n, item->tensor->dtype);

    if (at == n)
        return;
    s->spill->not_finite = item->tensor;
    s->spill->not_finite_element = first + at;
}

static fsdp_status copy_tensor(spiller *s, const fsdp__spilled *item)
{
    size_t size = fsdp_dtype_size(item->dtype);

    for (int64_t first = 0; first < item->tensor->numel; first += WINDOW) {
        int64_t n = FSDP__MIN(item->tensor->numel - first, WINDOW);
        bool same = item->dtype == item->tensor->dtype;

        FSDP_TRY(fsdp__tensor_source_read(s->source, item->tensor, first, n, s->read));
        look_at(s, item, first, n);
        if (!same)
            FSDP_TRY(convert(s, item->tensor->dtype, item->dtype, n));
        if (!same)
            FSDP_TRY(check_converted(s, item, first, n));
        FSDP_TRY(fsdp__file_pwrite(s->fd, s->path, same ? s->read : s->converted, (size_t)n * size,
                                   item->offset + (uint64_t)first * size));
        s->progress(s->arg, item->offset + (uint64_t)(first + n) * size, s->spill->bytes);
    }
    return FSDP_OK;
}

static fsdp_status fill(spiller *s, const char *folder)
{
    void *data;

    s->read = fsdp__malloc(WINDOW * sizeof(int64_t));
    s->converted = s->read ? fsdp__malloc(WINDOW * sizeof(int64_t)) : NULL;
    if (!s->converted)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot convert");
    FSDP_TRY(fsdp_context_create(&(fsdp_context_options){.threads = 1}, &s->context));
    FSDP_TRY(create_file(s, folder));
    for (int64_t i = 0; i < s->spill->count; i++)
        FSDP_TRY(copy_tensor(s, &s->spill->items[i]));
    if (s->spill->bytes == 0)
        return FSDP_OK;
    data = mmap(NULL, s->spill->bytes, PROT_READ, MAP_SHARED, s->fd, 0);
    if (data == MAP_FAILED)
        return FSDP_FAIL(FSDP_IO, "cannot map a temporary file in '%s': %s%s", folder, strerrordesc_np(errno),
                         fsdp__limit_behind(errno));
    s->spill->data = data;
    return FSDP_OK;
}

fsdp_status fsdp__spill_make(fsdp__tensor_source *source, const char *folder, fsdp_dtype dtype,
                             fsdp__spill_progress progress, void *arg, fsdp__spill *out)
{
    spiller s = {.source = source, .spill = out, .progress = progress, .arg = arg, .fd = -1};
    fsdp_status status;

    memset(out, 0, sizeof *out);
    status = plan(source, dtype, out);
    if (status == FSDP_OK)
        status = fill(&s, folder);
    if (s.fd >= 0)
        close(s.fd);
    fsdp_context_free(s.context);
    FSDP__FREE_ALL(s.converted, s.read, s.path);
    if (status != FSDP_OK)
        fsdp__spill_release(out);
    return status;
}

void fsdp__spill_release(fsdp__spill *spill)
{
    if (spill->data)
        munmap((void *)(uintptr_t)spill->data, spill->bytes);
    fsdp__free(spill->items);
    if (spill->folder.path)
        fsdp__directory_unmake(&spill->folder, spill->made);
    fsdp__directory_close(&spill->folder);
    memset(spill, 0, sizeof *spill);
}

fsdp_status fsdp__spill_rows(const fsdp__spill *spill, int64_t index, fsdp_context *context, int64_t first,
                             int64_t rows, fsdp_tensor **out)
{
    const fsdp__spilled *item = &spill->items[index];
    const fsdp__source_tensor *t = item->tensor;
    int64_t shape[FSDP_MAX_DIMS] = {0}, row = t->ndim > 0 && t->shape[0] > 0 ? t->numel / t->shape[0] : t->numel;
    size_t size = fsdp_dtype_size(item->dtype), bytes = (size_t)(t->ndim > 0 ? rows * row : t->numel) * size;
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;

    memcpy(shape, t->shape, (size_t)t->ndim * sizeof *shape);
    if (t->ndim > 0)
        shape[0] = rows;
    FSDP_TRY(fsdp__storage_create(fsdp_cpu(context), bytes, FSDP_MEMORY_WORKSPACE, false, &storage));
    if (bytes > 0)
        fsdp__storage_adopt(storage, (void *)(uintptr_t)(spill->data + item->offset + (size_t)(first * row) * size),
                            NULL, NULL);
    return fsdp__tensor_create_view(storage, item->dtype, t->ndim, shape, NULL, 0, out);
}
