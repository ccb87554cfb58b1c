/* stage.c - one rank's part of a save, in staging. */
#include "checkpoint/stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/probe.h"
#include "base/sort.h"
#include "base/text.h"
#include "checkpoint/content_check.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_check.h"
#include "dist/dist.h"

/* ---- one manifest of those of the ranks ---- */

/* Moves files and tensors of `from` behind those of `into`. */
static fsdp_status append_manifest(fsdp__manifest *into, fsdp__manifest *from)
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

FSDP__ORDER_BY_TWO(by_place, fsdp_checkpoint_part, rank, begin)

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

/* Joins tensors of the same name into one, with the parts of all of them, by rank. Fails with FSDP_MISMATCH, naming the
 * tensor, where their shapes or dtypes differ. */
static fsdp_status join_manifest(fsdp__manifest *m)
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

/* ---- the file of a rank: a header, then the parts, in blocks that each have a checksum ---- */

enum {
    BLOCK_BYTES = 1 << 20, /* fits a core's cache from copying through checking to writing */
    MOST_BLOCKS = 1 << 15  /* of a file: larger files have larger blocks */
};

typedef struct writing {
    int fd;
    const char *path;
    fsdp__data_cursor cursor;
    const unsigned char *copy;
    unsigned char *buffer; /* for one block, if there is no copy */
    const _Atomic bool *stop;
} writing;

static fsdp_status write_block(writing *w, fsdp__rank_file *file, uint64_t at, size_t bytes)
{
    const unsigned char *block = w->copy ? w->copy + at : w->buffer;

    if (atomic_load(w->stop))
        return FSDP_FAIL(FSDP_INTERRUPTED, "cannot write '%s': it was given up", w->path);
    if (!w->copy)
        FSDP_TRY(fsdp__data_cursor_read(&w->cursor, w->buffer, bytes));
    file->blocks[file->block_count++] = fsdp__checksum(block, bytes);
    return fsdp__file_pwrite(w->fd, w->path, block, bytes, file->header_bytes + at);
}

static fsdp_status write_all(writing *w, const fsdp__save_file *plan, fsdp__rank_file *file)
{
    uint64_t data_bytes = file->bytes - file->header_bytes;

    FSDP_TRY(fsdp__file_pwrite(w->fd, w->path, plan->header, plan->header_bytes, 0));
    for (uint64_t at = 0; at < data_bytes; at += file->block_bytes)
        FSDP_TRY(write_block(w, file, at, (size_t)FSDP__MIN(file->block_bytes, data_bytes - at)));
    return fsdp__file_sync(w->fd, w->path);
}

static fsdp_status make_room(writing *w, fsdp__rank_file *file)
{
    while (file->bytes / file->block_bytes >= MOST_BLOCKS)
        file->block_bytes *= 2;
    file->blocks = fsdp__calloc((size_t)(file->bytes / file->block_bytes + 1), sizeof *file->blocks);
    if (!w->copy)
        w->buffer = fsdp__malloc((size_t)file->block_bytes);
    if (!file->blocks || (!w->copy && !w->buffer))
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write '%s'", w->path);
    return FSDP_OK;
}

/* Writes and syncs the file. The bytes are those of `copy`, or, if that is NULL, of the tensors. `*out` gets sizes and
 * checksums; the caller owns its blocks. Fails with FSDP_INTERRUPTED, between two blocks, when `stop` has become
 * true. */
static fsdp_status write_rank_file(const fsdp_context *context, const fsdp__directory *in, const char *name,
                                   const fsdp__rank_data *data, const unsigned char *copy, const _Atomic bool *stop,
                                   fsdp__rank_file *out)
{
    FSDP__FREED char *path = fsdp__path_join(in->path, name);
    const fsdp__save_file *plan = &data->plan.files[0];
    writing w = {.fd = -1, .path = path, .cursor = {.data = data}, .copy = copy, .stop = stop};
    fsdp__rank_file file = {.bytes = plan->total_bytes,
                            .header_bytes = plan->header_bytes,
                            .header_checksum = fsdp__checksum(plan->header, plan->header_bytes),
                            .block_bytes = BLOCK_BYTES};
    fsdp_status status = path ? make_room(&w, &file) : FSDP_NO_MEMORY;

    FSDP__TELL(PART_BEGUN, .context = context, .name = name, .bytes = (size_t)file.bytes, .ns = fsdp__clock_ns());
    if (status == FSDP_OK)
        status = fsdp__directory_create(in, name, &w.fd);
    if (status == FSDP_OK)
        status = write_all(&w, plan, &file);
    if (w.fd >= 0)
        FSDP_KEEP_FIRST(status, fsdp__file_close(w.fd, path));
    FSDP__TELL(PART_DONE, .context = context, .name = name, .bytes = (size_t)file.bytes, .ns = fsdp__clock_ns());
    fsdp__free(w.buffer);
    if (status == FSDP_OK)
        *out = file;
    else
        fsdp__free(file.blocks);
    return status;
}

static fsdp_status out_of_memory(void)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "out of memory for a checkpoint");
}

/* ---- before there is a folder ---- */

static fsdp_status copy_files(fsdp__stage *stage, const fsdp_checkpoint_content *content)
{
    stage->files = fsdp__calloc((size_t)content->file_count, sizeof *stage->files);
    if (!stage->files)
        return out_of_memory();
    for (int i = 0; i < content->file_count; i++) {
        const fsdp_checkpoint_file *file = &content->files[i];
        void *data = fsdp__malloc(file->bytes);

        stage->files[i] = (fsdp_checkpoint_file){.name = fsdp__strdup(file->name), .data = data, .bytes = file->bytes};
        stage->file_count++;
        if (!data || !stage->files[i].name)
            return out_of_memory();
        if (file->bytes > 0)
            memcpy(data, file->data, file->bytes);
        FSDP_TRY(fsdp__manifest_add_small(&stage->manifest, file->name, file->bytes,
                                          fsdp__checksum(file->data, file->bytes)));
    }
    return FSDP_OK;
}

/* Returns whether the mesh has the first ranks, in another order than row-major. */
static bool is_reordered(const fsdp_mesh *mesh)
{
    int64_t count = fsdp_mesh_size(mesh, -1);
    bool moved = false;

    for (int64_t i = 0; i < count; i++) {
        if (mesh->ranks[i] >= count)
            return false;
        moved = moved || mesh->ranks[i] != i;
    }
    return moved;
}

/* Writes "dp_replicate=2 dp_shard=4 tp=2": of a part of a mesh, all of that mesh; with " of ranks 0,2,1,3" behind it if
 * they are not in order. */
static fsdp_status describe_mesh(const fsdp_mesh *mesh, char **out)
{
    size_t bytes = 0;
    FILE *text = fsdp__begin_text(out, &bytes);

    while (mesh && mesh->is_part)
        mesh = mesh->held;
    for (int d = 0; text && mesh && d < fsdp_mesh_ndim(mesh); d++)
        fprintf(text, "%s%s=%lld", d ? " " : "", fsdp_mesh_dim_name(mesh, d), (long long)fsdp_mesh_size(mesh, d));
    for (int64_t i = 0; text && mesh && is_reordered(mesh) && i < fsdp_mesh_size(mesh, -1); i++)
        fprintf(text, "%s%d", i ? "," : " of ranks ", mesh->ranks[i]);
    return fsdp__end_text(text) == FSDP_OK ? FSDP_OK : out_of_memory();
}

fsdp_status fsdp__stage_create(const fsdp_checkpoint_content *content, const fsdp_process_group *group,
                               fsdp__stage *out)
{
    int rank = fsdp_process_group_rank(group), world_size = fsdp_process_group_size(group);

    out->rank = rank;
    out->world_size = world_size;
    FSDP_TRY(fsdp__content_check(content, rank == 0));
    FSDP_TRY(fsdp__rank_data_create(content, group, &out->data));
    out->manifest.step = content->step;
    out->manifest.world_size = world_size;
    FSDP_TRY(describe_mesh(content->mesh, &out->manifest.mesh));
    FSDP_TRY(fsdp__rank_data_describe(content, &out->data, rank, &out->manifest));
    if (rank != 0)
        return FSDP_OK;
    for (int i = 0; i < content->value_count; i++)
        FSDP_TRY(fsdp__manifest_add_value(&out->manifest, &content->values[i]));
    return copy_files(out, content);
}

void fsdp__stage_release(fsdp__stage *stage)
{
    for (int i = 0; i < stage->file_count; i++)
        FSDP__FREE_ALL(stage->files[i].name, stage->files[i].data);
    fsdp__free(stage->files);
    fsdp__rank_data_release(&stage->data);
    fsdp__manifest_release(&stage->manifest);
    fsdp__directory_close(&stage->folder);
    fsdp__directory_close(&stage->scratch);
    *stage = (fsdp__stage){.rank = 0};
}

/* ---- writing ---- */

static fsdp_status write_parts(fsdp__stage *stage)
{
    char name[FSDP__RANK_FILE_NAME];
    fsdp__rank_file file = {.blocks = NULL};
    fsdp_status status;

    status = write_rank_file(stage->context, &stage->folder, fsdp__rank_file_name(stage->rank, stage->world_size, name),
                             &stage->data, stage->copy, stage->stop, &file);
    FSDP_TRY(status);
    file.rank = stage->rank;
    status = fsdp__manifest_add_file(&stage->manifest, &file);
    if (status != FSDP_OK)
        fsdp__free(file.blocks);
    return status;
}

/* Writes the manifest of one rank into scratch, or that of all into the checkpoint. */
static fsdp_status write_manifest(const fsdp__stage *stage, const fsdp__directory *folder, const char *name)
{
    FSDP__FREED char *text = NULL;

    FSDP_TRY(fsdp__manifest_text(&stage->manifest, &text));
    return fsdp__directory_write_new(folder, name, text, strlen(text));
}

static const char *scratch_name(int rank, char name[FSDP__RANK_FILE_NAME])
{
    snprintf(name, FSDP__RANK_FILE_NAME, "parts-%05d.json", rank);
    return name;
}

fsdp_status fsdp__stage_write(fsdp__stage *stage)
{
    char name[FSDP__RANK_FILE_NAME];

    if (stage->data.count > 0)
        FSDP_TRY(write_parts(stage));
    if (stage->rank != 0)
        return write_manifest(stage, &stage->scratch, scratch_name(stage->rank, name));
    for (int i = 0; i < stage->file_count; i++)
        FSDP_TRY(fsdp__directory_write_new(&stage->folder, stage->files[i].name, stage->files[i].data,
                                           stage->files[i].bytes));
    return FSDP_OK;
}

/* ---- the manifest of all ---- */

/* Parses the manifest before it is written: a text beyond the reader's limits must fail now, not when it is loaded. */
static fsdp_status check_readable(const fsdp__stage *stage)
{
    FSDP__SCOPED(fsdp__manifest_release) fsdp__manifest again = {0};
    FSDP__FREED char *text = NULL;

    FSDP_TRY(fsdp__manifest_text(&stage->manifest, &text));
    return fsdp__manifest_parse(FSDP__MANIFEST_NAME, text, strlen(text), &again);
}

static fsdp_status append_rank(fsdp__stage *stage, int rank)
{
    char name[FSDP__RANK_FILE_NAME];
    FSDP__SCOPED(fsdp__manifest_release) fsdp__manifest of_rank = {0};

    FSDP_TRY(fsdp__manifest_load_in(&stage->scratch, scratch_name(rank, name), &of_rank));
    if (of_rank.step != stage->manifest.step)
        return FSDP_FAIL(FSDP_FORMAT, "'%s/%s' belongs to another step", stage->scratch.path, name);
    return append_manifest(&stage->manifest, &of_rank);
}

fsdp_status fsdp__stage_collect(fsdp__stage *stage)
{
    for (int r = 1; r < stage->world_size; r++)
        FSDP_TRY(append_rank(stage, r));
    FSDP_TRY(join_manifest(&stage->manifest));
    FSDP_TRY(fsdp__manifest_check(stage->folder.path, &stage->manifest));
    FSDP_TRY(check_readable(stage));
    return write_manifest(stage, &stage->folder, FSDP__MANIFEST_NAME);
}
