/* manifest_check.c - checks that every element is there once, and every byte once. */
#include "checkpoint/manifest_check.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"
#include "base/text.h"
#include "tensor/tensor.h"

typedef struct checker {
    const char *path;
    fsdp__manifest *m;
} checker;

/* ---- files ---- */

static fsdp_status check_files(const checker *c)
{
    for (int64_t i = 0; i < c->m->small_count; i++) {
        if (!fsdp__is_small_name(c->m->small[i].name))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': no file may be called '%s'", c->path,
                             FSDP__SHOWN_NAME(c->m->small[i].name));
        for (int64_t j = 0; j < i; j++)
            if (strcmp(c->m->small[i].name, c->m->small[j].name) == 0)
                return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': file '%s' is listed twice", c->path,
                                 FSDP__SHOWN_NAME(c->m->small[i].name));
    }
    for (int64_t i = 0; i < c->m->file_count; i++) {
        const fsdp__rank_file *file = &c->m->files[i];
        uint64_t data = file->bytes - file->header_bytes;

        if (i > 0 && file->rank <= c->m->files[i - 1].rank)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its files are not in the order of the ranks", c->path);
        if ((uint64_t)file->block_count != data / file->block_bytes + (data % file->block_bytes != 0))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': '%s' has checksums for another size", c->path, file->name);
    }
    return FSDP_OK;
}

/* ---- tensors ---- */

static fsdp_status check_place(const checker *c, const fsdp_checkpoint_tensor *tensor, fsdp_checkpoint_part *part)
{
    const fsdp__rank_file *file = fsdp__manifest_file(c->m, part->rank);
    int64_t numel = fsdp__shape_numel(tensor->ndim, tensor->shape);
    int ndim = part->flat ? 1 : tensor->ndim;

    for (int d = 0; d < ndim; d++) {
        int64_t size = part->flat ? numel : tensor->shape[d];

        if (part->offset[d] > size || part->size[d] > size - part->offset[d])
            return fsdp__manifest_wrong(c->path, tensor, "has a part outside its shape");
    }
    if (part->bytes == 0)
        return fsdp__manifest_wrong(c->path, tensor, "has an empty part");
    if (!file || part->begin < file->header_bytes || part->begin > file->bytes ||
        part->bytes > file->bytes - part->begin)
        return fsdp__manifest_wrong(c->path, tensor, "has a part outside its file");
    part->file = file->name;
    return FSDP_OK;
}

static bool overlap(const fsdp_checkpoint_tensor *tensor, const fsdp_checkpoint_part *a, const fsdp_checkpoint_part *b)
{
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];

    return fsdp_box_intersect(a->flat ? 1 : tensor->ndim, a->offset, a->size, b->offset, b->size, offset, size);
}

/* Returns whether the part lies, in one dimension, behind all parts before it, which end at `ends`. Most parts do, so
 * that with thousands of ranks not every pair has to be compared. */
static bool lies_behind(const fsdp_checkpoint_tensor *tensor, const fsdp_checkpoint_part *part, int64_t *ends)
{
    bool behind = false;

    for (int d = 0; d < (part->flat ? 1 : tensor->ndim); d++) {
        behind = behind || part->offset[d] >= ends[d];
        ends[d] = FSDP__MAX(ends[d], part->offset[d] + part->size[d]);
    }
    return behind;
}

static bool is_later(const fsdp_checkpoint_part *part, const fsdp_checkpoint_part *than)
{
    return part->rank > than->rank || (part->rank == than->rank && part->begin > than->begin);
}

/* Checks a tensor. Its parts are in the order of ranks, and of bytes in a rank's file. */
static fsdp_status check_tensor(const checker *c, fsdp_checkpoint_tensor *tensor)
{
    fsdp_checkpoint_part *parts = (fsdp_checkpoint_part *)tensor->parts;
    uint64_t numel = (uint64_t)fsdp__shape_numel(tensor->ndim, tensor->shape), covered = 0;
    int64_t ends[FSDP_MAX_DIMS] = {0};

    for (int64_t i = 0; i < tensor->part_count; i++) {
        int64_t compared = i;

        FSDP_TRY(check_place(c, tensor, &parts[i]));
        if (i > 0 && !is_later(&parts[i], &parts[i - 1]))
            return fsdp__manifest_wrong(c->path, tensor, "has parts that are not in the order of the files");
        if (lies_behind(tensor, &parts[i], ends))
            compared = 0;
        for (int64_t j = 0; j < compared; j++)
            if (overlap(tensor, &parts[i], &parts[j]))
                return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': tensor '%s.%s' has elements twice, in '%s' and '%s'",
                                 c->path, FSDP__SHOWN_NAME(tensor->section), FSDP__SHOWN_NAME(tensor->name),
                                 parts[j].file, parts[i].file);
        covered += parts[i].bytes / fsdp_dtype_size(tensor->dtype);
    }
    if (covered != numel)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': tensor '%s.%s' has %llu of its %llu elements in no file",
                         c->path, FSDP__SHOWN_NAME(tensor->section), FSDP__SHOWN_NAME(tensor->name),
                         (unsigned long long)(numel - covered), (unsigned long long)numel);
    return FSDP_OK;
}

/* ---- bytes ---- */

/* Holds where the bytes of one part lie. */
typedef struct range {
    int rank;
    uint64_t begin, bytes;
    const fsdp_checkpoint_tensor *tensor;
} range;

FSDP__ORDER_BY_TWO(by_place, range, rank, begin)

/* Checks the ranges, which are sorted. */
static fsdp_status check_ranges(const checker *c, const range *ranges, int64_t count)
{
    int64_t next = 0;

    for (int64_t i = 0; i < c->m->file_count; i++) {
        const fsdp__rank_file *file = &c->m->files[i];
        uint64_t at = file->header_bytes;

        for (; next < count && ranges[next].rank == file->rank; next++) {
            if (ranges[next].begin != at)
                return fsdp__manifest_wrong(c->path, ranges[next].tensor,
                                            ranges[next].begin < at
                                                ? "shares bytes of a file with another"
                                                : "has bytes in front of it that belong to no tensor");
            at += ranges[next].bytes;
        }
        if (at != file->bytes)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': %llu bytes at the end of '%s' belong to no tensor",
                             c->path, (unsigned long long)(file->bytes - at), file->name);
    }
    return FSDP_OK;
}

static fsdp_status check_bytes(const checker *c)
{
    int64_t count = 0, filled = 0;
    FSDP__FREED range *ranges = NULL;

    for (int64_t i = 0; i < c->m->tensor_count; i++)
        count += c->m->tensors[i].part_count;
    ranges = fsdp__calloc((size_t)count, sizeof *ranges);
    if (!ranges)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", c->path);
    for (int64_t i = 0; i < c->m->tensor_count; i++) {
        const fsdp_checkpoint_tensor *tensor = &c->m->tensors[i];

        for (int64_t k = 0; k < tensor->part_count; k++) {
            const fsdp_checkpoint_part *part = &tensor->parts[k];

            ranges[filled++] =
                (range){.rank = part->rank, .begin = part->begin, .bytes = part->bytes, .tensor = tensor};
        }
    }
    if (count > 1)
        qsort(ranges, (size_t)count, sizeof *ranges, by_place);
    return check_ranges(c, ranges, count);
}

fsdp_status fsdp__manifest_check(const char *path, fsdp__manifest *m)
{
    checker c = {.path = path, .m = m};

    FSDP_TRY(check_files(&c));
    for (int64_t i = 0; i < m->tensor_count; i++)
        FSDP_TRY(check_tensor(&c, &m->tensors[i]));
    return check_bytes(&c);
}
