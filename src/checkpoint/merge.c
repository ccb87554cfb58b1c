/* merge.c - makes one manifest of those of the ranks. */
#include "checkpoint/merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

fsdp_status fsdp__manifest_append(fsdp__manifest *into, fsdp__manifest *from)
{
    for (int64_t i = 0; i < from->file_count; i++) {
        FSDP_TRY(fsdp__manifest_add_file(into, &from->files[i]));
        from->files[i].blocks = NULL;
    }
    for (int64_t i = 0; i < from->tensor_count; i++) {
        fsdp_checkpoint_tensor tensor = from->tensors[i];

        FSDP_TRY(fsdp__manifest_add_section(into, tensor.section, &tensor.section));
        FSDP_TRY(fsdp__manifest_add_tensor(into, &tensor));
    }
    return FSDP_OK;
}

static bool same_name(const fsdp_checkpoint_tensor *a, const fsdp_checkpoint_tensor *b)
{
    return strcmp(a->section, b->section) == 0 && strcmp(a->name, b->name) == 0;
}

static int by_place(const void *a, const void *b)
{
    const fsdp_checkpoint_part *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Moves the parts of tensors[0 .. count) into the first one, and frees the names of the others. */
static fsdp_status join(fsdp_checkpoint_tensor *tensors, int64_t count)
{
    fsdp_checkpoint_part *parts;
    int64_t part_count = 0, filled = 0;

    for (int64_t i = 0; i < count; i++) {
        part_count += tensors[i].part_count;
        if (tensors[i].dtype != tensors[0].dtype || tensors[i].ndim != tensors[0].ndim ||
            memcmp(tensors[i].shape, tensors[0].shape, (size_t)tensors[0].ndim * sizeof *tensors[0].shape) != 0)
            return FSDP_FAIL(FSDP_MISMATCH, "shape or dtype of tensor '%s.%s' differs between the ranks",
                             FSDP__SHOWN_NAME(tensors[0].section), FSDP__SHOWN_NAME(tensors[0].name));
    }
    parts = fsdp__calloc((size_t)part_count, sizeof *parts);
    if (!parts)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory for a manifest");
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < tensors[i].part_count; k++)
            parts[filled++] = tensors[i].parts[k];
    if (part_count > 1)
        qsort(parts, (size_t)part_count, sizeof *parts, by_place);
    for (int64_t i = 0; i < count; i++) {
        fsdp__free((fsdp_checkpoint_part *)tensors[i].parts);
        tensors[i].parts = NULL;
        tensors[i].part_count = 0;
        if (i > 0)
            fsdp__free((char *)tensors[i].name);
    }
    tensors[0].parts = parts;
    tensors[0].part_count = part_count;
    return FSDP_OK;
}

fsdp_status fsdp__manifest_join(fsdp__manifest *m)
{
    int64_t joined = 0;

    fsdp__manifest_sort(m);
    for (int64_t first = 0, end; first < m->tensor_count; first = end) {
        fsdp_status status = FSDP_OK;

        for (end = first + 1; end < m->tensor_count && same_name(&m->tensors[first], &m->tensors[end]);)
            end++;
        status = join(&m->tensors[first], end - first);
        if (status != FSDP_OK) { /* the rest stays as it is, to be released */
            memmove(&m->tensors[joined], &m->tensors[first], (size_t)(m->tensor_count - first) * sizeof *m->tensors);
            m->tensor_count -= first - joined;
            return status;
        }
        m->tensors[joined++] = m->tensors[first];
    }
    m->tensor_count = joined;
    return FSDP_OK;
}
