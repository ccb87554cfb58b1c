/* What goes wrong in a run ends every rank with one clear message, and leaves nothing behind. */
#include <sys/stat.h>

#include "cli/fixture.h"

/* One message, and `part` is in it. */
static void check_said_once(const program *p, const char *part)
{
    const char *said = strstr(p->output, "fsdp: ");

    CHECK_CONTAINS(p->output, part);
    if (test_count(p->output, "fsdp: ") != 1 || !strstr(said, part))
        TEST_FAIL("not one message with '%s':\n%s", part, p->output);
}

/* A run on three ranks that ends with one message. */
static void ends_with(fixture *f, const char *part, const char *option)
{
    program p = RUN(1, "train", f->config, "-n", "3", option);

    check_said_once(&p, part);
    CHECK(access(f->model, F_OK) != 0);
}

FIXTURE_TEST(bad_inputs_are_named_once)
{
    char option[600], *other = test_path(f->directory, "other");

    snprintf(option, sizeof option, "--data.path=%s/none.txt", f->directory);
    ends_with(f, "/none.txt'", option);
    test_write_file(other, "short", 5);
    snprintf(option, sizeof option, "--data.path=%s", other);
    ends_with(f, "tokens", option);
    test_write_file(other, "", 0);
    ends_with(f, "empty", option);
    ends_with(f, "it is a safetensors file (weights): name another file",
              "--data.path=" REFERENCE "/models/tiny-gpt2/model.safetensors");
    ends_with(f, "metrics.jsonl: cannot write '/proc/none/m.jsonl'", "--metrics.jsonl=/proc/none/m.jsonl");
    ends_with(f, "export.path: cannot write the model to '/proc/none/model'", "--export.path=/proc/none/model");
    snprintf(option, sizeof option, "--export.path=%s/", f->data);
    ends_with(f, "it exists and is not a folder", option);
    snprintf(option, sizeof option, "--export.path=%s", f->directory);
    ends_with(f, "which no export wrote: name another folder", option);
    snprintf(option, sizeof option, "--export.path=%s/below", f->data);
    ends_with(f, "a file of that name exists", option);
    for (int i = 0; i < 5; i++) {
        static const char *const keys[] = {"data.path", "export.path", "checkpoint.folder", "metrics.jsonl",
                                           "metrics.tensorboard"};

        snprintf(option, sizeof option, "--%s=%s/below/it", keys[i], f->data);
        ends_with(f, "data.txt' is a file, not a folder", option);
    }
}

FIXTURE_TEST(a_token_beyond_the_vocabulary_ends_the_run)
{
    ends_with(f, "vocabulary", "--model.vocab_size=120");
}

/* Trains from `folder` on two ranks and fails with `part`. */
static void refuses_folder(fixture *f, const char *folder, const char *part)
{
    char model[700], data[700];
    program p;

    snprintf(model, sizeof model, "--model.path=%s", folder);
    snprintf(data, sizeof data, "--data.path=%s", f->data);
    p = RUN(1, "train", "-n", "2", model, data, "--training.seq_len=32");
    check_said_once(&p, part);
}

FIXTURE_TEST(a_missing_or_broken_model_folder_is_named)
{
    char *folder = test_path(f->directory, "broken"), *config = test_path(folder, "config.json");
    char *weights = test_path(folder, "model.safetensors"), *bytes;
    size_t count;

    refuses_folder(f, folder, "there is no '");
    mkdir(folder, 0755);
    refuses_folder(f, folder, "config.json");
    test_write_file(config, "{\"model_type\": \"mamba\"}", 23);
    refuses_folder(f, folder, "mamba");
    bytes = test_read_file(REFERENCE "/models/tiny-gpt2/config.json", &count);
    test_write_file(config, bytes, count);
    refuses_folder(f, folder, "safetensors");
    bytes = test_read_file(REFERENCE "/models/tiny-gpt2/model.safetensors", &count);
    test_write_file(weights, bytes, count - 1000); /* truncated */
    refuses_folder(f, folder, "model.safetensors");
}

FIXTURE_TEST(metrics_are_not_written_into_what_is_read)
{
    char option[600], *before = test_read_file(f->data, &(size_t){0}), *after;

    snprintf(option, sizeof option, "--metrics.jsonl=%s", f->data);
    ends_with(f, "is a file of the data", option);
    snprintf(option, sizeof option, "--metrics.jsonl=%s", f->config);
    ends_with(f, "is a file of the config", option);
    ends_with(f, "metrics.jsonl: cannot write '/dev/full': No space left on device", "--metrics.jsonl=/dev/full");
    after = test_read_file(f->data, &(size_t){0});
    CHECK_STRING(after, before);
}

FIXTURE_TEST(a_run_that_diverges_ends_with_one_message)
{
    program p;

    ends_with(f, "gradient norm nan: the run has diverged and stops here", "--optimizer.lr=1e30");
    p = RUN(0, "train", f->config, "-n", "2", "--optimizer.lr=1e30", "--training.on_nan=continue");
    CHECK_EQ(test_count(p.output, "fsdp: warning: "), 1);
    CHECK_CONTAINS(p.output, " -> nan\n");
    p = RUN(0, "train", f->config, "-n", "2", "--optimizer.lr=1e30", "--training.on_nan=skip");
    CHECK_EQ(test_count(p.output, "fsdp: warning: "), 1);
    CHECK_CONTAINS(p.output, "done:   30 steps (29 left out), ");
    /* The last step shows in nothing but the validation behind it. */
    p = RUN(1, "train", f->config, "-n", "2", "--optimizer.lr=3e38", "--training.steps=1", "--validation.share=0.1",
            "--export.path=");
    CHECK_CONTAINS(p.output, "the loss of the validation after step 1 is nan ('");
    CHECK_EQ(test_count(p.output, "fsdp: "), 1);
    RUN(0, "train", f->config, "--optimizer.lr=3e38", "--training.steps=1", "--validation.share=0.1",
        "--export.path=", "--training.on_nan=continue");
}

FIXTURE_TEST(a_killed_rank_is_named_and_nothing_is_left)
{
    char tag[64], entry[96];
    pid_t ranks[16];
    program p;

    snprintf(tag, sizeof tag, "%d", (int)getpid());
    setenv("FSDP_TEST_TAG", tag, 1);
    snprintf(entry, sizeof entry, "FSDP_TEST_TAG=%s", tag);
    p = program_start(f->directory, (const char *const[]){PROGRAM, "train", f->config, "-n", "3",
                                                          "--training.steps=1000000", "--metrics.log_freq=1", NULL});
    for (int i = 0; i < PATIENCE_LOOKS && access(f->metrics, F_OK) != 0; i++) /* until it has begun to train */
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    CHECK_EQ(kill(fixture_rank(entry, 1), SIGKILL), 0);
    program_wait(&p);
    CHECK(p.status != 0);
    CHECK_CONTAINS(p.output, "rank 1 was killed by signal 9");
    CHECK_EQ(find_processes(entry, ranks, 16), 0);
    CHECK(access(f->model, F_OK) != 0);
}

FIXTURE_TEST(an_interrupt_ends_every_rank)
{
    pid_t left[16];
    char tag[64], entry[96];
    program p;

    snprintf(tag, sizeof tag, "interrupt-%d", (int)getpid());
    setenv("FSDP_TEST_TAG", tag, 1);
    snprintf(entry, sizeof entry, "FSDP_TEST_TAG=%s", tag);
    p = program_start(f->directory,
                      (const char *const[]){PROGRAM, "train", f->config, "-n", "2", "--training.steps=1000000", NULL});
    for (int i = 0; i < PATIENCE_LOOKS && access(f->metrics, F_OK) != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    kill(p.pid, SIGINT);
    program_wait(&p);
    CHECK(p.status != 0);
    CHECK_EQ(find_processes(entry, left, 16), 0);
    CHECK(access(f->model, F_OK) != 0);
}

TEST_FILE_IN_MEMORY(false, NULL)
