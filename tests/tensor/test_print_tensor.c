/* The text of a tensor, against what PyTorch prints for the same elements. */
#include "tensor/tensor.h"

#include <math.h>

#include "support/test.h"

typedef enum source {
    LISTED,
    ZEROS,
    IOTA,
    EIGHTHS
} source;

typedef struct example {
    fsdp_dtype dtype;
    source source;
    int ndim;
    int64_t shape[4];
    float values[6];
    const char *text;
} example;

/* clang-format off */
static const example examples[] = {
{FSDP_F32, LISTED, 0, {0}, {3.25f},
"tensor(3.2500)\n" },
{FSDP_F32, LISTED, 0, {0}, {7},
"tensor(7.)\n" },
{FSDP_F32, LISTED, 1, {1}, {-0.0f},
"tensor([-0.])\n" },
{FSDP_F32, LISTED, 2, {2, 3}, {1, -2.5f, 3, 0.3333333333333333f, 100.125f, 0},
"tensor([[  1.0000,  -2.5000,   3.0000],\n"
"        [  0.3333, 100.1250,   0.0000]])\n" },
{FSDP_F32, LISTED, 1, {5}, {1, 2, 3, NAN, -INFINITY},
"tensor([1., 2., 3., nan, -inf])\n" },
{FSDP_F32, LISTED, 1, {4}, {1e-05f, 1, -2000, INFINITY},
"tensor([ 1.0000e-05,  1.0000e+00, -2.0000e+03,         inf])\n" },
{FSDP_F32, LISTED, 1, {3}, {1000000000.0f, 2000000000.0f, 0},
"tensor([1.0000e+09, 2.0000e+09, 0.0000e+00])\n" },
{FSDP_F32, LISTED, 1, {2}, {1000, 0.9f},
"tensor([1.0000e+03, 9.0000e-01])\n" },
{FSDP_BF16, LISTED, 2, {2, 2}, {1, 2, 3, 4.5f},
"tensor([[1.0000, 2.0000],\n"
"        [3.0000, 4.5000]], dtype=torch.bfloat16)\n" },
{FSDP_F16, LISTED, 3, {2, 1, 2}, {0.5f, -1, 2, 4},
"tensor([[[ 0.5000, -1.0000]],\n"
"\n"
"        [[ 2.0000,  4.0000]]], dtype=torch.float16)\n" },
{FSDP_I32, LISTED, 1, {3}, {-7, 100, 0},
"tensor([ -7, 100,   0], dtype=torch.int32)\n" },
{FSDP_I64, LISTED, 2, {2, 2}, {1, -10, 1234567, 0},
"tensor([[      1,     -10],\n"
"        [1234567,       0]])\n" },
{FSDP_U8, LISTED, 1, {3}, {0, 255, 7},
"tensor([  0, 255,   7], dtype=torch.uint8)\n" },
{FSDP_BOOL, LISTED, 2, {2, 2}, {1, 0, 0, 1},
"tensor([[ True, False],\n"
"        [False,  True]])\n" },
{FSDP_F32, LISTED, 1, {0}, {0},
"tensor([])\n" },
{FSDP_F32, LISTED, 2, {0, 3}, {0},
"tensor([], size=(0, 3))\n" },
{FSDP_I64, LISTED, 2, {2, 0}, {0},
"tensor([], size=(2, 0), dtype=torch.int64)\n" },
{FSDP_F32, LISTED, 4, {2, 1, 1, 2}, {1, 2, 3, 4.5f},
"tensor([[[[1.0000, 2.0000]]],\n"
"\n"
"\n"
"        [[[3.0000, 4.5000]]]])\n" },
{FSDP_BF16, ZEROS, 1, {30}, {0},
"tensor([0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.,\n"
"        0., 0., 0., 0., 0., 0.], dtype=torch.bfloat16)\n" },
{FSDP_F32, EIGHTHS, 1, {30}, {0},
"tensor([0.0000, 0.1250, 0.2500, 0.3750, 0.5000, 0.6250, 0.7500, 0.8750, 1.0000,\n"
"        1.1250, 1.2500, 1.3750, 1.5000, 1.6250, 1.7500, 1.8750, 2.0000, 2.1250,\n"
"        2.2500, 2.3750, 2.5000, 2.6250, 2.7500, 2.8750, 3.0000, 3.1250, 3.2500,\n"
"        3.3750, 3.5000, 3.6250])\n" },
{FSDP_I64, IOTA, 1, {1001}, {0},
"tensor([   0,    1,    2,  ...,  998,  999, 1000])\n" },
{FSDP_F32, EIGHTHS, 3, {40, 7, 9}, {0},
"tensor([[[0.0000e+00, 1.2500e-01, 2.5000e-01,  ..., 7.5000e-01,\n"
"          8.7500e-01, 1.0000e+00],\n"
"         [1.1250e+00, 1.2500e+00, 1.3750e+00,  ..., 1.8750e+00,\n"
"          2.0000e+00, 2.1250e+00],\n"
"         [2.2500e+00, 2.3750e+00, 2.5000e+00,  ..., 3.0000e+00,\n"
"          3.1250e+00, 3.2500e+00],\n"
"         ...,\n"
"         [4.5000e+00, 4.6250e+00, 4.7500e+00,  ..., 5.2500e+00,\n"
"          5.3750e+00, 5.5000e+00],\n"
"         [5.6250e+00, 5.7500e+00, 5.8750e+00,  ..., 6.3750e+00,\n"
"          6.5000e+00, 6.6250e+00],\n"
"         [6.7500e+00, 6.8750e+00, 7.0000e+00,  ..., 7.5000e+00,\n"
"          7.6250e+00, 7.7500e+00]],\n"
"\n"
"        [[7.8750e+00, 8.0000e+00, 8.1250e+00,  ..., 8.6250e+00,\n"
"          8.7500e+00, 8.8750e+00],\n"
"         [9.0000e+00, 9.1250e+00, 9.2500e+00,  ..., 9.7500e+00,\n"
"          9.8750e+00, 1.0000e+01],\n"
"         [1.0125e+01, 1.0250e+01, 1.0375e+01,  ..., 1.0875e+01,\n"
"          1.1000e+01, 1.1125e+01],\n"
"         ...,\n"
"         [1.2375e+01, 1.2500e+01, 1.2625e+01,  ..., 1.3125e+01,\n"
"          1.3250e+01, 1.3375e+01],\n"
"         [1.3500e+01, 1.3625e+01, 1.3750e+01,  ..., 1.4250e+01,\n"
"          1.4375e+01, 1.4500e+01],\n"
"         [1.4625e+01, 1.4750e+01, 1.4875e+01,  ..., 1.5375e+01,\n"
"          1.5500e+01, 1.5625e+01]],\n"
"\n"
"        [[1.5750e+01, 1.5875e+01, 1.6000e+01,  ..., 1.6500e+01,\n"
"          1.6625e+01, 1.6750e+01],\n"
"         [1.6875e+01, 1.7000e+01, 1.7125e+01,  ..., 1.7625e+01,\n"
"          1.7750e+01, 1.7875e+01],\n"
"         [1.8000e+01, 1.8125e+01, 1.8250e+01,  ..., 1.8750e+01,\n"
"          1.8875e+01, 1.9000e+01],\n"
"         ...,\n"
"         [2.0250e+01, 2.0375e+01, 2.0500e+01,  ..., 2.1000e+01,\n"
"          2.1125e+01, 2.1250e+01],\n"
"         [2.1375e+01, 2.1500e+01, 2.1625e+01,  ..., 2.2125e+01,\n"
"          2.2250e+01, 2.2375e+01],\n"
"         [2.2500e+01, 2.2625e+01, 2.2750e+01,  ..., 2.3250e+01,\n"
"          2.3375e+01, 2.3500e+01]],\n"
"\n"
"        ...,\n"
"\n"
"        [[2.9138e+02, 2.9150e+02, 2.9162e+02,  ..., 2.9212e+02,\n"
"          2.9225e+02, 2.9238e+02],\n"
"         [2.9250e+02, 2.9262e+02, 2.9275e+02,  ..., 2.9325e+02,\n"
"          2.9338e+02, 2.9350e+02],\n"
"         [2.9362e+02, 2.9375e+02, 2.9388e+02,  ..., 2.9438e+02,\n"
"          2.9450e+02, 2.9462e+02],\n"
"         ...,\n"
"         [2.9588e+02, 2.9600e+02, 2.9612e+02,  ..., 2.9662e+02,\n"
"          2.9675e+02, 2.9688e+02],\n"
"         [2.9700e+02, 2.9712e+02, 2.9725e+02,  ..., 2.9775e+02,\n"
"          2.9788e+02, 2.9800e+02],\n"
"         [2.9812e+02, 2.9825e+02, 2.9838e+02,  ..., 2.9888e+02,\n"
"          2.9900e+02, 2.9912e+02]],\n"
"\n"
"        [[2.9925e+02, 2.9938e+02, 2.9950e+02,  ..., 3.0000e+02,\n"
"          3.0012e+02, 3.0025e+02],\n"
"         [3.0038e+02, 3.0050e+02, 3.0062e+02,  ..., 3.0112e+02,\n"
"          3.0125e+02, 3.0138e+02],\n"
"         [3.0150e+02, 3.0162e+02, 3.0175e+02,  ..., 3.0225e+02,\n"
"          3.0238e+02, 3.0250e+02],\n"
"         ...,\n"
"         [3.0375e+02, 3.0388e+02, 3.0400e+02,  ..., 3.0450e+02,\n"
"          3.0462e+02, 3.0475e+02],\n"
"         [3.0488e+02, 3.0500e+02, 3.0512e+02,  ..., 3.0562e+02,\n"
"          3.0575e+02, 3.0588e+02],\n"
"         [3.0600e+02, 3.0612e+02, 3.0625e+02,  ..., 3.0675e+02,\n"
"          3.0688e+02, 3.0700e+02]],\n"
"\n"
"        [[3.0712e+02, 3.0725e+02, 3.0738e+02,  ..., 3.0788e+02,\n"
"          3.0800e+02, 3.0812e+02],\n"
"         [3.0825e+02, 3.0838e+02, 3.0850e+02,  ..., 3.0900e+02,\n"
"          3.0912e+02, 3.0925e+02],\n"
"         [3.0938e+02, 3.0950e+02, 3.0962e+02,  ..., 3.1012e+02,\n"
"          3.1025e+02, 3.1038e+02],\n"
"         ...,\n"
"         [3.1162e+02, 3.1175e+02, 3.1188e+02,  ..., 3.1238e+02,\n"
"          3.1250e+02, 3.1262e+02],\n"
"         [3.1275e+02, 3.1288e+02, 3.1300e+02,  ..., 3.1350e+02,\n"
"          3.1362e+02, 3.1375e+02],\n"
"         [3.1388e+02, 3.1400e+02, 3.1412e+02,  ..., 3.1462e+02,\n"
"          3.1475e+02, 3.1488e+02]]])\n" },
{FSDP_I32, IOTA, 2, {1001, 1}, {0},
"tensor([[   0],\n"
"        [   1],\n"
"        [   2],\n"
"        ...,\n"
"        [ 998],\n"
"        [ 999],\n"
"        [1000]], dtype=torch.int32)\n" },

};
/* clang-format on */

static char *printed(const fsdp_tensor *t)
{
    FILE *file = test_begin_text();

    CHECK_OK(fsdp_tensor_print(t, file));
    return test_end_text(file);
}

static fsdp_tensor *tensor_of(fsdp_context *context, const example *e)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_empty(test_device(context), e->dtype, e->ndim, e->shape));
    int64_t numel = fsdp_tensor_numel(t);
    float *values = calloc((size_t)numel + 1, sizeof *values);

    for (int64_t i = 0; i < numel; i++)
        values[i] = e->source == LISTED    ? e->values[i]
                    : e->source == IOTA    ? (float)i
                    : e->source == EIGHTHS ? (float)i / 8
                                           : 0;
    CHECK_OK(fsdp_tensor_write(t, FSDP_F32, values));
    free(values);
    return t;
}

CONTEXT_TEST(tensors_print_as_pytorch_prints_them)
{
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        fsdp_tensor *t;
        char *text;
        int64_t live;

        CHECK_OK(fsdp_scope_begin(context));
        t = tensor_of(context, &examples[i]);
        live = test_live_bytes(context);
        text = printed(t);
        CHECK_STRING(text, examples[i].text);
        CHECK_EQ(test_live_bytes(context), live);
        fsdp_scope_end(context, NULL);
    }
}

CONTEXT_TEST(a_view_prints_its_own_elements)
{
    fsdp_tensor *t = tensor_of(context, &(example){FSDP_I64, IOTA, 2, {3, 4}, {0}, ""}), *view = NULL;
    char *text;

    CHECK_OK(fsdp__view_transpose(t, 0, 1, &view));
    text = printed(view);
    CHECK_STRING(text, "tensor([[ 0,  4,  8],\n        [ 1,  5,  9],\n        [ 2,  6, 10],\n        [ 3,  7, 11]])\n");
    fsdp_tensor_unref(view);
}

CONTEXT_TEST(meta_tensors_print_their_shape)
{
    fsdp_device *meta = fsdp_meta(context);
    char *text;

    text = printed(CHECK_PTR(fsdp_empty(meta, FSDP_F32, FSDP_SHAPE(2, 3))));
    CHECK_STRING(text, "tensor(..., device='meta', size=(2, 3))\n");
    text = printed(CHECK_PTR(fsdp_empty(meta, FSDP_BF16, FSDP_SHAPE(1001))));
    CHECK_STRING(text, "tensor(..., device='meta', size=(1001,), dtype=torch.bfloat16)\n");
    text = printed(CHECK_PTR(fsdp_empty(meta, FSDP_I64, 0, NULL)));
    CHECK_STRING(text, "tensor(..., device='meta', size=(), dtype=torch.int64)\n");
}

CONTEXT_TEST(a_failed_write_is_reported)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(3)));
    FILE *full = fopen("/dev/full", "w");

    CHECK(full != NULL);
    setvbuf(full, NULL, _IONBF, 0);
    CHECK_ERROR(fsdp_tensor_print(t, full), FSDP_IO, "cannot print a tensor");
    fclose(full);
    CHECK_ERROR(fsdp_tensor_print(NULL, stdout), FSDP_IO,
                "the tensor is NULL; the last error before that: cannot print");
    CHECK_STATUS(fsdp_tensor_print(t, NULL), FSDP_INVALID);
}

CONTEXT_TEST(any_allocation_may_fail)
{
    fsdp_tensor *t = tensor_of(context, &(example){FSDP_F32, EIGHTHS, 3, {8, 9, 15}, {0}, ""});
    int64_t live = test_live_bytes(context);
    FILE *nowhere = fopen("/dev/null", "w");

    CHECK(nowhere != NULL);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_tensor_print(t, nowhere));
        CHECK_EQ(test_live_bytes(context), live);
        CHECK_EQ(t->storage->refs, 1);
    }
    fclose(nowhere);
}
