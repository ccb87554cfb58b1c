/* Models whose sequences are cut over ranks: losses, logits and gradients are those of one rank. */
#include "device/device.h"
#include "fsdp/models.h"
#include "fsdp/ops.h"
#include "fsdp/parallel.h"
#include "fsdp/parallelize.h"
#include "parallel/context.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

#include <stdlib.h>

enum {
    BATCH = 2,
    LENGTH = 24, /* 2 W chunks for 1 to 4 ranks, but not 5 */
    VOCAB = 37,
    MAX_NUMEL = 8192
};

typedef struct job {
    fsdp_architecture architecture;
    int cp, tp;
    fsdp_recompute_mode recompute;
    bool empty;     /* all targets of a rank are ignored */
    bool documents; /* rows have several */
} job;

static fsdp_model_config config_of(const job *j)
{
    bool gpt2 = j->architecture == FSDP_GPT2;

    return (fsdp_model_config){.architecture = j->architecture,
                               .n_layers = 2,
                               .dim = 24,
                               .n_heads = 4,
                               .n_kv_heads = gpt2 ? 4 : 2,
                               .head_dim = 6,
                               .ffn_dim = 20,
                               .vocab_size = VOCAB,
                               .max_seq_len = 32,
                               .norm_eps = 1e-5f,
                               .rope_theta = 100,
                               .rope_type = FSDP_ROPE_DEFAULT,
                               .window = j->architecture == FSDP_MISTRAL ? 7 : 0,
                               .local_layers = {j->architecture == FSDP_MISTRAL ? 3 : 0},
                               .init_std = 0.3f,
                               .tie_word_embeddings = gpt2};
}

/* What a model is called with, on the host. */
typedef struct batch {
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH], positions[BATCH * LENGTH];
} batch;

static void fill(const job *j, batch *b)
{
    for (int i = 0; i < BATCH * LENGTH; i++) {
        int t = i % LENGTH;

        b->tokens[i] = (7 * i + 3) % VOCAB;
        b->targets[i] = i % 5 == 1 || (j->empty && t >= LENGTH / 4 && t < 3 * LENGTH / 4) ? FSDP_IGNORE_TARGET
                                                                                          : (5 * i + 3) % VOCAB;
        b->positions[i] = t == 0 || i % 11 == 4 ? 0 : b->positions[i - 1] + 1;
    }
}

static fsdp_tensor *tensor_of(fsdp_context *context, const int32_t *values)
{
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(BATCH, LENGTH), values));
}

static fsdp_tensor *loss_of(const job *j, fsdp_module *model, fsdp_context *context, const batch *b)
{
    fsdp_tensor *tokens = tensor_of(context, b->tokens), *targets = tensor_of(context, b->targets);

    return CHECK_PTR(j->documents ? fsdp_call(model, tokens, targets, tensor_of(context, b->positions))
                                  : fsdp_call(model, tokens, targets));
}

static fsdp_tensor *loss_from_host(const job *j, fsdp_module *model, fsdp_context *context, const batch *b)
{
    const fsdp__host_call call = {
        test_device(context), BATCH, LENGTH, b->tokens, b->targets, j->documents ? b->positions : NULL};

    return CHECK_PTR(fsdp__call_from_host(model, &call));
}

static fsdp_module *create(fsdp_context *context, const job *j, bool cut, fsdp_mesh *cp, fsdp_mesh *tp)
{
    fsdp_model_config config = config_of(j);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));

    if (j->tp > 1)
        CHECK_OK(fsdp_model_parallelize(
            model, tp, &(fsdp_model_parallel_options){.sequence_parallel = true, .loss_parallel = true}));
    if (cut)
        CHECK_OK(fsdp_model_context_parallel(model, cp));
    CHECK_OK(fsdp_module_initialize(model, 5));
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), j->recompute));
    return model;
}

static void compare(fsdp_tensor *got, fsdp_tensor *want)
{
    float a[MAX_NUMEL], b[MAX_NUMEL];

    CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(got)), fsdp_tensor_numel(CHECK_PTR(want)));
    CHECK_OK(fsdp_tensor_read(got, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(want, FSDP_F32, b));
    CHECK_CLOSE(a, b, fsdp_tensor_numel(got), 2e-5, 2e-5);
}

/* The mean of a parameter's gradients over the ranks that cut sequences, against that of whole ones. */
static void compare_gradients(fsdp_module *cut, fsdp_module *whole, fsdp_process_group *group)
{
    fsdp_parameters got = {0}, want = {0};

    CHECK_OK(fsdp_module_parameters(cut, &got));
    CHECK_OK(fsdp_module_parameters(whole, &want));
    for (int64_t i = 0; i < got.count; i++) {
        fsdp_tensor *sum = fsdp_parallel_all_reduce(fsdp_tensor_grad(got.items[i].tensor), group);

        compare(fsdp_scale(sum, 1.0 / fsdp_process_group_size(group)), fsdp_tensor_grad(want.items[i].tensor));
    }
    fsdp_parameters_release(&got);
    fsdp_parameters_release(&want);
}

/* Both ways of a call give the same bits. */
static void check_host(fsdp_context *context, const job *j, fsdp_module *cut, const batch *b)
{
    double values[2];

    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_tensor_item(loss_of(j, cut, context, b), &values[0]));
    CHECK_OK(fsdp_tensor_item(loss_from_host(j, cut, context, b), &values[1]));
    CHECK_BYTES(&values[0], &values[1], sizeof values[0]);
    fsdp_no_grad_end(context);
}

static void check_same(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_module *cut, *whole;
    fsdp_tensor *loss[2], *logits[2];
    batch b;
    fsdp_mesh *mesh, *cp, *tp;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->cp, j->tp), (const char *const[]){"cp", "tp"}, &mesh));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"cp"}, &cp));
    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"tp"}, &tp));
    cut = create(context, j, true, cp, tp);
    whole = create(context, j, false, cp, tp);
    CHECK_OK(fsdp_scope_begin(context));
    fill(j, &b);
    check_host(context, j, cut, &b);
    loss[0] = loss_from_host(j, cut, context, &b);
    loss[1] = loss_of(j, whole, context, &b);
    compare(loss[0], loss[1]);
    CHECK_OK(fsdp_backward(loss[0]));
    CHECK_OK(fsdp_backward(loss[1]));
    compare_gradients(cut, whole, fsdp_mesh_process_group(cp, 0));
    fsdp_no_grad_begin(context);
    logits[0] = fsdp_call(cut, tensor_of(context, b.tokens));
    logits[1] = fsdp_call(whole, tensor_of(context, b.tokens));
    compare(logits[0], logits[1]);
    fsdp_no_grad_end(context);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(cut);
    fsdp_module_unref(whole);
    fsdp_mesh_unref(cp);
    fsdp_mesh_unref(tp);
    fsdp_mesh_unref(mesh);
}

TEST(losses_and_gradients_are_those_of_one_rank)
{
    const fsdp_architecture all[] = {FSDP_GPT2, FSDP_LLAMA, FSDP_MISTRAL};

    for (size_t a = 0; a < FSDP__COUNT_OF(all); a++)
        for (int cp = 1; cp <= 4; cp++) {
            job j = {.architecture = all[a], .cp = cp, .tp = 1};

            test_run_ranks(cp, check_same, &j);
            j.documents = true;
            test_run_ranks(cp, check_same, &j);
        }
}

TEST(they_are_with_tensor_parallel_too)
{
    for (int cp = 1; cp <= 2; cp++) {
        job j = {.architecture = FSDP_LLAMA, .cp = cp, .tp = 2};

        test_run_ranks(2 * cp, check_same, &j);
    }
}

TEST(and_with_recomputation_and_a_rank_without_targets)
{
    for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++) {
        job j = {.architecture = FSDP_LLAMA, .cp = 2, .tp = 1, .recompute = (fsdp_recompute_mode)mode, .empty = true};

        test_run_ranks(2, check_same, &j);
        j.documents = true;
        test_run_ranks(2, check_same, &j);
    }
}

static void check_refused(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fsdp_module *model;
    fsdp_tensor *tokens;
    fsdp_mesh *mesh;

    CHECK_OK(fsdp_mesh_create(context, FSDP_SHAPE(j->cp), (const char *const[]){"cp"}, &mesh));
    model = create(context, j, true, mesh, NULL);
    CHECK_STATUS(fsdp_model_context_parallel(model, mesh), FSDP_STATE);
    CHECK_OK(fsdp_scope_begin(context));
    tokens = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1, 14)));
    CHECK(!fsdp_call(model, tokens, tokens));
    CHECK_CONTAINS(fsdp_last_error(), "sequence length 14 cannot be cut into 4 equal chunks, two for each of 2 ranks: "
                                      "the nearest that can are 12 and "
                                      "16");
    tokens = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1, 16)));
    CHECK(!fsdp_call(model, tokens, tokens, tokens, tokens));
    CHECK_CONTAINS(fsdp_last_error(), "takes tokens, targets and positions, not 4 inputs");
    CHECK_OK(fsdp_model_set_loss(model, FSDP_LOSS_NONE, 0));
    CHECK(!fsdp_call(model, tokens, tokens));
    CHECK_CONTAINS(fsdp_last_error(), "losses of each token are not put together from ranks");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
    fsdp_mesh_unref(mesh);
}

TEST(what_cannot_be_cut_is_refused)
{
    job j = {.architecture = FSDP_LLAMA, .cp = 2, .tp = 1};

    test_run_ranks(2, check_refused, &j);
}
