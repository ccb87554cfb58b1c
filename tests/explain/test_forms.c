/* Explanations as text, JSON and SVG: of at most 100 columns, with the numbers that were found. */
#include "explain/own.h"
#include "explain/real.h"
#include "train/config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* "key=value", ended by NULL. */
static fsdp_explanation *explain(int world, const char *const *keys)
{
    fsdp_train_config *config;
    fsdp_explanation *e;

    config = test_config("model.preset=llama-1m training.seq_len=16");
    for (; *keys; keys++) {
        char key[80];
        size_t length = strcspn(*keys, "=");

        snprintf(key, sizeof key, "%.*s", (int)length, *keys);
        CHECK_OK(fsdp_train_config_set(config, key, *keys + length + 1));
    }
    CHECK_OK(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = world, .sweep = true}, &e));
    return e;
}

#define EXPLAIN(world, ...) explain((world), (const char *const[]){__VA_ARGS__, NULL})

static char *form(const fsdp_explanation *e, fsdp_status (*print)(const fsdp_explanation *, FILE *))
{
    FILE *out = test_begin_text();

    CHECK_OK(print(e, out));
    fsdp_explanation_free((fsdp_explanation *)(uintptr_t)e);
    return test_end_text(out);
}

static void check_width(const char *text)
{
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");

        if (length > 100)
            test_fail(__FILE__, __LINE__, "%zu columns: %.*s", length, (int)length, line);
        line += length + (line[length] != '\0');
    }
}

TEST(text_has_what_was_found)
{
    char *text = form(EXPLAIN(4, "parallelism.strategy=zero3"), fsdp_explanation_print);

    check_width(text);
    CHECK_CONTAINS(text, "llama-1m: 1,000,576 parameters in 5 units, 4 ranks\nstrategy zero3, units by blocks, "
                         "computed in float32, reduced in float32\n");
    CHECK_CONTAINS(text, "no rank was started, no weights were read");
    CHECK_CONTAINS(text, "  (0-3): 4 x [fully_shard: 9 parameters, 233728 elements, over 4 ranks] LlamaDecoderLayer(");
    CHECK_CONTAINS(text, "  model.layers.0-3               LlamaDecoderLayer           9       233,728");
    CHECK_CONTAINS(text, "  lm_head.weight                     000000000111111111222222222333333333 64 rows\n");
    CHECK_CONTAINS(text, "|forward");
    CHECK_CONTAINS(text, "The root alone rests sharded, 977.1KiB of parameters on this rank");
    CHECK_CONTAINS(text, "gathers all of it, 3.8MiB");
    CHECK_CONTAINS(text, "ddp holds 3.8MiB");
}

TEST(text_has_what_goes_between_machines)
{
    fsdp_explain_options options = {.world_size = 8, .machines = 2};
    fsdp_train_config *config;
    fsdp_explanation *e;
    char *text, sent[40];

    config = test_config("model.preset=llama-1m training.seq_len=16");
    CHECK_OK(fsdp_explain(NULL, config, &options, &e));
    snprintf(sent, sizeof sent, "%.1fKiB", (double)e->step.network.sent[FSDP_ALL_GATHER] / 1024);
    text = form(e, fsdp_explanation_print);
    check_width(text);
    CHECK_CONTAINS(text, "1,000,576 parameters in 5 units, 8 ranks on 2 machines\n");
    CHECK_CONTAINS(text, "Over the network in a step, between 2 machines of 4 ranks\n");
    CHECK_CONTAINS(text, "  its machine, 4 ranks\n    gathers ");
    CHECK_CONTAINS(text, sent);
    options.one_level = true;
    CHECK_OK(fsdp_explain(NULL, config, &options, &e));
    text = form(e, fsdp_explanation_print);
    check_width(text);
    CHECK_CONTAINS(text, "of 4 ranks, each rank for itself\n");
}

/* Of every kind there is, and long names. */
TEST(text_fits_a_page)
{
    char *texts[] = {
        form(EXPLAIN(3, "parallelism.strategy=ddp"), fsdp_explanation_print),
        form(EXPLAIN(1, "parallelism.wrap_policy=root"), fsdp_explanation_print),
        form(EXPLAIN(3, "parallelism.strategy=fsdp1", "parallelism.wrap_policy=always"), fsdp_explanation_print),
        form(EXPLAIN(40, "model.preset=gpt-10m", "training.global_batch_size=640"), fsdp_explanation_print),
        form(EXPLAIN(4, "parallelism.strategy=hsdp", "parallelism.data_parallel_replicate_degree=2"),
             fsdp_explanation_print),
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_width(texts[i]);
    CHECK_CONTAINS(texts[0], "nothing is gathered: every rank has all parameters all the time");
    CHECK_CONTAINS(texts[0], " ==================================== all of it, x 4\n");
    CHECK_CONTAINS(texts[2], "fsdp1 full_shard");
    CHECK_CONTAINS(texts[3], "(a to z: 10 to 35; *: 36 and on)");
    CHECK_CONTAINS(texts[4], "the first of the 2 ranks that hold the same");
}

static json_int_t integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

TEST(json_has_every_number)
{
    fsdp_explanation *e = EXPLAIN(3, "parallelism.strategy=fsdp1");
    const fsdp_explained_part part = e->parameters[2].parts[1];
    fsdp_explained_step step = e->step;
    int64_t events = e->event_count, variants = e->variant_count;
    char *text = form(e, fsdp_explanation_json);
    json_t *object = CHECK_PTR(json_loads(text, 0, NULL)), *at;

    CHECK_STRING(json_string_value(json_object_get(object, "strategy")), "fsdp1 full_shard");
    CHECK_EQ(integer(object, "world_size"), 3);
    CHECK_EQ(integer(object, "elements"), 1000576);
    CHECK_EQ(json_array_size(json_object_get(object, "units")), 5);
    CHECK_EQ(json_array_size(json_object_get(object, "events")), events);
    CHECK_EQ(json_array_size(json_object_get(object, "variants")), variants);
    at = json_object_get(object, "step");
    CHECK_EQ(integer(at, "peak_total_bytes"), step.peak_total_bytes);
    CHECK_EQ(integer(json_object_get(at, "peak_bytes"), "gradient"), step.peak_bytes[FSDP_MEMORY_GRADIENT]);
    CHECK_EQ(integer(json_object_get(at, "peak_bytes"), "parameter_shard"),
             step.peak_bytes[FSDP_MEMORY_PARAMETER_SHARD]);
    CHECK_EQ(integer(json_object_get(at, "bytes_sent"), "all_gather"), step.bytes_sent[FSDP_ALL_GATHER]);
    CHECK_EQ(integer(object, "machines"), 1);
    CHECK_NULL(json_object_get(object, "machine_network"));
    at = json_array_get(json_object_get(object, "parameters"), 2);
    CHECK(json_is_null(json_object_get(at, "dim"))); /* a run of elements */
    at = json_array_get(json_object_get(at, "parts"), 1);
    CHECK_EQ(integer(at, "first"), part.first);
    CHECK_EQ(integer(at, "elements"), part.numel);
    json_decref(object);
}

TEST(json_has_what_goes_between_machines)
{
    const fsdp_explain_options options = {.world_size = 6, .machines = 3, .rank = 4};
    fsdp_train_config *config;
    fsdp_explained_network machine, mine;
    fsdp_explanation *e;
    json_t *object, *at;
    char *text;

    config = test_config("model.preset=llama-1m training.seq_len=16");
    CHECK_OK(fsdp_explain(NULL, config, &options, &e));
    machine = e->machine;
    mine = e->step.network;
    text = form(e, fsdp_explanation_json);
    object = CHECK_PTR(json_loads(text, 0, NULL));
    CHECK_EQ(integer(object, "machines"), 3);
    CHECK(json_is_false(json_object_get(object, "one_level")));
    at = json_object_get(json_object_get(object, "step"), "network");
    CHECK_EQ(integer(json_object_get(at, "sent"), "all_gather"), mine.sent[FSDP_ALL_GATHER]);
    CHECK_EQ(integer(json_object_get(at, "received"), "reduce_scatter"), mine.received[FSDP_REDUCE_SCATTER]);
    CHECK_EQ(integer(json_object_get(at, "messages"), "all_reduce"), mine.messages[FSDP_ALL_REDUCE]);
    at = json_object_get(object, "machine_network");
    CHECK_EQ(integer(json_object_get(at, "sent"), "all_gather"), machine.sent[FSDP_ALL_GATHER]);
    CHECK(machine.sent[FSDP_ALL_GATHER] > mine.sent[FSDP_ALL_GATHER]);
    json_decref(object);
}

TEST(svg_is_well_formed)
{
    char *text = form(EXPLAIN(4, "parallelism.wrap_policy=always"), fsdp_explanation_svg);
    int open = 0, closed = 0;

    CHECK_EQ(strncmp(text, "<svg xmlns=", 11), 0);
    CHECK_STRING(text + strlen(text) - 7, "</svg>\n");
    CHECK(strstr(text, ".f0{fill:#") && !strstr(text, "var(")); /* any program can show it */
    CHECK_CONTAINS(text, "lm_head.weight</text>");
    CHECK_CONTAINS(text, "<path class=\"f1\" d=\"M"); /* the activations */
    for (const char *at = text; (at = strstr(at, "<text")); at++)
        open++;
    for (const char *at = text; (at = strstr(at, "</text>")); at++)
        closed++;
    CHECK_EQ(open, closed);
    CHECK_NULL(strstr(strstr(text, "</style>"), "nan"));
}

/* ---- what is sharded already, and nothing ---- */

RANKS_TEST(a_sharded_module_is_printed, 2)
{
    fsdp_module *module = own_build(NULL, context, fsdp_meta(context));
    fsdp_explanation *e;
    char *text;

    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_explain_module(module, &e));
    text = form(e, fsdp_explanation_print);
    check_width(text);
    CHECK_CONTAINS(text, "Tied: 279 parameters in 1 unit, 2 ranks; this is rank");
    CHECK_CONTAINS(text, fsdp_context_rank(context) ? "....................1111" : "00000000000000000000....");
    CHECK_NULL(strstr(text, "strategy"));
    CHECK_OK(fsdp_explain_module(module, &e));
    (void)form(e, fsdp_explanation_svg);
    CHECK_OK(fsdp_explain_module(module, &e));
    (void)form(e, fsdp_explanation_json);
    fsdp_module_unref(module);
}

TEST(nothing_is_refused)
{
    CHECK_ERROR(fsdp_explanation_print(NULL, stdout), FSDP_INVALID, "there is no explanation");
    CHECK_ERROR(fsdp_explanation_json(NULL, stdout), FSDP_INVALID, "there is no explanation");
    CHECK_ERROR(fsdp_explanation_svg(NULL, stdout), FSDP_INVALID, "there is no explanation");
}
