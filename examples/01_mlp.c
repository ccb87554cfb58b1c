/* 01_mlp.c - a network of your own, trained in one process: it learns a surface over the unit square from points.
 * 02_mlp_sharded.c is the same program over ranks.
 *
 *     cc 01_mlp.c $(pkg-config --cflags --libs fsdp) -lm -o 01_mlp && ./01_mlp */
#include <fsdp/fsdp.h>
#include <math.h>
#include <stdlib.h>

enum {
    BATCH = 64,
    HIDDEN = 48,
    STEPS = 300
};

/* ---- the model: (B,2) -> (B,1) ---- */

typedef struct mlp {
    fsdp_module base; /* first */
    fsdp_module *in, *middle, *out;
} mlp;

static fsdp_tensor *mlp_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    mlp *m = (mlp *)self;
    fsdp_tensor *h = fsdp_gelu(fsdp_call(m->in, inputs[0]));

    (void)count;
    return fsdp_call(m->out, fsdp_gelu(fsdp_call(m->middle, h)));
}

static const fsdp_module_type mlp_type = {.name = "MLP", .forward = mlp_forward};

static fsdp_status mlp_create(fsdp_context *context, fsdp_device *device, fsdp_module **out)
{
    mlp *m = NULL;

    FSDP_TRY(fsdp_module_create(context, &mlp_type, sizeof *m, &m));
    *out = &m->base;
    m->in = fsdp_linear_create(context, device, 2, HIDDEN, NULL);
    FSDP_TRY(fsdp_module_add_child(&m->base, "in", m->in));
    m->middle = fsdp_linear_create(context, device, HIDDEN, HIDDEN, NULL);
    FSDP_TRY(fsdp_module_add_child(&m->base, "middle", m->middle));
    m->out = fsdp_linear_create(context, device, HIDDEN, 1, NULL);
    return fsdp_module_add_child(&m->base, "out", m->out);
}

/* ---- data: points and the height of the surface above them ---- */

static void make_points(float *x, float *y, unsigned seed)
{
    for (int i = 0; i < BATCH; i++) {
        x[2 * i] = (float)rand_r(&seed) / (float)RAND_MAX;
        x[2 * i + 1] = (float)rand_r(&seed) / (float)RAND_MAX;
        y[i] = sinf(3 * x[2 * i]) * cosf(4 * x[2 * i + 1]);
    }
}

/* ---- training ---- */

static fsdp_status step(fsdp_context *context, fsdp_module *model, fsdp_optimizer *adamw, int number, double *loss)
{
    float points[BATCH * 2], heights[BATCH];
    fsdp_tensor *x, *y, *difference, *error;

    make_points(points, heights, (unsigned)number);
    x = fsdp_from_data(fsdp_cpu(context), FSDP_F32, FSDP_SHAPE(BATCH, 2), points);
    y = fsdp_from_data(fsdp_cpu(context), FSDP_F32, FSDP_SHAPE(BATCH, 1), heights);
    difference = fsdp_add(fsdp_call(model, x), fsdp_scale(y, -1));
    error = fsdp_mean(fsdp_mul(difference, difference)); /* NULL if anything above failed */
    if (!error)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_item(error, loss));
    FSDP_TRY(fsdp_backward(error));
    FSDP_TRY(fsdp_optimizer_step(adamw));
    return fsdp_optimizer_zero_grad(adamw);
}

static fsdp_status train(fsdp_context *context, fsdp_module *model, fsdp_optimizer **adamw)
{
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_parameters parameters;
    double loss = 0;

    FSDP_TRY(fsdp_module_materialize(model, fsdp_cpu(context)));
    FSDP_TRY(fsdp_module_initialize(model, 42));
    FSDP_TRY(fsdp_module_print(model, stdout));
    options.lr = 5e-3f;
    FSDP_TRY(fsdp_module_parameters(model, &parameters));
    FSDP_TRY(fsdp_adamw_create(&parameters, &options, adamw));
    fsdp_parameters_release(&parameters);
    for (int i = 1; i <= STEPS; i++) {
        FSDP_TRY(fsdp_scope_begin(context)); /* the step's tensors are freed with its scope */
        FSDP_TRY(step(context, model, *adamw, i, &loss));
        fsdp_scope_end(context, NULL);
        if (i == 1 || i % 100 == 0)
            printf("step %3d  loss %.5f\n", i, loss);
    }
    return loss < 0.02 ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "the loss is still %g", loss);
}

int main(void)
{
    fsdp_context *context = NULL;
    fsdp_module *model = NULL;
    fsdp_optimizer *adamw = NULL;
    fsdp_status status = fsdp_context_create(NULL, &context);

    if (status == FSDP_OK)
        status = mlp_create(context, fsdp_meta(context), &model);
    if (status == FSDP_OK)
        status = train(context, model, &adamw);
    if (status != FSDP_OK)
        fprintf(stderr, "01_mlp: %s\n", fsdp_last_error());
    fsdp_optimizer_free(adamw);
    fsdp_module_unref(model);
    fsdp_context_free(context);
    return status != FSDP_OK;
}
