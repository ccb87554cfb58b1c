/* Folders of Hugging Face and tensors that several mesh dimensions cut, strided and by segments: every layout writes
 * the same bytes, and each rank reads its own rows and columns alone. */
#include <stdio.h>

#include "fsdp/hub.h"
#include "support/layouts.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    PARAMETERS = 4,
    ROWS = 64,
    COLUMNS = 64,
    NUMEL = ROWS * COLUMNS
};

static const char *const names[] = {"rep", "dp", "tp"};
static const char *const parameters[PARAMETERS] = {"a.weight", "b.weight", "c.weight", "d.weight"};

typedef struct job {
    const char *folder;
    int world, ndim;
    int64_t shape[3];
    bool whole; /* nothing is replicated */
} job;

static const job layouts[] = {
    {.world = 2, .ndim = 1, .shape = {2}},       {.world = 4, .ndim = 2, .shape = {2, 2}},
    {.world = 6, .ndim = 2, .shape = {3, 2}},    {.world = 8, .ndim = 2, .shape = {2, 4}},
    {.world = 8, .ndim = 3, .shape = {2, 2, 2}},
};

static float value_of(int parameter, int64_t element)
{
    return (float)(parameter * NUMEL + element);
}

/* Draws until every mesh dimension shards, if nothing may be replicated. */
static void draw(uint64_t *dice, const job *j, drawn_layout *out)
{
    static const int64_t shape[] = {ROWS, COLUMNS};

    do
        layout_draw(dice, j->ndim, j->shape, 2, shape, out);
    while (j->whole && layout_copies(out) > 1);
}

static void add_parameter(fsdp_state_dict *state, fsdp_mesh *mesh, const job *j, int index, bool values)
{
    uint64_t dice = (uint64_t)index * 977 + (uint64_t)j->world;
    fsdp_tensor *whole = NULL, *local = NULL;
    drawn_layout l;
    static const float zeros[NUMEL];
    float *data = malloc(NUMEL * sizeof *data);

    for (int64_t i = 0; i < NUMEL; i++)
        data[i] = value_of(index, i);
    draw(&dice, j, &l);
    CHECK_OK(fsdp_tensor_create(test_device(fsdp_mesh_context(mesh)), FSDP_F32, FSDP_SHAPE(ROWS, COLUMNS),
                                FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, values ? data : zeros));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, l.placements, &local));
    CHECK_OK(fsdp_state_dict_add(state, parameters[index], local));
    fsdp_tensor_unref(local);
    fsdp_tensor_unref(whole);
    free(data);
}

static fsdp_state_dict *make_state(fsdp_context *context, const job *j, bool values, fsdp_mesh **out_mesh)
{
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_mesh_create(context, j->ndim, j->shape, names, out_mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    for (int i = 0; i < PARAMETERS; i++)
        add_parameter(state, *out_mesh, j, i, values);
    return state;
}

/* ---- out ---- */

static void save(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = make_state(context, j, true, &mesh);

    CHECK_OK(fsdp_hub_save(j->folder, state, NULL, FSDP_DTYPE_NONE, fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

/* Saves and returns the bytes of the file. */
static char *saved_by(const job *layout, const char *directory, size_t *bytes)
{
    char *folder = test_path(directory, "model"), *file = test_path(folder, "model.safetensors"), *data;
    job j = *layout;

    j.folder = folder;
    test_run_ranks(j.world, save, &j);
    data = test_read_file(file, bytes);
    return data;
}

TEST(every_layout_writes_the_same_bytes)
{
    char *directory = test_directory();
    size_t bytes, other_bytes;
    char *expected = saved_by(&(job){.world = 1, .ndim = 1, .shape = {1}}, directory, &bytes);

    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char *other = saved_by(&layouts[i], directory, &other_bytes);

        CHECK_EQ(other_bytes, bytes);
        CHECK_BYTES(other, expected, bytes);
    }
}

/* ---- in ---- */

typedef struct checking {
    int index;
    const float *data;
} checking;

static fsdp_status check_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const checking *c = arg;

    for (int64_t i = 0; i < numel; i++)
        CHECK_EQ(c->data[local + i], value_of(c->index, global + i));
    return FSDP_OK;
}

static void check_values(const fsdp_state_dict *state)
{
    float *data = malloc(NUMEL * sizeof *data);

    for (int i = 0; i < PARAMETERS; i++) {
        CHECK_OK(fsdp_tensor_read(state->entries[i].tensor, FSDP_F32, data));
        CHECK_OK(fsdp_state_dict_entry_runs(&state->entries[i], check_run, &(checking){i, data}));
    }
    free(data);
}

static void load(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *each = make_state(context, j, false, &mesh), *led;

    CHECK_OK(fsdp_hub_load(j->folder, each, NULL));
    check_values(each);
    fsdp_state_dict_free(each);
    fsdp_mesh_unref(mesh);
    led = make_state(context, j, false, &mesh);
    CHECK_OK(fsdp_hub_load_by_leader(j->folder, led, NULL, fsdp_world(context)));
    check_values(led);
    fsdp_state_dict_free(led);
    fsdp_mesh_unref(mesh);
}

TEST(every_layout_is_loaded)
{
    char *directory = test_directory(), *folder = test_path(directory, "model");
    size_t bytes;

    saved_by(&layouts[1], directory, &bytes);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        job j = layouts[i];

        j.folder = folder;
        test_run_ranks(j.world, load, &j);
    }
}

/* ---- how much is read ---- */

/* Returns the bytes that this process has read so far. */
static int64_t bytes_read(void)
{
    FILE *io = CHECK_PTR(fopen("/proc/self/io", "r"));
    long long bytes = -1;

    CHECK_EQ(fscanf(io, "rchar: %lld", &bytes), 1);
    fclose(io);
    return bytes;
}

/* Where every element has one rank, all ranks together read each byte once, and the header each. */
static void count(fsdp_context *context, void *arg)
{
    const job *j = arg;
    const int64_t file_bytes = (int64_t)sizeof(float) * PARAMETERS * NUMEL;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = make_state(context, j, false, &mesh);
    int64_t before;

    test_meet();
    before = bytes_read();
    test_meet();
    CHECK_OK(fsdp_hub_load(j->folder, state, NULL));
    test_meet();
    if (fsdp_context_rank(context) == 0) {
        int64_t bytes = bytes_read() - before;

        CHECK(bytes >= file_bytes);
        CHECK(bytes < file_bytes + j->world * 4096);
    }
    check_values(state);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

TEST(each_rank_reads_its_rows_and_columns_alone)
{
    char *directory = test_directory(), *folder = test_path(directory, "model");
    size_t bytes;

    saved_by(&layouts[1], directory, &bytes);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        job j = layouts[i];

        j.folder = folder;
        j.whole = true;
        test_run_ranks(j.world, count, &j);
    }
}
