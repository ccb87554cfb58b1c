/* 07_adam_before_wrapping.c - SimpleModel (256 to 256 to 10), whose Adam is made before FSDP1 wraps it. With
 * use_orig_params the optimizer's parameters stay what they are, tensors of the model, so it goes on with this rank's
 * part of each. Without, a unit is one flat parameter, which the optimizer has never seen: that is refused.
 *
 *     fsdp run -n 2 -- ./07_adam_before_wrapping */
#include <fsdp/fsdp.h>

enum {
    BATCH = 32,
    STEPS = 5
};

static fsdp_status model_create(fsdp_context *c, fsdp_module **out)
{
    fsdp_module *layers[] = {fsdp_linear_create(c, fsdp_cpu(c), 256, 256, NULL), fsdp_relu_create(c),
                             fsdp_linear_create(c, fsdp_cpu(c), 256, 10, NULL)};

    *out = fsdp_sequential_create(c, layers, 3);
    return *out ? fsdp_module_initialize(*out, 1) : fsdp_last_status();
}

static fsdp_status adam_create(fsdp_module *model, fsdp_optimizer **adam)
{
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_parameters parameters;
    fsdp_status status;

    FSDP_TRY(fsdp_module_parameters(model, &parameters));
    status = fsdp_adam_create(&parameters, &options, adam);
    fsdp_parameters_release(&parameters);
    return status;
}

/* Runs one step on all ranks' samples: sample i, of class i mod 10, has its ones at i mod 10, i mod 10 + 10, ... */
static fsdp_status step(fsdp_module *model, fsdp_optimizer *adam, double *loss)
{
    fsdp_context *c = model->context;
    float x[BATCH * 256];
    int32_t classes[BATCH];
    fsdp_tensor *mean;

    for (int i = 0; i < BATCH; i++) {
        classes[i] = (i + fsdp_context_rank(c)) % 10;
        for (int j = 0; j < 256; j++)
            x[i * 256 + j] = j % 10 == classes[i] ? 1 : 0;
    }
    mean = fsdp_cross_entropy(fsdp_call(model, fsdp_from_data(fsdp_cpu(c), FSDP_F32, FSDP_SHAPE(BATCH, 256), x)),
                              fsdp_from_data(fsdp_cpu(c), FSDP_I32, FSDP_SHAPE(BATCH), classes));
    if (!mean)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_item(mean, loss));
    FSDP_TRY(fsdp_backward(mean));
    FSDP_TRY(fsdp_optimizer_step(adam));
    return fsdp_optimizer_zero_grad(adam);
}

static fsdp_status train(fsdp_module *model, fsdp_optimizer *adam)
{
    fsdp_context *c = model->context;
    fsdp_memory_stats memory;
    double first = 0, loss = 0;

    for (int i = 0; i < STEPS; i++) {
        FSDP_TRY(fsdp_scope_begin(c));
        FSDP_TRY(step(model, adam, &loss));
        fsdp_scope_end(c, NULL);
        first = i == 0 ? loss : first;
    }
    fsdp_device_memory(fsdp_cpu(c), &memory);
    if (fsdp_context_rank(c) == 0)
        printf("trains: loss %.3f -> %.3f; Adam holds %zu bytes on rank 0\n", first, loss,
               memory.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE]);
    return loss < first ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "the loss went from %g to %g", first, loss);
}

static fsdp_status run(fsdp_context *c, bool use_orig_params)
{
    fsdp_fsdp1_options options = {.use_orig_params = use_orig_params};
    fsdp_module *model = NULL;
    fsdp_optimizer *adam = NULL;
    fsdp_status status = model_create(c, &model);

    if (status == FSDP_OK)
        status = adam_create(model, &adam); /* before wrapping */
    if (status == FSDP_OK)
        status = fsdp_fsdp1_wrap(model, &options);
    if (status == FSDP_OK && fsdp_context_rank(c) == 0)
        printf("use_orig_params = %s: ", use_orig_params ? "true" : "false");
    if (status == FSDP_OK)
        status = train(model, adam);
    fsdp_optimizer_free(adam);
    fsdp_module_unref(model);
    return status;
}

int main(void)
{
    fsdp_context *c = NULL;
    fsdp_status status = fsdp_context_from_env(&c), refused;

    if (status == FSDP_OK)
        status = run(c, true);
    if (status == FSDP_OK) {
        refused = run(c, false);
        if (refused == FSDP_OK)
            status = FSDP_FAIL(FSDP_STATE, "an optimizer of parts was taken for flat parameters");
        else if (fsdp_context_rank(c) == 0)
            printf("%s\n", fsdp_last_error());
    }
    if (status != FSDP_OK)
        fprintf(stderr, "07_adam_before_wrapping: %s\n", fsdp_last_error());
    fsdp_context_free(c);
    return status != FSDP_OK;
}
