/* Settings that fit: each row fits, the order is by speed, and where nothing fits the least that would be needed is
 * said. */
#include "config/yaml.h"
#include "plan/drawn.h"
#include "plan/fit.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "support/dice.h"
#include "support/test.h"
#include "train/config.h"
#include "train/run_config.h"

static fsdp_train_config *config_of(int64_t batch)
{
    fsdp_train_config *config =
        test_config("model.preset=llama-1m model.n_layers=2 training.seq_len=64 training.device=cuda");

    config->training.local_batch_size = batch;
    return config;
}

/* A row's figures are those of a plan of its config. */
static void check_row(const fsdp_train_config *config, const fsdp__plan_options *options, const fsdp__fit_row *row)
{
    fsdp_train_config *own;
    fsdp__plan *plan;

    own = test_config("model.preset=llama-1m model.n_layers=2 training.seq_len=64 training.device=cuda");
    CHECK_OK(fsdp__fit_apply(row, options->world_size, own));
    CHECK_OK(fsdp__plan_make(own, options, &plan));
    CHECK_EQ(plan->peak.total, row->bytes);
    CHECK_EQ(fsdp__needed_bytes(&plan->e->step), row->needed);
    CHECK_EQ(plan->e->microbatches, row->microbatches);
    CHECK_EQ(row->batch * row->microbatches, config->training.local_batch_size);
    fsdp__plan_free(plan);
}

TEST(what_fits_is_listed_by_speed)
{
    fsdp_train_config *config = config_of(8);
    fsdp__prices prices;
    fsdp__plan_options options = {.world_size = 4, .machines = 1, .prices = &prices};
    fsdp__plan *plan;
    fsdp__fit all, some;

    CHECK_OK(fsdp__prices_of_card("H100", &prices));
    CHECK_OK(fsdp__plan_make(config, &options, &plan));
    CHECK_OK(fsdp__fit_find(config, &options, 1e12, &all));
    CHECK_OK(fsdp__fit_find(config, &options, 0.6 * (double)plan->peak.total, &some));
    fsdp__plan_free(plan);
    for (int i = 0; i < all.count; i++) /* with room for all, nothing that saves memory is tried */
        CHECK(all.rows[i].recompute == FSDP_RECOMPUTE_NONE && !all.rows[i].offload && all.rows[i].microbatches == 1);
    CHECK(all.count >= 3 && some.count > 0 && some.tried > all.tried);
    for (int i = 0; i < some.count; i++) {
        CHECK((double)some.rows[i].needed <= some.room);
        CHECK(some.rows[i].needed >= some.least.needed);
        CHECK(some.rows[i].needed >= some.rows[i].bytes); /* with the workspace, and what is reserved */
        CHECK(i == 0 || some.rows[i].seconds >= some.rows[i - 1].seconds);
        check_row(config, &options, &some.rows[i]);
    }
    CHECK(some.rows[0].seconds >= all.rows[0].seconds);
}

TEST(where_nothing_fits_the_least_is_said)
{
    fsdp_train_config *config = config_of(2);
    fsdp__plan_options options = {.world_size = 2, .machines = 1};
    fsdp__fit fit;

    CHECK_OK(fsdp__fit_find(config, &options, 1024, &fit));
    CHECK_EQ(fit.count, 0);
    CHECK(fit.least.bytes > 1024 && fit.least.offload);
    CHECK_ERROR(fsdp__fit_print(&fit, stdout), FSDP_NO_MEMORY, "nothing fits into 1.0KiB for a rank: the least");
    CHECK_OK(fsdp__fit_find(config, &options, (double)fit.least.needed, &fit));
    CHECK(fit.count > 0); /* that much is enough */
}

TEST(a_batch_that_ranks_cannot_share_is_refused_and_not_changed)
{
    fsdp_train_config *config = config_of(2);
    fsdp__plan_options options = {.world_size = 4, .machines = 1};
    fsdp__fit fit;

    config->training.global_batch_size = 1;
    CHECK_ERROR(fsdp__fit_find(config, &options, 1e9, &fit), FSDP_INVALID, "leaves none for some of 4 ranks");
    config->training.global_batch_size = 10;
    CHECK_ERROR(fsdp__fit_find(config, &options, 1e9, &fit), FSDP_INVALID,
                "global_batch_size 10 is not a multiple of the 4 ranks: the nearest that are: 8 and 12");
    test_set_keys(config, "parallelism.tensor_parallel_degree=2");
    CHECK_OK(fsdp__fit_find(config, &options, 1e9, &fit));
    for (int i = 0; i < fit.count; i++)
        CHECK_EQ(fit.rows[i].batch * fit.rows[i].microbatches * 2, 10);
    CHECK(fit.count > 0);
}

TEST(what_fits_on_a_processor_has_its_workspace)
{
    fsdp_train_config *config = config_of(8);
    fsdp__plan_options options = {.world_size = 2, .machines = 1};
    fsdp__plan *plan;
    fsdp__fit fit;
    size_t peak;

    test_set_keys(config, "training.device=cpu parallelism.strategy=ddp");
    CHECK_OK(fsdp__plan_make(config, &options, &plan));
    peak = plan->peak.total;
    CHECK_EQ(fsdp__needed_bytes(&plan->e->step), plan->e->step.peak_with_workspace_bytes);
    CHECK(plan->e->step.peak_with_workspace_bytes >= peak + plan->peak.workspace);
    CHECK(plan->e->step.peak_with_workspace_bytes <= peak + plan->e->step.peak_bytes[FSDP_MEMORY_WORKSPACE]);
    CHECK(plan->e->step.peak_with_workspace_bytes > peak);
    fsdp__plan_free(plan);
    CHECK_OK(fsdp__fit_find(config, &options, (double)peak, &fit));
    for (int i = 0; i < fit.count; i++) /* without its workspace it would fit as it is */
        CHECK(strcmp(fit.rows[i].strategy, "ddp") != 0 || fit.rows[i].recompute || fit.rows[i].microbatches > 1);
}

/* ---- the lines that are printed ---- */

/* Puts the lines of the first row over the config: a plan of that is the row's, and a run takes it. */
static void check_lines(const fsdp__fit *fit, const fsdp__plan_options *options)
{
    const fsdp__fit_row *row = &fit->rows[0];
    FILE *out = test_begin_text();
    fsdp_train_config *config;
    const char *lines;
    fsdp__plan *plan;
    char *text;

    CHECK_OK(fsdp__fit_print(fit, out));
    text = test_end_text(out);
    lines = strstr(text, "of the config:\n");
    CHECK_PTR(lines);
    lines += strlen("of the config:\n");
    CHECK_OK(fsdp__train_config_copy(fit->config, &config));
    CHECK_OK(fsdp__yaml_apply(&fsdp__train_keys, config, "its lines", lines, strlen(lines)));
    if (config->parallelism.strategy == FSDP_TRAIN_HSDP && config->parallelism.data_parallel_replicate_degree == 1)
        config->parallelism.data_parallel_replicate_degree = options->machines; /* as a run does it on them */
    CHECK_OK(fsdp__train_check_start(config, options->world_size));
    CHECK_OK(fsdp__plan_make(config, options, &plan));
    CHECK_EQ(fsdp__needed_bytes(&plan->e->step), row->needed);
    CHECK_EQ(plan->e->microbatches, row->microbatches);
    CHECK_EQ(plan->e->local_batch, row->batch);
    fsdp__plan_free(plan);
    fsdp_train_config_free(config);
}

/* Returns whether the drawn config is one that a plan takes; then its rows are checked. */
static bool check_drawn(uint64_t seed)
{
    uint64_t dice = seed;
    fsdp_train_config *config = plan_drawn_config(&dice);
    int machines = 1 + dice_below(&dice, 2);
    fsdp__plan_options options = {.world_size = machines * (dice_chance(&dice, 50) ? 2 : 4), .machines = machines};
    fsdp__plan *plan;
    fsdp__fit fit;

    if (fsdp__plan_make(config, &options, &plan) != FSDP_OK)
        return false;
    CHECK_OK(fsdp__fit_find(config, &options, (double)(fsdp__needed_bytes(&plan->e->step) + 1), &fit));
    for (int i = 0; i < fit.count; i++) {
        fsdp__fit_row first = fit.rows[i];

        fit.rows[i] = fit.rows[0];
        fit.rows[0] = first;
        CHECK((double)first.needed <= fit.room);
        CHECK_EQ(first.batch * first.microbatches * plan->e->world_size / plan->e->team,
                 plan->e->local_batch * plan->e->microbatches * plan->e->world_size / plan->e->team);
        check_lines(&fit, &options);
    }
    fsdp__plan_free(plan);
    return fit.count > 0;
}

TEST(the_lines_of_a_row_make_it_of_the_config_that_was_asked_about)
{
    dice_seeds seeds = dice_seeds_of("FIT", 24);
    int taken = 0;

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        taken += check_drawn(seed);
    CHECK(seeds.only || taken >= (int)(seeds.end - seeds.first) / 8);
}
