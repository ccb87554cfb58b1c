/* moving_window.c - sizes of moving windows. */
#include "ops/moving_window.h"

enum {
    MOST = 1 << 30 /* limits every number, so that sums and products of two do not overflow */
};

bool fsdp__window_make(const char *op, const int64_t kernel[2], const int64_t stride[2], const int64_t padding[2],
                       const int64_t dilation[2], fsdp__window *out)
{
    for (int i = 0; i < 2; i++) {
        out->kernel[i] = kernel[i];
        out->stride[i] = stride[i] ? stride[i] : 1;
        out->padding[i] = padding[i];
        out->dilation[i] = dilation && dilation[i] ? dilation[i] : 1;
        if (out->kernel[i] >= 1 && out->stride[i] >= 1 && out->padding[i] >= 0 && out->dilation[i] >= 1 &&
            out->kernel[i] <= MOST && out->stride[i] <= MOST && out->padding[i] <= MOST && out->dilation[i] <= MOST)
            continue;
        FSDP_FAIL(FSDP_INVALID,
                  "%s: kernel %lld, stride %lld, padding %lld and dilation %lld: the padding must be at least 0, all "
                  "others at least 1",
                  op, (long long)out->kernel[i], (long long)out->stride[i], (long long)out->padding[i],
                  (long long)out->dilation[i]);
        return false;
    }
    return true;
}

bool fsdp__window_result(const char *op, const fsdp__window *w, const fsdp_tensor *x, int64_t out[2])
{
    if (x->shape[2] < 1 || x->shape[3] < 1 || x->shape[2] > MOST || x->shape[3] > MOST)
        return fsdp__op_bad(op, "input", "of a height and width of at least 1", x);
    for (int i = 0; i < 2; i++) {
        int64_t room = x->shape[2 + i] + 2 * w->padding[i] - w->dilation[i] * (w->kernel[i] - 1) - 1;

        if (room < 0) {
            FSDP_FAIL(FSDP_INVALID, "%s: the kernel spans %lld of the %s of input %s, which has %lld with its padding",
                      op, (long long)(w->dilation[i] * (w->kernel[i] - 1) + 1), i == 0 ? "height" : "width",
                      FSDP__SHAPE_OF(x), (long long)(x->shape[2 + i] + 2 * w->padding[i]));
            return false;
        }
        out[i] = room / w->stride[i] + 1;
    }
    return true;
}
