/* What would be better: each change's figures are those of a plan with it, what is not worth its price is not proposed,
 * and what is printed is a config. */
#include "plan/changes.h"
#include "plan/plan.h"
#include "plan/prices.h"
#include "support/test.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>

static fsdp_train_config *configure(const char *keys)
{
    return test_config("model.preset=llama-1m model.n_layers=2 training.seq_len=32 training.local_batch_size=4 %s",
                       keys);
}

static fsdp__changes find(const char *keys, const fsdp__plan_options *options, double room)
{
    fsdp_train_config *config = configure(keys);
    fsdp__changes changes;

    CHECK_OK(fsdp__changes_find(config, options, room, &changes));
    return changes;
}

/* Returns the change that sets a key, or NULL. */
static const fsdp__change *change_of(const fsdp__changes *changes, const char *key, const char *value)
{
    for (int i = 0; i < changes->count; i++)
        for (int k = 0; k < changes->items[i].setting_count; k++) {
            const fsdp__change_setting *s = &changes->items[i].settings[k];

            if (strcmp(s->key, key) == 0 && strcmp(s->value, value) == 0)
                return &changes->items[i];
        }
    return NULL;
}

/* Takes the changes one after the other, and plans the config after each. */
static void check_figures(const char *keys, const fsdp__plan_options *options, const fsdp__changes *changes)
{
    fsdp_train_config *config = configure(keys);
    fsdp__plan *plan;

    for (int i = 0; i < changes->count; i++) {
        const fsdp__change *c = &changes->items[i];

        for (int k = 0; k < c->setting_count; k++)
            CHECK_OK(fsdp_train_config_set(config, c->settings[k].key, c->settings[k].value));
        CHECK_OK(fsdp__plan_make(config, options, &plan));
        CHECK_EQ(plan->peak.total, c->after.bytes);
        CHECK_EQ(fsdp__needed_bytes(&plan->e->step), c->after.needed);
        CHECK_NEAR(plan->time.step, c->after.seconds, 1e-12);
        CHECK_EQ(c->before.bytes, i > 0 ? changes->items[i - 1].after.bytes : changes->first.bytes);
        fsdp__plan_free(plan);
    }
    CHECK_EQ(changes->last.bytes,
             changes->count > 0 ? changes->items[changes->count - 1].after.bytes : changes->first.bytes);
}

static char *print(const fsdp__changes *changes)
{
    FILE *out = test_begin_text();

    CHECK_OK(fsdp__changes_print(changes, out));
    return test_end_text(out);
}

TEST(each_change_has_the_figures_of_a_plan_with_it)
{
    static const char *const keys[] = {"parallelism.wrap_policy=always", "parallelism.strategy=zero2",
                                       "parallelism.strategy=ddp", "training.global_batch_size=32",
                                       "activation_checkpoint.mode=full"};
    const fsdp__plan_options options = {.world_size = 4, .machines = 1};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        fsdp__changes changes = find(keys[i], &options, 0);

        CHECK(changes.tried > changes.count);
        check_figures(keys[i], &options, &changes);
    }
}

TEST(less_is_sent_where_parameters_stay_whole)
{
    const fsdp__plan_options options = {.world_size = 4, .machines = 1};
    fsdp__changes changes = find("", &options, 0);
    const fsdp__change *kept = change_of(&changes, "parallelism.fsdp_reshard_after_forward", "never");

    CHECK(kept && kept->after.sent < kept->before.sent && kept->after.calls < kept->before.calls);
    CHECK(change_of(&changes, "training.mixed_precision_param", "bfloat16"));
}

TEST(what_is_good_stays)
{
    const fsdp__plan_options options = {.world_size = 4, .machines = 1};
    fsdp__changes changes = find("parallelism.strategy=zero2 training.mixed_precision_param=bfloat16", &options, 0);
    char *text = print(&changes);

    CHECK_EQ(changes.count, 0);
    CHECK_CONTAINS(text, "What would be better: nothing. ");
}

TEST(what_is_computed_twice_with_room_enough_is_computed_once)
{
    const fsdp__plan_options options = {.world_size = 2, .machines = 1};
    fsdp__changes with_room = find("activation_checkpoint.mode=full", &options, 1e12);
    fsdp__changes without = find("activation_checkpoint.mode=full", &options, (double)with_room.first.needed);

    CHECK(change_of(&with_room, "activation_checkpoint.mode", "none"));
    CHECK(!change_of(&without, "activation_checkpoint.mode", "none"));
}

TEST(what_does_not_fit_is_made_to_fit_first)
{
    const fsdp__plan_options options = {.world_size = 4, .machines = 1};
    fsdp__changes all = find("", &options, 0), some = find("", &options, 0.6 * (double)all.first.bytes);
    fsdp__changes none = find("", &options, 1024);
    char *text = print(&none);

    CHECK((double)some.first.needed > some.room && (double)some.last.needed <= some.room);
    CHECK(some.items[0].after.bytes < some.items[0].before.bytes);
    CHECK_CONTAINS(text, "No change makes it fit");
}

TEST(over_machines_a_copy_on_each_is_faster)
{
    fsdp__prices prices;
    const fsdp__plan_options options = {.world_size = 8, .machines = 2, .prices = &prices};
    fsdp__changes changes;
    const fsdp__change *copies;

    CHECK_OK(fsdp__prices_of_card("H100", &prices));
    prices.network.per_second = 1e9;
    changes = find("training.device=cuda", &options, prices.memory_bytes);
    check_figures("training.device=cuda",
                  &(fsdp__plan_options){.world_size = 8, .machines = 2, .prices = &prices, .rank_alone = true},
                  &changes);
    copies = change_of(&changes, "parallelism.strategy", "hsdp");
    CHECK(copies && copies->after.sent < copies->before.sent && copies->after.seconds < copies->before.seconds);
    for (int i = 0; i < changes.count; i++) /* for as many tokens */
        CHECK(changes.items[i].after.seconds / changes.items[i].after.tokens <
              1.01 * changes.items[i].before.seconds / changes.items[i].before.tokens);
}

/* Each change begins where the one before has ended, also after one that gives a step four times the tokens. */
TEST(all_figures_are_for_as_many_tokens)
{
    static const fsdp__change_figures first = {.calls = 12, .flops = 8e9, .seconds = 8e-3, .tokens = 1000},
                                      larger = {.calls = 24, .flops = 32e9, .seconds = 16e-3, .tokens = 4000},
                                      last = {.calls = 20, .flops = 16e9, .seconds = 12e-3, .tokens = 4000};
    fsdp__changes changes = {.first = first, .last = last, .count = 2, .tried = 2};
    char *text;

    changes.items[0] = (fsdp__change){.why = "Larger.", .before = first, .after = larger};
    changes.items[1] = (fsdp__change){.why = "Faster.", .before = larger, .after = last};
    text = print(&changes);
    CHECK_CONTAINS(text, "before it.\nAll figures but memory are for 1,000 tokens, as many as a step has now.\n");
    CHECK_CONTAINS(text, "Larger.\n     Calls 6, was 12; a step 4 ms, was 8 ms.\n");
    CHECK_CONTAINS(text, "Faster.\n     Calls 5, was 6; GFLOP 4, was 8; a step 3 ms, was 4 ms.\n");
    CHECK_CONTAINS(text, "together\n     Calls 5, was 12; GFLOP 4, was 8; a step 3 ms, was 8 ms.\n");
    changes.items[0].after.tokens = changes.items[1].after.tokens = 1000;
    text = print(&changes);
    CHECK_NULL(strstr(text, "tokens"));
}

TEST(frozen_parameters_are_not_gathered_for_nothing)
{
    const fsdp__plan_options options = {.world_size = 4, .machines = 1};
    fsdp__changes changes = find("model.frozen=model.*", &options, 1e12);
    const fsdp__change *whole = change_of(&changes, "parallelism.strategy", "ddp");

    CHECK(whole && whole->after.sent < whole->before.sent / 2);
}

TEST(rows_that_do_not_divide_are_named)
{
    fsdp__changes even = find("", &(fsdp__plan_options){.world_size = 4, .machines = 1}, 0);
    fsdp__changes odd = find("model.dim=40 model.n_heads=2 model.n_kv_heads=1 model.ffn_dim=40 model.vocab_size=40",
                             &(fsdp__plan_options){.world_size = 7, .machines = 1}, 0);
    char *text = print(&odd);

    CHECK(even.padding.share < 0.02);
    CHECK(odd.padding.share > 0.02 && odd.padding.rows % 7 != 0);
    CHECK_EQ(odd.padding.better, 5);
    CHECK_CONTAINS(text, "its 40 rows do not divide evenly over 7 ranks. With 5 ranks (-n 5) it would be 0.0 %");
}

static char *print_config(const fsdp_train_config *config)
{
    FILE *out = test_begin_text();

    CHECK_OK(fsdp_train_config_print(config, out));
    return test_end_text(out);
}

/* The lines that are printed are a config, which sets what all changes set. */
TEST(the_lines_are_a_config)
{
    const fsdp__plan_options options = {.world_size = 4, .machines = 1};
    fsdp__changes changes = find("parallelism.wrap_policy=always training.global_batch_size=64", &options, 0);
    char *directory = test_directory(), *path = test_path(directory, "c.yaml"), *text = print(&changes);
    char *lines = strstr(text, "lines of a config:\n\n"), *read, *set;
    fsdp_train_config *config;

    CHECK(changes.count > 1 && lines);
    lines += strlen("lines of a config:\n\n");
    test_write_file(path, lines, strlen(lines));
    config = test_empty_config();
    CHECK_OK(fsdp_train_config_load(config, path));
    read = print_config(config);
    config = test_empty_config();
    for (int i = 0; i < changes.count; i++)
        for (int k = 0; k < changes.items[i].setting_count; k++)
            CHECK_OK(
                fsdp_train_config_set(config, changes.items[i].settings[k].key, changes.items[i].settings[k].value));
    set = print_config(config);
    CHECK_STRING(read, set);
}

/* What shortens waits is one change, with the figures of a plan with it; a setting is told whatever it costs. */
TEST(a_wait_and_a_setting_have_a_price)
{
    fsdp__plan_options options = {.world_size = 4, .machines = 2};
    fsdp_train_config *config = configure("parallelism.prefetch=1");
    fsdp__changes changes;
    fsdp__prices prices;
    char text[560];

    CHECK_OK(fsdp__prices_of_card("H100", &prices));
    prices.network.per_second = 1e8;
    options.prices = &prices;
    CHECK_OK(fsdp_train_config_set(config, "training.device", "cuda"));
    for (int wait = 0; wait < 2; wait++) {
        CHECK_OK(fsdp__changes_of_wait(config, &options, (fsdp__change_wait)wait, &changes));
        CHECK_EQ(changes.count, 1);
        CHECK(changes.tried >= 2);
        CHECK(changes.last.seconds / changes.last.tokens < changes.first.seconds / changes.first.tokens);
        CHECK_EQ(changes.items[0].after.bytes, changes.last.bytes);
        fsdp__change_text(&changes, text, sizeof text);
        CHECK_CONTAINS(text, "=");
        CHECK_CONTAINS(text, "a step ");
    }
    CHECK_OK(fsdp__changes_of_setting(config, &options, "activation_checkpoint.mode", "full", &changes));
    CHECK_EQ(changes.count, 1);
    CHECK(changes.last.flops > changes.first.flops);
    fsdp__change_text(&changes, text, sizeof text);
    CHECK_CONTAINS(text, "activation_checkpoint.mode=full: ");
    CHECK_CONTAINS(text, "GFLOP");
    CHECK_OK(fsdp__changes_of_setting(config, &options, "parallelism.strategy", "none", &changes));
    CHECK_EQ(changes.count, 0);
    fsdp__change_text(
        &(fsdp__changes){.count = 1, .first.tokens = 1, .items[0] = {.why = "", .before.tokens = 1, .after.tokens = 1}},
        text, 4); /* what has no room is cut */
    CHECK(strlen(text) < 4);
}
