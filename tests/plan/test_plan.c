/* A plan's memory is what a run will have: the peak of real ranks' ledgers, to the byte, and what it is made of. */
#include "plan/plan.h"
#include "plan/show_plan.h"
#include "support/chat_folder.h"
#include "support/ranks.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static char *printed(const fsdp__plan *plan, const fsdp__plan_question *question,
                     fsdp_status (*print)(const fsdp__plan *, const fsdp__plan_question *, FILE *))
{
    FILE *out = test_begin_text();

    CHECK_OK(print(plan, question, out));
    return test_end_text(out);
}

/* ---- real runs ---- */

typedef struct real {
    const fsdp_train_config *config;
    fsdp_memory_stats memory[8]; /* of each rank, in its third step */
} real;

static void train(fsdp_context *context, void *arg)
{
    real *r = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_OK(fsdp_train_run_create(context, r->config, &run));
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_train_step(run, &report));
    r->memory[fsdp_context_rank(context)] = report.memory;
    fsdp_train_run_free(run);
}

static void hold_machines(int world, int machines, const char *keys)
{
    fsdp_train_config *config = test_small_config(keys);
    real was = {.config = config};
    fsdp__plan *plan = plan_of(config, world, machines, NULL);

    if (machines > 1)
        test_run_machines(machines, world / machines, false, train, &was);
    else
        test_run_ranks(world, train, &was);
    CHECK_EQ(plan->peak.total, was.memory[plan->e->rank].peak_without_workspace_bytes);
    for (int rank = 0; rank < world; rank++)
        CHECK(was.memory[rank].peak_without_workspace_bytes <= plan->peak.total);
    check_peak(plan);
    fsdp__plan_free(plan);
}

static void hold(int world, const char *keys)
{
    hold_machines(world, 1, keys);
}

TEST(the_peak_is_that_of_a_real_run_for_every_option)
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
        {2, "activation_checkpoint.mode=cheap"},
        {3, "activation_checkpoint.mode=selective parallelism.strategy=zero3"},
        {2, "parallelism.gather_dtype=float8 training.global_batch_size=8"},
        {2, "training.enable_cpu_offload=true training.max_norm=0"},
        {4, "parallelism.strategy=ddp training.global_batch_size=16"},
        {3, "parallelism.strategy=zero2 training.global_batch_size=12 parallelism.wrap_policy=always"},
        {8, "parallelism.fsdp_reshard_after_forward=4"},
        {3, "parallelism.strategy=fsdp1 parallelism.fsdp1_use_orig_params=true optimizer.name=adafactor"},
        {4, "parallelism.strategy=fsdp1 parallelism.fsdp1_use_orig_params=true adapter.rank=2"},
        {4, "parallelism.strategy=fsdp1 parallelism.fsdp1_use_orig_params=true optimizer.name=muon "
            "parallelism.fsdp1_strategy=hybrid_shard parallelism.data_parallel_replicate_degree=2"},
    };

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += test_brief() ? 4 : 1)
        hold(ways[i].world, ways[i].keys);
}

TEST(the_peak_of_a_gpu_is_that_of_a_real_run)
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
        {4, "training.device=cuda parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2"},
        {3, "training.device=cuda parallelism.strategy=zero2 training.global_batch_size=12"},
        {4, "training.device=cuda model.n_kv_heads=2 parallelism.tensor_parallel_degree=2"},
    };
    const char *gpus = getenv("FSDP_FAKECUDA_DEVICES");

    test_need_gpu();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += test_brief() ? 4 : 1) {
        hold(ways[i].world, ways[i].keys); /* two GPUs */
        if (gpus || i % 4 > 0 || test_brief())
            continue;
        setenv("FSDP_FAKECUDA_DEVICES", i == 0 ? "8" : "1", 1);
        hold(i == 0 ? 8 : ways[i].world, ways[i].keys);
        unsetenv("FSDP_FAKECUDA_DEVICES");
    }
}

/* Makes the keys of a run on 40 rows, conversations or pairs, in `directory`. */
static char *keys_of_rows(const char *directory, bool pairs, const char *keys)
{
    char *data = test_path(directory, "rows.jsonl"), *folder = test_path(directory, "tokenizer"), *text = NULL;
    FILE *file = CHECK_PTR(fopen(data, "w"));

    CHECK(mkdir(folder, 0700) == 0 || access(folder, R_OK) == 0);
    chat_folder_write(folder, chat_template_marked);
    for (int i = 0; i < 40; i++)
        fprintf(file,
                pairs ? "{\"prompt\": \"%d\", \"chosen\": \" up %d\", \"rejected\": \" down\"}\n"
                      : "{\"messages\": [{\"role\": \"user\", \"content\": \"%d\"}, "
                        "{\"role\": \"assistant\", \"content\": \"%d\"}]}\n",
                i, i + 1);
    fclose(file);
    CHECK(asprintf(&text, "data.path=%s data.tokenizer=%s data.cache=%s model.vocab_size=259 training.seq_len=48 %s",
                   data, folder, directory, keys) > 0);
    return test_own(text, free);
}

TEST(the_peak_on_conversations_and_pairs_is_that_of_a_real_run)
{
    static const struct {
        int world;
        bool pairs;
        const char *keys;
    } ways[] = {
        {1, false, "training.global_batch_size=4"},
        {3, false, "parallelism.strategy=fsdp1 training.mixed_precision_param=bfloat16"},
        {2, false, "data.packing=false parallelism.strategy=ddp"},
        {2, false, "data.packing=best_fit parallelism.context_parallel_degree=2"},
        {1, true, "training.objective=dpo training.global_batch_size=4"},
        {2, true, "training.objective=dpo activation_checkpoint.mode=full"},
        {2, true, "training.objective=dpo model.n_kv_heads=2 parallelism.tensor_parallel_degree=2"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i += test_long() ? 1 : 2)
        for (int gpu = 0; gpu <= (test_has_gpu() && i % 4 == 0); gpu++) {
            char *keys = keys_of_rows(test_directory(), ways[i].pairs, ways[i].keys), more[1000];

            snprintf(more, sizeof more, "%s%s", keys, gpu ? " training.device=cuda" : "");
            hold(ways[i].world, more);
        }
}

/* Hybrid reductions over a network have a stream of their own, and what they hold is counted, too. */
TEST(the_peak_over_machines_is_that_of_a_real_run)
{
    static const struct {
        int world;
        const char *keys;
    } ways[] = {
        {4, "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2"},
        {8, "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2 training.global_batch_size=16"},
        {4, "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2 "
            "training.mixed_precision_param=bfloat16"},
        {4, "training.global_batch_size=16"},
        {4, "parallelism.strategy=ddp"},
        {4, "parallelism.strategy=zero2"},
    };
    char keys[400];

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i += test_brief() ? 4 : 1) {
        bool gpus = test_has_gpu() && (i == 0 || !test_brief());

        for (int gpu = 0; gpu <= gpus; gpu++) {
            snprintf(keys, sizeof keys, "%s%s", ways[i].keys, gpu ? " training.device=cuda" : "");
            hold_machines(ways[i].world, 2, keys);
        }
    }
}

TEST(the_rank_that_has_the_most_is_named)
{
    static const char keys[] = "model.preset=gpt-10m model.n_layers=1 model.dim=32 model.n_heads=4 "
                               "model.vocab_size=256 training.seq_len=16 parallelism.strategy=fsdp1 "
                               "parallelism.fsdp1_use_orig_params=true optimizer.name=adafactor";
    fsdp__plan *two = plan_of(test_config(keys), 2, 1, NULL), *many = plan_of(test_config(keys), 65, 1, NULL);

    CHECK(two->e->rank == 1 && !two->unsearched);
    CHECK_CONTAINS(printed(two, &(fsdp__plan_question){0}, fsdp__plan_print), "Memory of rank 1, which has the most,");
    CHECK(many->e->rank == 0 && many->unsearched);
    CHECK_CONTAINS(printed(many, &(fsdp__plan_question){0}, fsdp__plan_print), "which rank has the most is not known");
    fsdp__plan_free(two);
    fsdp__plan_free(many);
}

TEST(a_plan_says_that_validations_are_not_counted_if_there_are_any)
{
    static const char words[] = "Validations are not counted";
    fsdp__plan *with = plan_of(test_config("model.preset=llama-1m validation.share=0.1"), 1, 1, NULL);
    fsdp__plan *without = plan_of(test_config("model.preset=llama-1m"), 1, 1, NULL);

    CHECK_CONTAINS(printed(with, &(fsdp__plan_question){0}, fsdp__plan_print), words);
    CHECK(!strstr(printed(without, &(fsdp__plan_question){0}, fsdp__plan_print), words));
    fsdp__plan_free(with);
    fsdp__plan_free(without);
}

/* ---- worlds that nobody has ---- */

TEST(a_million_ranks_are_planned)
{
    fsdp_train_config *config;
    fsdp__plan *plan;

    config = test_config("model.preset=llama-1m model.n_layers=1");
    plan = plan_of(config, 1000000, 1000, NULL);
    check_peak(plan);
    CHECK(plan->crossing.in > 0 && plan->crossing.out > 0);
    CHECK(plan->crossing.least > 0 && plan->crossing.least <= plan->crossing.in);
    fsdp__plan_free(plan);
}

TEST(a_machine_exchanges_no_less_than_the_least_and_two_of_them_no_more)
{
    fsdp_train_config *config = test_config("model.preset=llama-1m");

    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        fsdp__plan *plan = plan_of(config, ranks, 2, NULL);

        CHECK(plan->crossing.in >= plan->crossing.least && plan->crossing.out >= plan->crossing.least);
        CHECK(plan->crossing.in <= plan->crossing.least + plan->crossing.least / 100 + 65536);
        fsdp__plan_free(plan);
    }
}

/* ---- time ---- */

/* A device whose every rate is one number, so that times can be added up by hand. */
static fsdp__prices round_prices(void)
{
    return (fsdp__prices){.device = "a test",
                          .source = "a test",
                          .cores = 1,
                          .per_second = 1e9,
                          .rate_count = 1,
                          .rates = {{FSDP__KERNEL_MATMUL, FSDP_F32, 64, 1e9}},
                          .machine = {.latency = 0, .per_second = 1e9},
                          .network = {.latency = 0, .per_second = 1e9}};
}

static double parts_of(const fsdp__plan_time *t)
{
    double all = 0;

    for (int part = 0; part < FSDP__PLAN_PARTS; part++)
        all += t->parts[part];
    return all;
}

TEST(time_is_work_over_rates)
{
    fsdp__prices prices = round_prices(), half = round_prices();
    fsdp_train_config *config;
    fsdp__plan *one, *slow, *two;

    config = test_config("model.preset=llama-1m");
    half.rates[0].per_second = 5e8;
    one = plan_of(config, 1, 1, &prices);
    slow = plan_of(config, 1, 1, &half);
    two = plan_of(config, 2, 1, &prices);
    /* All floating point operations are products' and attention's, which has the rate of products here. */
    CHECK_NEAR(one->time.parts[FSDP__PLAN_PRODUCTS] + one->time.parts[FSDP__PLAN_ATTENTION], one->e->step.flops / 1e9,
               1e-9);
    CHECK_NEAR(slow->time.parts[FSDP__PLAN_PRODUCTS], 2 * one->time.parts[FSDP__PLAN_PRODUCTS], 1e-9);
    CHECK_NEAR(slow->time.parts[FSDP__PLAN_OPTIMIZER], one->time.parts[FSDP__PLAN_OPTIMIZER], 1e-9);
    /* Two ranks share the cores. */
    CHECK_NEAR(two->time.parts[FSDP__PLAN_PRODUCTS], 2 * one->time.parts[FSDP__PLAN_PRODUCTS], 1e-9);
    /* One rank alone copies its gradients. */
    CHECK_NEAR(one->time.parts[FSDP__PLAN_REDUCTIONS], 2 * 4 * (double)one->e->numel / prices.per_second, 1e-9);
    CHECK(two->time.parts[FSDP__PLAN_REDUCTIONS] > 0);
    CHECK_NEAR(parts_of(&one->time), one->time.step, 1e-9);
    fsdp__plan_free(one);
    fsdp__plan_free(slow);
    fsdp__plan_free(two);
}

TEST(gathers_over_a_network_hide_behind_products_as_far_as_these_last)
{
    fsdp__prices prices = round_prices();
    fsdp_train_config *config;
    fsdp__plan *fast, *slow;

    config = test_config("model.preset=llama-1m");
    fast = plan_of(config, 2, 2, &prices);
    prices.network.per_second = 1e5;
    slow = plan_of(config, 2, 2, &prices);
    CHECK(fast->time.hidden_gathers > 0);
    CHECK(fast->time.parts[FSDP__PLAN_GATHERS] < fast->time.hidden_gathers);
    CHECK(slow->time.parts[FSDP__PLAN_GATHERS] > slow->time.hidden_gathers);
    /* Nothing gets lost: what is hidden and what is not is the same sum, and grows with the network's time. */
    CHECK_NEAR((slow->time.parts[FSDP__PLAN_GATHERS] + slow->time.hidden_gathers) /
                   (fast->time.parts[FSDP__PLAN_GATHERS] + fast->time.hidden_gathers),
               1e4, 1e2);
    fsdp__plan_free(fast);
    fsdp__plan_free(slow);
}

TEST(hybrid_reductions_over_a_network_hold_up_no_gather_inside_a_machine)
{
    const fsdp_train_config *config = test_config("model.preset=llama-1m training.device=cuda "
                                                  "parallelism.strategy=hsdp "
                                                  "parallelism.data_parallel_replicate_degree=2");
    fsdp__prices prices = round_prices();
    fsdp__plan *fast, *slow;

    prices.gpu = true;
    prices.peers = (fsdp__price_link){0, 1e9};
    fast = plan_of(config, 8, 2, &prices);
    prices.network.per_second = 1e5;
    slow = plan_of(config, 8, 2, &prices);
    CHECK(fast->time.parts[FSDP__PLAN_GATHERS] > 0);
    CHECK(slow->time.parts[FSDP__PLAN_GATHERS] <= fast->time.parts[FSDP__PLAN_GATHERS] + 1e-9);
    /* The division after a sum is short; who waits for it waits for the sum. */
    CHECK(slow->time.parts[FSDP__PLAN_REDUCTIONS] > slow->time.step / 2);
    CHECK_NEAR(slow->time.parts[FSDP__PLAN_MEMORY_BOUND], fast->time.parts[FSDP__PLAN_MEMORY_BOUND], 1e-9);
    fsdp__plan_free(fast);
    fsdp__plan_free(slow);
}

TEST(gpus_of_a_machine_hide_gathers_and_reductions_behind_products)
{
    static const char *const strategies[] = {"fsdp2", "fsdp1", "zero2", "ddp"};
    fsdp__prices prices = round_prices();

    prices.gpu = true;
    prices.peers = (fsdp__price_link){0, 1e9};
    for (size_t i = 0; i < FSDP__COUNT_OF(strategies); i++) {
        const fsdp_train_config *config =
            test_config("model.preset=llama-1m training.device=cuda parallelism.strategy=%s", strategies[i]);
        fsdp__plan *plan = plan_of(config, 8, 1, &prices);
        const fsdp__plan_time *t = &plan->time;

        CHECK(i == 3 || t->hidden_gathers > t->parts[FSDP__PLAN_GATHERS]);
        CHECK(t->hidden_reductions > 0);
        fsdp__plan_free(plan);
    }
}

/* ---- output ---- */

static char *drawn(const fsdp__plan *plan, const fsdp__stack *measured, double limit)
{
    static const int fills[FSDP_MEMORY_KINDS] = {0, 1, 2, 3, 4, 5};
    FILE *out = test_begin_text();

    CHECK_OK(fsdp__plan_memory_svg(plan, fills, measured, limit, out));
    return test_end_text(out);
}

static double number(const void *of, int64_t i)
{
    (void)of;
    return (double)i;
}

static double megabytes(const void *of, int64_t i, int layer)
{
    (void)of;
    return layer == 0 ? (double)(i + 1) * (1 << 20) : 0;
}

/* What is drawn has the peak that is printed, to the byte. */
TEST(a_plan_is_drawn_over_the_step)
{
    static const int fills[FSDP_MEMORY_KINDS] = {0};
    const fsdp__stack measured = {FSDP_MEMORY_KINDS, fills, 3, number, megabytes, NULL, 0};
    fsdp__prices prices = round_prices();
    fsdp_train_config *config;
    char *text;

    config = test_config("model.preset=llama-1m");
    for (int timed = 0; timed < 2; timed++) {
        const fsdp__plan_options options = {
            .world_size = 2, .machines = 1, .moments = true, .prices = timed ? &prices : NULL};
        fsdp__plan *plan = NULL;
        size_t most = 0;

        CHECK_OK(fsdp__plan_make(config, &options, &plan));
        for (int64_t i = 0; i < plan->moment_count; i++) {
            size_t all = sum(plan->moments[i].bytes, FSDP_MEMORY_KINDS);

            most = all > most ? all : most;
            CHECK(i == 0 || plan->moments[i].at >= plan->moments[i - 1].at);
        }
        CHECK_EQ(most, plan->peak.total);
        text = drawn(plan, NULL, 0);
        CHECK_CONTAINS(text, timed ? "planned, over time: at most " : "planned, change by change: at most ");
        CHECK_CONTAINS(text, ">backward</text>");
        CHECK(!strstr(text, "measured") && strstr(text, "</svg>"));
        CHECK(!strstr(text, "\"limit\""));
        text = drawn(plan, &measured, 0);
        CHECK_CONTAINS(text, "measured, over time: at most 3.0MiB<");
        text = drawn(plan, &measured, (double)(2 * most)); /* a line in both panels */
        CHECK_CONTAINS(text, "measured, over time: at most 3.0MiB of ");
        CHECK(strstr(text, "class=\"limit\"") && strstr(strstr(text, "class=\"limit\"") + 1, "class=\"limit\""));
        text = drawn(plan, NULL, (double)most / 2); /* also where it does not fit */
        CHECK_CONTAINS(text, "class=\"limit\"");
        text = drawn(plan, NULL, 100 * (double)most); /* far above: in words alone */
        CHECK(!strstr(text, "class=\"limit\"") && strstr(text, " of "));
        fsdp__plan_free(plan);
    }
}

TEST(a_plan_says_whether_it_fits_what_it_takes_and_what_it_costs)
{
    fsdp__prices prices = round_prices();
    fsdp__plan_question question = {.prices = &prices, .room = 1e12, .room_name = "a test", .price = 2};
    fsdp_train_config *config;
    fsdp__plan *plan;
    char *text;

    config = test_config("model.preset=llama-1m");
    plan = plan_of(config, 4, 2, &prices);
    text = printed(plan, &question, fsdp__plan_print);
    CHECK_CONTAINS(text, "It fits: a rank has");
    CHECK_CONTAINS(text, "products");
    CHECK_CONTAINS(text, ", at 2 an hour for each machine");
    CHECK_CONTAINS(text, "\n  others ");
    CHECK_CONTAINS(text, "\n  beside it, workspace ");
    CHECK_CONTAINS(text, "an estimate by rates of a test");
    CHECK(!strstr(text, "Caution") && !strstr(text, "GPUs of a machine"));
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        CHECK(strcspn(line, "\n") <= 100);
    question.room = 1;
    prices.busy = 0.4;
    text = printed(plan, &question, fsdp__plan_print);
    CHECK_CONTAINS(text, "It does not fit");
    CHECK_CONTAINS(text, "Caution: while they were measured other work had the processor for 40 % of the time");
    text = printed(plan, &question, fsdp__plan_json);
    CHECK_CONTAINS(text, "\"fits\": false");
    CHECK_CONTAINS(text, "\"machine_least\"");
    CHECK_CONTAINS(text, "\"workspace_bytes\": ");
    CHECK_CONTAINS(text, "\"busy\": 0.4");
    CHECK_CONTAINS(text, "\"step_seconds\"");
    fsdp__plan_free(plan);
}
