/* Settings that fit: each row fits, the order is by speed, and where nothing fits the least that would be needed is
 * said. */
#include "plan/fit.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "support/test.h"
#include "train/config.h"

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
        CHECK((double)some.rows[i].bytes <= some.room);
        CHECK(some.rows[i].bytes >= some.least.bytes);
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
    CHECK_ERROR(fsdp__fit_print(&fit, &options, stdout), FSDP_NO_MEMORY,
                "nothing fits into 1.0KiB for a rank: the least");
    CHECK_OK(fsdp__fit_find(config, &options, (double)fit.least.bytes, &fit));
    CHECK(fit.count > 0); /* that much is enough */
    config->training.global_batch_size = 1;
    CHECK_ERROR(fsdp__fit_find(config, &options, 1e9, &fit), FSDP_INVALID, "leaves none");
}
