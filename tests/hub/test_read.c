/* Parts of tensors from files: read by each rank or by a leader, the same values, in bounded memory; and failures of
 * one rank in the middle of it. */
#include <unistd.h>

#include "format/pickler.h"
#include "fsdp/hub.h"
#include "support/ranks.h"

enum {
    NUMEL = 35,
    VIEWS = 4,
    COLUMNS = 1 /* the view that is sharded over its second dimension */
};

/* Views of one storage of floats 0, 1, 2, ... */
static const pickled_view views[] = {
    {"rows", "FloatStorage", "0", NUMEL, 0, 2, {7, 3}, {3, 1}},
    {"columns", "FloatStorage", "0", NUMEL, 4, 2, {4, 6}, {6, 1}},
    {"turned", "FloatStorage", "0", NUMEL, 0, 2, {5, 7}, {1, 5}},
    {"short", "FloatStorage", "0", NUMEL, 30, 1, {2}, {1}},
};

typedef struct fixture {
    const char *folder;
    bool by_leader;
    long fault; /* the n-th allocation of the last rank fails; 0: none */
    bool hit;
    fsdp_status statuses[8]; /* of the ranks */
    const char *part;        /* of the error; NULL: there is none */
} fixture;

static void add_part(fsdp_state_dict *state, fsdp_mesh *mesh, const pickled_view *view, int dim)
{
    fsdp_context *context = fsdp_mesh_context(mesh);
    fsdp_placement placement = {.kind = FSDP_SHARD, .dim = dim};
    fsdp_tensor *whole = NULL, *local = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, view->ndim, view->shape, FSDP_MEMORY_PARAMETER_SHARD,
                                &whole));
    CHECK_OK(fsdp_tensor_fill_(whole, -1));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &placement, &local));
    CHECK_OK(fsdp_state_dict_add(state, view->name, local));
    fsdp_tensor_unref(local);
    fsdp_tensor_unref(whole);
}

static float element(const pickled_view *view, int64_t row, int64_t column)
{
    return (float)(view->offset + row * view->strides[0] + column * view->strides[1]);
}

static void check_part(const fsdp_state_dict_entry *entry, const pickled_view *view)
{
    int64_t columns = entry->ndim == 2 ? entry->size[1] : 1, numel = fsdp_tensor_numel(entry->tensor);
    float values[64];

    CHECK_OK(fsdp_tensor_read(entry->tensor, FSDP_F32, values));
    for (int64_t i = 0; i < numel; i++)
        if (values[i] !=
            element(view, entry->offset[0] + i / columns, (entry->ndim == 2 ? entry->offset[1] : 0) + i % columns))
            TEST_FAIL("'%s': element %lld of %lld is %g", view->name, (long long)i, (long long)numel,
                      (double)values[i]);
}

static fsdp_status load(const fixture *f, fsdp_context *context, fsdp_state_dict *state)
{
    if (f->by_leader)
        return fsdp_hub_load_by_leader(f->folder, state, NULL, fsdp_world(context));
    return fsdp_agree(fsdp_world(context), fsdp_hub_load(f->folder, state, NULL));
}

static void load_parts(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int64_t world = fsdp_context_world_size(context);
    bool last = fsdp_context_rank(context) == world - 1;
    fsdp_state_dict *state = NULL;
    fsdp_mesh *mesh = NULL;
    fsdp_status status;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    for (int i = 0; i < VIEWS; i++)
        add_part(state, mesh, &views[i], i == COLUMNS);
    test_meet();
    if (last)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->fault);
    status = load(f, context, state);
    if (last) {
        f->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    }
    f->statuses[fsdp_context_rank(context)] = status;
    if (f->part)
        CHECK_ERROR(status, FSDP_FORMAT, f->part);
    else if (f->fault == 0)
        CHECK_OK(status);
    for (int i = 0; i < VIEWS && status == FSDP_OK; i++)
        check_part(&state->entries[i], &views[i]);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

TEST(a_leader_gives_every_rank_what_it_would_have_read)
{
    char *folder = test_directory(), *path = test_path(folder, "pytorch_model.bin");
    fixture f = {.folder = folder};

    write_torch_file(path, views, VIEWS, 1, NUMEL);
    for (int leader = 0; leader < 2; leader++)
        for (int world = 1; world <= 8; world += world == 4 ? 4 : 1) {
            f.by_leader = leader;
            test_run_ranks(world, load_parts, &f);
        }
}

/* Compressed, and then no deflate stream any more: found when it is read. */
static void write_broken_file(const char *path)
{
    static const float zeros[NUMEL];
    pickler p = {.bytes = 0};
    archived members[] = {{"model/data.pkl", p.data, 0, 0}, {"model/data/0", zeros, sizeof zeros, 1}};
    size_t bytes = 0;
    char *data, *name;

    pickle_state_dict(&p, views, VIEWS);
    members[0].bytes = p.bytes;
    write_archive(path, members, 2);
    data = test_read_file(path, &bytes);
    name = CHECK_PTR(memmem(data, bytes, "model/data/0", 12));
    memset(name + 12, 0xff, 4);
    test_write_file(path, data, bytes);
}

TEST(what_a_leader_cannot_read_is_everybodys_error)
{
    char *folder = test_directory(), *path = test_path(folder, "pytorch_model.bin");
    fixture f = {.folder = folder, .part = "pytorch_model.bin': 'model/data/0' in it: "};

    write_broken_file(path);
    for (int leader = 0; leader < 2; leader++) {
        f.by_leader = leader;
        test_run_ranks(3, load_parts, &f);
    }
}

TEST(a_rank_without_memory_is_everybodys_error)
{
    char *folder = test_directory(), *path = test_path(folder, "pytorch_model.bin");
    fixture f = {.folder = folder, .by_leader = true, .hit = true};

    write_torch_file(path, views, VIEWS, 1, NUMEL);
    for (f.fault = 1; f.hit; f.fault++) {
        f.hit = false;
        test_run_ranks(2, load_parts, &f);
        CHECK_EQ(f.statuses[0] != FSDP_OK, f.hit);
        CHECK_EQ(f.statuses[1] != FSDP_OK, f.hit);
    }
    CHECK(f.fault > 10);
}

/* ---- memory ---- */

/* What of this process was in memory at most, in KiB, since it was asked to forget. */
static long peak_kib(bool forget)
{
    FILE *file = fopen(forget ? "/proc/self/clear_refs" : "/proc/self/status", forget ? "w" : "r");
    char line[256];
    long kib = 0;

    CHECK(file != NULL);
    if (forget)
        fputs("5", file);
    while (!forget && fgets(line, sizeof line, file))
        sscanf(line, "VmHWM: %ld", &kib);
    fclose(file);
    return kib;
}

enum {
    MIB = 1 << 20,
    FILE_MIB = 96,
    RANKS = 4
};

/* A tensor of zeros that takes no room on disk. */
static void write_holes(const char *path)
{
    char header[256] = "________{\"w\":{\"dtype\":\"F32\",\"shape\":[4096,6144],\"data_offsets\":[0,100663296]}}";
    size_t length = strlen(header) - 8;

    memset(header, 0, 8);
    header[0] = (char)length;
    test_write_file(path, header, 8 + length);
    CHECK_EQ(truncate(path, (off_t)(8 + length + (size_t)FILE_MIB * MIB)), 0);
}

/* Rows of rank 1, without values. */
static void add_rows(fsdp_state_dict *state, fsdp_mesh *mesh)
{
    fsdp_distribution rows = {.mesh = mesh,
                              .placement_count = 1,
                              .placements = {{.kind = FSDP_SHARD}},
                              .ndim = 2,
                              .global_shape = {4096, 6144}};
    fsdp_tensor *local = NULL;

    CHECK_OK(fsdp_tensor_create(fsdp_cpu(fsdp_mesh_context(mesh)), FSDP_F32, FSDP_SHAPE(4096 / RANKS, 6144),
                                FSDP_MEMORY_PARAMETER_SHARD, &local));
    CHECK_OK(fsdp_tensor_set_distribution(local, &rows));
    CHECK_OK(fsdp_state_dict_add(state, "w", local));
    fsdp_tensor_unref(local);
}

/* Of the files nothing stays in memory: the peak is this rank's part, and the windows. */
TEST(a_rank_reads_in_the_memory_of_its_part_and_a_window)
{
    char *folder, *path;
    int64_t world = RANKS;
    fsdp_context *context = NULL;
    fsdp_state_dict *part = NULL;
    fsdp_mesh *mesh = NULL;
    long before;

    test_only_on_cpu("its memory is the host's");
    if (TEST_SANITIZED)
        skip(); /* its own memory is counted as well */
    folder = test_directory();
    path = test_path(folder, "model.safetensors");
    write_holes(path);
    CHECK_OK(fsdp_context_create_fake(1, RANKS, &context));
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&part));
    peak_kib(true);
    before = peak_kib(false);
    add_rows(part, mesh);
    CHECK_OK(fsdp_hub_load(folder, part, NULL));
    CHECK(peak_kib(false) - before < (FILE_MIB / RANKS + 2 * 4 + 4) * 1024);
    fsdp_state_dict_free(part);
    fsdp_mesh_unref(mesh);
    fsdp_context_free(context);
}
