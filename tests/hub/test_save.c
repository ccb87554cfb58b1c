/* Model folders written by ranks: the same bits come back, and no failure leaves a trace under the final name. */
#include <dirent.h>
#include <sys/stat.h>

#include "base/file.h"
#include "fsdp/format.h"
#include "hub/hub.h"
#include "support/models.h"
#include "support/ranks.h"

enum {
    PARAMETERS = 5
};

/* A state like that of a model; sharded by rows, by columns, whole, and one with fewer rows than ranks. */
static const struct {
    const char *name;
    int ndim;
    int64_t shape[2];
    int shard_dim; /* -1: every rank holds it whole */
} parameters[PARAMETERS] = {
    {"model.embed_tokens.weight", 2, {17, 12}, 0},
    {"model.layers.0.mlp.up_proj.weight", 2, {20, 13}, 1},
    {"model.norm.weight", 1, {12}, -1},
    {"model.layers.0.k", 2, {2, 5}, 0},
    {"lm_head.weight", 2, {17, 12}, 0},
};

static fsdp_model_config config(void)
{
    return MODEL_CONFIG(.architecture = FSDP_LLAMA, .n_layers = 1, .dim = 12, .n_heads = 3, .n_kv_heads = 1,
                        .head_dim = 4, .ffn_dim = 20, .vocab_size = 17, .max_seq_len = 9, .rope_theta = 10000,
                        .init_std = 0.02f);
}

static float value_of(int parameter, int64_t element)
{
    return (float)parameter + (float)element / 7.0f; /* not exact in bf16 */
}

static void add_parameter(fsdp_state_dict *state, fsdp_mesh *mesh, int index)
{
    fsdp_placement placement = {.kind = parameters[index].shard_dim < 0 ? FSDP_REPLICATE : FSDP_SHARD,
                                .dim = parameters[index].shard_dim < 0 ? 0 : parameters[index].shard_dim};
    fsdp_tensor *whole = NULL, *local = NULL;
    float values[512];

    CHECK_OK(fsdp_tensor_create(test_device(fsdp_mesh_context(mesh)), FSDP_F32, parameters[index].ndim,
                                parameters[index].shape, FSDP_MEMORY_PARAMETER_SHARD, &whole));
    for (int64_t i = 0; i < fsdp_tensor_numel(whole); i++)
        values[i] = value_of(index, i);
    CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, values));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &placement, &local));
    CHECK_OK(fsdp_state_dict_add(state, parameters[index].name, local));
    fsdp_tensor_unref(local);
    fsdp_tensor_unref(whole);
}

static fsdp_state_dict *make_state(fsdp_context *context, fsdp_mesh **out_mesh)
{
    int64_t world = fsdp_context_world_size(context);
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, out_mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    for (int i = 0; i < PARAMETERS; i++)
        add_parameter(state, *out_mesh, i);
    return state;
}

typedef struct job {
    char *folder;
    fsdp_dtype dtype;
    uint64_t limit_bytes;
    int failing_rank; /* in the fault tests */
} job;

static void save(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = make_state(context, &mesh);
    fsdp_model_config c = config();

    CHECK_OK(fsdp_hub_save_split(j->folder, state, &c, j->dtype, fsdp_world(context), j->limit_bytes));
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

/* Every tensor of the folder has the values of the state. */
static void check_folder(const char *folder, fsdp_dtype dtype)
{
    fsdp_safetensors *files = NULL;
    fsdp_model_config read;

    CHECK_OK(fsdp_hub_read_config(folder, &read));
    CHECK_OK(fsdp_safetensors_open(folder, &files));
    CHECK_EQ(fsdp_safetensors_count(files), PARAMETERS);
    for (int p = 0; p < PARAMETERS; p++) {
        const fsdp_safetensors_entry *entry = CHECK_PTR(fsdp_safetensors_find(files, parameters[p].name));

        CHECK_EQ(entry->dtype, dtype);
        CHECK_EQ((uintptr_t)entry->data % fsdp_dtype_size(dtype), 0);
        for (int64_t i = 0; i < (int64_t)(entry->bytes / fsdp_dtype_size(dtype)); i++) {
            float expected = value_of(p, i), got;
            uint32_t bits = 0;

            if (dtype == FSDP_F32) {
                CHECK_BYTES((const float *)entry->data + i, &expected, sizeof expected);
                continue;
            }
            bits = (uint32_t)((const uint16_t *)entry->data)[i] << 16;
            memcpy(&got, &bits, sizeof got);
            CHECK_NEAR(got, expected, expected / 256);
        }
    }
    fsdp_safetensors_close(files);
}

TEST(any_world_writes_the_same_folder)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};
    char *directory = test_directory();
    char *first = NULL, *file;
    size_t first_bytes = 0, bytes;

    for (int d = 0; d < 2; d++) {
        for (int world = 1; world <= 4; world++) {
            job j = {.folder = test_path(directory, "deep/er/model/"), .dtype = dtypes[d], .limit_bytes = 1 << 20};
            char *path = test_path(directory, "deep/er/model/model.safetensors");

            test_run_ranks(world, save, &j); /* over the folder of the world before */
            check_folder(j.folder, j.dtype);
            CHECK_EQ(test_names_in(j.folder), 3);
            file = test_read_file(path, &bytes);
            CHECK(world == 1 || (bytes == first_bytes && memcmp(file, first, bytes) == 0));
            if (world == 1) {
                first = file;
                first_bytes = bytes;
            }
        }
    }
}

TEST(large_models_are_split_into_numbered_files)
{
    char *directory = test_directory();
    job j = {.folder = test_path(directory, "model"), .dtype = FSDP_F32, .limit_bytes = 1100};
    char *path;

    test_run_ranks(3, save, &j);
    check_folder(j.folder, FSDP_F32);
    CHECK_EQ(test_names_in(j.folder), 6); /* two json, an index, 816 + 1040 + (48 + 40 + 816) bytes in three files */
    path = test_path(j.folder, "model-00003-of-00003.safetensors");
    CHECK(fsdp__path_exists(path));
}

TEST(a_replaced_folder_keeps_what_is_not_its_own)
{
    char *directory = test_directory();
    job j = {.folder = test_path(directory, "model"), .dtype = FSDP_F32, .limit_bytes = 1100};
    char *tokenizer = test_path(directory, "model/tokenizer.json"), *old = test_path(directory, "model/old.bin");

    test_run_ranks(2, save, &j);
    test_write_file(tokenizer, "abc", 3);
    test_write_file(old, "abc", 3);
    j.limit_bytes = 1 << 20;
    test_run_ranks(2, save, &j);
    check_folder(j.folder, FSDP_F32);
    CHECK_EQ(test_names_in(j.folder), 5);
    CHECK(fsdp__path_exists(tokenizer) && fsdp__path_exists(old));
    CHECK_EQ(test_names_in(directory), 1);
}

static fsdp_status save_alone(const char *folder, fsdp_dtype dtype, const fsdp_model_config *c)
{
    fsdp_context *context = test_context();
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = make_state(context, &mesh);
    fsdp_status status = fsdp_hub_save(folder, state, c, dtype, fsdp_world(context));

    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
    return status;
}

TEST(other_peoples_folders_are_not_replaced)
{
    char *directory = test_directory(), *folder = test_path(directory, "model"), *inside, *file;
    fsdp_model_config c = config();

    CHECK_OK(fsdp__make_directories(folder));
    CHECK_OK(save_alone(folder, FSDP_F16, &c)); /* empty: taken */
    test_remove_tree(folder);
    CHECK_OK(fsdp__make_directories(folder));
    inside = test_path(folder, "thesis.txt");
    test_write_file(inside, "x", 1);
    CHECK_ERROR(save_alone(folder, FSDP_F32, &c), FSDP_INVALID,
                "it holds 'thesis.txt', which no export wrote: name another");
    CHECK(fsdp__path_exists(inside));
    CHECK_EQ(test_names_in(directory), 1);
    file = test_path(directory, "file");
    test_write_file(file, "x", 1);
    CHECK_ERROR(save_alone(file, FSDP_F32, &c), FSDP_INVALID, "it exists and is not a folder");
    CHECK_ERROR(save_alone("", FSDP_F32, &c), FSDP_INVALID, "name is empty");
    CHECK_ERROR(save_alone("/proc/no/such", FSDP_F32, &c), FSDP_NOT_FOUND, "/proc/no");
    CHECK_ERROR(save_alone(folder, FSDP_I32, &c), FSDP_INVALID, "cannot write a model as int32");
    c.n_heads = 0;
    CHECK_ERROR(save_alone(folder, FSDP_F32, &c), FSDP_INVALID, "n_heads is 0");
}

/* One save in which a use of a resource fails; the group must still work afterwards. */
static fsdp_status save_with_fault(fsdp_context *context, const job *j, const fsdp_state_dict *state)
{
    fsdp_model_config c = config();

    return fsdp_hub_save_split(j->folder, state, &c, j->dtype, fsdp_world(context), j->limit_bytes);
}

/* With every write of one rank failing in turn: an error on every rank, and the old folder as it was. */
static void fail_writes(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = make_state(context, &mesh);
    char *parent = strdup(j->folder);
    int rounds = 0, rank = fsdp_context_rank(context);
    bool hit = true;

    *strrchr(parent, '/') = '\0';
    for (long n = 1; hit; n++) {
        int32_t any = 0;
        fsdp_status status;

        if (rank == j->failing_rank)
            fsdp__fault_arm(FSDP__FAULT_WRITE, n);
        status = save_with_fault(context, j, state);
        any = fsdp__fault_hit(FSDP__FAULT_WRITE);
        fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
        CHECK_OK(fsdp_all_reduce(fsdp_world(context), &any, &any, 1, FSDP_I32, FSDP_MAX,
                                 fsdp_device_stream(fsdp_cpu(context))));
        hit = any;
        CHECK_EQ(status != FSDP_OK, hit);
        if (rank == 0) {
            struct stat info;

            CHECK_EQ(test_names_in(parent), 1); /* the old folder, or after the last round the new one */
            CHECK(stat(j->folder, &info) == 0);
            check_folder(j->folder, FSDP_F32);
        }
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
        rounds++;
    }
    CHECK(rounds > (j->failing_rank == 0 ? 10 : 3));
    free(parent);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

TEST(a_failed_write_is_everybodys_error_and_leaves_the_old_folder)
{
    for (int failing = 0; failing < 2; failing++) {
        char *directory = test_directory();
        job j = {
            .folder = test_path(directory, "model"), .dtype = FSDP_F32, .limit_bytes = 1100, .failing_rank = failing};

        test_run_ranks(2, save, &j);
        test_run_ranks(2, fail_writes, &j);
        test_directory_free(directory);
    }
}

TEST(a_failed_write_leaves_nothing_where_nothing_was)
{
    char *directory = test_directory(), *folder = test_path(directory, "model");
    fsdp_model_config c = config();

    for (long n = 0; test_next_fault(FSDP__FAULT_WRITE, &n);) {
        fsdp_status status = save_alone(folder, FSDP_F32, &c);

        CHECK_FAULT(FSDP__FAULT_WRITE, status);
        CHECK_EQ(test_names_in(directory), status == FSDP_OK ? 1 : 0);
    }
    check_folder(folder, FSDP_F32);
}

/* A failed collective breaks its group, so each try has a world of its own. */
TEST(a_failed_allocation_leaves_nothing)
{
    char *directory = test_directory(), *folder = test_path(directory, "model");
    fsdp_model_config c = config();
    bool hit = true;

    for (long n = 1; hit; n++) {
        fsdp_context *context = test_context();
        fsdp_mesh *mesh = NULL;
        fsdp_state_dict *whole = make_state(context, &mesh);
        fsdp_process_group *world = fsdp_world(context);
        fsdp_status status;

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_hub_save_split(folder, whole, &c, FSDP_F32, world, 1100);
        hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        CHECK_EQ(status != FSDP_OK, hit);
        /* When nothing but the last word between the ranks failed, the model is there, and the error says so. */
        CHECK_EQ(test_names_in(directory), !hit || strstr(fsdp_last_error(), "the model is in '"));
        if (hit && test_names_in(directory))
            check_folder(folder, FSDP_F32);
        if (hit)
            test_remove_tree(folder);
        fsdp_state_dict_free(whole);
        fsdp_mesh_unref(mesh);
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
    check_folder(folder, FSDP_F32);
}

static void save_different(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = make_state(context, &mesh);
    fsdp_model_config c = config();
    fsdp_status status;

    if (fsdp_context_rank(context) == 1)
        CHECK_OK(fsdp_state_dict_add(state, "one.more", state->entries[2].tensor));
    status = fsdp_hub_save(j->folder, state, &c, j->dtype, fsdp_world(context));
    CHECK_EQ(status, FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "names, shapes or placements differ from those of rank 0");
    status =
        fsdp_hub_save(j->folder, fsdp_context_rank(context) == 1 ? NULL : state, &c, j->dtype, fsdp_world(context));
    CHECK_EQ(status, FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "rank 1: cannot write a model: folder, state and group are required");
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

TEST(any_state_is_written_without_a_config)
{
    char *directory = test_directory(), *folder = test_path(directory, "weights");
    char *config_path = test_path(folder, "config.json");
    fsdp_safetensors *files = NULL;

    CHECK_OK(save_alone(folder, FSDP_F32, NULL));
    CHECK_EQ(test_names_in(folder), 1);
    CHECK(!fsdp__path_exists(config_path));
    CHECK_OK(fsdp_safetensors_open(folder, &files));
    CHECK_EQ(fsdp_safetensors_count(files), PARAMETERS);
    fsdp_safetensors_close(files);
    CHECK_ERROR(fsdp_hub_save(NULL, NULL, NULL, FSDP_F32, NULL), FSDP_INVALID, "folder, state and group are required");
}

TEST(an_unfinished_folder_is_refused_by_every_reader)
{
    char *directory = test_directory(), *folder = test_path(directory, "model");
    char *journal = test_path(folder, "unfinished-save.json"),
         *index = test_path(folder, "model.safetensors.index.json");
    job j = {.folder = folder, .dtype = FSDP_F32, .limit_bytes = 1100};
    fsdp_model_config c = config();
    fsdp_safetensors *files = NULL;
    bool finished = true;

    test_run_ranks(1, save, &j);
    CHECK_OK(fsdp_hub_repair(folder, &finished));
    CHECK(!finished);
    test_write_file(journal, "{\"version\": 1, \"new\": [], \"gone\": []}", 37);
    CHECK_ERROR(fsdp_hub_read_config(folder, &c), FSDP_STATE, ": fsdp repair ");
    CHECK_ERROR(fsdp_safetensors_open(folder, &files), FSDP_STATE, ": fsdp repair ");
    CHECK_ERROR(fsdp_safetensors_open(index, &files), FSDP_STATE, ": fsdp repair ");
    CHECK_OK(fsdp_hub_repair(folder, NULL));
    check_folder(folder, FSDP_F32);
    CHECK_ERROR(fsdp_hub_repair(NULL, NULL), FSDP_INVALID, "its name is required");
    fsdp_hub_abandon(NULL);
}

TEST(ranks_with_different_parameters_are_told)
{
    char *directory = test_directory();
    job j = {.folder = test_path(directory, "model"), .dtype = FSDP_F32};

    test_run_ranks(2, save_different, &j);
    CHECK_EQ(test_names_in(directory), 0);
}

/* As if one rank alone were enough. */
static void save_in_part(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_mesh *mesh = NULL;
    fsdp_state_dict *state = make_state(context, &mesh);
    fsdp_model_config c = config();

    for (int r = 0; r < 2; r++) {
        fsdp_process_group *alone = NULL;

        CHECK_OK(fsdp_process_group_create(context, &r, 1, "alone", &alone));
        if (alone)
            CHECK_ERROR(fsdp_hub_save(j->folder, state, &c, j->dtype, alone), FSDP_INVALID,
                        "cannot write the model: the ranks of group 'alone' write ");
        fsdp_process_group_free(alone);
    }
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

TEST(ranks_that_hold_a_part_do_not_write_a_model)
{
    char *directory = test_directory();
    job j = {.folder = test_path(directory, "model"), .dtype = FSDP_F32};

    test_run_ranks(2, save_in_part, &j);
    CHECK_EQ(test_names_in(directory), 0);
}

CONTEXT_TEST(a_model_without_values_is_not_written)
{
    char *directory = test_directory(), *folder = test_path(directory, "model");
    fsdp_module *linear = CHECK_PTR(fsdp_linear_create(context, fsdp_meta(context), 3, 2, NULL));
    fsdp_state_dict *weights = NULL;

    CHECK_OK(fsdp_module_materialize(linear, test_device(context)));
    CHECK_OK(fsdp_state_dict_from_module(linear, &weights));
    CHECK_ERROR(
        fsdp_hub_save(folder, weights, NULL, FSDP_F32, fsdp_world(context)), FSDP_STATE,
        "cannot write a model that has memory but no values yet: 'weight' and 'bias': call fsdp_module_initialize");
    CHECK_EQ(test_names_in(directory), 0);
    CHECK_OK(fsdp_module_initialize(linear, 1));
    CHECK_OK(fsdp_hub_save(folder, weights, NULL, FSDP_F32, fsdp_world(context)));
    fsdp_state_dict_free(weights);
    fsdp_module_unref(linear);
}
