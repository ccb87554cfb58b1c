/* rank_data.c - this rank's parts as one sequence of bytes. */
#include "checkpoint/rank_data.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "checkpoint/content_check.h"
#include "state/entry.h"
#include "tensor/tensor.h"

/* Returns how many parts of the entry this rank writes. */
static int parts_of(const fsdp_checkpoint_section *section, const fsdp_state_dict_entry *entry,
                    const fsdp_process_group *group)
{
    bool own = section->own && !fsdp_tensor_distribution(entry->tensor);

    return own || fsdp__entry_writes(entry, group) ? entry->piece_count : 0;
}

static int64_t count_parts(const fsdp_checkpoint_content *content, const fsdp_process_group *group)
{
    int64_t count = 0;

    for (int s = 0; s < content->section_count; s++)
        for (int64_t i = 0; i < content->sections[s].state->count; i++)
            count += parts_of(&content->sections[s], &content->sections[s].state->entries[i], group);
    return count;
}

static fsdp__own_part part_of(const char *section, const fsdp_state_dict_entry *entry, int piece)
{
    int ndim = entry->flat ? 1 : entry->ndim;
    int64_t numel = fsdp__shape_numel(ndim, entry->pieces[piece].size);

    return (fsdp__own_part){.section = section,
                            .entry = entry,
                            .piece = piece,
                            .numel = numel,
                            .place = fsdp__piece_place_of(entry->pieces, entry->piece_count, ndim, piece),
                            .bytes = (uint64_t)numel * fsdp_dtype_size(entry->tensor->dtype)};
}

static void collect(const fsdp_checkpoint_content *content, const fsdp_process_group *group, fsdp__rank_data *data)
{
    for (int s = 0; s < content->section_count; s++) {
        const fsdp_checkpoint_section *section = &content->sections[s];

        for (int64_t i = 0; i < section->state->count; i++) {
            const fsdp_state_dict_entry *entry = &section->state->entries[i];
            int count = parts_of(section, entry, group);

            for (int k = 0; k < count; k++)
                data->parts[data->count++] = part_of(section->name, entry, k);
        }
    }
}

/* ---- the file ---- */

/* Fills an entry as the header has it: the name with its section and, if it is one of several, its number; the shape of
 * the part. */
static fsdp_status fill_entry(const fsdp__own_part *part, fsdp_safetensors_entry *out)
{
    const fsdp_state_dict_entry *entry = part->entry;

    out->name = entry->piece_count == 1 ? fsdp__sprintf("%s.%s", part->section, entry->name)
                                        : fsdp__sprintf("%s.%s[%d]", part->section, entry->name, part->piece);
    if (!out->name)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory for the header of a checkpoint");
    out->dtype = entry->tensor->dtype;
    out->ndim = entry->flat ? 1 : entry->ndim;
    out->bytes = part->bytes;
    memcpy(out->shape, entry->pieces[part->piece].size, sizeof out->shape);
    return FSDP_OK;
}

static fsdp_status make_plan(fsdp__rank_data *data)
{
    FSDP__FREED fsdp_safetensors_entry *entries = fsdp__calloc((size_t)data->count, sizeof *entries);
    fsdp_status status = FSDP_OK;

    if (!entries)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory for the header of a checkpoint");
    for (int64_t i = 0; i < data->count && status == FSDP_OK; i++)
        status = fill_entry(&data->parts[i], &entries[i]);
    if (status == FSDP_OK)
        status = fsdp__save_plan_create(entries, data->count, UINT64_MAX, &data->plan);
    for (int64_t i = 0; i < data->count; i++) {
        fsdp__free((char *)entries[i].name);
        if (status == FSDP_OK)
            data->parts[i].begin = data->plan.offsets[i];
    }
    return status;
}

fsdp_status fsdp__rank_data_create(const fsdp_checkpoint_content *content, const fsdp_process_group *group,
                                   fsdp__rank_data *out)
{
    *out = (fsdp__rank_data){0};
    out->parts = fsdp__calloc((size_t)count_parts(content, group), sizeof *out->parts);
    if (!out->parts)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory for the parts of a checkpoint");
    collect(content, group, out);
    return out->count > 0 ? make_plan(out) : FSDP_OK;
}

void fsdp__rank_data_release(fsdp__rank_data *data)
{
    fsdp__save_plan_release(&data->plan);
    fsdp__free(data->parts);
    *data = (fsdp__rank_data){0};
}

uint64_t fsdp__rank_data_bytes(const fsdp__rank_data *data)
{
    return data->count > 0 ? data->plan.files[0].total_bytes - data->plan.files[0].header_bytes : 0;
}

/* ---- for the manifest ---- */

/* Describes an entry with `count` parts of this rank. */
static fsdp_status describe_entry(const char *section, const fsdp_state_dict_entry *entry, const fsdp__own_part *own,
                                  int64_t count, int rank, fsdp__manifest *out)
{
    fsdp_checkpoint_part parts[FSDP_MAX_SEGMENTS];
    fsdp_checkpoint_tensor tensor = {.section = section,
                                     .name = entry->name,
                                     .dtype = entry->tensor->dtype,
                                     .ndim = entry->ndim,
                                     .parts = parts,
                                     .part_count = count};

    memcpy(tensor.shape, entry->global_shape, sizeof tensor.shape);
    for (int64_t k = 0; k < count; k++) {
        const fsdp_piece *piece = &entry->pieces[own[k].piece];

        parts[k] =
            (fsdp_checkpoint_part){.rank = rank, .flat = entry->flat, .begin = own[k].begin, .bytes = own[k].bytes};
        memcpy(parts[k].offset, piece->offset, sizeof parts[k].offset);
        memcpy(parts[k].size, piece->size, sizeof parts[k].size);
    }
    return fsdp__manifest_add_tensor(out, &tensor);
}

fsdp_status fsdp__rank_data_describe(const fsdp_checkpoint_content *content, const fsdp__rank_data *data, int rank,
                                     fsdp__manifest *out)
{
    int64_t next = 0; /* parts are in the order of the entries */

    for (int s = 0; s < content->section_count; s++) {
        const fsdp_state_dict *state = content->sections[s].state;
        const char *section = NULL;

        FSDP_TRY(fsdp__manifest_add_section(out, content->sections[s].name, &section));
        for (int64_t i = 0; i < state->count; i++) {
            int64_t first = next;

            while (next < data->count && data->parts[next].entry == &state->entries[i])
                next++;
            FSDP_TRY(describe_entry(section, &state->entries[i], data->parts + first, next - first, rank, out));
        }
    }
    return FSDP_OK;
}

/* ---- bytes ---- */

/* Reads `rows` rows of `cols` elements from a place in the tensor. */
static fsdp_status read_rows(const fsdp__own_part *part, int64_t place, int64_t rows, int64_t cols, void *out)
{
    const fsdp_tensor *tensor = part->entry->tensor;
    const int64_t shape[] = {rows, cols}, strides[] = {part->place.stride, 1};
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *view = NULL;

    FSDP_TRY(
        fsdp__tensor_create_view(tensor->storage, tensor->dtype, 2, shape, strides, tensor->offset + place, &view));
    return fsdp_tensor_read(view, tensor->dtype, out);
}

/* Reads elements [first, first + numel) of a part. */
static fsdp_status read_elements(const fsdp__own_part *part, int64_t first, int64_t numel, void *out)
{
    size_t size = fsdp_dtype_size(part->entry->tensor->dtype);
    const fsdp__piece_place *p = &part->place;

    for (int64_t done = 0, rows, cols; done < numel; done += rows * cols) {
        int64_t row = (first + done) / p->inner, col = (first + done) % p->inner;

        rows = col == 0 ? FSDP__MAX((numel - done) / p->inner, 1) : 1;
        cols = FSDP__MIN(numel - done, p->inner - col);
        FSDP_TRY(read_rows(part, row * p->stride + p->first + col, rows, cols, (char *)out + (size_t)done * size));
    }
    return FSDP_OK;
}

/* Reads whole elements to a place that need not be aligned. */
static fsdp_status read_whole(const fsdp__own_part *part, int64_t first, int64_t numel, unsigned char *out)
{
    size_t size = fsdp_dtype_size(part->entry->tensor->dtype);
    uint64_t some[512];

    if ((uintptr_t)out % size == 0)
        return read_elements(part, first, numel, out);
    while (numel > 0) {
        int64_t count = FSDP__MIN(numel, (int64_t)(sizeof some / size));

        FSDP_TRY(read_elements(part, first, count, some));
        memcpy(out, some, (size_t)count * size);
        out += (size_t)count * size;
        first += count;
        numel -= count;
    }
    return FSDP_OK;
}

/* Reads the first bytes of an element; the rest is read later. */
static fsdp_status cut_element(fsdp__data_cursor *cursor, const fsdp__own_part *part, unsigned char *out, size_t bytes)
{
    size_t size = fsdp_dtype_size(part->entry->tensor->dtype);
    uint64_t element[1];

    FSDP_TRY(read_elements(part, cursor->element++, 1, element));
    memcpy(out, element, bytes);
    cursor->rest_bytes = size - bytes;
    memcpy(cursor->rest, (unsigned char *)element + bytes, cursor->rest_bytes);
    return FSDP_OK;
}

static size_t take_rest(fsdp__data_cursor *cursor, unsigned char *out, size_t bytes)
{
    size_t taken = FSDP__MIN(cursor->rest_bytes, bytes);

    memcpy(out, cursor->rest, taken);
    cursor->rest_bytes -= taken;
    memmove(cursor->rest, cursor->rest + taken, cursor->rest_bytes);
    return taken;
}

fsdp_status fsdp__data_cursor_read(fsdp__data_cursor *cursor, void *out, size_t bytes)
{
    unsigned char *to = out;
    size_t done = take_rest(cursor, to, bytes);

    while (done < bytes) {
        const fsdp__own_part *part = &cursor->data->parts[cursor->part];
        int64_t left = part->numel - cursor->element;
        size_t size = fsdp_dtype_size(part->entry->tensor->dtype);
        int64_t whole = FSDP__MIN(left, (int64_t)((bytes - done) / size));

        if (left == 0) {
            cursor->part++;
            cursor->element = 0;
        } else if (whole == 0) {
            return cut_element(cursor, part, to + done, bytes - done);
        } else {
            FSDP_TRY(read_whole(part, cursor->element, whole, to + done));
            cursor->element += whole;
            done += (size_t)whole * size;
        }
    }
    return FSDP_OK;
}

size_t fsdp_checkpoint_snapshot_bytes(const fsdp_checkpoint_content *content)
{
    FSDP__SCOPED(fsdp__rank_data_release) fsdp__rank_data data = {0};

    if (!content || fsdp__content_check(content, false) != FSDP_OK)
        return 0;
    return fsdp__rank_data_create(content, NULL, &data) == FSDP_OK ? (size_t)fsdp__rank_data_bytes(&data) : 0;
}
