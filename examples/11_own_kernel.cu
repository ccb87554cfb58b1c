/* 11_own_kernel.cu - an operation of one's own, y = x * sigmoid(x), with its gradient, as kernels for a GPU that run in
 * the order of the library's other work; where there is no GPU the same functions compute on the processor. Trains a
 * linear layer behind it by SGD.
 *
 *     nvcc -o own_kernel 11_own_kernel.cu $(pkg-config --cflags --libs fsdp) && ./own_kernel */
#include <cuda_runtime.h>
#include <fsdp/fsdp.h>
#include <math.h>
#include <stdio.h>

static const int64_t ROWS = 256, COLS = 64;

/* ---- the kernels: one element a thread ---- */

static __host__ __device__ float forward_of(float x)
{
    return x / (1.0f + expf(-x));
}

static __host__ __device__ float backward_of(float x, float dy)
{
    float p = 1.0f / (1.0f + expf(-x));

    return dy * p * (1.0f + x * (1.0f - p));
}

static __global__ void forward_kernel(const float *x, float *y, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        y[i] = forward_of(x[i]);
}

static __global__ void backward_kernel(const float *x, const float *dy, float *dx, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        dx[i] = backward_of(x[i], dy[i]);
}

/* ---- as the library calls them: data[i] is where tensor i begins ---- */

static fsdp_status issued(void)
{
    cudaError_t error = cudaGetLastError();

    return error == cudaSuccess ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "%s", cudaGetErrorString(error));
}

static fsdp_status run_forward(fsdp_stream *stream, const void *arg, void *const *data)
{
    cudaStream_t native = (cudaStream_t)fsdp_stream_native(stream);
    int64_t n = *(const int64_t *)arg;
    const float *x = (const float *)data[0];
    float *y = (float *)data[1];

    if (native) {
        forward_kernel<<<(unsigned)((n + 255) / 256), 256, 0, native>>>(x, y, n);
        return issued();
    }
    if (fsdp_last_status() != FSDP_OK) /* a GPU that has failed: the host must not follow its pointers */
        return fsdp_last_status();
    for (int64_t i = 0; i < n; i++)
        y[i] = forward_of(x[i]);
    return FSDP_OK;
}

static fsdp_status run_backward(fsdp_stream *stream, const void *arg, void *const *data)
{
    cudaStream_t native = (cudaStream_t)fsdp_stream_native(stream);
    int64_t n = *(const int64_t *)arg;
    const float *x = (const float *)data[0], *dy = (const float *)data[1];
    float *dx = (float *)data[2];

    if (native) {
        backward_kernel<<<(unsigned)((n + 255) / 256), 256, 0, native>>>(x, dy, dx, n);
        return issued();
    }
    if (fsdp_last_status() != FSDP_OK) /* a GPU that has failed: the host must not follow its pointers */
        return fsdp_last_status();
    for (int64_t i = 0; i < n; i++)
        dx[i] = backward_of(x[i], dy[i]);
    return FSDP_OK;
}

/* ---- the operation ---- */

static fsdp_tensor *like(const fsdp_tensor *x)
{
    return fsdp_empty(fsdp_tensor_device(x), FSDP_F32, fsdp_tensor_ndim(x), fsdp_tensor_shape(x));
}

static fsdp_status swish_backward(fsdp_node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dy = fsdp_contiguous(grads[0]), *reads[] = {fsdp_node_saved(node, 0), dy}, *dx = dy ? like(dy) : NULL;
    int64_t n = dy ? fsdp_tensor_numel(dy) : 0;

    if (!dx)
        return fsdp_last_status();
    FSDP_TRY(fsdp_launch_device_kernel("swish_backward", run_backward, &n, sizeof n, reads, 2, &dx, 1));
    return fsdp_node_give(node, 0, dx);
}

static fsdp_tensor *swish(fsdp_tensor *x)
{
    static const fsdp_operation operation = {"swish", swish_backward, NULL};
    int64_t n = fsdp_tensor_numel(x);
    fsdp_tensor *y = like(x);

    if (!y || fsdp_launch_device_kernel("swish", run_forward, &n, sizeof n, &x, 1, &y, 1) != FSDP_OK)
        return NULL;
    return fsdp_record(&operation, &x, 1, &y, 1, &x, 1, NULL, 0) == FSDP_OK ? y : NULL;
}

/* ---- a step: the layer and the operation learn y = swish(x) of one feature at a time ---- */

static fsdp_status step(fsdp_device *device, fsdp_module *layer, fsdp_optimizer *sgd, double *loss)
{
    static float points[256 * 64], wanted[256 * 64];
    const int64_t shape[] = {ROWS, COLS};
    fsdp_tensor *x, *y, *error;

    for (int64_t i = 0; i < ROWS * COLS; i++) {
        points[i] = (float)((i * 2654435761u) % 2000u) / 500.0f - 2.0f;
        wanted[i] = forward_of(points[i]);
    }
    x = fsdp_from_data(device, FSDP_F32, 2, shape, points);
    y = fsdp_from_data(device, FSDP_F32, 2, shape, wanted);
    x = x ? fsdp_call(layer, x) : NULL;
    x = x ? swish(x) : NULL;
    error = x && y ? fsdp_mse_loss(x, y, FSDP_LOSS_MEAN) : NULL;
    if (!error)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_item(error, loss));
    FSDP_TRY(fsdp_backward(error));
    FSDP_TRY(fsdp_optimizer_step(sgd));
    return fsdp_optimizer_zero_grad(sgd);
}

static fsdp_status train(fsdp_context *context, fsdp_device *device, fsdp_module *layer, fsdp_optimizer **sgd)
{
    fsdp_sgd_options options = {};
    fsdp_parameters parameters;
    double first = 0, loss = 0;

    options.lr = 2.0f;
    FSDP_TRY(fsdp_module_initialize(layer, 42));
    FSDP_TRY(fsdp_module_parameters(layer, &parameters));
    FSDP_TRY(fsdp_sgd_create(&parameters, &options, sgd));
    fsdp_parameters_release(&parameters);
    for (int i = 1; i <= 200; i++) {
        FSDP_TRY(fsdp_scope_begin(context));
        FSDP_TRY(step(device, layer, *sgd, &loss));
        fsdp_scope_end(context, NULL);
        first = i == 1 ? loss : first;
        if (i == 1 || i % 50 == 0)
            printf("step %3d  loss %.5f\n", i, loss);
    }
    return loss < first / 10 ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "the loss is still %g", loss);
}

int main(void)
{
    fsdp_context *context = NULL;
    fsdp_module *layer = NULL;
    fsdp_optimizer *sgd = NULL;
    fsdp_device *device = NULL;
    fsdp_status status = fsdp_context_create(NULL, &context);

    if (status == FSDP_OK) {
        device = fsdp_device_open(context, "cuda");
        if (!device) {
            printf("no GPU: %s\n", fsdp_last_error());
            device = fsdp_cpu(context);
        }
        layer = fsdp_linear_create(context, device, COLS, COLS, NULL);
        status = layer ? train(context, device, layer, &sgd) : fsdp_last_status();
    }
    if (status == FSDP_OK)
        printf("trained on %s\n", fsdp_device_name(device));
    else
        fprintf(stderr, "own_kernel: %s\n", fsdp_last_error());
    fsdp_optimizer_free(sgd);
    fsdp_module_unref(layer);
    fsdp_context_free(context);
    return status != FSDP_OK;
}
