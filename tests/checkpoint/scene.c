/* scene.c - states of a few tensors. */
#include "checkpoint/scene.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "support/layouts.h"

static const struct {
    const char *name;
    fsdp_dtype dtype; /* NONE: the scene's */
    int ndim;
    int64_t shape[3];
} tensors[SCENE_TENSORS] = {
    {"weight", FSDP_DTYPE_NONE, 2, {7, 5}},
    {"bias", FSDP_DTYPE_NONE, 1, {3}},
    {"step", FSDP_F32, 0, {0}},
    {"deep", FSDP_DTYPE_NONE, 3, {3, 2, 5}},
    {"nothing", FSDP_DTYPE_NONE, 2, {0, 4}},
    {"flags", FSDP_U8, 1, {11}},
    {"ids", FSDP_I64, 1, {5}},
    {"one", FSDP_DTYPE_NONE, 2, {1, 1}},
    {"wide", FSDP_DTYPE_NONE, 2, {2, 40}},
};

const char *scene_name(int index)
{
    return tensors[index].name;
}

/* A whole number from 0 to 125, exact in every dtype. */
static int64_t value_of(int tensor, int64_t element, int salt)
{
    uint64_t x = (uint64_t)element * 0x9e3779b97f4a7c15u + (uint64_t)tensor * 1000003u + (uint64_t)salt * 7919u;

    return (int64_t)((x ^ x >> 29) % 126);
}

static int64_t numel_of(int index)
{
    int64_t numel = 1;

    for (int d = 0; d < tensors[index].ndim; d++)
        numel *= tensors[index].shape[d];
    return numel;
}

static fsdp_mesh *make_mesh(fsdp_context *context, scene_layout layout)
{
    static const char *const names[][3] = {{"dp_replicate", "dp_shard"}, {"dp", "tp"}, {"dp_replicate", "dp", "tp"}};
    int64_t world = fsdp_context_world_size(context);
    const int64_t shapes[][3] = {{2, world / 2}, {world / 2, 2}, {2, world / 4, 2}};
    int kind = layout == SCENE_HYBRID ? 0 : layout == SCENE_DRAWN && world % 4 == 0 ? 2 : 1;
    bool one = (layout != SCENE_HYBRID && layout != SCENE_DRAWN && layout != SCENE_SLICED) || world % 2 != 0;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(one ? fsdp_mesh_create(context, 1, &world, NULL, &mesh)
                 : fsdp_mesh_create(context, kind == 2 ? 3 : 2, shapes[kind], names[kind], &mesh));
    return mesh;
}

static fsdp_placement placement_of(scene_layout layout, int index, int64_t ranks)
{
    int ndim = tensors[index].ndim;

    if (layout == SCENE_REPLICATED || ndim == 0)
        return (fsdp_placement){.kind = FSDP_REPLICATE};
    if (layout == SCENE_FLAT) /* as if three elements of another stood before it */
        return (fsdp_placement){.kind = FSDP_FLAT, .first = 3, .chunk = (numel_of(index) + 3 + ranks - 1) / ranks};
    return (fsdp_placement){.kind = FSDP_SHARD, .dim = layout == SCENE_COLUMNS ? ndim - 1 : 0};
}

static fsdp_tensor *make_whole(fsdp_context *context, int index, fsdp_dtype dtype, int salt, bool values)
{
    int64_t numel = numel_of(index), numbers[128] = {0};
    fsdp_tensor *whole = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), tensors[index].dtype ? tensors[index].dtype : dtype,
                                tensors[index].ndim, tensors[index].shape, FSDP_MEMORY_PARAMETER_SHARD, &whole));
    for (int64_t i = 0; i < numel && values; i++)
        numbers[i] = value_of(index, i, salt);
    CHECK_OK(fsdp_tensor_write(whole, FSDP_I64, numbers));
    return whole;
}

/* A fused projection, of rows or columns, that "tp" cuts by segments, and "dp" after it. */
static void fuse(int index, int dims, fsdp_placement *placements)
{
    int dim = index == 0 ? 0 : 1;

    placements[0] = (fsdp_placement){.kind = FSDP_REPLICATE};
    placements[dims - 1] = (fsdp_placement){.kind = FSDP_SHARD, .dim = dim, .segment_count = 3, .segments = {4, 2, 1}};
    if (dim == 1)
        memcpy(placements[dims - 1].segments, (int64_t[]){20, 10, 10}, 3 * sizeof(int64_t));
    if (dims > 1)
        placements[dims - 2] = (fsdp_placement){.kind = FSDP_SHARD, .dim = dim, .split_factor = 2};
}

static fsdp_tensor *distribute(const fsdp_tensor *whole, fsdp_mesh *mesh, scene_layout layout, int index)
{
    fsdp_placement placements[FSDP_MAX_MESH_DIMS] = {{.kind = FSDP_REPLICATE}};
    int dims = fsdp_mesh_ndim(mesh);
    uint64_t dice = (uint64_t)index * 31 + (uint64_t)fsdp_mesh_size(mesh, -1);
    int64_t shape[FSDP_MAX_MESH_DIMS];
    fsdp_tensor *local = NULL;
    drawn_layout drawn;

    for (int d = 0; d < dims; d++)
        shape[d] = fsdp_mesh_size(mesh, d);
    placements[dims - 1] = placement_of(layout, index, shape[dims - 1]);
    layout_draw(&dice, dims, shape, tensors[index].ndim, tensors[index].shape, &drawn);
    if (index == 0 || index == SCENE_TENSORS - 1)
        fuse(index, dims, drawn.placements);
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, layout == SCENE_DRAWN ? drawn.placements : placements, &local));
    return local;
}

static fsdp_tensor *make_local(const fsdp_tensor *whole, fsdp_mesh *mesh, scene_layout layout, int index)
{
    const char *dim = index % 2 ? "tp" : "dp";
    fsdp_mesh *slice = NULL;
    fsdp_tensor *local;

    if (layout != SCENE_SLICED || fsdp_mesh_ndim(mesh) == 1)
        return distribute(whole, mesh, layout, index);
    CHECK_OK(fsdp_mesh_slice(mesh, 1, &dim, &slice));
    local = distribute(whole, slice, layout, index);
    fsdp_mesh_unref(slice);
    return local;
}

scene scene_create(fsdp_context *context, scene_layout layout, fsdp_dtype dtype, int salt, bool values)
{
    scene s = {.mesh = make_mesh(context, layout)};

    CHECK_OK(fsdp_state_dict_create(&s.state));
    for (int i = 0; i < SCENE_TENSORS; i++) {
        fsdp_tensor *whole = make_whole(context, i, dtype, salt, values), *local;

        local = layout == SCENE_PLAIN ? fsdp_tensor_ref(whole) : make_local(whole, s.mesh, layout, i);
        CHECK_OK(fsdp_state_dict_add(s.state, tensors[i].name, local));
        fsdp_tensor_unref(local);
        fsdp_tensor_unref(whole);
    }
    return s;
}

void scene_free(scene *s)
{
    fsdp_state_dict_free(s->state);
    fsdp_mesh_unref(s->mesh);
}

typedef struct checking {
    int index, salt;
    const int64_t *numbers;
} checking;

static fsdp_status check_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const checking *c = arg;

    for (int64_t i = 0; i < numel; i++)
        if (c->numbers[local + i] != value_of(c->index, global + i, c->salt))
            TEST_FAIL("element %lld of '%s' is %lld, not %lld", (long long)(global + i), tensors[c->index].name,
                      (long long)c->numbers[local + i], (long long)value_of(c->index, global + i, c->salt));
    return FSDP_OK;
}

void scene_check(const scene *s, int salt)
{
    for (int i = 0; i < SCENE_TENSORS; i++) {
        const fsdp_state_dict_entry *entry = CHECK_PTR(fsdp_state_dict_find(s->state, tensors[i].name));
        int64_t numbers[128];

        CHECK_OK(fsdp_tensor_read(entry->tensor, FSDP_I64, numbers));
        CHECK_OK(
            fsdp_state_dict_entry_runs(entry, check_run, &(checking){.index = i, .salt = salt, .numbers = numbers}));
    }
}

void scene_content_create(scene_content *out, fsdp_context *context, scene_layout layout, int64_t step, int salt)
{
    static const fsdp_checkpoint_file files[] = {{"config.json", "{\"n\": 1}", 8}, {"empty", NULL, 0}};

    *out = (scene_content){
        .model = scene_create(context, layout, FSDP_F32, salt, true),
        .optimizer = scene_create(context, layout, FSDP_BF16, salt + 1, true),
        .values = {{.name = "salt", .type = FSDP_CHECKPOINT_INTEGER, .integer = salt},
                   {.name = "third", .type = FSDP_CHECKPOINT_NUMBER, .number = 1.0 / 3},
                   {.name = "run", .type = FSDP_CHECKPOINT_TEXT, .text = "a \"name\" with \xc3\xa4 and\na line"}}};
    out->sections[0] = (fsdp_checkpoint_section){.name = "model", .state = out->model.state};
    out->sections[1] = (fsdp_checkpoint_section){.name = "optimizer", .state = out->optimizer.state};
    out->content = (fsdp_checkpoint_content){.step = step,
                                             .sections = out->sections,
                                             .section_count = 2,
                                             .values = out->values,
                                             .value_count = 3,
                                             .files = files,
                                             .file_count = 2,
                                             .mesh = out->model.mesh};
}

void scene_content_free(scene_content *c)
{
    scene_free(&c->optimizer);
    scene_free(&c->model);
}

fsdp_status scene_save(fsdp_checkpoint_saver *saver, fsdp_context *context, scene_layout layout, int64_t step, int salt)
{
    scene_content c;
    fsdp_status status;

    scene_content_create(&c, context, layout, step, salt);
    status = fsdp_checkpoint_saver_save(saver, &c.content);
    scene_content_free(&c);
    return status;
}

void scene_save_to(const char *folder, fsdp_context *context, scene_layout layout, int64_t step, int salt)
{
    fsdp_checkpoint_saver *saver = NULL;

    CHECK_OK(fsdp_checkpoint_saver_create(folder, NULL, fsdp_world(context), &saver));
    CHECK_OK(scene_save(saver, context, layout, step, salt));
    fsdp_checkpoint_saver_free(saver);
}

void scene_load_check(const char *path, fsdp_context *context, scene_layout layout, fsdp_dtype dtype, int salt)
{
    scene model = scene_create(context, layout, dtype, 0, false);
    scene optimizer = scene_create(context, layout, FSDP_BF16, 0, false);
    fsdp_checkpoint_reader *reader = NULL;

    CHECK_OK(fsdp_checkpoint_open(path, &reader));
    CHECK_OK(fsdp_checkpoint_load(reader, "model", model.state, NULL));
    CHECK_OK(fsdp_checkpoint_load(reader, "optimizer", optimizer.state, NULL));
    fsdp_checkpoint_close(reader);
    scene_check(&model, salt);
    scene_check(&optimizer, salt + 1);
    scene_free(&optimizer);
    scene_free(&model);
}

void scene_check_newest(const char *folder, fsdp_context *context, bool one_before)
{
    char *path = NULL;
    fsdp_status status = fsdp_checkpoint_find(folder, -1, &path);

    if (status == FSDP_NOT_FOUND && !one_before)
        return;
    CHECK_OK(status);
    scene_load_check(path, context, SCENE_PLAIN, FSDP_F32, strstr(path, "/step-2") ? 2 : 1);
    free(path);
}

/* Whatever they are: "." and ".." are among them. */
static int count_entries(const char *folder)
{
    DIR *directory = CHECK_PTR(opendir(folder));
    int count = 0;

    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

void scene_check_next(const char *folder, fsdp_context *context)
{
    fsdp_checkpoint_saver *saver = NULL;

    CHECK_OK(fsdp_checkpoint_saver_create(folder, &(fsdp_checkpoint_saver_options){.keep_latest_k = 1},
                                          fsdp_world(context), &saver));
    CHECK_OK(scene_save(saver, context, SCENE_ROWS, 3, 3));
    fsdp_checkpoint_saver_free(saver);
    scene_load_check(folder, context, SCENE_PLAIN, FSDP_F32, 3);
    CHECK_EQ(count_entries(folder), 3);
}

int scene_each_saving(int (*sweep)(const scene_saving *what, int *seen))
{
    int tried = 0, seen = 0;

    for (int world = 1; world <= SCENE_SAVING_RANKS; world++)
        for (int i = 0; i < 8; i++)
            tried += sweep(
                &(scene_saving){
                    .world = world, .layout = i & 4 ? SCENE_FLAT : SCENE_DRAWN, .async = i & 1, .later = i & 2},
                &seen);
    return tried;
}
