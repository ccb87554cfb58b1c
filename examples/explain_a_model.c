/* explain_a_model.c - shows what sharding does to a model of your own, before it is trained: who holds what, what is
 * gathered when, what it costs, on as many ranks as you like. One process does all of it.
 *
 *     ./explain_a_model                    4 ranks, fsdp2
 *     ./explain_a_model 16 zero2 class     ranks, parallelism.strategy, parallelism.wrap_policy */
#include <fsdp/fsdp.h>
#include <stdlib.h>
#include <string.h>

enum {
    IN = 64,
    WIDE = 256,
    CLASSES = 10,
    BATCH = 32
};

/* Builds the model. Called for every rank; nothing is computed, so nothing gets values. */
static fsdp_module *build(void *arg, fsdp_context *context, fsdp_device *device)
{
    fsdp_module *layers[] = {fsdp_linear_create(context, device, IN, WIDE, NULL), fsdp_relu_create(context),
                             fsdp_linear_create(context, device, WIDE, WIDE, NULL), fsdp_relu_create(context),
                             fsdp_linear_create(context, device, WIDE, CLASSES, NULL)};

    (void)arg;
    return fsdp_sequential_create(context, layers, 5);
}

/* Runs one forward, as the training loop does. */
static fsdp_tensor *loss(void *arg, fsdp_module *module, fsdp_device *device)
{
    fsdp_tensor *x = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(BATCH, IN));
    fsdp_tensor *targets = fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(BATCH));

    (void)arg;
    return fsdp_cross_entropy(fsdp_call(module, x), targets);
}

static fsdp_status explain(int argc, char **argv, fsdp_train_config *config)
{
    const fsdp_explain_model model = {.name = "three linear layers", .build = build, .loss = loss};
    const fsdp_explain_options options = {.world_size = argc > 1 ? atoi(argv[1]) : 4, .sweep = true};
    fsdp_explanation *e = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp_train_config_set(config, "parallelism.strategy", argc > 2 ? argv[2] : "fsdp2"));
    FSDP_TRY(fsdp_train_config_set(config, "parallelism.wrap_policy", argc > 3 ? argv[3] : "class"));
    if (argc <= 3 || strcmp(argv[3], "class") == 0)
        FSDP_TRY(fsdp_train_config_set(config, "parallelism.wrap_classes", "Linear"));
    FSDP_TRY(fsdp_explain(&model, config, &options, &e));
    status = fsdp_explanation_print(e, stdout);
    fsdp_explanation_free(e);
    return status;
}

int main(int argc, char **argv)
{
    fsdp_train_config *config = NULL;
    fsdp_status status = fsdp_train_config_create(&config);

    if (status == FSDP_OK)
        status = explain(argc, argv, config);
    if (status != FSDP_OK)
        fprintf(stderr, "explain_a_model: %s\n", fsdp_last_error());
    fsdp_train_config_free(config);
    return status != FSDP_OK;
}
