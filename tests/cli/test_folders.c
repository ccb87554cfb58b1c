/* inspect and generate on model folders: what they say of those that do not fit, and with which exit status. */
#include <sys/stat.h>

#include "cli/fixture.h"

/* A folder with this config.json and a model.safetensors of one tensor of four bytes. */
static void make_folder(fixture *f, const char *config, const char *tensor)
{
    char *path = test_path(f->directory, "model/config.json"), header[400], file[500];
    int length =
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);

    mkdir(f->model, 0777);
    test_write_file(path, config, strlen(config));
    memset(file, 0, sizeof file);
    file[0] = (char)length;
    memcpy(file + 8, header, (size_t)length);
    path = test_path(f->directory, "model/model.safetensors");
    test_write_file(path, file, 8 + (size_t)length + 4);
}

#define SIZES(dim)                                                                                    \
    "{\"model_type\":\"llama\",\"vocab_size\":256,\"num_hidden_layers\":1,\"num_attention_heads\":1," \
    "\"intermediate_size\":8,\"hidden_size\":" dim "}"

/* Every door says it, and none takes memory for the sizes: a limit of the test's own would be in the way. */
FIXTURE_TEST(sizes_that_no_file_fills_are_refused_at_every_door)
{
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

FIXTURE_TEST(inspect_shows_names_without_harm)
{
    program p;

    make_folder(f, SIZES("16"), "a\\u001b[2J");
    p = RUN(1, "inspect", f->model);
    CHECK_CONTAINS(p.output, "  a\\x1b[2J  float32");
    CHECK_CONTAINS(p.output, "total: 1 tensors, 1 elements, 4 bytes (4B) in 1 file");
    CHECK(!strchr(p.output, '\x1b'));
}

FIXTURE_TEST(what_is_no_file_is_named)
{
    char *path = test_path(f->directory, "model/config.json");

    SAYS(1, "there is no '", "inspect", f->model);
    make_folder(f, SIZES("16"), "a");
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(mkfifo(path, 0600), 0);
    SAYS(1, "config.json': it is a FIFO", "inspect", f->model);
    SAYS(1, "config.json': it is a FIFO", "generate", f->model, "--tokens", "1");
}

/* 2 is for what the command line alone shows to be wrong, whatever the folder. */
FIXTURE_TEST(a_wrong_command_line_is_told_from_a_folder_that_does_not_fit)
{
    SAYS(2, "--prompt is empty", "generate", "/nowhere", "--prompt", "");
    SAYS(2, "--tokens is '1,x': expected token ids", "generate", "/nowhere", "--tokens", "1,x");
    SAYS(2, "--tokens is '-1': expected token ids", "generate", "/nowhere", "--tokens", "-1");
    SAYS(2, "--tokens is '4294967297': expected token ids", "generate", "/nowhere", "--tokens", "4294967297");
    SAYS(1, "there is no '/nowhere'", "generate", "/nowhere", "--tokens", "1");
    SAYS(1, "token 999 of --tokens is not in the vocabulary of", "generate", REFERENCE "/models/tiny-llama", "--tokens",
         "1,999");
}

/* Small models too, though they get one thread only. */
FIXTURE_TEST(generate_takes_the_front_door_s_device)
{
    program p = RUN(0, "generate", REFERENCE "/models/tiny-llama", "--tokens", "1,2", "--max-new-tokens", "5"), q;

    setenv("FSDP_TEST_DEVICE", "sim", 1);
    q = RUN(0, "generate", REFERENCE "/models/tiny-llama", "--tokens", "1,2", "--max-new-tokens", "5");
    CHECK_CONTAINS(q.output, "device: sim:0"); /* on stderr */
    CHECK_CONTAINS(q.output, p.output);
    setenv("FSDP_TEST_DEVICE", "no such device", 1);
    SAYS(1, "cannot open device 'no such device'", "generate", REFERENCE "/models/tiny-llama", "--tokens", "1,2");
}

/* ---- step-best ---- */

/* In the test's folder. */
#undef RUN
#define RUN(expected, ...) \
    program_run(f->directory, (expected), (const char *const[]){"env", "-C", f->directory, PROGRAM, __VA_ARGS__, NULL})

/* A run of six steps that soon gets worse; returns the step of its best validation. */
static long train_past_the_best(fixture *f)
{
    program p = RUN(0, "train", f->config, "--training.steps=6", "--export.path=", "--checkpoint.folder=kept",
                    "--checkpoint.interval=1", "--validation.share=0.2", "--validation.freq=1", "--optimizer.lr=1",
                    "--training.max_norm=0");
    long best = 0;

    for (char *at = p.output; (at = strstr(at, "valid: ")); at++) {
        char *end = strchr(at, '\n');
        long step = strtol(at + 7, NULL, 10);

        if (end && step > 0 && end - at > 6 && strncmp(end - 6, "  best", 6) == 0)
            best = step;
    }
    CHECK(best > 0 && best < 6);
    return best;
}

/* Two commands print the same but for what names their checkpoint. */
static void check_alike(fixture *f, const char *const *argv, const char *by_step)
{
    const char *named[16] = {NULL};
    program best, step;

    for (int i = 0; argv[i]; i++)
        named[i] = strncmp(argv[i], "kept/step-best", 14) == 0 ? by_step : argv[i];
    best = program_run(f->directory, 0, argv);
    step = program_run(f->directory, 0, named);
    CHECK_STRING(best.output, step.output);
}

#define ALIKE(...) check_alike(f, (const char *const[]){"env", "-C", f->directory, PROGRAM, __VA_ARGS__, NULL}, by_step)

FIXTURE_TEST(the_best_checkpoint_has_a_name_wherever_one_is_named)
{
    char by_step[64], said[96];
    long best = train_past_the_best(f);
    program p;

    snprintf(by_step, sizeof by_step, "kept/step-%ld", best);
    ALIKE("inspect", "kept/step-best");
    ALIKE("verify", "kept/step-best/");
    ALIKE("generate", "kept/step-best", "--prompt", "a", "--max-new-tokens", "3", "--seed", "1");
    SAYS(0, "equal", "diff", "kept/step-best", by_step);
    SAYS(1, "differs", "diff", "kept/step-6", "kept/step-best");
    snprintf(said, sizeof said, "resume: from step %ld of kept/step-%ld", best, best);
    p = RUN(0, "eval", "kept/step-best", "--data", f->data, "--seq-len", "16");
    CHECK(strstr(p.output, "loss"));
    RUN(0, "convert", "kept/step-best", "a");
    RUN(0, "convert", by_step, "b");
    RUN(0, "diff", "a", "b");
    RUN(0, "train", f->config, "--training.steps=1", "--export.path=", "--checkpoint.initial_load_path=kept/step-best",
        "-n", "2");
    SAYS(1, "is named like a checkpoint, and lies among checkpoints", "convert", "a", "kept/step-best");
    SAYS(1, "is named like a checkpoint, in checkpoint.folder", "train", f->config, "--checkpoint.folder=kept",
         "--export.path=kept/step-best");
    SAYS(1, "there is no checkpoint in 'a'", "inspect", "a/step-best");
    SAYS(1, "there is no checkpoint in '.'", "generate", "step-best", "--prompt", "x");
    SAYS(2, "checkpoint.load_step is 'bets': expected best, -1 or an integer from 0", "train", f->config,
         "--checkpoint.load_step=bets");
    SAYS(0, "load_step: best", "train", f->config, "--checkpoint.load_step=best", "--print-config");
    SAYS(2, "--max-restarts continues from the newest checkpoint, but checkpoint.load_step is best", "train", f->config,
         "-n", "2", "--max-restarts=1", "--checkpoint.folder=kept", "--checkpoint.load_step=best");
    SAYS(0, said, "train", f->config, "-n", "2", "--training.local_batch_size=2", "--training.steps=6",
         "--checkpoint.folder=kept", "--checkpoint.load_step=best", "--validation.share=0.2", "--export.path=");
}

static void check_quiet(const program *p)
{
    CHECK(!strchr(p->output, '\x1b'));
    CHECK_NULL(strstr(p->output, "\nb"));
    CHECK_CONTAINS(p->output, "a\\x1b[31m\\x0ab");
}

/* Those that succeed show them as errors do. */
FIXTURE_TEST(no_path_moves_a_cursor_or_splits_a_line)
{
    char *odd = test_path(f->directory, "a\x1b[31m\nb"), *kept = test_path(odd, "kept"),
         *model = test_path(odd, "model"), *metrics = test_path(odd, "m.jsonl"), *page = test_path(odd, "r.html"),
         *to = test_path(odd, "to"), *gguf = test_path(odd, "m.gguf"), *svg = test_path(odd, "s.svg"),
         *lora = test_path(odd, "lora"), keys[4][700];
    program p;

    CHECK_EQ(mkdir(odd, 0777), 0);
    snprintf(keys[0], sizeof keys[0], "--checkpoint.folder=%s", kept);
    snprintf(keys[1], sizeof keys[1], "--export.path=%s", model);
    snprintf(keys[2], sizeof keys[2], "--metrics.jsonl=%s", metrics);
    snprintf(keys[3], sizeof keys[3], "--checkpoint.folder=%s", lora);
    p = RUN(0, "train", f->config, "--training.steps=12", keys[0], keys[1], keys[2]);
    check_quiet(&p);
    p = RUN(0, "train", f->config, "--training.steps=12", keys[0], keys[1], keys[2]); /* goes on */
    check_quiet(&p);
    p = RUN(0, "train", f->config, "--training.steps=2", "--adapter.rank=2", keys[3]);
    check_quiet(&p);
    {
        const char *const commands[][8] = {
            {"verify", kept},
            {"verify", model},
            {"inspect", kept},
            {"inspect", model},
            {"report", metrics, "-o", page, "--svg", svg},
            {"eval", model, "--data", f->data, "--seq-len=8"},
            {"eval", lora, "--data", f->data, "--seq-len=8"},
            {"convert", kept, to},
            {"convert", kept, "-n2", to},
            {"convert", model, "--to=gguf", "-o", gguf},
            {"repair", model},
            {"explain", "llama-1m", "--svg", svg},
        };

        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
            const char *argv[10] = {PROGRAM};

            memcpy(argv + 1, commands[i], sizeof commands[i]);
            p = program_run(f->directory, 0, argv);
            check_quiet(&p);
        }
    }
}
