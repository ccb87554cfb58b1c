/* A run on conversations, of any kind, that goes on at the same number of ranks is the run that never stopped, to the
 * bit; at another number it has the same state to the bit, the same global batches token by token, and the same losses
 * but for the order of sums. */
#include <math.h>

#include "base/file.h"
#include "support/chat_folder.h"
#include "train/run.h"
#include "train/run_config.h"
#include "train/story.h"

enum {
    BATCH = 12, /* sequences a step, on all ranks */
    SAVED = 3,  /* the step that is saved */
    AFTER = STORY_STEPS - SAVED,
    LONGEST = 128,
    KEYS = 4
};

/* Losses in float32 differ by a few units in their last place. 16 bits round each microbatch's gradients, and Muon's
 * matrices: where a sum in another order moves an element to the next bfloat16 (2^-9 of it), five iterations carry that
 * into the whole step. So after six steps weights differ by up to 3e-4 and losses by up to 1.3e-5, in runs with an
 * average or without. That is all of it: with Muon computed in float32 they differ by 1e-6, as AdamW's do. */
#define BOUND 2e-6
#define WIDE_BOUND 1e-4

typedef struct kind {
    const char *name;
    const char *keys[KEYS][2];
    double bound;
} kind;

static const kind kinds[] = {
    {"packed", {{NULL}}, BOUND},
    {"padded, all learned", {{"data.packing", "false"}, {"data.train_on", "all"}}, BOUND},
    {"two epochs", {{"training.steps", "500"}, {"training.epochs", "2"}}, BOUND},
    {"split", {{"training.seq_len", "24"}, {"data.on_long_row", "split"}}, BOUND},
    {"mixed", {{"data.mixture", "chat.jsonl data.txt"}}, BOUND},
    {"pairs", {{"data.path", "pairs.jsonl"}, {"training.objective", "dpo"}, {"training.seq_len", "128"}}, BOUND},
    {"LoRA with dropout", {{"adapter.rank", "4"}, {"adapter.dropout", "0.2"}}, BOUND},
    {"DoRA", {{"adapter.rank", "4"}, {"adapter.dora", "true"}}, BOUND},
    {"QLoRA", {{"adapter.rank", "4"}, {"adapter.quantize", "nf4"}}, BOUND},
    {"dropout", {{"model.preset", "gpt-10m"}, {"model.n_kv_heads", "3"}, {"model.dropout", "0.2"}}, BOUND},
    {"dropout, recomputed",
     {{"model.preset", "gpt-10m"},
      {"model.n_kv_heads", "3"},
      {"model.dropout", "0.2"},
      {"activation_checkpoint.mode", "full"}},
     BOUND},
    {"an average", {{"training.ema_decay", "0.9"}, {"checkpoint.async_mode", "async"}}, BOUND},
    {"sgd",
     {{"optimizer.name", "sgd"},
      {"optimizer.momentum", "0.9"},
      {"optimizer.lr", "0.1"},
      {"checkpoint.async_mode", "async"}},
     BOUND},
    {"lion", {{"optimizer.name", "lion"}, {"optimizer.lr", "1e-4"}}, BOUND},
    {"moments of 8 bits", {{"optimizer.name", "adamw8bit"}}, BOUND},
    {"adafactor", {{"optimizer.name", "adafactor"}, {"optimizer.lr", "0.01"}}, BOUND},
    {"muon and an average",
     {{"optimizer.name", "muon"}, {"training.ema_decay", "0.9"}, {"checkpoint.async_mode", "async"}},
     WIDE_BOUND},
    {"bfloat16", {{"training.mixed_precision_param", "bfloat16"}}, WIDE_BOUND},
    {"float16",
     {{"training.mixed_precision_param", "float16"}, {"training.mixed_precision_reduce", "float16"}},
     WIDE_BOUND},
};

/* ---- what is trained on ---- */

static void write_rows(const story *s, const char *name, bool pairs)
{
    char *path = test_path(s->directory, name);
    FILE *out = fopen(path, "w");

    for (int i = 0; i < 50; i++) {
        if (pairs)
            fprintf(out, "{\"prompt\": \"%d?\", \"chosen\": \"%.*s\", \"rejected\": \"%d\"}\n", i, 1 + i * 7 % 23,
                    "every word of it is true", 1000 - i);
        else
            fprintf(out,
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"%d\"}, {\"role\": \"assistant\", "
                    "\"content\": \"%.*s\"}]}\n",
                    i, 1 + i * 5 % 17, "so many bottles.");
    }
    fclose(out);
}

static void set_path(story *s, const char *key, const char *name)
{
    char *path = test_path(s->directory, name);

    story_set(s, key, path);
}

static void set_kind(story *s, const kind *k)
{
    char text[1024];

    for (int i = 0; i < KEYS && k->keys[i][0]; i++)
        if (strcmp(k->keys[i][0], "data.path") == 0) {
            set_path(s, "data.path", k->keys[i][1]);
        } else if (strcmp(k->keys[i][0], "data.mixture") == 0) {
            snprintf(text, sizeof text, "[{path: %s/chat.jsonl, weight: 2}, {path: %s/data.txt}]", s->directory,
                     s->directory);
            story_set(s, "data.path", "");
            story_set(s, "data.mixture", text);
        } else {
            story_set(s, k->keys[i][0], k->keys[i][1]);
        }
}

static void set_all(story *s, const kind *k)
{
    static const char *const keys[][2] = {{"model.dim", "48"},          {"model.ffn_dim", "96"},
                                          {"model.vocab_size", "260"},  {"training.seq_len", "64"},
                                          {"model.max_seq_len", "128"}, {"training.global_batch_size", "12"},
                                          {"optimizer.lr", "0.001"},    {"lr_scheduler.warmup_steps", "0"}};
    char *tokenizer = test_path(s->directory, "tokenizer");

    CHECK_OK(fsdp__make_directories(tokenizer));
    chat_folder_write(tokenizer, chat_template_marked);
    write_rows(s, "chat.jsonl", false);
    write_rows(s, "pairs.jsonl", true);
    set_path(s, "data.path", "chat.jsonl");
    set_path(s, "data.tokenizer", "tokenizer");
    set_path(s, "data.cache", "cache");
    story_set(s, "checkpoint.folder", s->folder);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        story_set(s, keys[i][0], keys[i][1]);
    set_kind(s, k);
}

/* ---- a run ---- */

/* Of a run that stands at the saved step, and of the steps from there on. */
typedef struct course {
    story *story;
    story_state at, end;
    double losses[AFTER];
    int32_t batches[AFTER][BATCH][3][LONGEST]; /* inputs, targets, positions, by their place in the global batch */
} course;

static fsdp_train_run *start(fsdp_context *context, course *c)
{
    fsdp_train_run *run = NULL;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, c->story->config, &run));
    return run;
}

/* Takes the steps after the saved one. */
static void end(fsdp_context *context, course *c, fsdp_train_run *run)
{
    bool first = fsdp_context_rank(context) == 0;
    story_state state = story_state_of(run);

    if (first)
        c->at = state;
    for (int i = 0; i < AFTER; i++) {
        fsdp_train_report report;

        CHECK_OK(fsdp_train_step(run, &report));
        CHECK_EQ(report.step, SAVED + i + 1);
        if (first)
            c->losses[i] = report.loss;
    }
    state = story_state_of(run);
    if (first)
        c->end = state;
    CHECK_OK(fsdp_checkpoint_saver_wait(run->saves.saver, NULL)); /* what is written beside the steps */
    fsdp_train_run_free(run);
}

static void go_all(fsdp_context *context, void *arg)
{
    fsdp_train_run *run = start(context, arg);

    for (int i = 0; i < SAVED; i++)
        CHECK_OK(fsdp_train_step(run, NULL));
    CHECK_OK(fsdp_train_save(run));
    end(context, arg, run);
}

static void go_on(fsdp_context *context, void *arg)
{
    end(context, arg, start(context, arg));
}

/* Takes the batches of the steps to come, in place of the run. */
static void look(fsdp_context *context, void *arg)
{
    course *c = arg;
    fsdp_train_run *run = start(context, c);
    int64_t local = run->config->training.local_batch_size, length = run->config->training.seq_len;

    CHECK_EQ(run->sequences, BATCH);
    for (int64_t i = 0; i < AFTER * run->microbatches; i++) {
        int64_t step = i / run->microbatches, micro = i % run->microbatches;
        int64_t before = (micro * run->data_ranks + run->data_rank) * local;
        fsdp_batch b;

        CHECK_OK(fsdp_loader_next(run->loader, &b));
        for (int64_t row = 0; row < local; row++) {
            int32_t(*to)[LONGEST] = c->batches[step][before + row];
            size_t bytes = (size_t)length * sizeof **to;

            memcpy(to[0], b.inputs + row * length, bytes);
            memcpy(to[1], b.targets + row * length, bytes);
            if (b.positions)
                memcpy(to[2], b.positions + row * length, bytes);
        }
    }
    fsdp_train_run_free(run);
}

/* ---- comparing ---- */

static void check_state(const kind *k, const char *when, const story_state *a, const story_state *b)
{
    if (a->model != b->model || a->optimizer != b->optimizer || a->ema != b->ema || a->step != b->step ||
        a->window != b->window || a->scale != b->scale)
        TEST_FAIL("%s, %s: weights %s, optimizer state %s, average %s, step %d and %d, window %d and %d, scale %g and "
                  "%g",
                  k->name, when, a->model == b->model ? "the same" : "differ",
                  a->optimizer == b->optimizer ? "the same" : "differs", a->ema == b->ema ? "the same" : "differs",
                  (int)a->step, (int)b->step, (int)a->window, (int)b->window, a->scale, b->scale);
}

static void check_losses(const kind *k, int from, int to, const course *a, const course *b, double bound)
{
    for (int i = 0; i < AFTER; i++)
        if (!(fabs(a->losses[i] - b->losses[i]) <= bound))
            TEST_FAIL("%s, %d -> %d ranks, step %d: loss %.9g and %.9g", k->name, from, to, SAVED + i + 1, a->losses[i],
                      b->losses[i]);
}

/* Ranks, of which `tp` compute each layer together, and `cp` each sequence; 0: 1. */
typedef struct layout {
    int world, tp, cp;
} layout;

static int team_of(layout l)
{
    return l.tp * (l.cp ? l.cp : 1);
}

static void set_ranks(story *s, layout l, int microbatches)
{
    char text[12];

    snprintf(text, sizeof text, "%d", BATCH / (l.world / team_of(l)) / microbatches);
    story_set(s, "training.local_batch_size", text);
    snprintf(text, sizeof text, "%d", l.tp);
    story_set(s, "parallelism.tensor_parallel_degree", text);
    story_set(s, "parallelism.enable_async_tensor_parallel", /* which goes with no adapter */
              l.tp > 1 && l.world == 4 && !fsdp__train_adapts(s->config) ? "true" : "false");
    snprintf(text, sizeof text, "%d", l.cp ? l.cp : 1);
    story_set(s, "parallelism.context_parallel_degree", text);
}

/* Gives the model heads that two ranks can share. */
static void set_heads(story *s)
{
    story_set(s, "model.n_heads", "4");
    story_set(s, "model.n_kv_heads", strncmp(s->config->model.preset, "gpt", 3) == 0 ? "4" : "2");
}

static void go_between(const kind *k, layout before, layout after)
{
    int from = before.world, to = after.world;
    course *all = calloc(1, sizeof *all), *same = calloc(1, sizeof *same), *other = calloc(1, sizeof *other);

    all->story = same->story = other->story = story_new();
    set_all(all->story, k);
    if (before.tp > 1 || after.tp > 1)
        set_heads(all->story);
    set_ranks(all->story, before, 1);
    test_run_ranks(from, go_all, all);
    test_run_ranks(from, go_on, same);
    CHECK(all->at.optimizer != 0 && all->at.model != all->end.model);
    CHECK_EQ(all->at.ema != 0, strstr(k->name, "an average") != NULL);
    check_state(k, "saved and gone on from", &all->at, &same->at);
    check_losses(k, from, from, all, same, 0);
    check_state(k, "at the end", &all->end, &same->end);
    test_run_ranks(from, look, same);
    CHECK(same->batches[0][0][0][0] != 0 && same->batches[AFTER - 1][BATCH - 1][0][0] != 0);
    set_ranks(all->story, after, to < 4 ? 2 : 1);
    test_run_ranks(to, look, other);
    CHECK_BYTES(other->batches, same->batches, sizeof same->batches);
    test_run_ranks(to, go_on, other);
    check_state(k, "at another number of ranks", &all->at, &other->at);
    check_losses(k, from, to, all, other, k->bound);
    free(all);
    free(same);
    free(other);
}

TEST(conversations_go_on_at_any_number_of_ranks)
{
    static const layout worlds[][2] = {{{1, 1, 1}, {2, 1, 1}}, {{2, 1, 1}, {3, 1, 1}}, {{4, 1, 1}, {1, 1, 1}}};

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
            if (test_takes((int)(i + w), 3, 18)) /* each kind between one pair */
                go_between(&kinds[i], worlds[w][0], worlds[w][1]);
}

/* Teams do not go with codes, nor with blocks of bytes where a rank has fewer columns than a block. */
static bool goes_with_teams(const kind *k)
{
    for (int i = 0; i < KEYS && k->keys[i][0]; i++)
        if (strcmp(k->keys[i][0], "adapter.quantize") == 0 || strcmp(k->keys[i][1], "adamw8bit") == 0)
            return false;
    return true;
}

/* Every second kind goes from one of these layouts to the other. */
TEST(conversations_go_on_with_any_teams)
{
    static const layout layouts[][2] = {{{4, 2, 1}, {1, 1, 1}},
                                        {{1, 1, 1}, {2, 2, 1}},
                                        {{2, 2, 1}, {4, 2, 1}},
                                        {{3, 1, 1}, {4, 2, 1}},
                                        {{6, 2, 1}, {2, 1, 1}}};
    int number = 0;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const layout *l = layouts[number % 5];

        if (goes_with_teams(&kinds[i]) && test_takes(number++, 5, 12))
            go_between(&kinds[i], l[0], l[1]);
    }
}

TEST(conversations_go_on_with_sequences_cut_or_not)
{
    static const layout layouts[][2] = {{{2, 1, 2}, {1, 1, 1}}, {{1, 1, 1}, {4, 1, 2}}, {{4, 1, 2}, {4, 1, 4}},
                                        {{3, 1, 1}, {2, 1, 2}}, {{4, 1, 4}, {2, 1, 1}}, {{4, 2, 2}, {4, 1, 2}},
                                        {{2, 2, 1}, {8, 2, 2}}};
    int number = 0;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const layout *l = layouts[number % 7];

        if (l[0].tp * l[1].tp > 1 && !goes_with_teams(&kinds[i]))
            continue;
        if (test_takes(number++, 5, 12))
            go_between(&kinds[i], l[0], l[1]);
    }
}
