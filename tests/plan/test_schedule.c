/* Planned schedules: never worse than the units that everybody uses, as good as the best of all cuts of a small model,
 * within the memory that there is, and what a run then does to the byte. */
#include "plan/schedule.h"

#include "plan/plan.h"
#include "plan/prices.h"
#include "plan/schedule_atoms.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/run_config.h"

#include <math.h>

static fsdp_train_config *configure(const char *keys)
{
    return test_config(
        "model.preset=llama-1m model.n_layers=2 model.dim=64 model.n_heads=2 model.ffn_dim=150 model.vocab_size=256 "
        "data.workers=0 training.seq_len=32 training.local_batch_size=2 training.steps=3 %s",
        keys);
}

/* Makes prices of a machine whose network has this latency, and carries so many bytes a second. */
static fsdp__prices prices_of(double latency, double per_second)
{
    fsdp__prices p = {.device = "made up",
                      .source = "by hand",
                      .cores = 4,
                      .memory_bytes = 1e9,
                      .launch = 1e-7,
                      .per_second = 1e10,
                      .rate_count = 1,
                      .rates = {{FSDP__KERNEL_MATMUL, FSDP_F32, 100, 1e10}},
                      .machine = {1e-6, 1e10},
                      .network = {latency, per_second}};

    return p;
}

enum {
    TRIES = 80 /* enough for these small models */
};

static const struct {
    double latency, per_second;
} networks[] = {{1e-4, 1e10}, {1e-6, 2e8}, {3e-5, 1e9}};

/* Returns from which network on a way is planned for: all for the first, or the last for each in a brief test. */
static size_t first_network(size_t way)
{
    if (test_brief())
        return 2;
    return way == 0 || test_long() ? 0 : 2 - way % 2;
}

static fsdp__scheduled find(const fsdp_train_config *config, const fsdp__plan_options *options, double room)
{
    int tries = test_brief() ? TRIES / 2 : TRIES;
    fsdp__scheduled found;

    CHECK_OK(fsdp__schedule_find(config, options, room, tries, &found));
    CHECK(found.tried <= tries);
    return found;
}

static const fsdp__schedule_row *plan_of(const fsdp__scheduled *found)
{
    return &found->rows[found->row_count - 1];
}

/* ---- what it is worth ---- */

/* A step may be up to 1 % longer where that saves 10 % of memory. */
static bool is_no_worse(const fsdp__schedule_row *plan, const fsdp__schedule_row *other)
{
    return plan->step <= other->step ||
           (plan->step <= 1.01 * other->step && (double)plan->bytes <= 0.9 * (double)other->bytes);
}

TEST(a_plan_is_never_worse_than_blocks_parts_or_single_modules)
{
    static const char *const ways[] = {"",
                                       "training.mixed_precision_param=bfloat16 activation_checkpoint.mode=full",
                                       "parallelism.strategy=zero2",
                                       "parallelism.strategy=zero3 training.global_batch_size=16",
                                       "parallelism.strategy=hsdp parallelism.data_parallel_replicate_degree=2",
                                       "model.preset=gpt2-124m model.tie_word_embeddings=true"};

    for (size_t w = 0; w < sizeof ways / sizeof *ways; w += test_brief() ? 4 : 1)
        for (size_t n = first_network(w); n < sizeof networks / sizeof *networks; n++) {
            fsdp__prices prices = prices_of(networks[n].latency, networks[n].per_second);
            fsdp__plan_options options = {.world_size = 4, .machines = 2, .prices = &prices};
            fsdp_train_config *config = configure(ways[w]);
            fsdp__scheduled found = find(config, &options, 0);

            CHECK_EQ(found.row_count, fsdp__train_chooses_stays(config) ? 7 : 4);
            for (int i = 0; i < found.row_count; i++)
                CHECK(is_no_worse(plan_of(&found), &found.rows[i]));
            CHECK(plan_of(&found)->step < found.rows[0].step); /* than blocks */
            fsdp__scheduled_release(&found);
        }
}

/* ---- all cuts ---- */

/* Returns the shortest step of all ways to cut the model between its modules. */
static double best_of_all_cuts(const fsdp_train_config *config, const fsdp__plan_options *options)
{
    fsdp_train_config *always;
    fsdp__plan *a, *b;
    fsdp__atoms atoms;
    uint8_t places[16] = {0};
    double best = INFINITY;

    CHECK_OK(fsdp__train_config_copy(config, &always));
    CHECK_OK(fsdp_train_config_set(always, "parallelism.wrap_policy", "always"));
    CHECK_OK(fsdp__plan_make(always, options, &a));
    CHECK_OK(fsdp__plan_make(config, options, &b));
    CHECK_OK(fsdp__atoms_make(a, b, false, &atoms));
    CHECK_EQ(atoms.count, 10);
    for (int cuts = 0; cuts < 1 << (atoms.count - 1); cuts++) {
        fsdp__draft draft = {.places = places, .reductions = 1};
        fsdp__plan_options own = *options;
        fsdp__comm_schedule *schedule;
        fsdp__plan *plan;

        for (int64_t i = 1; i < atoms.count; i++)
            places[i] = cuts >> (i - 1) & 1 ? FSDP__DRAFT_CUT : 0;
        CHECK_OK(fsdp__draft_schedule(&atoms, &draft, &schedule));
        own.schedule = schedule;
        CHECK_OK(fsdp__plan_make(config, &own, &plan));
        best = fmin(best, plan->time.step);
        fsdp__plan_free(plan);
        fsdp__comm_schedule_free(schedule);
    }
    fsdp__atoms_release(&atoms);
    fsdp__plan_free(a);
    fsdp__plan_free(b);
    fsdp_train_config_free(always);
    return best;
}

/* The search may also leave modules to the root, so it can be better; it is never worse by more than one percent. */
TEST(a_plan_is_as_good_as_the_best_of_all_cuts)
{
    if (test_brief()) /* numbers, of searches that other cases make as well */
        skip();
    for (size_t n = first_network(1); n < sizeof networks / sizeof *networks; n++) {
        fsdp__prices prices = prices_of(networks[n].latency, networks[n].per_second);
        fsdp__plan_options options = {.world_size = 2, .machines = 2, .rank_alone = true, .prices = &prices};
        fsdp_train_config *config = configure("model.preset=gpt2-124m model.tie_word_embeddings=false model.n_layers=1 "
                                              "parallelism.strategy=zero3");
        fsdp__scheduled found = find(config, &options, 0);
        double best = best_of_all_cuts(config, &options);

        CHECK(plan_of(&found)->step <= 1.01 * best);
        fsdp__scheduled_release(&found);
    }
}

/* ---- memory ---- */

TEST(a_plan_keeps_to_the_memory_that_there_is)
{
    fsdp__prices prices = prices_of(1e-5, 2e8);
    fsdp__plan_options options = {.world_size = 4, .machines = 4, .prices = &prices};
    fsdp_train_config *config = configure("model.n_layers=4");
    fsdp__scheduled all = find(config, &options, 0), some, none;
    double blocks = (double)all.rows[0].bytes, whole = (double)all.rows[1].bytes;
    int64_t stay = 0;

    CHECK(blocks < whole);
    some = find(config, &options, (blocks + whole) / 2);
    CHECK((double)plan_of(&some)->bytes <= (blocks + whole) / 2);
    CHECK(plan_of(&some)->step < some.rows[0].step);
    for (int64_t i = 0; i < some.plan->unit_count; i++)
        stay += some.plan->units[i].stays;
    CHECK(stay > 0);
    CHECK_ERROR(fsdp__schedule_find(config, &options, 1000, TRIES, &none), FSDP_NO_MEMORY,
                "no schedule fits into 1.0KiB for a rank: the leanest of");
    CHECK_NULL(none.plan);
    fsdp__scheduled_release(&all);
    fsdp__scheduled_release(&some);
}

/* With next to no network everything kept whole would be shortest, by nothing that a run would notice. */
TEST(a_gain_of_less_than_a_percent_buys_no_memory)
{
    fsdp__prices prices = prices_of(1e-9, 1e13);
    fsdp__plan_options options = {.world_size = 4, .machines = 4, .prices = &prices};
    fsdp_train_config *config = configure("model.n_layers=4");
    const fsdp__schedule_row *plan;
    fsdp__scheduled found;

    if (test_brief()) /* likewise */
        skip();
    found = find(config, &options, 0);
    plan = plan_of(&found);
    for (int i = 0; i < found.row_count; i++)
        CHECK(plan->step < 0.99 * found.rows[i].step || (double)plan->bytes <= (double)found.rows[i].bytes / 0.9);
    CHECK_NEAR((double)plan->step, found.rows[0].step, 0.02 * found.rows[0].step);
    fsdp__scheduled_release(&found);
}

/* ---- the same again ---- */

TEST(the_same_question_has_the_same_plan_and_its_file_the_same_step)
{
    char *directory = test_directory(), *path = test_path(directory, "schedule.json");
    fsdp__prices prices = prices_of(3e-5, 1e9);
    fsdp__plan_options options = {.world_size = 4, .machines = 2, .rank_alone = true, .prices = &prices};
    fsdp_train_config *config = configure("activation_checkpoint.mode=full");
    fsdp__scheduled first = find(config, &options, 0), second = find(config, &options, 0);
    uint64_t hash, again;
    fsdp__plan *plan;
    FILE *out = CHECK_PTR(fopen(path, "w"));

    CHECK_OK(fsdp__comm_schedule_hash(first.plan, &hash));
    CHECK_OK(fsdp__comm_schedule_hash(second.plan, &again));
    CHECK_EQ(hash, again);
    CHECK_OK(fsdp__comm_schedule_print(first.plan, out));
    fclose(out);
    CHECK_OK(fsdp_train_config_set(config, "parallelism.schedule", path));
    CHECK_OK(fsdp__plan_make(config, &options, &plan));
    CHECK_EQ(plan->peak.total, first.plan->peak_bytes);
    CHECK(plan->time.step == first.plan->step);
    CHECK_EQ(plan->e->unit_count, first.plan->unit_count + 1);
    fsdp__plan_free(plan);
    fsdp__scheduled_release(&first);
    fsdp__scheduled_release(&second);
}

typedef struct real {
    fsdp_train_config *config;
    fsdp_train_report report;
    fsdp_train_summary summary;
} real;

static void train(fsdp_context *context, void *arg)
{
    real *r = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_OK(fsdp_train_run_create(context, r->config, &run));
    if (fsdp_context_rank(context) == 0)
        fsdp_train_run_summary(run, &r->summary);
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp_train_step(run, &report));
    if (fsdp_context_rank(context) == 0)
        r->report = report;
    fsdp_train_run_free(run);
}

TEST(a_planned_run_takes_the_memory_and_the_calls_that_were_planned)
{
    char *directory = test_directory(), *path = test_path(directory, "schedule.json");
    char *data = test_path(directory, "data.txt");

    test_write_letters(data, 4096, 26);
    for (int world = test_brief() ? 3 : 1; world <= 4; world++) {
        fsdp__prices prices = prices_of(3e-5, 1e9);
        int machines = test_machines_of(world);
        fsdp__plan_options options = {.world_size = world, .machines = machines, .prices = &prices};
        real was = {.config = configure("model.dim=24 model.ffn_dim=50")};
        fsdp__scheduled found;
        fsdp__plan *plan;
        FILE *out = CHECK_PTR(fopen(path, "w"));

        CHECK_OK(fsdp_train_config_set(was.config, "data.path", data));
        found = find(was.config, &options, 0);
        CHECK_OK(fsdp__comm_schedule_print(found.plan, out));
        fclose(out);
        CHECK_OK(fsdp_train_config_set(was.config, "parallelism.schedule", path));
        CHECK_OK(fsdp__plan_make(was.config, &options, &plan));
        test_run_ranks(world, train, &was);
        CHECK_EQ(was.report.memory.peak_without_workspace_bytes, found.plan->peak_bytes);
        CHECK_EQ(was.summary.units, found.plan->unit_count + 1);
        CHECK_EQ(was.report.all_gather, world > 1 ? plan->e->step.calls[FSDP_ALL_GATHER] : 0);
        fsdp__plan_free(plan);
        fsdp__scheduled_release(&found);
    }
}

/* ---- what is printed, and refused ---- */

TEST(a_plan_is_printed_as_a_table_and_as_json)
{
    fsdp__prices prices;
    fsdp__plan_options options = {.world_size = 16, .machines = 2, .prices = &prices};
    fsdp_train_config *config = configure("training.device=cuda training.mixed_precision_param=bfloat16");
    fsdp__scheduled found;
    FILE *out = test_begin_text();
    char *text;

    CHECK_OK(fsdp__prices_of_card("H100", &prices));
    found = find(config, &options, 1e9);
    CHECK_OK(fsdp__scheduled_print(&found, out));
    CHECK_OK(fsdp__scheduled_json(&found, out));
    text = test_end_text(out);
    CHECK_CONTAINS(text, "llama-1m: when parameters and gradients travel, fsdp2, 16 ranks on 2 machines, in 953.7MiB");
    CHECK_CONTAINS(text, "\n  blocks, kept whole        3 ");
    CHECK_CONTAINS(text, "\n  parts and ends ");
    CHECK_CONTAINS(text, "\n  plan ");
    CHECK_CONTAINS(text, "\"fsdp_schedule\": 1");
    CHECK_CONTAINS(text, "\"units\": \"blocks, kept whole\"");
    fsdp__scheduled_release(&found);
}

TEST(where_nothing_can_be_scheduled_that_is_said)
{
    static const char *const ways[][2] = {
        {"parallelism.strategy=ddp", "parallelism.strategy is ddp"},
        {"parallelism.strategy=fsdp1", "parallelism.strategy is fsdp1"},
        {"parallelism.wrap_policy=always", "decides what parallelism.wrap_policy would"},
        {"parallelism.fsdp_reshard_after_forward=2", "decides what parallelism.fsdp_reshard_after_forward would"},
    };
    fsdp__prices prices = prices_of(1e-5, 1e9);
    fsdp__plan_options options = {.world_size = 4, .machines = 2, .prices = &prices};
    fsdp_train_config *config = configure("");
    fsdp__scheduled found;

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        fsdp_train_config *own = configure(ways[i][0]);

        CHECK_ERROR(fsdp__schedule_find(own, &options, 0, 10, &found), FSDP_INVALID, ways[i][1]);
    }
    options.prices = NULL;
    CHECK_ERROR(fsdp__schedule_find(config, &options, 0, 10, &found), FSDP_INVALID, "leave out --no-time");
}
