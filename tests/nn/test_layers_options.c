/* Layers of fsdp/layers.h: what they print, how they begin, what they refuse, what becomes of buffers. */
#include "fsdp/layers.h"

#include <math.h>
#include <stdio.h>

#include "autograd/tools.h"
#include "nn/module.h"
#include "support/scope.h"

#define OPTIONS(type, ...) (&(type){__VA_ARGS__})
#define POOL(...) OPTIONS(fsdp_pool2d_options, __VA_ARGS__)
#define NORM(...) OPTIONS(fsdp_batch_norm_layer_options, __VA_ARGS__)

/* Takes the module over. */
static void prints(fsdp_module *m, const char *expected)
{
    char text[1024] = "", *from = text;
    FILE *out = fmemopen(text, sizeof text - 1, "w");

    CHECK_OK(fsdp_module_print(CHECK_PTR(m), CHECK_PTR(out)));
    fclose(out);
    from[strcspn(from, "\n")] = '\0';
    CHECK_STRING(text, expected);
    fsdp_module_unref(m);
}

/* As PyTorch 2.15 prints them. */
SCOPE_TEST(layers_print_as_in_pytorch)
{
    prints(fsdp_conv2d_create(context, device, 3, 4, 3, 3, NULL), "Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))");
    prints(fsdp_conv2d_create(context, device, 4, 6, 3, 2,
                              OPTIONS(fsdp_conv2d_layer_options,
                                      .conv = {.stride = {2}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2},
                                      .no_bias = true)),
           "Conv2d(4, 6, kernel_size=(3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, bias=False)");
    prints(fsdp_max_pool2d_create(context, POOL(.kernel = {2, 2})),
           "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)");
    prints(fsdp_max_pool2d_create(context, POOL(.kernel = {3, 2}, .padding = {1}, .dilation = {1, 2})),
           "MaxPool2d(kernel_size=(3, 2), stride=(3, 2), padding=(1, 0), dilation=(1, 2), ceil_mode=False)");
    prints(fsdp_avg_pool2d_create(context, POOL(.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1})),
           "AvgPool2d(kernel_size=3, stride=2, padding=1)");
    prints(fsdp_adaptive_avg_pool2d_create(context, 2, 3), "AdaptiveAvgPool2d(output_size=(2, 3))");
    prints(fsdp_flatten_create(context, 1, -1), "Flatten(start_dim=1, end_dim=-1)");
    prints(fsdp_group_norm_create(context, device, 2, 4, 0.0f, false),
           "GroupNorm(2, 4, eps=1e-05, affine=True, bias=True)");
    prints(fsdp_batch_norm1d_create(context, device, 3, NORM(.cumulative_average = true)),
           "BatchNorm1d(3, eps=1e-05, momentum=None, affine=True, bias=True, track_running_stats=True)");
    prints(
        fsdp_batch_norm2d_create(context, device, 3, NORM(.no_affine = true, .no_running_stats = true, .eps = 1e-3f)),
        "BatchNorm2d(3, eps=0.001, momentum=0.1, affine=False, bias=False, track_running_stats=False)");
    prints(fsdp_multihead_attention_create(context, device, 6, 2, NULL), "MultiheadAttention(");
}

/* ---- first values ---- */

/* All within the bound, some beyond nine tenths of it on both sides. Takes the module over. */
static void begins_within(fsdp_module *m, const char *name, float bound)
{
    fsdp_tensor *p = CHECK_PTR(fsdp_module_parameter(CHECK_PTR(m), name));
    float values[2048], least = 0.0f, most = 0.0f;

    CHECK(fsdp_tensor_numel(p) <= 2048);
    CHECK_OK(fsdp_tensor_read(p, FSDP_F32, values));
    for (int64_t i = 0; i < fsdp_tensor_numel(p); i++) {
        least = fminf(least, values[i]);
        most = fmaxf(most, values[i]);
    }
    CHECK(most <= bound && least >= -bound);
    CHECK(most >= 0.9f * bound && least <= -0.9f * bound);
    fsdp_module_unref(m);
}

SCOPE_TEST(first_values_are_distributed_as_in_pytorch)
{
    const fsdp_conv2d_layer_options grouped = {.conv.groups = 2};

    begins_within(fsdp_conv2d_create(context, device, 6, 30, 3, 2, NULL), "weight", 1.0f / 6.0f);
    begins_within(fsdp_conv2d_create(context, device, 6, 60, 3, 1, &grouped), "weight", 1.0f / 3.0f);
    begins_within(fsdp_conv2d_create(context, device, 2, 100, 2, 1, NULL), "bias", 0.5f);
    begins_within(fsdp_multihead_attention_create(context, device, 24, 2, NULL), "in_proj_weight", 0.25f);
    begins_within(fsdp_multihead_attention_create(context, device, 25, 5, NULL), "out_proj.weight", 0.2f);
    begins_within(fsdp_multihead_attention_create(context, device, 4, 2, NULL), "in_proj_bias", 0.0f);
    begins_within(fsdp_multihead_attention_create(context, device, 4, 2, NULL), "out_proj.bias", 0.0f);
}

/* ---- buffers ---- */

SCOPE_TEST(buffers_of_a_batch_norm_begin_when_they_get_bytes)
{
    fsdp_module *m = CHECK_PTR(fsdp_batch_norm1d_create(context, fsdp_meta(context), 2, NULL));
    fsdp__buffer_slot *buffers = m->parts->buffers;
    float mean[2], variance[2];
    int64_t batches;

    CHECK_EQ(m->parts->buffer_count, 3);
    CHECK_OK(fsdp_module_materialize(m, device));
    CHECK_OK(fsdp_tensor_read(*buffers[0].slot, FSDP_F32, mean));
    CHECK_OK(fsdp_tensor_read(*buffers[1].slot, FSDP_F32, variance));
    CHECK_OK(fsdp_tensor_read(*buffers[2].slot, FSDP_I64, &batches));
    CHECK(mean[0] == 0.0f && mean[1] == 0.0f && variance[0] == 1.0f && variance[1] == 1.0f && batches == 0);
    for (int i = 0; i < 3; i++)
        CHECK(buffers[i].persistent);
    CHECK_OK(fsdp_module_to(m, FSDP_BF16)); /* numbers of the model's: they change with it */
    CHECK_EQ(fsdp_tensor_dtype(*buffers[1].slot), FSDP_BF16);
    CHECK_EQ(fsdp_tensor_dtype(*buffers[2].slot), FSDP_I64);
    fsdp_module_unref(m);
}

/* ---- masks ---- */

static void set(fsdp_module *m, const char *name, const float *values)
{
    CHECK_OK(fsdp_tensor_write(CHECK_PTR(fsdp_module_parameter(m, name)), FSDP_F32, values));
}

/* Projections that change nothing: a query that sees all keys alike gets the mean of the values. */
SCOPE_TEST(a_query_that_may_see_no_key_sees_all_alike)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    const float x[] = {1.0f, -2.0f, 3.0f, 6.0f, 5.0f, 5.0f, 7.0f, -1.0f}, mean[] = {4.0f, 2.0f};
    const float three[] = {1.0f, 0.0f, 0.0f, 1.0f, 1.0f, 0.0f, 0.0f, 1.0f, 1.0f, 0.0f, 0.0f, 1.0f};
    const bool all[] = {true, true, true, true}, some[] = {true, false, true, false};

    for (int i = 0; i < 12; i++) {
        fsdp_module *m = CHECK_PTR(fsdp_multihead_attention_create(
            context, device, 2, 1, OPTIONS(fsdp_multihead_attention_options, .batch_first = true, .no_bias = true)));
        fsdp_tensor *in = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1, 4, 2)),
                    *padding = fsdp_zeros(device, FSDP_BOOL, FSDP_SHAPE(1, 4));
        fsdp_tensor *later = fsdp_zeros(device, FSDP_BOOL, FSDP_SHAPE(4, 4));
        fsdp_attention_masks masks = {.key_padding = padding, .attention = i / 3 > 0 ? later : NULL};
        float out[8];

        set(m, "in_proj_weight", three);
        set(m, "out_proj.weight", three);
        CHECK_OK(fsdp_module_to(m, dtypes[i % 3]));
        CHECK_OK(fsdp_tensor_write(in, FSDP_F32, x));
        CHECK_OK(fsdp_tensor_write(padding, FSDP_BOOL, i / 3 == 2 ? some : all));
        if (i / 3 == 3) /* of numbers, too large together with the other */
            masks.attention = fsdp_full(device, dtypes[i % 3], FSDP_SHAPE(4, 4), -5e4);
        CHECK_OK(fsdp_tensor_fill_(later, 1.0));
        in = fsdp_cast(in, dtypes[i % 3]);
        in = fsdp_multihead_attention(m, in, in, in, &masks);
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(in), FSDP_F32, out));
        for (int q = 0; q < 4; q++)
            CHECK_CLOSE(&out[2 * q], mean, 2, 1e-2, 1e-2);
        fsdp_module_unref(m);
    }
}

/* ---- dropout ---- */

/* Of attention weights: another mask each time, none in evaluation, the same again when it is recomputed. */
SCOPE_TEST(dropout_of_attention_weights_is_repeated_by_a_recomputed_module)
{
    const fsdp_multihead_attention_options options = {.dropout = 0.5f, .seed = 3, .batch_first = true};
    float y[2][2][32], gradient[2][192];

    for (int recomputed = 0; recomputed < 2; recomputed++) {
        fsdp_module *m = CHECK_PTR(fsdp_multihead_attention_create(context, device, 8, 2, &options));
        fsdp_tensor *x = make_random(device, 1, 3, (const int64_t[]){1, 4, 8}), *out;

        CHECK_OK(fsdp_module_set_recompute(m, recomputed ? FSDP_RECOMPUTE_FULL : FSDP_RECOMPUTE_NONE));
        for (int i = 0; i < 2; i++) {
            out = CHECK_PTR(fsdp_call(m, x));
            CHECK_OK(fsdp_tensor_read(out, FSDP_F32, y[recomputed][i]));
            CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_mul(out, out))))));
        }
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(fsdp_module_parameter(m, "in_proj_weight")), FSDP_F32,
                                  gradient[recomputed]));
        CHECK(memcmp(y[recomputed][0], y[recomputed][1], sizeof y[0][0]) != 0);
        fsdp_module_train(m, false);
        for (int i = 0; i < 2; i++)
            CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(m, x)), FSDP_F32, y[0][i]));
        CHECK_BYTES(y[0][0], y[0][1], sizeof y[0][0]);
        fsdp_module_unref(m);
    }
    CHECK_BYTES(gradient[1], gradient[0], sizeof gradient[0]);
}

/* ---- what is refused ---- */

#define ZEROS(...) fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(__VA_ARGS__))

SCOPE_TEST(layers_that_cannot_be_are_refused)
{
    CHECK_FAILS(fsdp_conv2d_create(context, device, 0, 4, 3, 3, NULL), FSDP_INVALID, "all must be at least 1");
    CHECK_FAILS(fsdp_conv2d_create(context, device, 3, 4, 3, 3, OPTIONS(fsdp_conv2d_layer_options, .conv.groups = 2)),
                FSDP_INVALID, "cannot be divided into 2 groups");
    CHECK_FAILS(fsdp_max_pool2d_create(context, NULL), FSDP_INVALID, "MaxPool2d: a kernel of at least 1 x 1");
    CHECK_FAILS(fsdp_group_norm_create(context, device, 3, 4, 0.0f, false), FSDP_INVALID, "into 3 groups");
    CHECK_FAILS(fsdp_batch_norm2d_create(context, device, 0, NULL), FSDP_INVALID, "BatchNorm2d: 0 channels");
    CHECK_FAILS(fsdp_multihead_attention_create(context, device, 6, 4, NULL), FSDP_INVALID,
                "6 features cannot be divided into 4 heads");
    CHECK_FAILS(fsdp_multihead_attention_create(context, device, INT64_MAX, 1, NULL), FSDP_INVALID,
                "9223372036854775807 features are too many");
    CHECK_FAILS(fsdp_transformer_encoder_layer_create(context, device, 6, 2,
                                                      OPTIONS(fsdp_transformer_encoder_layer_options, .dropout = 1.0f)),
                FSDP_INVALID, "dropout 1 is outside [0, 1)");
}

SCOPE_TEST(inputs_that_do_not_fit_are_refused)
{
    fsdp_module *norm = CHECK_PTR(fsdp_batch_norm2d_create(context, device, 3, NULL));
    fsdp_module *m = CHECK_PTR(fsdp_multihead_attention_create(
        context, device, 6, 2, OPTIONS(fsdp_multihead_attention_options, .batch_first = true)));
    fsdp_tensor *x = ZEROS(2, 4, 6), *keys = ZEROS(2, 5, 6), *mask = ZEROS(4, 4);
    fsdp_attention_masks masks = {.causal = true};

    CHECK_FAILS(fsdp_call(norm, ZEROS(2, 3)), FSDP_INVALID,
                "BatchNorm2d: an input of 2 dimensions: it takes (N,C,H,W)");
    CHECK_FAILS(fsdp_call(m, x, keys), FSDP_INVALID, "MultiheadAttention: 2 inputs");
    CHECK_FAILS(fsdp_call(m, ZEROS(4, 6)), FSDP_INVALID, "input (4, 6) must be (N,L,E) with E = 6");
    CHECK_FAILS(fsdp_multihead_attention(m, x, keys, keys, &masks), FSDP_INVALID, "different numbers of queries");
    masks.attention = mask;
    CHECK_FAILS(fsdp_multihead_attention(m, x, x, x, &masks), FSDP_UNSUPPORTED, "causal together with a mask");
    masks.causal = false;
    CHECK_PTR(fsdp_multihead_attention(m, x, x, x, &masks));
    CHECK_FAILS(fsdp_multihead_attention(m, x, keys, keys, &masks), FSDP_INVALID,
                "attention mask (4, 4) must be (L,S) or (N heads,L,S)");
    masks = (fsdp_attention_masks){.key_padding = mask};
    CHECK_FAILS(fsdp_multihead_attention(m, x, x, x, &masks), FSDP_INVALID, "key padding mask (4, 4) must be (N,S)");
    masks = (fsdp_attention_masks){.key_padding = fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(2, 4))};
    CHECK_FAILS(fsdp_multihead_attention(m, x, x, x, &masks), FSDP_INVALID, "of bool or floating numbers");
    fsdp_module_unref(norm);
    fsdp_module_unref(m);
}
