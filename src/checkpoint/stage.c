/* stage.c - one rank's part of a save, in staging. */
#include "checkpoint/stage.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "checkpoint/content_check.h"
#include "checkpoint/manifest_check.h"
#include "checkpoint/merge.h"
#include "checkpoint/rank_file.h"
#include "dist/dist.h"

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
    for (int i = 0; i < stage->file_count; i++) {
        fsdp__free((char *)stage->files[i].name);
        fsdp__free((void *)stage->files[i].data);
    }
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

    status = fsdp__rank_file_write(stage->context, &stage->folder,
                                   fsdp__rank_file_name(stage->rank, stage->world_size, name), &stage->data,
                                   stage->copy, stage->stop, &file);
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
    return fsdp__manifest_append(&stage->manifest, &of_rank);
}

fsdp_status fsdp__stage_collect(fsdp__stage *stage)
{
    for (int r = 1; r < stage->world_size; r++)
        FSDP_TRY(append_rank(stage, r));
    FSDP_TRY(fsdp__manifest_join(&stage->manifest));
    FSDP_TRY(fsdp__manifest_check(stage->folder.path, &stage->manifest));
    FSDP_TRY(check_readable(stage));
    return write_manifest(stage, &stage->folder, FSDP__MANIFEST_NAME);
}
