/* inspect and generate on model folders: what they say of those that do not fit, and with which exit status. */
#include <sys/stat.h>

#include "cli/fixture.h"

#define RUN(expected, ...) program_run(f->directory, (expected), (const char *const[]){PROGRAM, __VA_ARGS__, NULL})

#define SAYS(expected, part, ...)                  \
    do {                                           \
        program p_ = RUN((expected), __VA_ARGS__); \
        CHECK_CONTAINS(p_.output, (part));         \
        program_free(&p_);                         \
    } while (0)

/* A folder with this config.json and a model.safetensors of one tensor of four bytes. */
static void make_folder(fixture *f, const char *config, const char *tensor)
{
    char *path = test_path(f->directory, "model/config.json"), header[400], file[500];
    int length =
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);

    mkdir(f->model, 0777);
    test_write_file(path, config, strlen(config));
    free(path);
    memset(file, 0, sizeof file);
    file[0] = (char)length;
    memcpy(file + 8, header, (size_t)length);
    path = test_path(f->directory, "model/model.safetensors");
    test_write_file(path, file, 8 + (size_t)length + 4);
    free(path);
}

#define SIZES(dim)                                                                                    \
    "{\"model_type\":\"llama\",\"vocab_size\":256,\"num_hidden_layers\":1,\"num_attention_heads\":1," \
    "\"intermediate_size\":8,\"hidden_size\":" dim "}"

/* Every door says it, and none takes memory for the sizes: a limit of the test's own would be in the way. */
static void sizes_that_no_file_fills_are_refused_at_every_door(void **state)
{
    fixture *f = *state;
    char path[600];

    make_folder(f, SIZES("1048576"), "model.norm.weight");
    SAYS(1, "tensor 'model.norm.weight' has shape (1,), but the model's has (1048576,); no file holds", "inspect",
         f->model);
    SAYS(1, "no file holds tensors 'model.embed_tokens.weight', ", "generate", f->model, "--prompt", "x");
    snprintf(path, sizeof path, "--model.path=%s", f->model);
    SAYS(1, "but the model's has (1048576,); no file holds tensors 'model.embed_tokens.weight', ", "train", f->config,
         "-n", "2", path, "--model.preset=", "--model.n_layers=", "--model.dim=", "--model.n_heads=",
         "--model.n_kv_heads=", "--model.ffn_dim=", "--model.max_seq_len=");
}

static void inspect_shows_names_without_harm(void **state)
{
    fixture *f = *state;
    program p;

    make_folder(f, SIZES("16"), "a\\u001b[2J");
    p = RUN(1, "inspect", f->model);
    CHECK_CONTAINS(p.output, "  a\\x1b[2J  float32");
    CHECK_CONTAINS(p.output, "total: 1 tensors, 1 elements, 4 bytes (0.0KiB) in 1 file");
    CHECK(!strchr(p.output, '\x1b'));
    program_free(&p);
}

static void what_is_no_file_is_named(void **state)
{
    fixture *f = *state;
    char *path = test_path(f->directory, "model/config.json");

    SAYS(1, "there is no '", "inspect", f->model);
    make_folder(f, SIZES("16"), "a");
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(mkfifo(path, 0600), 0);
    SAYS(1, "config.json': it is a FIFO", "inspect", f->model);
    SAYS(1, "config.json': it is a FIFO", "generate", f->model, "--tokens", "1");
    free(path);
}

/* 2 is for what the command line alone shows to be wrong, whatever the folder. */
static void a_wrong_command_line_is_told_from_a_folder_that_does_not_fit(void **state)
{
    fixture *f = *state;

    SAYS(2, "--prompt is empty", "generate", "/nowhere", "--prompt", "");
    SAYS(2, "--tokens is '1,x': expected token ids", "generate", "/nowhere", "--tokens", "1,x");
    SAYS(2, "--tokens is '-1': expected token ids", "generate", "/nowhere", "--tokens", "-1");
    SAYS(2, "--tokens is '4294967297': expected token ids", "generate", "/nowhere", "--tokens", "4294967297");
    SAYS(1, "there is no '/nowhere'", "generate", "/nowhere", "--tokens", "1");
    SAYS(1, "token 999 of --tokens is not in the vocabulary of", "generate", REFERENCE "/models/tiny-llama", "--tokens",
         "1,999");
}

/* Small models too, though they get one thread only. */
static void generate_takes_the_front_door_s_device(void **state)
{
    fixture *f = *state;
    program p = RUN(0, "generate", REFERENCE "/models/tiny-llama", "--tokens", "1,2", "--max-new-tokens", "5"), q;

    setenv("FSDP_TEST_DEVICE", "sim", 1);
    q = RUN(0, "generate", REFERENCE "/models/tiny-llama", "--tokens", "1,2", "--max-new-tokens", "5");
    CHECK_STRING(q.output, p.output);
    setenv("FSDP_TEST_DEVICE", "no such device", 1);
    SAYS(1, "cannot open device 'no such device'", "generate", REFERENCE "/models/tiny-llama", "--tokens", "1,2");
    unsetenv("FSDP_TEST_DEVICE");
    program_free(&p);
    program_free(&q);
}

TEST_MAIN(T(sizes_that_no_file_fills_are_refused_at_every_door), T(inspect_shows_names_without_harm),
          T(what_is_no_file_is_named), T(a_wrong_command_line_is_told_from_a_folder_that_does_not_fit),
          T(generate_takes_the_front_door_s_device))
