/* What `fsdp plan` and `fsdp explain` say of GPUs, beside what a run on them reports. The GPU is a fake one
 * (tests/backend/fakecuda): its plug-in lies beside the program. */
#include <jansson.h>

#include "base/compiler.h"
#include "cli/fixture.h"
#include "plan/measure.h"

#define PLUGIN TEST_BINARY_DIR "/tests/libfsdp-cuda.so"

static json_int_t number_in(const json_t *object, const char *of, const char *name)
{
    const json_t *number = json_object_get(of ? json_object_get(object, of) : object, name);

    if (!json_is_integer(number))
        TEST_FAIL("there is no %s%s%s", of ? of : "", of ? "." : "", name);
    return json_integer_value(number);
}

/* The last line of a run's metrics that tells of a step. */
static json_t *last_step(const fixture *f)
{
    FILE *file = fopen(f->metrics, "r");
    char line[8192];
    json_t *last = NULL;

    while (file && fgets(line, sizeof line, file)) {
        json_t *row = CHECK_PTR(json_loads(line, 0, NULL));

        if (!json_object_get(row, "step_ms")) {
            json_decref(row);
            continue;
        }
        json_decref(last);
        last = row;
    }
    if (file)
        fclose(file);
    return CHECK_PTR(last);
}

static void compare_with_plan(const json_t *plan, const json_t *step)
{
    static const char *const kinds[] = {"parameter_shard", "unsharded_parameter", "gradient", "optimizer_state",
                                        "activation"};
    static const char *const calls[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"};
    json_int_t sent = 0;
    char name[64];

    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++) {
        snprintf(name, sizeof name, "memory_peak_bytes_of_%s", kinds[i]);
        CHECK_EQ(number_in(step, NULL, name), number_in(plan, "peak_bytes", kinds[i]));
    }
    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++) {
        CHECK_EQ(number_in(step, NULL, calls[i]), number_in(plan, "calls", calls[i]));
        sent += number_in(plan, "bytes_sent", calls[i]);
    }
    CHECK_EQ(number_in(step, NULL, "bytes_sent"), sent);
}

static void need_plugin(void)
{
    test_skip_if(access(PLUGIN, F_OK) != 0, "there is no plug-in for the fake GPU");
}

/* Both read the same config, and share a GPU: of a plan that is for other settings, or another device, no line agrees.
 */
FIXTURE_TEST(what_is_planned_for_gpus_is_what_a_run_on_them_reports)
{
    static const char *const keys[] = {"--activation_checkpoint.mode=none", "--activation_checkpoint.mode=full",
                                       "--training.mixed_precision_param=bfloat16"};

    need_plugin();
    setenv("FSDP_FAKECUDA_DEVICES", "1", 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        program p = RUN(0, "plan", f->config, "-n", "2", "--device=cuda", "--no-time", "--json", keys[i]);
        json_t *plan = CHECK_PTR(json_loads(CHECK_PTR(strchr(p.output, '{')), JSON_DISABLE_EOF_CHECK, NULL)), *step;

        RUN(0, "train", f->config, "-n", "2", "--training.device=cuda", "--training.steps=3",
            "--export.path=", keys[i]);
        step = last_step(f);
        compare_with_plan(plan, step);
        json_decref(step);
        json_decref(plan);
    }
}

/* ---- prices by what GPUs are joined by ---- */

enum {
    RANKS = 8
};

#define CALL_SECONDS 5e-5 /* of the ranks of a machine, and of those of several */
#define HOST_RATE 25e9

typedef struct joined {
    const char *links, *peers; /* for NVML and CUDA that are not there */
    double rate;               /* bytes a second of a GPU to the others; 0: through the host */
} joined;

static void set_or_unset(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* Writes what is said of such GPUs, with one rate for all that they compute. */
static char *write_prices(const fixture *f, const joined *by)
{
    char *path = test_path(f->directory, "prices.json");
    fsdp__prices prices;
    FILE *out;

    set_or_unset("FSDP_FAKENVML_LINKS", by->links);
    set_or_unset("FSDP_FAKECUDA_PEERS", by->peers);
    CHECK_OK(fsdp__prices_measure("cuda", -1, &prices));
    prices.per_second = 1e12;
    out = CHECK_PTR(fopen(path, "w"));
    CHECK_OK(fsdp__prices_print(&prices, out));
    CHECK_EQ(fclose(out), 0);
    set_or_unset("FSDP_FAKENVML_LINKS", NULL);
    set_or_unset("FSDP_FAKECUDA_PEERS", NULL);
    return path;
}

static json_t *plan_of(const fixture *f, const char *prices, const char *machines, const char *network)
{
    program p = RUN(0, "plan", "llama-1m", "-n", "8", "--machines", machines, "--network", network, "--seq-len", "16",
                    "--device", prices, "--json");

    return CHECK_PTR(json_loads(CHECK_PTR(strchr(p.output, '{')), JSON_DISABLE_EOF_CHECK, NULL));
}

static double seconds_in(const json_t *plan, const char *part)
{
    const json_t *time = json_object_get(plan, "time"), *parts = json_object_get(time, "parts_seconds");

    return json_number_value(CHECK_PTR(json_object_get(json_object_get(parts, part) ? parts : time, part)));
}

/* Returns what collectives of the plan take, whether the step waits for them or not. */
static double exchange_seconds(const json_t *plan)
{
    return seconds_in(plan, "gathers") + seconds_in(plan, "reductions") + seconds_in(plan, "hidden_gathers_seconds") +
           seconds_in(plan, "hidden_reductions_seconds");
}

static double calls_of(const json_t *plan)
{
    return (double)(number_in(plan, "calls", "all_gather") + number_in(plan, "calls", "reduce_scatter") +
                    number_in(plan, "calls", "all_reduce"));
}

/* Returns what its bytes take inside a machine. Each rank sends what the others lack, once, and in an all-reduce twice;
 * through the host all of it goes up and its own part down, or the other way round. */
static double inside_seconds(const json_t *plan, double rate)
{
    double once =
        (double)(number_in(plan, "bytes_sent", "all_gather") + number_in(plan, "bytes_sent", "reduce_scatter"));
    double twice = (double)number_in(plan, "bytes_sent", "all_reduce");

    return rate > 0 ? (once + twice) / rate : (once * (RANKS + 1) + twice * RANKS) / (RANKS - 1) / HOST_RATE;
}

static void check_prices(const fixture *f, const joined *by)
{
    char *prices = write_prices(f, by);
    json_t *one = plan_of(f, prices, "1", "100"), *two = plan_of(f, prices, "2", "100"),
           *slow = plan_of(f, prices, "2", "10");
    double inside = calls_of(one) * CALL_SECONDS + inside_seconds(one, by->rate);
    double bits = 8 * (double)number_in(two, "network", "machine_in");

    CHECK(calls_of(one) > 10 && bits > 0);
    CHECK_NEAR(exchange_seconds(one) / inside, 1, 1e-9);
    CHECK_NEAR(exchange_seconds(two) / (inside + calls_of(two) * CALL_SECONDS + bits / 100e9), 1, 1e-9);
    CHECK_NEAR(exchange_seconds(slow) / (inside + calls_of(two) * CALL_SECONDS + bits / 10e9), 1, 1e-9);
    json_decref(one);
    json_decref(two);
    json_decref(slow);
}

/* Of the link's rate in the card's data sheet three quarters count. */
static const joined joins[] = {{"18", NULL, 0.75 * 450e9}, {"0", NULL, 0.75 * 63e9}, {"18", "0-1", 0}};

static void open_h100s(void)
{
    need_plugin();
    setenv("FSDP_FAKECUDA_DEVICES", "8", 1);
    setenv("FSDP_FAKECUDA_NAME", "NVIDIA H100 80GB HBM3", 1);
}

static void close_h100s(void)
{
    unsetenv("FSDP_FAKECUDA_NAME");
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

FIXTURE_TEST(a_plan_prices_exchanges_by_what_joins_the_gpus)
{
    open_h100s();
    for (size_t i = 0; i < FSDP__COUNT_OF(joins); i++)
        check_prices(f, &joins[i]);
    close_h100s();
}

/* Returns what a step takes before the first change that is proposed. */
static double explained_seconds(const fixture *f, const char *prices)
{
    program p = RUN(0, "explain", "llama-1m", "-n", "8", "--seq-len", "16", "--device", prices, "--json");
    json_t *explained = CHECK_PTR(json_loads(CHECK_PTR(strchr(p.output, '{')), JSON_DISABLE_EOF_CHECK, NULL));
    const json_t *first = CHECK_PTR(json_array_get(json_object_get(explained, "changes"), 0));
    double seconds = json_number_value(json_object_get(json_object_get(first, "before"), "step_seconds"));

    json_decref(explained);
    return seconds;
}

FIXTURE_TEST(changes_are_explained_by_the_same_prices_as_a_plan)
{
    double faster = 0;

    open_h100s();
    for (size_t i = 0; i < FSDP__COUNT_OF(joins); i++) {
        char *prices = write_prices(f, &joins[i]);
        json_t *plan = plan_of(f, prices, "1", "100");
        double seconds = explained_seconds(f, prices);

        CHECK_NEAR(seconds / seconds_in(plan, "step_seconds"), 1, 1e-9);
        CHECK(seconds > faster); /* by each link than by the one before */
        faster = seconds;
        json_decref(plan);
    }
    close_h100s();
}

/* Codes stand for weights, which are counted. */
FIXTURE_TEST(quantized_weights_are_counted_as_what_they_stand_for)
{
    static const char *const commands[][2] = {{"plan", "--device=cuda:H100"}, {"explain", "--strategy=fsdp2"}};

    for (int i = 0; i < 2; i++) {
        const char *command = commands[i][0], *option = commands[i][1];
        program whole = RUN(0, command, "llama-1m", "-n", "1", option, "--adapter.rank=4");
        program coded = RUN(0, command, "llama-1m", "-n", "1", option, "--adapter.rank=4", "--adapter.quantize=nf4");
        const char *end = CHECK_PTR(strstr(whole.output, " parameters"));

        CHECK_EQ(strncmp(whole.output, coded.output, (size_t)(end - whole.output) + 11), 0);
    }
}
