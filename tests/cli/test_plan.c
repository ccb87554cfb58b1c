/* What `fsdp plan` says of GPUs beside what a run on them reports. The GPU is a fake one (tests/backend/fakecuda): its
 * plug-in lies beside the program. */
#include <jansson.h>

#include "base/compiler.h"
#include "cli/fixture.h"

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

/* Both read the same config, and share a GPU: of a plan that is for other settings, or another device, no line agrees.
 */
FIXTURE_TEST(what_is_planned_for_gpus_is_what_a_run_on_them_reports)
{
    static const char *const keys[] = {"--activation_checkpoint.mode=none", "--activation_checkpoint.mode=full",
                                       "--training.mixed_precision_param=bfloat16"};
    fixture *f = *state;

    if (access(PLUGIN, F_OK) != 0) {
        print_message("skipped: there is no plug-in for the fake GPU\n");
        skip();
    }
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
    unsetenv("FSDP_FAKECUDA_DEVICES");
}
