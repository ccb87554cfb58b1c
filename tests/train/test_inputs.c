/* What a run reads is not written into, under whatever name; and in which format data is read. */
#include "train/config.h"
#include "train/inputs.h"

#include <sys/stat.h>
#include <unistd.h>

#include "support/test.h"

typedef struct fixture {
    char *directory, *data, *other;
    fsdp_train_config *config;
} fixture;

static void write_text(const char *path, const char *text)
{
    test_write_file(path, text, strlen(text));
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->other = test_path(f->directory, "other");
    write_text(f->data, "some text");
    f->config = test_config("model.preset=llama-1m data.path=%s", f->data);
    *state = f;
    return 0;
}

static void check_refused(fixture *f, const char *path, const char *part)
{
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", path));
    CHECK_ERROR(fsdp__inputs_spare(f->config, "some.key", path), FSDP_INVALID, part);
    CHECK_CONTAINS(fsdp_last_error(), "some.key: '");
    CHECK_CONTAINS(fsdp_last_error(), path);
    CHECK_ERROR(fsdp_train_config_check(f->config, 1), FSDP_INVALID, part);
    CHECK_CONTAINS(fsdp_last_error(), "metrics.jsonl: '");
}

TEST_OF(data_is_found_under_any_name, setup, NULL, fixture *f)
{
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", NULL));
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", f->other)); /* does not exist */
    check_refused(f, f->data, "is a file of the data, which the run reads");
    CHECK_EQ(symlink(f->data, f->other), 0);
    check_refused(f, f->other, "is a file of the data");
    unlink(f->other);
    CHECK_EQ(link(f->data, f->other), 0);
    check_refused(f, f->other, "is a file of the data");
    unlink(f->other);
    write_text(f->other, "some text");
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", f->other));
    CHECK_OK(fsdp_train_config_set(f->config, "data.path", f->directory));
    check_refused(f, f->data, "is a file of the data");
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", f->other)); /* its name does not fit */
    CHECK_OK(fsdp_train_config_set(f->config, "data.path", "/nonexistent"));
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", f->data));
}

TEST_OF(the_config_is_found_that_was_read, setup, NULL, fixture *f)
{
    write_text(f->other, "training: {steps: 7}");
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", f->other));
    CHECK_OK(fsdp_train_config_load(f->config, f->other));
    CHECK_STRING(f->config->loaded_from, f->other);
    check_refused(f, f->other, "is a file of the config");
}

TEST_OF(every_file_of_the_models_folder_is_found, setup, NULL, fixture *f)
{
    char *folder = test_path(f->directory, "model"), *weights = test_path(folder, "model.safetensors");
    char *notes = test_path(folder, "metrics.jsonl");

    CHECK_EQ(mkdir(folder, 0777), 0);
    write_text(weights, "weights");
    write_text(notes, "{\"step\": 1}");
    CHECK_OK(fsdp_train_config_set(f->config, "model.preset", ""));
    CHECK_OK(fsdp_train_config_set(f->config, "model.path", folder));
    CHECK_EQ(symlink(weights, f->other), 0);
    check_refused(f, f->other, "is a file of the model, which the run reads");
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", notes)); /* what people keep beside it is no input */
}

TEST_OF(folders_of_the_run_are_found, setup, NULL, fixture *f)
{
    static const char *const keys[] = {"data.path", "validation.path", "model.path", "checkpoint.folder",
                                       "export.path"};
    static const char *const names[] = {"data", "data", "model", "checkpoints", "export"};
    char expected[80];

    CHECK_EQ(mkdir(f->other, 0777), 0);
    CHECK_OK(fsdp__inputs_spare(f->config, "some.key", f->other));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        CHECK_OK(fsdp_train_config_set(f->config, keys[i], f->other));
        snprintf(expected, sizeof expected, "is the folder of the %s: name another", names[i]);
        CHECK_ERROR(fsdp__inputs_spare(f->config, "some.key", f->other), FSDP_INVALID, expected);
        CHECK_OK(fsdp_train_config_set(f->config, keys[i], i == 0 ? f->data : ""));
    }
}

TEST_OF(a_failed_allocation_is_told, setup, NULL, fixture *f)
{
    write_text(f->other, "some text");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__inputs_spare(f->config, "some.key", f->other));
}

TEST_OF(the_format_follows_from_two_keys, setup, NULL, fixture *f)
{
    static const struct {
        const char *format, *dtype;
        fsdp_token_format expected;
    } cases[] = {{"auto", "", FSDP_TOKENS_AUTO},          {"auto", "uint16", FSDP_TOKENS_UINT16},
                 {"auto", "uint32", FSDP_TOKENS_UINT32},  {"text", "", FSDP_TOKENS_TEXT},
                 {"tokens", "", FSDP_TOKENS_BINARY},      {"tokens", "uint16", FSDP_TOKENS_UINT16},
                 {"tokens", "uint32", FSDP_TOKENS_UINT32}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(fsdp_train_config_set(f->config, "data.format", cases[i].format));
        CHECK_OK(fsdp_train_config_set(f->config, "data.dtype", cases[i].dtype));
        CHECK_EQ(fsdp__inputs_token_format(f->config), cases[i].expected);
        CHECK_OK(fsdp_train_config_check(f->config, 1));
    }
    CHECK_OK(fsdp_train_config_set(f->config, "data.format", "text"));
    CHECK_ERROR(fsdp_train_config_check(f->config, 1), FSDP_INVALID,
                "data.dtype is for tokens, but data.format is text");
}
