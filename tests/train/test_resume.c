/* A run that was stopped and goes on is the run that was never stopped, to the bit, at the same number of ranks. */
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "fsdp/checkpoint.h"
#include "train/config.h"
#include "train/story.h"

/* ---- never having stopped ---- */

/* In one piece, and in three with ends after the second and the fourth step: losses and exports are the same. */
static void in_pieces_as_in_one(story *s, int world)
{
    double losses[STORY_STEPS + 1];
    int64_t tokens, epoch;
    size_t bytes;
    char *weights;

    test_set_keys(s->config, "checkpoint.folder=%s checkpoint.enable=false export.path=%s", s->folder, s->model);
    s->end_after = 0;
    story_go(s, world);
    CHECK(!story_has(s, ""));
    memcpy(losses, s->losses, sizeof losses);
    tokens = s->tokens;
    epoch = s->epoch;
    weights = story_weights(s, &bytes);
    story_set(s, "checkpoint.enable", "true");
    for (int piece = 0; piece < 3; piece++) {
        story_stop(s, world, 2 * piece + 2);
        CHECK_EQ(s->resumed_step, piece == 0 ? -1 : 2 * piece);
        CHECK_BYTES(s->losses + 2 * piece + 1, losses + 2 * piece + 1, 2 * sizeof *losses);
    }
    CHECK_EQ(s->tokens, tokens);
    CHECK_EQ(s->epoch, epoch);
    story_go(s, world); /* all steps are done: what is left is the export */
    CHECK_EQ(s->resumed_step, STORY_STEPS);
    CHECK_EQ(s->saved_count, 0);
    story_check_weights(s, weights, bytes);
}

/* What a run can be, in keys. */
typedef struct kind {
    const char *keys[4][2];
    int least, most; /* ranks */
} kind;

static const kind kinds[] = {
    {{{"parallelism.strategy", "fsdp2"}}, 1, 3},
    {{{"parallelism.strategy", "fsdp1"}}, 2, 3},
    {{{"parallelism.strategy", "fsdp1"}, {"parallelism.fsdp1_use_orig_params", "true"}}, 2, 2},
    {{{"parallelism.strategy", "ddp"}}, 2, 2},
    {{{"parallelism.strategy", "zero1"}}, 2, 2},
    {{{"parallelism.strategy", "zero2"}}, 2, 2},
    {{{"parallelism.strategy", "zero3"}}, 3, 3},
    {{{"parallelism.strategy", "hsdp"}, {"parallelism.data_parallel_replicate_degree", "2"}}, 4, 4},
    {{{"optimizer.name", "sgd"}, {"optimizer.momentum", "0.9"}, {"training.enable_cpu_offload", "true"}}, 2, 2},
    {{{"training.mixed_precision_param", "bfloat16"}, {"checkpoint.async_mode", "async"}}, 2, 2},
    {{{"training.mixed_precision_param", "float16"}}, 2, 2},
    {{{"training.mixed_precision_param", "bfloat16"}, {"training.split_shards", "true"}, {"training.ema_decay", "0.9"}},
     1,
     1},
    {{{"training.max_norm", "0"}, {"training.on_nan", "continue"}}, 2, 2}, /* steps in the backward */
};

static void set_kind(story *s, const kind *k)
{
    for (int i = 0; i < 4 && k->keys[i][0]; i++)
        story_set(s, k->keys[i][0], k->keys[i][1]);
}

TEST(a_run_in_pieces_is_the_run_in_one)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int world = kinds[i].least; world <= kinds[i].most; world++) {
            story *s;

            if (!test_long() && world != kinds[i].least + (int)i % (kinds[i].most - kinds[i].least + 1))
                continue;
            if (test_brief() && i % 9 != 0)
                continue;
            s = story_new();
            set_kind(s, &kinds[i]);
            in_pieces_as_in_one(s, world);
        }
}

STORY_TEST(dropouts_go_on_drawing)
{
    static const char *const keys[][2] = {{"model.preset", "gpt-10m"},
                                          {"model.n_kv_heads", "3"},
                                          {"model.vocab_size", "256"},
                                          {"model.dropout", "0.2"},
                                          {"training.seq_len", "4"}};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        story_set(s, keys[i][0], keys[i][1]);
    in_pieces_as_in_one(s, 2);
}

/* ---- elsewhere ---- */

STORY_TEST(at_another_number_of_ranks_it_goes_on)
{
    static const int worlds[] = {2, 3, 1, 4, 8};
    double alone[STORY_STEPS + 1];

    story_set(s, "training.global_batch_size", STORY_BATCH_OF_8);
    story_go(s, 1);
    memcpy(alone, s->losses, sizeof alone);
    story_set(s, "checkpoint.folder", s->folder);
    for (int i = 0; i < 5; i++) {
        story_stop(s, worlds[i], i + 1);
        CHECK_EQ(s->resumed_step, i == 0 ? -1 : i);
        CHECK_EQ(s->resumed_ranks, i == 0 ? 0 : worlds[i - 1]);
        CHECK_NEAR(s->losses[i + 1], alone[i + 1], 2e-6);
    }
    s->end_after = 0;
    story_go(s, 2);
    CHECK_NEAR(s->losses[STORY_STEPS], alone[STORY_STEPS], 2e-6);
}

/* The saved batch stands where no other is asked for. */
STORY_TEST(the_batch_of_the_checkpoint_stands)
{
    test_set_keys(s->config, "training.global_batch_size=-1 training.local_batch_size=2 checkpoint.folder=%s",
                  s->folder);
    s->end_after = 2;
    story_run(s, 3); /* 6 sequences a step */
    CHECK_EQ(s->tokens, 2 * 6 * 8);
    s->end_after = 3;
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message,
                   "training.global_batch_size is not set, and the checkpoint's of 6 is not a multiple of 4 "
                   "(training.local_batch_size 2 x 2 ranks): the nearest that are: 4 and 8");
    story_set(s, "training.local_batch_size", "1");
    story_run(s, 2);
    CHECK_EQ(s->tokens, 3 * 6 * 8);
    /* Another that is asked for is taken, and said. */
    story_set(s, "training.global_batch_size", "4");
    story_stop(s, 2, 4);
    CHECK_CONTAINS(s->log, "training.global_batch_size is 4 from here on, and was 6 until step 3");
    CHECK_EQ(s->tokens, (3 * 6 + 4) * 8);
}

/* ---- what does not fit ---- */

/* The run of two ranks with another value of a key is refused with `words`. */
static void refuses(story *s, const char *key, const char *value, const char *back, const char *words)
{
    story_set(s, key, value);
    story_run(s, 2);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, words);
    CHECK(story_has(s, "step-2") && !story_has(s, ".run"));
    story_set(s, key, back);
}

STORY_TEST(what_does_not_fit_is_refused)
{
    char *other = test_path(s->directory, "other.txt"), *data = test_path(s->directory, "data.txt"), text[400];

    memset(text, 'x', sizeof text);
    test_write_file(other, text, sizeof text);
    story_set(s, "checkpoint.folder", s->folder);
    story_stop(s, 2, 2);
    refuses(s, "training.seq_len", "16", "8", "training.seq_len is 8 and 16: set it back, or begin the data again");
    refuses(s, "training.seed", "43", "42", "the shuffle's training.seed is 42 and 43");
    refuses(s, "data.order", "sequential", "shuffled", "data.order is shuffled and sequential");
    refuses(s, "data.path", other, data, "the tokens that are trained on are ");
    refuses(s, "data.path", other, data, "what data.path holds is ");
    refuses(s, "model.ffn_dim", "11", "10", "have different models: the model's ffn_dim is 10 and 11");
    refuses(s, "model.n_layers", "1", "2", "the model's n_layers is 2 and 1");
    refuses(s, "optimizer.name", "sgd", "adamw", "checkpoint.exclude_from_loading: optimizer makes a new one");
    refuses(s, "checkpoint.load_step", "1", "-1", "there is no checkpoint of step 1 in ");
    s->end_after = 3; /* and all of it fits */
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INTERRUPTED);
    CHECK_EQ(s->resumed_step, 2);
    story_set(s, "adapter.rank", "2");
    story_run(s, 2);
    CHECK_CONTAINS(
        s->message,
        "is of a run that trains the whole model, and this run trains an adapter (section adapter): give the "
        "keys of that run");
}

STORY_TEST(what_is_excluded_begins_anew)
{
    double before;

    story_set(s, "checkpoint.folder", s->folder);
    s->end_after = 2;
    story_run(s, 2);
    before = s->losses[1];
    story_set(s, "training.seed", "43");
    story_set(s, "optimizer.name", "sgd");
    story_set(s, "checkpoint.exclude_from_loading", "[dataloader, optimizer, lr_scheduler]");
    story_stop(s, 2, 4);
    CHECK_CONTAINS(s->log, "keys that have changed since step 2 (then and now): training.seed is 42 and 43, "
                           "optimizer.name is adamw and sgd");
    CHECK(s->losses[3] < before);
    /* What began anew goes on. */
    story_set(s, "checkpoint.exclude_from_loading", "");
    s->end_after = 5;
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "interrupted after step 5, which has a checkpoint");
    CHECK_EQ(s->status, FSDP_INTERRUPTED);
    CHECK_EQ(s->resumed_step, 4);
}

/* ---- frozen and thawed ---- */

#define FROZEN "model.layers.0.mlp.up_proj.weight"
#define OTHER "model.layers.1.mlp.up_proj.weight"

enum {
    MOST_BYTES = 1 << 16
};

/* A tensor of step-N. free() it. */
static void *read_saved(const story *s, int step, const char *section, const char *name, size_t *bytes)
{
    char *folder = CHECK_PTR(fsdp__sprintf("%s/step-%d", s->folder, step));
    void *data = CHECK_PTR(calloc(1, MOST_BYTES));
    const fsdp_checkpoint_tensor *t;
    fsdp_checkpoint_reader *reader;
    int64_t numel = 1;

    CHECK_OK(fsdp_checkpoint_open(folder, &reader));
    t = CHECK_PTR(fsdp_checkpoint_tensor_find(reader, section, name));
    for (int d = 0; d < t->ndim; d++)
        numel *= t->shape[d];
    *bytes = (size_t)numel * fsdp_dtype_size(t->dtype);
    CHECK(*bytes <= MOST_BYTES);
    CHECK_OK(fsdp_checkpoint_read(reader, t, 0, numel, data));
    fsdp_checkpoint_close(reader);
    fsdp__free(folder);
    return data;
}

static bool is_same(const story *s, int step, int other, const char *section, const char *name)
{
    size_t bytes = 0, other_bytes = 0;
    void *a = read_saved(s, step, section, name, &bytes), *b = read_saved(s, other, section, name, &other_bytes);
    bool same = bytes == other_bytes && memcmp(a, b, bytes) == 0;

    free(a);
    free(b);
    return same;
}

static int64_t steps_of(const story *s, int step, const char *name)
{
    size_t bytes;
    int64_t *saved = read_saved(s, step, "optimizer", name, &bytes), steps = *saved;

    CHECK_EQ(bytes, sizeof *saved);
    free(saved);
    return steps;
}

/* Two steps of all, two with the first layer frozen, two of all again. */
static void freeze_and_thaw(story *s, const int worlds[3])
{
    story_set(s, "checkpoint.folder", s->folder);
    for (int piece = 0; piece < 3; piece++) {
        story_set(s, "model.frozen", piece == 1 ? "model.layers.0.*" : "");
        s->end_after = 2 * piece + 2;
        story_run(s, worlds[piece]);
        if (piece < 2)
            CHECK_EQ(s->status, FSDP_INTERRUPTED);
        if (piece == 1)
            CHECK_CONTAINS(s->log,
                           "step-2' has optimizer state of parameters that model.frozen names: 'model.layers.0.");
        else
            CHECK_NULL(strstr(s->log, "model.frozen names"));
    }
    CHECK(is_same(s, 2, 4, "model", FROZEN) && !is_same(s, 2, 4, "model", OTHER));
    CHECK(is_same(s, 2, 4, "optimizer", "state." FROZEN ".exp_avg"));
    CHECK(is_same(s, 2, 4, "optimizer", "state." FROZEN ".exp_avg_sq"));
    CHECK_EQ(steps_of(s, 4, "state." FROZEN ".step"), 2);
    CHECK_EQ(steps_of(s, 4, "state." OTHER ".step"), 4);
    CHECK(!is_same(s, 4, 6, "model", FROZEN));
    CHECK(!is_same(s, 4, 6, "optimizer", "state." FROZEN ".exp_avg"));
    CHECK_EQ(steps_of(s, 6, "state." FROZEN ".step"), 4);
    CHECK_EQ(steps_of(s, 6, "state." OTHER ".step"), 6);
}

STORY_TEST(what_is_frozen_keeps_its_optimizer_state_until_it_is_thawed)
{
    static const int worlds[][3] = {{1, 1, 1}, {2, 3, 1}, {1, 2, 2}, {4, 2, 3}, {4, 2, 4}};
    static const kind frozen_kinds[] = {
        {{{"parallelism.strategy", "hsdp"}, {"parallelism.data_parallel_replicate_degree", "2"}}, 2, 4},
        {{{"parallelism.strategy", "fsdp2"}}, 1, 4},
        {{{"parallelism.strategy", "fsdp1"}}, 1, 4},
        {{{"parallelism.strategy", "fsdp1"}, {"parallelism.fsdp1_use_orig_params", "true"}}, 1, 4},
        {{{"parallelism.strategy", "ddp"}}, 1, 4},
        {{{"parallelism.strategy", "zero1"}}, 1, 4},
        {{{"parallelism.strategy", "zero2"}}, 1, 4},
        {{{"parallelism.strategy", "zero3"}}, 1, 4},
    };

    for (size_t i = 0; i < sizeof frozen_kinds / sizeof *frozen_kinds; i++)
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
            if ((frozen_kinds[i].least == 2) != (w == 4) || (i > 1 && i % 4 != w) || !test_takes((int)(i + w), 1, 4))
                continue;
            s = story_new();
            set_kind(s, &frozen_kinds[i]);
            freeze_and_thaw(s, worlds[w]);
        }
}

/* What was frozen from the start has no state, and gets none. */
STORY_TEST(what_was_never_trained_has_no_state)
{
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "model.frozen", "model.layers.0.*");
    for (int piece = 0; piece < 2; piece++) {
        fsdp_checkpoint_reader *reader;
        char *folder;

        s->end_after = 2 * piece + 2;
        story_run(s, 2);
        CHECK_NULL(strstr(s->log, "model.frozen names"));
        folder = CHECK_PTR(fsdp__sprintf("%s/step-%d", s->folder, 2 * piece + 2));
        CHECK_OK(fsdp_checkpoint_open(folder, &reader));
        CHECK_NULL(fsdp_checkpoint_tensor_find(reader, "optimizer", "state." FROZEN ".step"));
        CHECK_PTR(fsdp_checkpoint_tensor_find(reader, "optimizer", "state." OTHER ".step"));
        fsdp_checkpoint_close(reader);
        fsdp__free(folder);
    }
}

STORY_TEST(an_older_checkpoint_can_be_gone_on_from)
{
    double third;

    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "checkpoint.interval", "1");
    s->end_after = 4;
    story_run(s, 2);
    third = s->losses[3];
    story_set(s, "checkpoint.load_step", "2");
    story_stop(s, 2, 3);
    CHECK_EQ(s->resumed_step, 2);
    CHECK_BYTES(&s->losses[3], &third, sizeof third);
    CHECK(story_has(s, "step-3") && story_has(s, "step-3.superseded-1") && story_has(s, "step-4.superseded-1"));
    CHECK(!story_has(s, "step-4"));
    CHECK_CONTAINS(s->log, "step-4 is newer than the checkpoint that the run continues from, and is '");
    story_set(s, "checkpoint.load_step", "-1"); /* the newest is of this run */
    s->end_after = 4;
    story_run(s, 2);
    CHECK_EQ(s->resumed_step, 3);
}

STORY_TEST(weights_may_begin_as_those_of_other_files)
{
    char *first = test_path(s->directory, "first"), *step = test_path(first, "step-6");
    const char *const paths[] = {first, step, s->model};
    static const struct {
        const char *key, *value, *difference, *cause;
    } other[] = {
        {"model.vocab_size", "300", "model's has (300, ",
         ": the model has a vocabulary of 300 (model.vocab_size), but "},
        {"model.ffn_dim", "56", "and 7 more have other shapes", ": these are of a model with other sizes"},
        {"model.n_layers", "9", "more have other shapes; ", ": the model has 9 layers (model.n_layers), but there"},
    };
    double losses[3];

    story_set(s, "checkpoint.folder", first);
    story_set(s, "export.path", s->model);
    story_go(s, 2);
    story_set(s, "export.path", "");
    story_set(s, "training.steps", "1");
    for (int i = 0; i < 3; i++) {
        story_set(s, "checkpoint.folder", i == 0 ? s->folder : "");
        story_set(s, "checkpoint.initial_load_path", paths[i]);
        story_go(s, 1 + i);
        CHECK_EQ(s->resumed_step, -1);
        losses[i] = s->losses[1];
        CHECK_NEAR(losses[i], losses[0], 1e-5);
    }
    story_set(s, "checkpoint.folder", s->folder); /* which holds one by now, and that counts */
    story_set(s, "checkpoint.initial_load_path", "/nowhere");
    story_go(s, 1);
    CHECK_EQ(s->resumed_step, 1);
    story_set(s, "checkpoint.folder", "");
    story_run(s, 1);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "checkpoint.initial_load_path: ");
    for (int i = 0; i < 6; i++) { /* of another size, a folder and a checkpoint */
        story_set(s, "checkpoint.initial_load_path", i % 2 ? first : s->model);
        story_set(s, other[i / 2].key, other[i / 2].value);
        story_run(s, 1);
        CHECK_CONTAINS(s->message, other[i / 2].difference);
        CHECK_CONTAINS(s->message, other[i / 2].cause);
        CHECK_NULL(strstr(s->message, "config.json"));
        CHECK_EQ(strstr(s->message, "no file holds") != NULL, i == 4);
        CHECK_EQ(strstr(s->message, "it lacks tensors") != NULL, i == 5);
    }
}

STORY_TEST(it_saves_nowhere_but_in_the_folder_that_it_holds)
{
    char *first;

    s->away = test_path(s->directory, "away");
    first = test_path(s->away, "step-1");
    test_set_keys(s->config, "checkpoint.folder=%s checkpoint.interval=1 checkpoint.keep_latest_k=1", s->folder);
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_STATE);
    CHECK_CONTAINS(s->message, "is no longer the folder that this process holds");
    CHECK_EQ(s->saved_count, 1);
    CHECK(!story_has(s, "") && access(first, F_OK) == 0);
}

/* The folder itself can be made, and no file of a checkpoint in it could be named. */
STORY_TEST(a_folder_with_no_room_for_names_is_refused_at_the_start)
{
    char path[4050];
    size_t used = (size_t)snprintf(path, sizeof path, "%s", s->directory);

    memset(path + used, 'd', sizeof path - used);
    for (size_t at = used; at < sizeof path - 1; at += 200)
        path[at] = '/';
    path[sizeof path - 1] = '\0';
    story_set(s, "checkpoint.folder", path);
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "checkpoint.folder: the absolute path of '/");
    CHECK_CONTAINS(s->message,
                   "ddd' has 4049 bytes, but that of a folder of checkpoints may have at most 3995: name another");
    path[used + 200] = '\0';
    CHECK(access(path, F_OK) != 0);
}
