/* Ranks with different configs find out at the start, all with the same words. */
#include <unistd.h>

#include "fsdp/hub.h"
#include "fsdp/train.h"
#include "support/program.h"
#include "support/ranks.h"
#include "train/config.h"

enum {
    RANKS = 3
};

typedef struct fixture {
    char *directory;
    fsdp_train_config *configs[RANKS]; /* of each rank */
    fsdp_status statuses[RANKS];
    char messages[RANKS][1024];
    size_t changed; /* byte from which on a file changes */
} fixture;

static void set(fixture *f, int rank, const char *key, const char *value)
{
    CHECK_OK(fsdp_train_config_set(f->configs[rank], key, value));
}

/* A copy of `from` in the fixture's folder, with the first `old` in it replaced; free() the path. */
static char *copy(const fixture *f, const char *from, const char *name, const char *old, const char *new)
{
    char *path = test_path(f->directory, name), *text, *at = NULL;
    size_t bytes;

    text = test_read_file(from, &bytes);
    if (old) {
        at = CHECK_PTR(memmem(text, bytes, old, strlen(old)));
        memcpy(at, new, strlen(old));
    }
    test_write_file(path, text, bytes);
    return path;
}

static int setup(void **state)
{
    static const char keys[] =
        "model.preset=llama-1m model.n_layers=1 model.dim=24 model.n_heads=3 model.n_kv_heads=1 model.ffn_dim=50 "
        "training.steps=3 training.seq_len=16 training.local_batch_size=1";
    fixture *f = test_new(sizeof *f);
    char *data;

    f->directory = test_directory();
    data = test_path(f->directory, "data.txt");
    test_write_letters(data, 4000, 23);
    for (int r = 0; r < RANKS; r++) {
        f->configs[r] = test_config("%s", keys);
        set(f, r, "data.path", data);
    }
    *state = f;
    return 0;
}

static void begin(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_train_run *run = NULL;

    f->statuses[rank] = fsdp_train_run_create(context, f->configs[rank], &run);
    snprintf(f->messages[rank], sizeof f->messages[rank], "%s", f->statuses[rank] == FSDP_OK ? "" : fsdp_last_error());
    fsdp_train_run_free(run);
}

/* All ranks get the same words, and `part` is in them; NULL: they may train together. */
static void agree(fixture *f, const char *part)
{
    test_run_ranks(RANKS, begin, f);
    for (int r = 0; r < RANKS; r++) {
        CHECK_STRING(f->messages[r], f->messages[0]);
        CHECK_EQ(f->statuses[r], part ? FSDP_INVALID : FSDP_OK);
    }
    if (part)
        CHECK_CONTAINS(f->messages[0], part);
}

TEST_OF(a_key_that_differs_is_named_with_both_values, setup, NULL, fixture *f)
{
    agree(f, NULL);
    set(f, 2, "training.seed", "43");
    agree(f, "ranks 0 and 2 have different configs: training.seed is 42 and 43: start all ranks with the same");
    set(f, 1, "optimizer.lr", "0.10000000000000001");
    set(f, 1, "optimizer.weight_decay", "0.1");
    agree(f, "ranks 0 and 1 have different configs: optimizer.lr is 0.0003 and 0.1, optimizer.weight_decay is not set "
             "and 0.1: start");
    set(f, 1, "training.steps", "4");
    set(f, 1, "data.order", "shuffled");
    set(f, 1, "training.max_norm", "0.5");
    agree(f, ", and 1 more: start all ranks with the same");
}

TEST_OF(the_smallest_difference_of_a_number_is_found, setup, NULL, fixture *f)
{
    set(f, 0, "optimizer.lr", "0.1");
    set(f, 1, "optimizer.lr", "0.1");
    set(f, 2, "optimizer.lr", "0.10000000000000002");
    agree(f, "ranks 0 and 2 have different configs: optimizer.lr is 0.1 and 0.10000000000000002");
}

static void change_a_byte(const char *path, size_t at)
{
    size_t bytes = 0;
    char *data = test_read_file(path, &bytes);

    data[at] ^= 1;
    test_write_file(path, data, bytes);
}

TEST_OF(paths_and_threads_are_a_ranks_own, setup, NULL, fixture *f)
{
    char *data = test_path(f->directory, "data.txt"), *other = copy(f, data, "other.txt", NULL, NULL);
    char *metrics[] = {test_path(f->directory, "a.jsonl"), test_path(f->directory, "b.jsonl")};

    set(f, 1, "data.path", other);
    set(f, 2, "data.workers", "0");
    set(f, 0, "metrics.jsonl", metrics[0]);
    set(f, 1, "metrics.jsonl", metrics[0]);
    set(f, 2, "metrics.jsonl", metrics[1]);
    agree(f, NULL);
    set(f, 1, "metrics.jsonl", ""); /* then it would not take part in the mean of the losses */
    agree(f, "ranks 0 and 1 have different configs: metrics.jsonl is set and not set");
    set(f, 1, "metrics.jsonl", metrics[0]);
    other = copy(f, data, "other.txt", "ab", "ba");
    agree(f, "ranks 0 and 1 have different configs: what data.path holds is 4000 tokens (");
    for (size_t at = 100; at < 4000; at += 1321) {
        copy(f, data, "other.txt", NULL, NULL);
        change_a_byte(other, at);
        agree(f, "ranks 0 and 1 have different configs: what data.path holds is 4000 tokens (");
    }
}

/* The reference's model again, as bf16. */
static void save_as_bf16(const char *from, const char *to)
{
    fsdp_context *context = test_context();
    fsdp_state_dict *state = NULL;
    fsdp_model_config config;
    fsdp_module *model;

    CHECK_OK(fsdp_hub_read_config(from, &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_cpu(context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_load(from, state, &config));
    CHECK_OK(fsdp_hub_save(to, state, &config, FSDP_BF16, fsdp_world(context)));
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

/* One in the middle of the file, as in a copy that went wrong. */
static void change_a_weight(const char *path)
{
    size_t bytes = 0;

    test_read_file(path, &bytes);
    change_a_byte(path, bytes / 2);
}

TEST_OF(models_from_different_folders_must_be_the_same, setup, NULL, fixture *f)
{
    static const char *const sizes[] = {"preset", "n_layers", "dim", "n_heads", "n_kv_heads", "ffn_dim"};
    static const char reference[] = REFERENCE "/models/tiny-gpt2";
    char *folder = test_path(f->directory, "bf16"), key[40];
    char *weights = copy(f, REFERENCE "/models/tiny-gpt2/model.safetensors", "model.safetensors", NULL, NULL);

    copy(f, REFERENCE "/models/tiny-gpt2/config.json", "config.json", NULL, NULL);
    for (int r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            snprintf(key, sizeof key, "model.%s", sizes[i]);
            set(f, r, key, "");
        }
        set(f, r, "model.path", r == 1 ? f->directory : reference);
    }
    agree(f, NULL);
    change_a_weight(weights);
    agree(f, "ranks 0 and 1 have different configs: what model.path holds is ");
    save_as_bf16(reference, folder);
    set(f, 1, "model.path", folder);
    agree(f, "ranks 0 and 1 have different configs: what model.path holds is ");
    set(f, 1, "model.path", reference);
    for (int r = 0; r < RANKS; r++)
        set(f, r, "checkpoint.initial_load_path", r == 1 ? folder : reference);
    agree(f, "ranks 0 and 1 have different configs: what checkpoint.initial_load_path holds is ");
}

/* A run of one step leaves it. */
static void save_checkpoint(fixture *f, const char *folder, const char *seed)
{
    fsdp_context *context = test_context();

    set(f, 0, "training.steps", "1");
    set(f, 0, "training.seed", seed);
    set(f, 0, "checkpoint.folder", folder);
    CHECK_OK(fsdp_train(context, f->configs[0], NULL));
    set(f, 0, "training.steps", "3");
    set(f, 0, "training.seed", "42");
    set(f, 0, "checkpoint.folder", "");
    fsdp_context_free(context);
}

TEST_OF(ranks_begin_with_the_same_checkpoint, setup, NULL, fixture *f)
{
    char *first = test_path(f->directory, "first"), *second = test_path(f->directory, "second");

    save_checkpoint(f, first, "1");
    save_checkpoint(f, second, "2");
    for (int r = 0; r < RANKS; r++)
        set(f, r, "checkpoint.initial_load_path", first);
    agree(f, NULL);
    set(f, 2, "checkpoint.initial_load_path", second);
    agree(f, "ranks 0 and 2 have different configs: what checkpoint.initial_load_path holds is a checkpoint (");
}

/* ---- teams ---- */

/* Rank 1's file becomes another one between the comparison and the first batch, from some byte on. */
static void change_under_way(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_train_run *run = NULL;

    CHECK_OK(fsdp_train_run_create(context, f->configs[rank], &run));
    for (size_t at = f->changed; rank == 1 && at < 4000; at++)
        change_a_byte(f->configs[1]->data.paths[0], at);
    f->statuses[rank] = fsdp_train_step(run, NULL);
    snprintf(f->messages[rank], sizeof f->messages[rank], "%s", fsdp_last_error());
    fsdp_train_run_free(run);
}

static void differ_from(fixture *f, size_t changed)
{
    char *own = copy(f, f->configs[0]->data.paths[0], "own.txt", NULL, NULL);

    for (int r = 0; r < RANKS; r++) {
        set(f, r, "data.workers", "0");
        set(f, r, "training.seq_len", "12");
        set(f, r, "parallelism.context_parallel_degree", "3");
    }
    f->changed = changed;
    set(f, 1, "data.path", own);
    test_run_ranks(RANKS, change_under_way, f);
    for (int r = 0; r < RANKS; r++) {
        CHECK_EQ(f->statuses[r], FSDP_MISMATCH);
        CHECK_CONTAINS(f->messages[r], "ranks 0 and 1 are of one team, which has the same sequences, but were given "
                                       "different tokens or answers by step 1");
    }
}

TEST_WITH(a_team_whose_tokens_differ_is_named, setup, NULL)
{
    differ_from(*state, 0);
}

/* Of a window of 12 tokens the next one is the last answer, and no more. */
TEST_WITH(a_team_whose_answers_differ_is_named, setup, NULL)
{
    differ_from(*state, 12);
}
