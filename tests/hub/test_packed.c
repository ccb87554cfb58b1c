/* Losses of answers in packed windows, each by itself, against those that transformers has of unpacked conversations
 * (finetune/sft-packed-per-token.json of the folder that FSDP_REFERENCE names; skipped without). */
#include <math.h>
#include <stdlib.h>

#include "hub/hub.h"
#include "support/test.h"

enum {
    WINDOW = 128
};

static const char *reference;

static json_t *load(const char *name)
{
    char path[512];
    json_t *value;

    snprintf(path, sizeof path, "%s/finetune/%s", reference, name);
    value = json_load_file(path, 0, NULL);
    return CHECK_PTR(value);
}

/* One window: its tokens, their successors where they are learned, and positions. */
typedef struct window {
    int32_t tokens[WINDOW], targets[WINDOW], positions[WINDOW];
} window;

static window pack(const json_t *conversations, const json_t *indices)
{
    window w;
    int at = 0;
    size_t i;
    json_t *index;

    json_array_foreach(indices, i, index)
    {
        const json_t *c = json_array_get(conversations, (size_t)json_integer_value(index)),
                     *ids = json_object_get(c, "ids");
        const char *mask = json_string_value(json_object_get(c, "mask"));
        int count = (int)json_array_size(ids);

        for (int t = 0; t < count; t++, at++) {
            w.tokens[at] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
            w.positions[at] = t;
            w.targets[at] = FSDP_IGNORE_TARGET;
            if (t > 0 && mask[t] == '1')
                w.targets[at - 1] = w.tokens[at];
        }
    }
    for (; at < WINDOW; at++)
        w.tokens[at] = w.positions[at] = 0, w.targets[at] = FSDP_IGNORE_TARGET;
    return w;
}

static fsdp_tensor *row(fsdp_context *context, const int32_t *values)
{
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, WINDOW), values));
}

static double loss_of(fsdp_context *context, fsdp_module *model, const window *w)
{
    double loss;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_item(
        CHECK_PTR(fsdp_call(model, row(context, w->tokens), row(context, w->targets), row(context, w->positions))),
        &loss));
    fsdp_scope_end(context, NULL);
    return loss;
}

/* Holds the mean over all answers, and the loss of each answer alone. */
static void check_window(fsdp_context *context, fsdp_module *model, const json_t *expected, const window *w)
{
    const json_t *losses = json_object_get(expected, "loss");
    double mean = json_number_value(json_object_get(expected, "mean"));
    size_t i;
    json_t *pair;

    CHECK_NEAR(loss_of(context, model, w), mean, 1e-5 * mean);
    json_array_foreach(losses, i, pair)
    {
        int64_t at = json_integer_value(json_array_get(pair, 0));
        double loss = json_number_value(json_array_get(pair, 1));
        window one = *w;

        for (int t = 0; t < WINDOW; t++)
            if (t != at)
                one.targets[t] = FSDP_IGNORE_TARGET;
        CHECK_NEAR(loss_of(context, model, &one), loss, 2e-5 * loss);
    }
}

static fsdp_module *open_model(fsdp_context *context, const char *name)
{
    char folder[512];
    fsdp_model_config config;
    fsdp_state_dict *state = NULL;
    fsdp_module *model;

    snprintf(folder, sizeof folder, "%s/models/%s", reference, name);
    CHECK_OK(fsdp_hub_read_config(folder, &config));
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_load(folder, state, &config));
    fsdp_state_dict_free(state);
    fsdp_module_train(model, false);
    return model;
}

static void check_model(const char *name)
{
    fsdp_context *context = test_context();
    fsdp_module *model = open_model(context, name);
    json_t *tokens = load("sft-tokens.json"), *expected = load("sft-packed-per-token.json"), *e;
    size_t i;

    fsdp_no_grad_begin(context);
    json_array_foreach(json_object_get(expected, name), i, e)
    {
        window w = pack(json_object_get(tokens, "conversations"), json_object_get(e, "conversations"));

        check_window(context, model, e, &w);
    }
    CHECK(i > 0);
    fsdp_no_grad_end(context);
    json_decref(tokens);
    json_decref(expected);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

CALL_TEST(packed_gpt2_has_the_losses_of_transformers, check_model("tiny-gpt2"))
CALL_TEST(packed_llama_has_the_losses_of_transformers, check_model("tiny-llama"))

static int test_main(void)
{
    reference = getenv("FSDP_REFERENCE");
    return reference ? test_run_cases(__FILE__) : 77;
}

TEST_FILE(test_main)
