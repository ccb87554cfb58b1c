/* What models are given whose sequences are cut over ranks: each rank checks all of it. */
#include "fsdp/models.h"
#include "fsdp/parallelize.h"
#include "support/models.h"
#include "support/ranks.h"

enum {
    BATCH = 2,
    VOCAB = 37,
    LONGEST = 48
};

/* What is called, of which one token is in one rank's part alone. */
typedef struct wrong {
    fsdp_architecture architecture;
    int count, input, at, value; /* inputs; the one of which element `at` has that value */
    int64_t time;
    const char *message;
} wrong;

static const wrong wrongs[] = {
    {FSDP_LLAMA, 1, 0, 7, VOCAB, 24, "id 37 at position (0, 7) is outside [0, 37)"},
    {FSDP_LLAMA, 2, 0, 47, -1, 24, "id -1 at position (1, 23) is outside [0, 37)"},
    {FSDP_GPT2, 2, 1, 30, VOCAB, 24, "target 37 at position (1, 6) is outside [0, 37)"},
    {FSDP_LLAMA, 3, 1, 13, -5, 24, "target -5 at position (0, 13) is outside [0, 37)"},
    {FSDP_LLAMA, 3, 2, 31, 5, 24, "position 5 at (1, 7) is neither 0, where a document begins, nor 7"},
    {FSDP_GPT2, 2, 0, 0, 0, 48, "sequence of 48 tokens is longer than the model's 32 positions"},
    {FSDP_GPT2, 3, 0, 0, 0, 48, "id 32 at position (0, 32) is outside [0, 32)"},
};

static fsdp_tensor *input_of(fsdp_context *context, const wrong *w, int input)
{
    int32_t values[BATCH * LONGEST];

    for (int i = 0; i < BATCH * (int)w->time; i++)
        values[i] = input == 2 ? i % (int)w->time : i * 7 % VOCAB;
    if (w->input == input)
        values[w->at] = w->value;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(BATCH, w->time), values));
}

static void call_wrong(fsdp_context *context, const wrong *w, bool cut)
{
    bool gpt2 = w->architecture == FSDP_GPT2;
    const fsdp_model_config config =
        MODEL_CONFIG(.architecture = w->architecture, .n_layers = 1, .dim = 8, .n_heads = 2, .n_kv_heads = 2,
                     .head_dim = 4, .ffn_dim = 6, .vocab_size = VOCAB, .max_seq_len = 32, .rope_theta = 100,
                     .rope_type = FSDP_ROPE_DEFAULT, .init_std = 0.3f, .tie_word_embeddings = gpt2);
    fsdp_tensor *inputs[3];
    fsdp_module *model;
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(fsdp_context_world_size(context)), NULL, &mesh));
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_module_initialize(model, 5));
    if (cut)
        CHECK_OK(fsdp_model_context_parallel(model, mesh));
    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < w->count; i++)
        inputs[i] = input_of(context, w, i);
    CHECK_INVALID(fsdp_module_call(model, inputs, w->count), w->message);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

/* Each rank says what a model says that is not cut, and the next call goes on. */
WORLDS_TEST(what_is_wrong_in_one_part_is_an_error_of_all, 1, 4)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(wrongs); i++)
        for (int cut = 0; cut < 2; cut++)
            call_wrong(context, &wrongs[i], cut);
}
