/* What any number of ranks has saved, however its tensors were cut, any other number loads, to the bit. */
#include "checkpoint/scene.h"

enum {
    WORLDS = 5
};
static const int worlds[WORLDS] = {1, 2, 3, 4, 8};

/* A step for each way of saving. */
static int64_t step_of(int world, int layout)
{
    return world * 10 + layout;
}

static void save_all(fsdp_context *context, void *arg)
{
    for (int layout = 0; layout < SCENE_LAYOUTS; layout++) {
        int64_t step = step_of(fsdp_context_world_size(context), layout);

        scene_save_to(arg, context, layout, step, (int)step);
    }
}

static void load_one(fsdp_context *context, const char *folder, int64_t step, int layout)
{
    char *path = NULL;

    CHECK_OK(fsdp_checkpoint_find(folder, step, &path));
    scene_load_check(path, context, layout, layout % 2 ? FSDP_F32 : FSDP_BF16, (int)step);
    free(path);
}

/* Each way of saving meets each number of ranks; the ways of loading take turns. */
static void load_all(fsdp_context *context, void *arg)
{
    int turn = fsdp_context_world_size(context);

    for (int w = 0; w < WORLDS; w++)
        for (int saved = 0; saved < SCENE_LAYOUTS; saved++, turn++)
            for (int layout = 0; layout < SCENE_LAYOUTS; layout++)
                if (test_long() || layout == turn % SCENE_LAYOUTS)
                    load_one(context, arg, step_of(worlds[w], saved), layout);
}

TEST(any_ranks_load_what_any_ranks_saved)
{
    char *directory = test_directory(), *folder = test_path(directory, "checkpoints");

    for (int w = 0; w < WORLDS; w++)
        test_run_ranks(worlds[w], save_all, folder);
    for (int w = 0; w < WORLDS; w++)
        test_run_ranks(worlds[w], load_all, folder);
}

/* ---- several boxes of one rank ---- */

static void save_drawn(fsdp_context *context, void *arg)
{
    fsdp_checkpoint_saver *saver = NULL;

    CHECK_OK(fsdp_checkpoint_saver_create(arg, &(fsdp_checkpoint_saver_options){.async = true}, fsdp_world(context),
                                          &saver));
    CHECK_OK(scene_save(saver, context, SCENE_DRAWN, 1, 1));
    CHECK_OK(fsdp_checkpoint_saver_wait(saver, NULL));
    fsdp_checkpoint_saver_free(saver);
}

/* The most parts that one rank has of one tensor. */
static int most_parts(const char *folder)
{
    fsdp_checkpoint_reader *reader = NULL;
    int most = 0;

    CHECK_OK(fsdp_checkpoint_open(folder, &reader));
    for (int i = 0; i < SCENE_TENSORS; i++) {
        const fsdp_checkpoint_tensor *t = CHECK_PTR(fsdp_checkpoint_tensor_find(reader, "model", scene_name(i)));

        for (int64_t k = 0, same = 0; k < t->part_count; k++) {
            same = k > 0 && t->parts[k].rank == t->parts[k - 1].rank ? same + 1 : 1;
            most = same > most ? (int)same : most;
        }
    }
    fsdp_checkpoint_close(reader);
    return most;
}

/* A load that fails on this rank at its n-th allocation says so; the last one works. */
static void load_failing(fsdp_context *context, void *arg)
{
    scene s = scene_create(context, SCENE_DRAWN, FSDP_F32, 0, false);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_checkpoint_reader *reader = NULL;
        fsdp_status status = fsdp_checkpoint_open(arg, &reader);

        if (status == FSDP_OK)
            status = fsdp_checkpoint_load(reader, "model", s.state, NULL);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_checkpoint_close(reader);
    }
    scene_check(&s, 1);
    scene_free(&s);
}

TEST(a_rank_may_have_several_boxes)
{
    char *directory = test_directory(), *folder = test_path(directory, "checkpoints");

    test_run_ranks(8, save_drawn, folder);
    CHECK(most_parts(folder) > 1);
    test_run_ranks(4, load_failing, folder);
}

/* ---- large tensors: many blocks, and runs that cross them ---- */

enum {
    ROWS = 1009,
    COLUMNS = 601
};

static fsdp_state_dict *large(fsdp_context *context, int dim, bool values, fsdp_mesh **out_mesh)
{
    int64_t world = fsdp_context_world_size(context);
    float *numbers = malloc((size_t)ROWS * COLUMNS * sizeof *numbers);
    fsdp_tensor *whole = NULL, *local = NULL, *odd = NULL;
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, out_mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(ROWS, COLUMNS), FSDP_MEMORY_PARAMETER_SHARD,
                                &whole));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        numbers[i] = values ? (float)i : -1;
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, numbers));
    CHECK_OK(fsdp_distribute_tensor(whole, *out_mesh, &(fsdp_placement){.kind = FSDP_SHARD, .dim = dim}, &local));
    /* Three bytes in front: elements lie across the ends of blocks. */
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_U8, FSDP_SHAPE(3), FSDP_MEMORY_PARAMETER_SHARD, &odd));
    CHECK_OK(fsdp_tensor_fill_(odd, values ? 7 : 0));
    CHECK_OK(fsdp_state_dict_add(state, "odd", odd));
    CHECK_OK(fsdp_state_dict_add(state, "large", local));
    fsdp_tensor_unref(odd);
    fsdp_tensor_unref(local);
    fsdp_tensor_unref(whole);
    free(numbers);
    return state;
}

static void save_large(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = large(context, 0, true, &mesh);
    const fsdp_checkpoint_section section = {.name = "model", .state = state};

    CHECK_OK(fsdp_checkpoint_save(arg, &(fsdp_checkpoint_content){.sections = &section, .section_count = 1},
                                  fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

static fsdp_status check_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    const float *numbers = arg;

    for (int64_t i = 0; i < numel; i++)
        if (numbers[local + i] != (float)(global + i))
            TEST_FAIL("element %lld is %g", (long long)(global + i), (double)numbers[local + i]);
    return FSDP_OK;
}

static void load_large(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = large(context, 1, false, &mesh);
    fsdp_checkpoint_reader *reader = NULL;
    float *numbers = malloc((size_t)ROWS * COLUMNS * sizeof *numbers);
    double odd[3];

    CHECK_OK(fsdp_checkpoint_open(arg, &reader));
    CHECK_OK(fsdp_checkpoint_load(reader, "model", state, NULL));
    CHECK_OK(fsdp_tensor_read(fsdp_state_dict_find(state, "large")->tensor, FSDP_F32, numbers));
    CHECK_OK(fsdp_state_dict_entry_runs(fsdp_state_dict_find(state, "large"), check_run, numbers));
    CHECK_OK(fsdp_checkpoint_read(reader, fsdp_checkpoint_tensor_find(reader, "model", "odd"), 0, 3, odd));
    CHECK_BYTES(odd, "\7\7\7", 3);
    free(numbers);
    fsdp_checkpoint_close(reader);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

TEST(tensors_of_many_blocks_come_back)
{
    char *directory = test_directory(), *folder = test_path(directory, "checkpoints");

    test_run_ranks(2, save_large, folder);
    test_run_ranks(3, load_large, folder);
    test_run_ranks(1, load_large, folder);
}

/* ---- memory ---- */

enum {
    HEAVY_ROWS = 24 << 10,
    HEAVY_COLUMNS = 1 << 10 /* 96 MiB of f32 */
};

static fsdp_status add_heavy(fsdp_context *context, fsdp_state_dict *state)
{
    fsdp_tensor *heavy = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp_tensor_create(fsdp_cpu(context), FSDP_F32, FSDP_SHAPE(HEAVY_ROWS, HEAVY_COLUMNS),
                                FSDP_MEMORY_PARAMETER_SHARD, &heavy));
    status = fsdp_tensor_fill_(heavy, 3);
    if (status == FSDP_OK)
        status = fsdp_state_dict_add(state, "heavy", heavy);
    fsdp_tensor_unref(heavy);
    return status;
}

/* A line of /proc/self/status, in bytes; -1: there is none. */
static int64_t status_bytes(const char *key)
{
    FILE *file = fopen("/proc/self/status", "r");
    long long kilobytes = -1;
    char line[200];

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kilobytes = strtoll(line + strlen(key), NULL, 10);
    if (file)
        fclose(file);
    return kilobytes < 0 ? -1 : kilobytes * 1024;
}

CONTEXT_TEST(a_load_takes_a_few_windows)
{
    char *directory = test_directory(), *folder = test_path(directory, "checkpoints");
    fsdp_checkpoint_section section = {.name = "model"};
    fsdp_checkpoint_reader *reader = NULL;
    int64_t before, after;

    CHECK_OK(fsdp_state_dict_create(&section.state));
    CHECK_OK(add_heavy(context, section.state));
    CHECK_OK(fsdp_checkpoint_save(folder, &(fsdp_checkpoint_content){.sections = &section, .section_count = 1},
                                  fsdp_world(context)));
    test_write_file("/proc/self/clear_refs", "5", 1); /* the peak starts again */
    before = status_bytes("VmRSS:");
    CHECK_OK(fsdp_checkpoint_open(folder, &reader));
    CHECK_OK(fsdp_checkpoint_load(reader, "model", section.state, NULL));
    CHECK_OK(fsdp_checkpoint_verify(reader, NULL, NULL));
    fsdp_checkpoint_close(reader);
    after = status_bytes("VmHWM:");
    CHECK(before > 0 && after >= before);
    CHECK(TEST_SANITIZED || after - before < (int64_t)HEAVY_ROWS * HEAVY_COLUMNS * 4 / 10);
    fsdp_state_dict_free(section.state);
}

TEST_FILE_IN_MEMORY(false, NULL)
