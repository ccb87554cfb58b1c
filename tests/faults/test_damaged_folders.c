/* Model folders in which something is wrong, through the real program: each ends with one message and status 1, or 0
 * where the damage does not matter; never by a signal, never with much memory, and never not at all.
 *
 * A case is a number; FSDP_FAULT_CASE=n runs it alone. */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "faults/damage.h"
#include "support/dice.h"
#include "support/program.h"

enum {
    MOST_FILES = 32,
    NAME_BYTES = 256,
    MOST_RSS_KIB = 200 * 1024
};

typedef struct fixture {
    char *directory, *folder, *config, *output;
    char files[MOST_FILES][NAME_BYTES]; /* of the folder, those that are read */
    int file_count;
} fixture;

/* ---- a folder ---- */

static void remove_folder(fixture *f)
{
    const char *const argv[] = {"rm", "-rf", f->folder, NULL};

    program_run(f->directory, 0, argv);
    f->file_count = 0;
}

/* Links to the files of a reference model: damage replaces a link, never what it points to. */
static void make_folder(fixture *f, const char *model)
{
    char source[400], target[400];
    struct dirent *entry;
    DIR *directory;

    remove_folder(f);
    CHECK_EQ(mkdir(f->folder, 0777), 0);
    snprintf(source, sizeof source, REFERENCE "/models/%s", model);
    directory = opendir(source);
    CHECK(directory != NULL);
    while ((entry = readdir(directory))) {
        if (entry->d_name[0] == '.' || strncmp(entry->d_name, "golden", 6) == 0 ||
            strncmp(entry->d_name, "generation", 10) == 0)
            continue;
        snprintf(source, sizeof source, REFERENCE "/models/%s/%s", model, entry->d_name);
        snprintf(target, sizeof target, "%s/%s", f->folder, entry->d_name);
        CHECK_EQ(symlink(source, target), 0);
        CHECK(f->file_count < MOST_FILES);
        snprintf(f->files[f->file_count++], NAME_BYTES, "%s", entry->d_name);
    }
    closedir(directory);
    qsort(f->files, (size_t)f->file_count, NAME_BYTES, (int (*)(const void *, const void *))strcmp);
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    uint16_t tokens[400];
    char *data, text[900];

    setenv("OMP_NUM_THREADS", "1", 1);
    f->directory = test_directory();
    f->folder = test_path(f->directory, "model");
    f->config = test_path(f->directory, "config.yaml");
    f->output = test_path(f->directory, "output");
    data = test_path(f->directory, "tokens.bin");
    for (int i = 0; i < 400; i++)
        tokens[i] = (uint16_t)(i % 50);
    test_write_file(data, tokens, sizeof tokens);
    snprintf(text, sizeof text,
             "model:\n  path: %s\ndata:\n  path: %s\n  format: tokens\n"
             "training:\n  steps: 1\n  seq_len: 16\n  local_batch_size: 1\n",
             f->folder, data);
    test_write_file(f->config, text, strlen(text));
    *state = f;
    return 0;
}

/* ---- the program ---- */

typedef struct ending {
    int status; /* exit status, 128 + signal when killed */
    long rss_kib;
    char *output;
} ending;

/* A program that hangs is ended by its own alarm: nobody looks at a clock. */
static ending run(fixture *f, const char *const *argv)
{
    ending e = {0};
    struct rusage usage;
    size_t bytes;
    int status;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int out = open(f->output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        alarm(PATIENCE_SECONDS);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    CHECK_EQ(wait4(pid, &status, 0, &usage), pid);
    e.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    e.rss_kib = usage.ru_maxrss;
    e.output = test_read_file(f->output, &bytes);
    return e;
}

static int messages(const char *output)
{
    int count = strncmp(output, "fsdp: ", 6) == 0;

    for (const char *at = output; (at = strstr(at, "\nfsdp: ")) != NULL; at++)
        count++;
    return count;
}

/* What a door of the program says to the folder. `must_fail`: it cannot be taken for a good one. */
static void check_door(fixture *f, const char *what, bool must_fail, const char *const *argv)
{
    ending e = run(f, argv);
    int said = messages(e.output);

    if (e.status != 0 && e.status != 1)
        TEST_FAIL("%s: %s ended with status %d:\n%s", what, argv[1], e.status, e.output);
    if (said != e.status)
        TEST_FAIL("%s: %s ended with status %d and %d messages:\n%s", what, argv[1], e.status, said, e.output);
    if (must_fail && e.status == 0)
        TEST_FAIL("%s: %s took it:\n%s", what, argv[1], e.output);
    for (const char *c = e.output; *c; c++)
        if ((unsigned char)*c < 0x20 && *c != '\n' && *c != '\r')
            TEST_FAIL("%s: %s printed a control character %d", what, argv[1], *c);
    if (!TEST_SANITIZED && e.rss_kib > MOST_RSS_KIB)
        TEST_FAIL("%s: %s took %ld KiB", what, argv[1], e.rss_kib);
}

static void check_doors(fixture *f, const char *what, bool must_fail)
{
    const char *const inspect[] = {PROGRAM, "inspect", f->folder, NULL};
    const char *const generate[] = {PROGRAM, "generate", f->folder, "--tokens", "1,2", "--max-new-tokens", "1", NULL};
    const char *const train[] = {PROGRAM, "train", f->config, "--model.dropout=0", NULL};

    check_door(f, what, must_fail, inspect);
    check_door(f, what, must_fail, generate);
    check_door(f, what, must_fail, train);
}

/* ---- cases ---- */

static const char *const models[] = {"tiny-gpt2", "tiny-llama", "tiny-llama-tied-st"};

static void damaged_folder(fixture *f, uint64_t number)
{
    uint64_t seed = number;
    char path[700], damage[200], what[300];
    const char *model = models[damage_random(&seed, 3)], *file;
    bool must_fail;

    make_folder(f, model);
    file = f->files[damage_random(&seed, (uint64_t)f->file_count)];
    snprintf(path, sizeof path, "%s/%s", f->folder, file);
    must_fail = damage_file(path, seed, damage);
    snprintf(what, sizeof what, "FSDP_DAMAGE_SEED=%llu, %s/%s", (unsigned long long)number, model, damage);
    check_doors(f, what, must_fail);
}

TEST_WITH(damaged_folders_end_with_one_message, setup, NULL)
{
    const dice_seeds seeds = dice_seeds_of("DAMAGE", test_long() ? 1000 : TEST_SANITIZED ? 5 : 30);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        damaged_folder(*state, seed);
}

TEST_OF(good_folders_are_taken, setup, NULL, fixture *f)
{
    for (int i = 0; i < 3; i++) {
        const char *const generate[] = {PROGRAM, "generate", f->folder, "--tokens", "1", "--max-new-tokens", "1", NULL};
        ending e;

        make_folder(f, models[i]);
        check_doors(f, models[i], false);
        e = run(f, generate);
        CHECK_EQ(e.status, 0);
    }
}

/* Each file that is read, each kind of thing that is none. */
TEST_OF(what_is_no_file_is_refused_at_every_door, setup, NULL, fixture *f)
{
    char path[700], damage[200];

    for (int kind = 0; kind < DAMAGE_KINDS; kind++) {
        make_folder(f, "tiny-llama");
        for (int i = 0; i < f->file_count; i++) {
            bool weights = strstr(f->files[i], "model-") != NULL;

            if ((weights && strncmp(f->files[i], "model-00007", 11) != 0) || !test_takes(kind + i, 1, 3))
                continue;
            make_folder(f, "tiny-llama");
            snprintf(path, sizeof path, "%s/%s", f->folder, f->files[i]);
            damage_kind(path, kind, damage);
            check_doors(f, damage, true);
        }
    }
}

/* Half a kilobyte that asks for petabytes. */
TEST_OF(sizes_that_no_file_fills_take_no_memory, setup, NULL, fixture *f)
{
    static const char *const keys[] = {"hidden_size",         "vocab_size",        "num_hidden_layers",  "head_dim",
                                       "num_attention_heads", "intermediate_size", "num_key_value_heads"};
    static const char *const sizes[] = {"16384", "1048576", "4194304", "2147483647", "9223372036854775807"};
    const size_t step = test_long() ? 1 : sizeof sizes / sizeof *sizes - 1; /* all, or the first and the last */
    char path[700], text[800], what[100];

    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s += step) {
            int used = sprintf(text, "{\"model_type\": \"llama\", \"tie_word_embeddings\": true");

            make_folder(f, "tiny-llama");
            for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
                used += sprintf(text + used, ", \"%s\": %s", keys[i], i == k ? sizes[s] : "4");
            strcpy(text + used, "}");
            snprintf(path, sizeof path, "%s/config.json", f->folder);
            CHECK_EQ(unlink(path), 0);
            test_write_file(path, text, strlen(text));
            snprintf(what, sizeof what, "%s %s", keys[k], sizes[s]);
            check_doors(f, what, true);
        }
}
