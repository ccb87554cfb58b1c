/* What this library makes of a model folder, for interop.py to compare: FOLDER TO DTYPE LIMIT STEPS. Trains it by so
 * many steps of SGD, writes the folder again, as a run's export, as TO, in files of at most LIMIT bytes, and prints
 * logits of two sequences of eight tokens, a number a line. Links: optim */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "fsdp/comm.h"
#include "fsdp/optim.h"
#include "hub/hub.h"

enum {
    SEQUENCES = 2,
    TOKENS = 8
};

/* Makes ids (step i + first) % vocab_size. */
static fsdp_tensor *make_ids(fsdp_device *device, int step, int first, int64_t vocab_size)
{
    int32_t ids[SEQUENCES * TOKENS];

    for (int i = 0; i < SEQUENCES * TOKENS; i++)
        ids[i] = (int32_t)((step * i + first) % vocab_size);
    return fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(SEQUENCES, TOKENS), ids);
}

static fsdp_status train_step(fsdp_module *model, fsdp_device *device, fsdp_optimizer *optimizer, int64_t vocab_size)
{
    fsdp_tensor *loss = fsdp_call(model, make_ids(device, 7, 3, vocab_size), make_ids(device, 5, 1, vocab_size));

    FSDP_TRY(loss ? fsdp_backward(loss) : fsdp_last_status());
    FSDP_TRY(fsdp_optimizer_step(optimizer));
    return fsdp_optimizer_zero_grad(optimizer);
}

static fsdp_status train(fsdp_context *context, fsdp_module *model, int steps, int64_t vocab_size)
{
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};
    fsdp_optimizer *optimizer = NULL;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp_module_parameters(model, &parameters));
    FSDP_TRY(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.05}, &optimizer));
    for (int i = 0; i < steps && status == FSDP_OK; i++) {
        status = fsdp_scope_begin(context);
        FSDP_TRY_GOTO(status, status, out);
        status = train_step(model, fsdp_cpu(context), optimizer, vocab_size);
        fsdp_scope_end(context, NULL);
    }
out:
    fsdp_optimizer_free(optimizer);
    return status;
}

static fsdp_status print_logits(fsdp_module *model, fsdp_device *device, int64_t vocab_size)
{
    size_t numel = (size_t)(SEQUENCES * TOKENS * vocab_size);
    float *values = fsdp__malloc(numel * sizeof *values);
    fsdp_tensor *logits;
    fsdp_status status;

    if (!values)
        return FSDP_NO_MEMORY;
    logits = fsdp_call(model, make_ids(device, 7, 3, vocab_size));
    status = logits ? fsdp_tensor_read(logits, FSDP_F32, values) : fsdp_last_status();
    for (size_t i = 0; i < numel && status == FSDP_OK; i++)
        printf("%.9g\n", (double)values[i]);
    fsdp__free(values);
    return status;
}

/* Writes the model as a run exports one that came from a folder. */
static fsdp_status export(fsdp_context *context, const fsdp__hub_target *target, const fsdp_state_dict *state,
                          const fsdp_model_config *config, fsdp_dtype dtype, uint64_t limit_bytes)
{
    fsdp_hub_hold *hold = fsdp__hub_hold_create(context, target);
    fsdp_status status;

    FSDP_TRY(hold ? FSDP_OK : fsdp_last_status());
    status = fsdp__hub_hold_begin(hold);
    if (status == FSDP_OK)
        status = fsdp__hub_save_held(hold, state, config, dtype, fsdp_world(context), limit_bytes);
    fsdp__hub_hold_free(hold);
    return status;
}

static fsdp_status run(fsdp_context *context, const char *from, const char *to, fsdp_dtype dtype, uint64_t limit_bytes,
                       int steps)
{
    fsdp_device *device = fsdp_cpu(context);
    fsdp_state_dict *state = NULL;
    fsdp_module *model = NULL;
    fsdp_model_config config;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp_hub_read_config(from, &config));
    FSDP_TRY(fsdp_hub_check(context, from, &config));
    model = fsdp_model_create(context, device, &config);
    FSDP_TRY(model ? FSDP_OK : fsdp_last_status());
    FSDP_TRY_GOTO(status, fsdp_state_dict_from_module(model, &state), out);
    FSDP_TRY_GOTO(status, fsdp_hub_load(from, state, &config), out);
    FSDP_TRY_GOTO(status, train(context, model, steps, config.vocab_size), out);
    FSDP_TRY_GOTO(
        status, export(context, &(fsdp__hub_target){.folder = to, .source = from}, state, &config, dtype, limit_bytes),
        out);
    fsdp_module_train(model, false);
    FSDP_TRY_GOTO(status, fsdp_scope_begin(context), out);
    status = print_logits(model, device, config.vocab_size);
    fsdp_scope_end(context, NULL);
out:
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    return status;
}

int main(int argc, char **argv)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    fsdp_dtype dtype = FSDP_DTYPE_NONE;
    fsdp_context *context = NULL;
    fsdp_status status;

    for (size_t i = 0; argc == 6 && i < FSDP__COUNT_OF(dtypes); i++)
        if (strcmp(argv[3], fsdp_dtype_name(dtypes[i])) == 0)
            dtype = dtypes[i];
    if (dtype == FSDP_DTYPE_NONE) {
        fprintf(stderr, "usage: program_interop FOLDER TO DTYPE LIMIT STEPS\n");
        return 2;
    }
    status = fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context);
    if (status == FSDP_OK)
        status = run(context, argv[1], argv[2], dtype, strtoull(argv[4], NULL, 10), atoi(argv[5]));
    if (status != FSDP_OK)
        fprintf(stderr, "%s\n", fsdp_last_error());
    fsdp_context_free(context);
    return status == FSDP_OK ? 0 : 1;
}
