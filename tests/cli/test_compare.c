/* `fsdp compare`: one table of several runs, and what it refuses, survives and leaves alone. */
#include <jansson.h>
#include <sys/stat.h>

#include "base/compiler.h"
#include "cli/fixture.h"
#include "plan/prices.h"

static const json_t *at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!value)
        TEST_FAIL("no '%s'", key);
    return value;
}

/* Both have the same numbers, but for `without`. */
static void check_equal(const json_t *a, const json_t *b, const char *without)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)a, key, value) if (strcmp(key, without) != 0 && strcmp(key, "total") != 0)
        CHECK_EQ(json_integer_value(at(b, key)), json_integer_value(value));
}

/* What the dry run says of this number of ranks is what the ranks have measured, to the byte. */
static void check_dry_run(const json_t *variant, int ranks)
{
    const json_t *worlds = at(variant, "worlds");
    bool found = false;

    for (size_t i = 0; i < json_array_size(worlds); i++) {
        const json_t *world = json_array_get(worlds, i);

        if (json_integer_value(at(world, "ranks")) != ranks)
            continue;
        found = true;
        check_equal(at(world, "memory_peak"), at(variant, "memory_peak"), "workspace");
        check_equal(at(world, "calls"), at(variant, "calls"), "");
        check_equal(at(world, "bytes_sent"), at(variant, "bytes_sent"), "");
    }
    CHECK(found);
}

/* A sanitizer has seen all of the program by then. */
#define STRATEGIES \
    (TEST_SANITIZED ? "--strategies=ddp,zero3,fsdp1" : "--strategies=ddp,zero1,zero2,zero3,fsdp2,hsdp,fsdp1")

/* Every strategy is there with figures that fit each other, and what the config names is not written. */
FIXTURE_TEST(every_strategy_has_its_figures)
{
    char *svg = test_path(f->directory, "bars.svg"), *markdown = test_path(f->directory, "table.md"), *text;
    program p = RUN(0, "compare", f->config, "-n", "2", STRATEGIES, "--json", "--steps=2", "--rounds=2", "--svg", svg,
                    "--markdown", markdown, "--worlds=2,3");
    json_t *all = json_loads(p.output, 0, NULL);
    const json_t *variants;
    size_t bytes;

    CHECK(all != NULL);
    CHECK_EQ(json_integer_value(at(all, "ranks")), 2);
    variants = at(all, "variants");
    CHECK_EQ(json_array_size(variants), TEST_SANITIZED ? 3 : 7);
    for (size_t i = 0; i < json_array_size(variants); i++) {
        const json_t *v = json_array_get(variants, i);

        CHECK_EQ(json_array_size(at(v, "losses")), 4);
        CHECK_EQ(json_integer_value(at(v, "measured_steps")), 4);
        CHECK(json_is_true(at(v, "starts_agree")));
        CHECK(json_is_true(at(v, "same_bits"))); /* of two ranks gradients add up in one order */
        CHECK_EQ(json_integer_value(at(v, "tokens_per_step")), 2 * 4 * 32);
        CHECK(json_real_value(at(v, "step_ms")) > 0); /* each is a median of its own, so their sum may be more */
        CHECK(json_real_value(at(v, "gather_ms")) >= 0 && json_real_value(at(v, "reduce_ms")) >= 0);
        check_dry_run(v, 2);
        CHECK(json_integer_value(at(v, "resident_bytes")) > json_integer_value(at(at(v, "memory_rest"), "total")));
    }
    json_decref(all);
    text = test_read_file(svg, &bytes);
    CHECK_CONTAINS(text, "</svg>");
    CHECK_CONTAINS(text, ">zero3</text>");
    CHECK_CONTAINS(text, "iB all at once</text>");
    text = test_read_file(markdown, &bytes);
    CHECK_CONTAINS(text, TEST_SANITIZED ? "| | ddp | zero3 | fsdp1 |\n"
                                        : "| | ddp | zero1 | zero2 | zero3 | fsdp2 | hsdp | fsdp1 |\n|---|---:|");
    CHECK_CONTAINS(text, "- Nothing was written to metrics.jsonl and export.path.");
    CHECK(access(f->metrics, F_OK) != 0);
    CHECK(access(f->model, F_OK) != 0);
}

/* Why something has no figures stands below the table, and the rest is there. */
FIXTURE_TEST(one_that_cannot_be_does_not_cost_the_others)
{
    char *checkpoints = test_path(f->directory, "checkpoints"), *svg = test_path(f->directory, "bars.svg"),
         *markdown = test_path(f->directory, "table.md");
    program p = RUN(0, "compare", f->config, "-n", "1", "--steps=1", "--rounds=1", "--training.max_norm=0",
                    "--checkpoint.folder", checkpoints);

    CHECK_CONTAINS(p.output, "Nothing was written to metrics.jsonl, checkpoint.folder and export.path.");
    CHECK(access(checkpoints, F_OK) != 0);

    CHECK_CONTAINS(p.output, "hsdp is left out: parallelism.data_parallel_replicate_degree is 2, but there is 1 rank");
    CHECK_CONTAINS(p.output, "left out ");
    CHECK_CONTAINS(p.output, "all bits");
    CHECK_CONTAINS(p.output, "  give or take                  -"); /* of one step */
    /* Nothing matches for any of them: a failure is that of `fsdp train`. */
    SAYS(1, "model.frozen: 'x.*' matches no parameter", "compare", f->config, "-n", "2", "--strategies=zero1,zero2",
         "--steps=1", "--rounds=1", "--model.frozen=x.*");
    /* Frozen beside others: fsdp1 alone refuses that, once its units are known. */
    p = RUN(1, "compare", f->config, "-n", "2", "--strategies=fsdp1,fsdp2", "--steps=1", "--rounds=2",
            "--model.frozen=model.layers.0.mlp.up_proj.weight", "--svg", svg, "--markdown", markdown);
    CHECK_CONTAINS(p.output, "fsdp1 has failed: ");
    CHECK_CONTAINS(p.output, "failed ");
    CHECK_CONTAINS(p.output, "table.md has the table\n");
    CHECK_CONTAINS(p.output, "bars.svg has the picture\n");
}

FIXTURE_TEST(what_is_named_and_cannot_be_is_refused)
{
    SAYS(2, "compare: say how many ranks", "compare", f->config);
    SAYS(2, "--steps is '0': expected an integer from 1 to 200", "compare", f->config, "-n", "2", "--steps=0");
    SAYS(2, "--worlds is 'x': expected an integer", "compare", f->config, "-n", "2", "--worlds=2,x");
    SAYS(2, "--strategies zero4: parallelism.strategy is 'zero4'", "compare", f->config, "-n", "2",
         "--strategies=zero1,zero4");
    SAYS(2, "--strategies is ',': expected names with one comma between two", "compare", f->config, "-n", "2",
         "--strategies", ",");
    SAYS(2, "--policies is 'root,,blocks': expected names", "compare", f->config, "-n", "2", "--policies=root,,blocks");
    SAYS(2, "--strategies is 'ddp,': expected names", "compare", f->config, "-n", "2", "--strategies=ddp,");
    SAYS(2, "--parallelism.strategy counts for none of the strategies", "compare", f->config, "-n", "2",
         "--parallelism.strategy=zero1");
    SAYS(2, "both --policies and --parallelism.wrap_policy give policies", "compare", f->config, "-n", "2",
         "--policies=root", "--parallelism.wrap_policy", "blocks");
    SAYS(2, "'zero2' takes no 'x' after a colon", "compare", f->config, "-n", "2", "--strategies=zero2:x");
    SAYS(2, "parallelism.fsdp1_strategy is 'x'", "compare", f->config, "-n", "2", "--strategies=fsdp1:x");
    SAYS(2, "--policies big: parallelism.wrap_policy is 'big'", "compare", f->config, "-n", "2", "--policies=big");
    SAYS(2, "'root' takes nothing after a colon", "compare", f->config, "-n", "2", "--policies=root:3");
    SAYS(1, "--policies root: parallelism.prefetch gathers units ahead", "compare", f->config, "-n", "2",
         "--strategies=fsdp2", "--policies=root", "--parallelism.prefetch=2");
    SAYS(1, "--strategies zero2: parallelism.strategy zero2 shards gradients", "compare", f->config, "-n", "2",
         "--strategies=zero1,zero2", "--training.no_sync=true");
    SAYS(1, "--svg: cannot write '/nonexistent/a.svg'", "compare", f->config, "-n", "2", "--svg=/nonexistent/a.svg");
    SAYS(1, "--svg: '/dev/full' exists and is not a file", "compare", f->config, "-n", "2", "--svg=/dev/full");
    SAYS(1, "--svg: 'a.svg' is the file of --markdown", "compare", f->config, "-n", "2", "--svg=a.svg",
         "--markdown=./a.svg");
    SAYS(1, "config.yaml' exists and is no SVG picture", "compare", "llama-1m", "-n", "2", "--svg", f->config);
    SAYS(1, "is a file of the data, which the run reads", "compare", f->config, "-n", "2", "--markdown", f->data);
    SAYS(1, "training.global_batch_size 12 is not a multiple", "compare", f->config, "-n", "2",
         "--training.global_batch_size=12");
    SAYS(1, "cannot open '/nonexistent.yaml'", "compare", "/nonexistent.yaml", "-n", "2");
    SAYS(0, "--policies LIST", "compare", "--help");
}

/* A preset is enough, and a policy is one more dimension; ddp has no units. */
FIXTURE_TEST(a_preset_trains_on_random_bytes)
{
    program p =
        RUN(0, "compare", "gpt-10m", "-n", "2", "--strategies=ddp,fsdp2,fsdp1:shard_grad_op", "--policies",
            "blocks,size:1,root", "--steps=1", "--rounds=1", "--model.n_layers=1", "--model.dim=36",
            "--model.vocab_size=300", "--worlds=2", "--training.seq_len=8", "--training.local_batch_size=1", "--json");
    static const char *const expected[][2] = {{"ddp", NULL},
                                              {"fsdp2", "blocks"},
                                              {"fsdp2", "size:1"},
                                              {"fsdp2", "root"},
                                              {"fsdp1:shard_grad_op", "blocks"},
                                              {"fsdp1:shard_grad_op", "size:1"},
                                              {"fsdp1:shard_grad_op", "root"}};
    json_t *all = json_loads(p.output, 0, NULL);
    const json_t *variants;

    CHECK(all != NULL);
    variants = at(all, "variants");
    CHECK_EQ(json_array_size(variants), FSDP__COUNT_OF(expected));
    for (size_t i = 0; i < FSDP__COUNT_OF(expected); i++) {
        const json_t *v = json_array_get(variants, i);

        CHECK_STRING(json_string_value(at(v, "strategy")), expected[i][0]);
        if (expected[i][1])
            CHECK_STRING(json_string_value(at(v, "policy")), expected[i][1]);
        else
            CHECK(json_object_get(v, "policy") == NULL);
        check_dry_run(v, 2);
        CHECK(json_is_true(at(v, "same_bits")));
    }
    CHECK_EQ(json_integer_value(at(json_array_get(variants, 3), "units")), 1);
    CHECK(json_integer_value(at(json_array_get(variants, 2), "units")) > 2);
    json_decref(all);
}

/* ---- prices ---- */

/* Writes the prices of slow cards that are joined as H100s are that have this link. */
static char *write_prices(const fixture *f, fsdp__link way)
{
    const fsdp__prices prices = {.device = "made up",
                                 .source = "by hand",
                                 .gpu = true,
                                 .memory_bytes = 1e9,
                                 .launch = 1e-7,
                                 .per_second = 1e10,
                                 .rate_count = 1,
                                 .rates = {{FSDP__KERNEL_MATMUL, FSDP_F32, 100, 1e11}},
                                 .host = {1e-6, 25e9},
                                 .peers = fsdp__price_of_link("H100", way),
                                 .machine = {1e-6, 0},
                                 .network = {1e-5, 1e9}};
    char *path = test_path(f->directory, "prices.json");
    FILE *out = CHECK_PTR(fopen(path, "w"));

    CHECK_OK(fsdp__prices_print(&prices, out));
    CHECK_EQ(fclose(out), 0);
    return path;
}

/* Compares a run that plans its units with nothing else. */
static json_t *compare_planned(const fixture *f, fsdp__link way)
{
    program p = RUN(0, "compare", f->config, "-n", "2", "--strategies=fsdp2", "--steps=1", "--rounds=1", "--worlds=2",
                    "--model.n_layers=1", "--training.seq_len=8", "--training.local_batch_size=1",
                    "--parallelism.schedule=plan", "--parallelism.schedule_prices", write_prices(f, way), "--json");

    return CHECK_PTR(json_loads(CHECK_PTR(strchr(p.output, '{')), JSON_DISABLE_EOF_CHECK, NULL));
}

/* Through the host fewer and larger units are faster than by NVLink. */
FIXTURE_TEST(planned_units_follow_the_price_of_a_link)
{
    json_t *all[] = {compare_planned(f, FSDP__LINK_NVLINK), compare_planned(f, FSDP__LINK_HOST)};
    const json_t *fast = json_array_get(at(all[0], "variants"), 0), *slow = json_array_get(at(all[1], "variants"), 0);

    CHECK(json_integer_value(at(fast, "units")) > json_integer_value(at(slow, "units")));
    CHECK(json_integer_value(at(at(fast, "calls"), "all_gather")) >
          json_integer_value(at(at(slow, "calls"), "all_gather")));
    CHECK(json_equal(at(fast, "losses"), at(slow, "losses")));
    json_decref(all[0]);
    json_decref(all[1]);
}
