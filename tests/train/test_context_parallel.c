/* parallelism.context_parallel_degree: whatever the layout of the ranks, losses and norms are those of one rank. */
#include <math.h>

#include "fsdp/train.h"
#include "train/config.h"
#include "train/steps.h"

enum {
    STEPS = 3,
    BATCH = 12, /* sequences of a step */
    LENGTH = 48 /* chunks for 1 to 4 ranks */
};

/* Losses in float32 differ by a few units in their last place, norms by more. */
#define BOUND 3e-6
#define WIDE_BOUND 2e-2

typedef struct layout {
    int world, cp, tp, replicas;
} layout;

typedef struct variant {
    const char *keys[3][2];
    double bound;
} variant;

typedef struct fixture {
    char *directory, *data;
} fixture;

typedef struct course {
    fsdp_train_config *config;
    fsdp_train_report reports[STEPS];
    fsdp_train_validation validation;
} course;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char text[16384];

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (i * i / 7 + i / 5) % 26);
    test_write_file(f->data, text, sizeof text);
    *state = f;
    return 0;
}

static void set(fsdp_train_config *config, const char *key, int value)
{
    char text[32];

    snprintf(text, sizeof text, "%d", value);
    CHECK_OK(fsdp_train_config_set(config, key, text));
}

static fsdp_train_config *configure(const fixture *f, layout l, const variant *v)
{
    fsdp_train_config *config =
        test_config("model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=4 model.n_kv_heads=2 "
                    "model.ffn_dim=50 model.vocab_size=256 data.workers=0 training.max_norm=0.5 "
                    "optimizer.lr=0.01 metrics.exact=true metrics.log_freq=1 data.path=%s",
                    f->data);

    set(config, "training.seq_len", LENGTH);
    set(config, "training.global_batch_size", BATCH);
    set(config, "training.local_batch_size", BATCH / (l.world / l.cp / l.tp));
    set(config, "parallelism.context_parallel_degree", l.cp);
    set(config, "parallelism.tensor_parallel_degree", l.tp);
    set(config, "parallelism.data_parallel_replicate_degree", l.replicas);
    for (size_t i = 0; i < FSDP__COUNT_OF(v->keys) && v->keys[i][0]; i++)
        CHECK_OK(fsdp_train_config_set(config, v->keys[i][0], v->keys[i][1]));
    return config;
}

static void train(fsdp_context *context, void *arg)
{
    course *c = arg;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    train_steps(context, c->config, STEPS, c->reports);
}

/* A validation whose last batch is not full, before anything is trained. */
static void validate(fsdp_context *context, void *arg)
{
    course *c = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_validation found;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, c->config, &run));
    CHECK_OK(fsdp_train_validate(run, &found));
    if (fsdp_context_rank(context) == 0)
        c->validation = found;
    fsdp_train_run_free(run);
}

static void run(const fixture *f, layout l, const variant *v, course *c)
{
    *c = (course){.config = configure(f, l, v)};
    test_run_ranks(l.world, train, c);
}

static void compare(const fixture *f, layout l, const variant *v, const course *alone)
{
    course c;

    run(f, l, v, &c);
    for (int step = 0; step < STEPS; step++) {
        const fsdp_train_report *a = &c.reports[step], *b = &alone->reports[step];

        if (!(fabs(a->loss - b->loss) <= v->bound * b->loss) ||
            !(fabs(a->grad_norm - b->grad_norm) <= 10 * v->bound * b->grad_norm))
            TEST_FAIL("%d ranks, %d for a sequence, %d for a layer, %d copies, %s %s, step %d: loss %.9g and %.9g, "
                      "norm %.9g and %.9g",
                      l.world, l.cp, l.tp, l.replicas, v->keys[0][0], v->keys[0][1], step, a->loss, b->loss,
                      a->grad_norm, b->grad_norm);
        if (!v->keys[0][0]) { /* of two layers, by docs/parallel.md */
            CHECK_EQ(a->broadcast, l.cp > 1 ? 2 * 2 * l.cp : 0);
            CHECK_EQ(a->all_to_all, l.cp > 1 ? 2 : 0);
        }
    }
}

TEST_WITH(layouts_train_alike, setup, NULL)
{
    static const layout layouts[] = {{2, 2, 1, 1}, {3, 3, 1, 1}, {4, 4, 1, 1}, {4, 2, 1, 1},
                                     {4, 2, 2, 1}, {4, 2, 1, 2}, {6, 3, 2, 1}, {6, 2, 1, 1},
                                     {8, 2, 2, 1}, {8, 2, 1, 2}, {8, 2, 2, 2}, {8, 4, 1, 1}};
    static const variant plain = {.bound = BOUND};
    course alone;

    run(*state, (layout){1, 1, 1, 1}, &plain, &alone);
    for (size_t i = 0; i < FSDP__COUNT_OF(layouts); i++)
        if (test_takes((int)i, 2, 5))
            compare(*state, layouts[i], &plain, &alone);
}

/* What else a run can be, each with sequences that are cut. */
static const variant variants[] = {
    {{{"training.local_batch_size", "2"}}, BOUND},
    {{{"training.local_batch_size", "2"}, {"training.no_sync", "false"}}, BOUND},
    {{{"activation_checkpoint.mode", "full"}}, BOUND},
    {{{"activation_checkpoint.mode", "selective"}}, BOUND},
    {{{"model.preset", "gpt-10m"}, {"model.n_kv_heads", "4"}, {"model.dropout", "0"}}, BOUND},
    {{{"adapter.rank", "4"}, {"adapter.dropout", "0.2"}, {"activation_checkpoint.mode", "full"}}, BOUND},
    {{{"model.n_kv_heads", "1"}}, BOUND},
    {{{"model.tie_word_embeddings", "true"}}, BOUND},
    {{{"training.mixed_precision_param", "bfloat16"}}, WIDE_BOUND},
    {{{"parallelism.strategy", "zero1"}}, BOUND},
    {{{"parallelism.strategy", "zero3"}, {"training.local_batch_size", "3"}}, BOUND},
    {{{"parallelism.strategy", "ddp"}}, BOUND},
    {{{"parallelism.strategy", "fsdp1"}}, BOUND},
    {{{"parallelism.fsdp_reshard_after_forward", "2"}}, BOUND},
    {{{"parallelism.gather_dtype", "int8"}}, WIDE_BOUND},
    {{{"optimizer.name", "adamw8bit"}}, WIDE_BOUND},
    {{{"adapter.rank", "4"}}, BOUND},
    {{{"adapter.rank", "4"}, {"adapter.quantize", "int8"}}, BOUND},
    {{{"training.enable_cpu_offload", "true"}}, BOUND},
};

/* Two teams of two, without a rank's own layers. */
TEST_WITH(runs_of_every_kind_train_alike, setup, NULL)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(variants); i++) {
        variant one = variants[i];
        course alone;

        if (!test_takes((int)i, 2, 4))
            continue;
        if (strcmp(one.keys[0][0], "parallelism.fsdp_reshard_after_forward") == 0)
            one.keys[0][1] = "1";
        run(*state, (layout){1, 1, 1, 1}, &one, &alone);
        compare(*state, (layout){4, 2, 1, 1}, &variants[i], &alone);
    }
}

/* Of the model, after the embedding and in the branches, and of adapters, of the inputs and parts of them. */
TEST_WITH(masks_of_dropouts_are_those_of_one_rank, setup, NULL)
{
    static const layout layouts[] = {{4, 2, 2, 1}, {4, 4, 1, 1}, {6, 3, 2, 1}, {8, 2, 2, 1}};
    static const variant drops[] = {
        {{{"model.preset", "gpt-10m"}, {"model.n_kv_heads", "4"}, {"model.dropout", "0.2"}}, BOUND},
        {{{"model.n_kv_heads", "4"}, {"adapter.rank", "4"}, {"adapter.dropout", "0.3"}}, BOUND},
    };

    for (size_t v = 0; v < FSDP__COUNT_OF(drops); v++) {
        course alone;

        run(*state, (layout){1, 1, 1, 1}, &drops[v], &alone);
        for (size_t i = 0; i < FSDP__COUNT_OF(layouts); i++)
            if (test_long() || i % 2 == v)
                compare(*state, layouts[i], &drops[v], &alone);
    }
}

TEST_WITH(validations_are_those_of_one_rank, setup, NULL)
{
    static const variant v = {{{"validation.share", "0.13"}, {"validation.local_batch_size", "3"}}, BOUND};
    static const layout layouts[] = {{1, 1, 1, 1}, {2, 2, 1, 1}, {4, 2, 1, 1}, {8, 2, 2, 1}};
    course c[FSDP__COUNT_OF(layouts)];

    for (size_t i = 0; i < FSDP__COUNT_OF(layouts); i++) {
        c[i] = (course){.config = configure(*state, layouts[i], &v)};
        test_run_ranks(layouts[i].world, validate, &c[i]);
        CHECK_EQ(c[i].validation.tokens, c[0].validation.tokens);
        CHECK_NEAR(c[i].validation.loss, c[0].validation.loss, BOUND * c[0].validation.loss);
    }
    CHECK(c[0].validation.tokens % (3 * LENGTH) != 0);
}
