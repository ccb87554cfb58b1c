/* What is in a checkpoint comes out of it, and what cannot be saved, found or loaded is refused by name. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/scene.h"
#include "fsdp/format.h"

/* One rank, a folder, and what goes into a checkpoint of it. */
static char *directory, *folder;
static fsdp_context *context;

static int setup(void **state)
{
    (void)state;
    directory = test_directory();
    folder = test_path(directory, "checkpoints");
    context = test_context();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
    return 0;
}

static fsdp_checkpoint_reader *saved(int64_t step)
{
    fsdp_checkpoint_reader *reader = NULL;
    char *path = NULL;

    scene_save_to(folder, context, SCENE_ROWS, step, 5);
    CHECK_OK(fsdp_checkpoint_find(folder, step, &path));
    CHECK_OK(fsdp_checkpoint_open(path, &reader));
    CHECK_STRING(fsdp_checkpoint_path(reader), path);
    free(path);
    return reader;
}

TEST_WITH(all_that_was_saved_can_be_asked_for, setup, teardown)
{
    fsdp_checkpoint_reader *reader = saved(12);
    const fsdp_checkpoint_tensor *tensor;
    int64_t integer = 0;
    double number = 0;
    const char *text = NULL;

    CHECK_EQ(fsdp_checkpoint_step(reader), 12);
    CHECK_EQ(fsdp_checkpoint_world_size(reader), 1);
    CHECK_STRING(fsdp_checkpoint_mesh(reader), "dp=1");
    CHECK_EQ(fsdp_checkpoint_count(reader), 2 * SCENE_TENSORS);
    tensor = CHECK_PTR(fsdp_checkpoint_tensor_find(reader, "optimizer", "weight"));
    CHECK_EQ(tensor->dtype, FSDP_BF16);
    CHECK_EQ(tensor->shape[1], 5);
    CHECK_EQ(tensor->part_count, 1);
    CHECK_STRING(tensor->parts[0].file, "rank-00000-of-00001.safetensors");
    CHECK_EQ(tensor->parts[0].bytes, 70);
    CHECK_NULL(fsdp_checkpoint_tensor_find(reader, "optimizer", "weights"));
    CHECK_NULL(fsdp_checkpoint_tensor_find(reader, "schedule", "weight"));
    CHECK_STRING(fsdp_checkpoint_at(reader, 0)->section, "model");
    CHECK_NULL(fsdp_checkpoint_at(reader, 2 * SCENE_TENSORS));
    CHECK_OK(fsdp_checkpoint_get_integer(reader, "salt", &integer));
    CHECK_EQ(integer, 5);
    CHECK_OK(fsdp_checkpoint_get_number(reader, "third", &number));
    CHECK(number == 1.0 / 3);
    CHECK_OK(fsdp_checkpoint_get_text(reader, "run", &text));
    CHECK_STRING(text, "a \"name\" with \xc3\xa4 and\na line");
    CHECK_ERROR(fsdp_checkpoint_get_text(reader, "salt", &text), FSDP_FORMAT, "is a whole number, not a text");
    CHECK_ERROR(fsdp_checkpoint_get_integer(reader, "pepper", &integer), FSDP_NOT_FOUND, "no value 'pepper'");
    CHECK_ERROR(fsdp_checkpoint_get_integer(reader, NULL, &integer), FSDP_INVALID, "the name is NULL");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_checkpoint_get_integer(NULL, "salt", &integer), FSDP_INVALID, "the reader is NULL");
    CHECK_EQ(fsdp_checkpoint_value_count(reader), 3);
    CHECK_STRING(fsdp_checkpoint_value_at(reader, 2)->name, "run");
    CHECK_EQ(fsdp_checkpoint_file_count(reader), 2);
    CHECK_STRING(fsdp_checkpoint_file_find(reader, "config.json")->data, "{\"n\": 1}");
    CHECK_EQ(fsdp_checkpoint_file_find(reader, "empty")->bytes, 0);
    CHECK_NULL(fsdp_checkpoint_file_find(reader, "other"));
    CHECK_OK(fsdp_checkpoint_verify(reader, NULL, NULL));
    fsdp_checkpoint_close(reader);
}

/* Each rank's file is one that other programs read. */
TEST_WITH(a_file_of_a_rank_is_a_safetensors_file, setup, teardown)
{
    fsdp_safetensors *file = NULL;
    const fsdp_safetensors_entry *entry;
    char *path;

    fsdp_checkpoint_close(saved(0));
    path = test_path(folder, "step-0/rank-00000-of-00001.safetensors");
    CHECK_OK(fsdp_safetensors_open(path, &file));
    entry = CHECK_PTR(fsdp_safetensors_find(file, "model.weight"));
    CHECK_EQ(entry->dtype, FSDP_F32);
    CHECK_EQ(entry->shape[0], 7);
    fsdp_safetensors_close(file);
}

/* ---- numbers ---- */

static fsdp_status save_values(int64_t step, const fsdp_checkpoint_value *values, int count)
{
    return fsdp_checkpoint_save(
        folder, &(fsdp_checkpoint_content){.step = step, .values = values, .value_count = count}, fsdp_world(context));
}

TEST_WITH(numbers_come_back_to_the_bit, setup, teardown)
{
    const double numbers[] = {0.0, -0.0, 5e-324, 1.7976931348623157e308, INFINITY, -NAN, 0.1};
    fsdp_checkpoint_value values[9] = {{.name = "least", .type = FSDP_CHECKPOINT_INTEGER, .integer = INT64_MIN},
                                       {.name = "most", .type = FSDP_CHECKPOINT_INTEGER, .integer = INT64_MAX}};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g"};
    fsdp_checkpoint_reader *reader = NULL;
    int64_t integer = 0;

    for (int i = 0; i < 7; i++)
        values[2 + i] = (fsdp_checkpoint_value){.name = names[i], .type = FSDP_CHECKPOINT_NUMBER, .number = numbers[i]};
    CHECK_OK(save_values(1, values, 9));
    CHECK_OK(fsdp_checkpoint_open(folder, &reader));
    CHECK_OK(fsdp_checkpoint_get_integer(reader, "least", &integer));
    CHECK(integer == INT64_MIN);
    CHECK_OK(fsdp_checkpoint_get_integer(reader, "most", &integer));
    CHECK(integer == INT64_MAX);
    for (int i = 0; i < 7; i++) {
        double number = 1;

        CHECK_OK(fsdp_checkpoint_get_number(reader, names[i], &number));
        CHECK_BYTES(&number, &numbers[i], sizeof number);
    }
    fsdp_checkpoint_close(reader);
}

/* ---- what cannot be saved ---- */

TEST_WITH(impossible_content_is_refused, setup, teardown)
{
    const fsdp_checkpoint_value text = {.name = "a", .type = FSDP_CHECKPOINT_TEXT, .text = "\xff"};
    const fsdp_checkpoint_value twice[] = {{.name = "a"}, {.name = "a"}};
    static const char *const files[] = {"", ".", "..", "a/b", "manifest.json", "rank-00000-of-00001.safetensors"};
    static const char *const sections[] = {"", "a.b", "a b", "\xc3\xa4"};
    fsdp_process_group *world = fsdp_world(context);
    fsdp_state_dict *empty = NULL;
    fsdp_checkpoint_section two[2];

    CHECK_OK(fsdp_state_dict_create(&empty));
    CHECK_ERROR(save_values(1, &text, 1), FSDP_INVALID, "value 'a' of a checkpoint is not UTF-8");
    CHECK_ERROR(save_values(1, twice, 2), FSDP_INVALID, "two values called 'a'");
    CHECK_ERROR(save_values(1, &(fsdp_checkpoint_value){.name = ""}, 1), FSDP_INVALID, "has no name");
    CHECK_ERROR(save_values(1, &(fsdp_checkpoint_value){.name = "a", .type = 3}, 1), FSDP_INVALID, "unknown type");
    CHECK_ERROR(save_values(-1, NULL, 0), FSDP_INVALID, "step -1");
    CHECK_ERROR(save_values(1000000000000000000, NULL, 0), FSDP_INVALID, "have step 1000000000000000000");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        CHECK_ERROR(fsdp_checkpoint_save(
                        folder,
                        &(fsdp_checkpoint_content){.files = &(fsdp_checkpoint_file){files[i], "", 0}, .file_count = 1},
                        world),
                    FSDP_INVALID, "cannot be called");
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        two[0] = (fsdp_checkpoint_section){.name = sections[i], .state = empty};
        CHECK_ERROR(
            fsdp_checkpoint_save(folder, &(fsdp_checkpoint_content){.sections = two, .section_count = 1}, world),
            FSDP_INVALID, "cannot be called");
    }
    two[0] = two[1] = (fsdp_checkpoint_section){.name = "model", .state = empty};
    CHECK_ERROR(fsdp_checkpoint_save(folder, &(fsdp_checkpoint_content){.sections = two, .section_count = 2}, world),
                FSDP_INVALID, "two sections called 'model'");
    CHECK_ERROR(fsdp_checkpoint_save(folder, NULL, world), FSDP_INVALID, "content is required");
    CHECK_ERROR(fsdp_checkpoint_save(folder, &(fsdp_checkpoint_content){.section_count = 1}, world), FSDP_INVALID,
                "1 sections, 0 values and 0 files, but not each a list of them");
    CHECK_STATUS(save_values(1, NULL, 1), FSDP_INVALID);
    CHECK_STATUS(fsdp_checkpoint_save(folder, &(fsdp_checkpoint_content){.file_count = 2}, world), FSDP_INVALID);
    CHECK_EQ(fsdp_checkpoint_snapshot_bytes(&(fsdp_checkpoint_content){.section_count = 1}), 0);
    CHECK_ERROR(fsdp_checkpoint_save(NULL, NULL, world), FSDP_INVALID, "folder, group");
    fsdp_state_dict_free(empty);
    CHECK(!fsdp__path_exists(folder)); /* nothing was made for what was refused */
}

TEST_WITH(tensors_without_values_are_refused, setup, teardown)
{
    fsdp_tensor *tensor = NULL;
    fsdp_checkpoint_section section = {.name = "model"};

    CHECK_OK(fsdp_tensor_create(fsdp_meta(context), FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    CHECK_OK(fsdp_state_dict_create(&section.state));
    CHECK_OK(fsdp_state_dict_add(section.state, "w", tensor));
    CHECK_ERROR(fsdp_checkpoint_save(folder, &(fsdp_checkpoint_content){.sections = &section, .section_count = 1},
                                     fsdp_world(context)),
                FSDP_STATE, "on the meta device, without values: 'w'");
    fsdp_state_dict_free(section.state);
    fsdp_tensor_unref(tensor);
}

TEST_WITH(a_step_is_never_written_again, setup, teardown)
{
    char *before, *after, *manifest;

    fsdp_checkpoint_close(saved(3));
    CHECK(fsdp_checkpoint_exists(folder, 3));
    CHECK(!fsdp_checkpoint_exists(folder, 4));
    manifest = test_path(folder, "step-3/manifest.json");
    before = test_read_file(manifest, NULL);
    CHECK_ERROR(save_values(3, NULL, 0), FSDP_STATE, "step-3': it exists already");
    after = test_read_file(manifest, NULL);
    CHECK_STRING(after, before);
}

/* ---- finding ---- */

static void make_folder(const char *name)
{
    char *path = test_path(folder, name);

    CHECK_OK(fsdp__make_directories(path));
}

TEST_WITH(the_newest_is_found_by_its_number, setup, teardown)
{
    static const char *const others[] = {"step-99.saving", "step-98.removing", "step-",  "step-007",
                                         "step-1x",        "Step-50",          "step--1"};
    int64_t *steps = NULL, count = 0;
    char *path = NULL;

    CHECK_OK(fsdp_checkpoint_list(folder, &steps, &count));
    CHECK_EQ(count, 0);
    CHECK_ERROR(fsdp_checkpoint_find(folder, -1, &path), FSDP_NOT_FOUND, "there is no checkpoint in");
    CHECK_OK(save_values(9, NULL, 0));
    CHECK_OK(save_values(10, NULL, 0));
    CHECK_OK(save_values(0, NULL, 0));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        make_folder(others[i]);
    CHECK_OK(fsdp_checkpoint_list(folder, &steps, &count));
    CHECK_EQ(count, 3);
    CHECK_EQ(steps[0], 0);
    CHECK_EQ(steps[2], 10);
    free(steps);
    CHECK_OK(fsdp_checkpoint_find(folder, -1, &path));
    CHECK_CONTAINS(path, "/step-10");
    free(path);
    CHECK_ERROR(fsdp_checkpoint_find(folder, 5, &path), FSDP_NOT_FOUND, "no checkpoint of step 5");
    CHECK_ERROR(fsdp_checkpoint_find(folder, -3, &path), FSDP_INVALID,
                "a step from 0, the newest (-1) or the best (-2)");
    CHECK_ERROR(fsdp_checkpoint_find(folder, FSDP_CHECKPOINT_BEST, &path), FSDP_NOT_FOUND,
                "there is no best checkpoint in");
}

/* As one that was moved to another disk: a run that passes it over goes on from an older one. */
TEST_WITH(a_link_to_nowhere_is_an_error, setup, teardown)
{
    char *link = test_path(folder, "step-2"), *path = NULL;
    int64_t *steps = NULL, count = 0;

    CHECK_OK(save_values(1, NULL, 0));
    CHECK_EQ(symlink("elsewhere", link), 0);
    CHECK_ERROR(fsdp_checkpoint_list(folder, &steps, &count), FSDP_IO,
                "/step-2': No such file or directory (it is a link: bring back");
    CHECK_EQ(count, 0);
    CHECK_ERROR(fsdp_checkpoint_find(folder, -1, &path), FSDP_IO, "/step-2': No such file");
    CHECK_OK(fsdp_checkpoint_find(folder, 1, &path));
    free(path);
    make_folder("elsewhere");
    CHECK_OK(fsdp_checkpoint_list(folder, &steps, &count));
    CHECK_EQ(count, 2);
    free(steps);
    CHECK_EQ(unlink(link), 0);
}

/* A newer one that is not whole is never passed over. */
TEST_WITH(one_that_is_not_whole_is_an_error, setup, teardown)
{
    char *path = NULL, *file;
    fsdp_checkpoint_reader *reader = NULL;

    CHECK_OK(save_values(1, NULL, 0));
    make_folder("step-2");
    CHECK_ERROR(fsdp_checkpoint_find(folder, -1, &path), FSDP_FORMAT, "step-2' is not a whole checkpoint");
    CHECK_CONTAINS(fsdp_last_error(), "ask for the step of an older one");
    CHECK_ERROR(fsdp_checkpoint_open(folder, &reader), FSDP_FORMAT, "step-2");
    CHECK_OK(fsdp_checkpoint_find(folder, 1, &path));
    free(path);
    scene_save_to(folder, context, SCENE_ROWS, 3, 1);
    file = test_path(folder, "step-3/rank-00000-of-00001.safetensors");
    CHECK_EQ(truncate(file, 100), 0);
    CHECK_ERROR(fsdp_checkpoint_find(folder, 3, &path), FSDP_FORMAT, "it has 100 bytes, but the manifest says");
    CHECK_EQ(unlink(file), 0);
    CHECK_ERROR(fsdp_checkpoint_find(folder, 3, &path), FSDP_FORMAT, "the manifest lists it, but it is not there");
}

/* Here behind a link that leads to itself; no permission is the same. It may be whole: nobody is told to remove it. */
TEST_WITH(one_that_cannot_be_read_is_not_called_damaged, setup, teardown)
{
    char *path = NULL, *file;

    CHECK_OK(save_values(1, NULL, 0));
    CHECK_OK(save_values(2, NULL, 0));
    file = test_path(folder, "step-2/manifest.json");
    CHECK_EQ(unlink(file), 0);
    CHECK_EQ(symlink("manifest.json", file), 0);
    CHECK_ERROR(fsdp_checkpoint_find(folder, -1, &path), FSDP_IO, "cannot tell whether");
    CHECK_CONTAINS(fsdp_last_error(), "step-2' is a whole checkpoint: cannot open");
    CHECK(!strstr(fsdp_last_error(), "remove"));
}

TEST_WITH(a_manifest_of_another_step_is_refused, setup, teardown)
{
    char *from, *to, *renamed;
    fsdp_checkpoint_reader *reader = NULL;

    CHECK_OK(save_values(1, NULL, 0));
    from = test_path(folder, "step-1");
    to = test_path(folder, "step-2");
    CHECK_EQ(rename(from, to), 0);
    CHECK_ERROR(fsdp_checkpoint_open(to, &reader), FSDP_FORMAT, "the manifest of step 1");
    renamed = test_path(folder, "best");
    CHECK_EQ(rename(to, renamed), 0); /* any other name will do */
    CHECK_OK(fsdp_checkpoint_open(renamed, &reader));
    fsdp_checkpoint_close(reader);
}

/* ---- loading ---- */

static fsdp_state_dict *partly(fsdp_tensor **out)
{
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(3), FSDP_MEMORY_PARAMETER_SHARD, out));
    CHECK_OK(fsdp_tensor_fill_(*out, -1));
    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_state_dict_add(state, "bias", *out));
    CHECK_OK(fsdp_state_dict_add(state, "new", *out));
    return state;
}

TEST_WITH(a_partial_load_says_what_only_one_has, setup, teardown)
{
    fsdp_checkpoint_reader *reader = saved(1);
    fsdp_state_dict_keys keys = {.missing_count = 0};
    fsdp_tensor *tensor = NULL;
    fsdp_state_dict *part = partly(&tensor);
    float values[3];

    CHECK_ERROR(fsdp_checkpoint_load(reader, "model", part, NULL), FSDP_FORMAT, "no tensor 'new', but 'deep'");
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    CHECK_EQ(values[0], -1); /* nothing has changed */
    CHECK_OK(
        fsdp_checkpoint_load(reader, "model", part, &(fsdp_checkpoint_load_options){.partial = true, .keys = &keys}));
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    CHECK(values[0] >= 0);
    CHECK_EQ(keys.missing_count, 1);
    CHECK_STRING(keys.missing[0], "new");
    CHECK_EQ(keys.unexpected_count, SCENE_TENSORS - 1);
    fsdp_state_dict_keys_release(&keys);
    CHECK_ERROR(fsdp_checkpoint_load(reader, "schedule", part, NULL), FSDP_NOT_FOUND,
                "no section 'schedule', but 'model' and 'optimizer'");
    fsdp_state_dict_free(part);
    fsdp_tensor_unref(tensor);
    fsdp_checkpoint_close(reader);
}

TEST_WITH(what_does_not_fit_is_refused_before_anything_changes, setup, teardown)
{
    static const int64_t shapes[] = {4, 3};
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_I32};
    static const char *const messages[] = {"'model.bias' has shape (3,), but (4,) is needed",
                                           "'model.bias' is float32, but int32 is needed"};
    fsdp_checkpoint_reader *reader = saved(1);

    for (int i = 0; i < 2; i++) {
        fsdp_tensor *tensor = NULL;
        fsdp_state_dict *part = NULL;

        CHECK_OK(fsdp_tensor_create(test_device(context), dtypes[i], FSDP_SHAPE(shapes[i]), FSDP_MEMORY_PARAMETER_SHARD,
                                    &tensor));
        CHECK_OK(fsdp_state_dict_create(&part));
        CHECK_OK(fsdp_state_dict_add(part, "bias", tensor));
        CHECK_ERROR(fsdp_checkpoint_load(reader, "model", part, &(fsdp_checkpoint_load_options){.partial = true}),
                    FSDP_FORMAT, messages[i]);
        fsdp_state_dict_free(part);
        fsdp_tensor_unref(tensor);
    }
    fsdp_checkpoint_close(reader);
}

TEST_WITH(a_run_of_elements_can_be_read, setup, teardown)
{
    fsdp_checkpoint_reader *reader = saved(1);
    const fsdp_checkpoint_tensor *tensor = CHECK_PTR(fsdp_checkpoint_tensor_find(reader, "model", "weight"));
    float all[35], some[7];

    CHECK_OK(fsdp_checkpoint_read(reader, tensor, 0, 35, all));
    CHECK_OK(fsdp_checkpoint_read(reader, tensor, 4, 7, some));
    CHECK_BYTES(some, all + 4, sizeof some);
    CHECK_OK(fsdp_checkpoint_read(reader, tensor, 35, 0, NULL));
    CHECK_ERROR(fsdp_checkpoint_read(reader, tensor, 30, 6, all), FSDP_INVALID, "tensor 'model.weight' has 35");
    CHECK_ERROR(fsdp_checkpoint_read(reader, tensor, -1, 1, all), FSDP_INVALID, "from -1 on");
    fsdp_checkpoint_close(reader);
}

static fsdp_status stop_at_half(void *arg, uint64_t done, uint64_t total)
{
    *(uint64_t *)arg = done;
    return done * 2 > total ? FSDP_FAIL(FSDP_INTERRUPTED, "enough") : FSDP_OK;
}

TEST_WITH(a_verification_tells_how_far_it_is, setup, teardown)
{
    fsdp_checkpoint_reader *reader = saved(1);
    uint64_t done = 0;

    CHECK_ERROR(fsdp_checkpoint_verify(reader, stop_at_half, &done), FSDP_INTERRUPTED, "enough");
    CHECK(done > 0);
    CHECK_ERROR(fsdp_checkpoint_verify(NULL, NULL, NULL), FSDP_INVALID, "there is none");
    fsdp_checkpoint_close(reader);
}

TEST_FILE_IN_MEMORY(false, NULL)
