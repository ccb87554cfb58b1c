/* A plan's memory is what a run will have: the peak of real ranks' ledgers, to the byte, and what it is made of. */
#include "plan/plan.h"
#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>

typedef struct fixture {
    char *directory, *data;
} fixture;

static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    char text[4096];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 26);
    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    test_write_file(f->data, text, sizeof text);
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;

    test_directory_free(f->directory);
    free(f->data);
    free(f);
    return 0;
}

/* "key=value key=value" */
static fsdp_train_config *configure(const fixture *f, const char *keys)
{
    fsdp_train_config *config;
    char text[512], *rest = text;

    snprintf(text, sizeof text,
             "model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=2 model.n_kv_heads=1 model.ffn_dim=50 "
             "model.vocab_size=256 data.workers=0 training.seq_len=8 training.local_batch_size=2 training.steps=3 %s",
             keys);
    CHECK_OK(fsdp_train_config_create(&config));
    CHECK_OK(fsdp_train_config_set(config, "data.path", f->data));
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');

        *value++ = '\0';
        CHECK_OK(fsdp_train_config_set(config, word, value));
    }
    return config;
}

static fsdp__plan *plan_of(const fsdp_train_config *config, int world, int machines, const fsdp__prices *prices)
{
    fsdp__plan *plan = NULL;

    CHECK_OK(fsdp__plan_make(config, &(fsdp__plan_options){.world_size = world, .machines = machines, .prices = prices},
                             &plan));
    return plan;
}

static size_t sum(const size_t *bytes, int count)
{
    size_t all = 0;

    for (int i = 0; i < count; i++)
        all += bytes[i];
    return all;
}

/* What is said of the peak adds up to it. */
static void check_peak(const fsdp__plan *plan)
{
    const fsdp__plan_peak *peak = &plan->peak;

    CHECK_EQ(sum(peak->bytes, FSDP_MEMORY_KINDS), peak->total);
    CHECK_EQ(sum(peak->by_op, FSDP__KERNELS + 1), peak->bytes[FSDP_MEMORY_ACTIVATION]);
    CHECK_EQ(peak->total, plan->e->step.peak_total_bytes);
    CHECK(peak->unit >= -1 && peak->unit < plan->e->unit_count);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        CHECK(kind == FSDP_MEMORY_WORKSPACE || peak->bytes[kind] <= plan->e->step.peak_bytes[kind]);
}

/* ---- real runs ---- */

typedef struct real {
    const fsdp_train_config *config;
    fsdp_memory_stats memory; /* of rank 0, in its third step */
} real;

static void train(fsdp_context *context, void *arg)
{
    real *r = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_OK(fsdp_train_run_create(context, r->config, &run));
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_train_step(run, &report));
    if (fsdp_context_rank(context) == 0)
        r->memory = report.memory;
    fsdp_train_run_free(run);
}

static void hold(const fixture *f, int world, const char *keys)
{
    fsdp_train_config *config = configure(f, keys);
    real was = {.config = config};
    fsdp__plan *plan = plan_of(config, world, 1, NULL);

    test_run_ranks(world, train, &was);
    CHECK_EQ(plan->peak.total, was.memory.peak_without_workspace_bytes);
    check_peak(plan);
    fsdp__plan_free(plan);
    fsdp_train_config_free(config);
}

TEST_WITH(the_peak_is_that_of_a_real_run_for_every_option, open_fixture, close_fixture)
{
    static const struct {
        int world;
        const char *keys;
    } ways[] = {
        {1, "training.global_batch_size=4"},
        {2, "parallelism.strategy=zero1 training.global_batch_size=8"},
        {3, "parallelism.strategy=fsdp1 training.mixed_precision_param=bfloat16"},
        {8, "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2"},
        {4, "parallelism.fsdp_reshard_after_forward=never training.global_batch_size=16"},
        {2, "activation_checkpoint.mode=full"},
        {3, "activation_checkpoint.mode=selective parallelism.strategy=zero3"},
        {2, "parallelism.gather_dtype=float8 training.global_batch_size=8"},
        {2, "training.enable_cpu_offload=true training.max_norm=0"},
        {4, "parallelism.strategy=ddp training.global_batch_size=16"},
        {3, "parallelism.strategy=zero2 training.global_batch_size=12 parallelism.wrap_policy=always"},
        {8, "parallelism.fsdp_reshard_after_forward=4"},
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += test_brief() ? 3 : 1)
        hold(*state, ways[i].world, ways[i].keys);
}

TEST_WITH(the_peak_of_a_gpu_is_that_of_a_real_run, open_fixture, close_fixture)
{
    static const struct {
        int world;
        const char *keys;
    } ways[] = {
        {1, "training.device=cuda"},
        {2, "training.device=cuda training.global_batch_size=8"},
        {2, "training.device=cuda training.enable_cpu_offload=true training.global_batch_size=8"},
        {3, "training.device=cuda parallelism.strategy=fsdp1 training.mixed_precision_param=bfloat16"},
        {2, "training.device=cuda parallelism.gather_dtype=float8"},
        {2, "training.device=cuda parallelism.strategy=ddp activation_checkpoint.mode=full"},
    };

    test_need_gpu();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += test_brief() ? 3 : 1)
        hold(*state, ways[i].world, ways[i].keys);
}
