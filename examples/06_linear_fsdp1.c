/* 06_linear_fsdp1.c - Linear(128, 10) on 1,024 random samples, as somebody who knows FSDP1 writes it: a DeviceMesh,
 * use_orig_params, a DistributedSampler whose epoch is set, SGD, three epochs. PyTorch's words are on the right.
 *
 *     fsdp run -n 4 -- ./06_linear_fsdp1 */
#include <fsdp/fsdp.h>
#include <stdlib.h>

enum {
    SAMPLES = 1024,
    FEATURES = 128,
    CLASSES = 10,
    BATCH = 32,
    EPOCHS = 3
};

/* ---- the samples: which of the first ten of 128 numbers is the largest ---- */

typedef struct samples {
    float x[SAMPLES][FEATURES];
    int32_t y[SAMPLES];
} samples;

static void make_samples(samples *s)
{
    unsigned seed = 1;

    for (int i = 0; i < SAMPLES; i++) {
        for (int j = 0; j < FEATURES; j++)
            s->x[i][j] = (float)rand_r(&seed) / (float)RAND_MAX - 0.5f;
        s->y[i] = 0;
        for (int j = 1; j < CLASSES; j++)
            s->y[i] = s->x[i][j] > s->x[i][s->y[i]] ? j : s->y[i];
    }
}

/* ---- the run ---- */

typedef struct run {
    fsdp_context *c;
    fsdp_mesh *mesh;
    fsdp_module *model;
    fsdp_optimizer *sgd;
    fsdp_dataset data;
    fsdp_distributed_sampler *sampler;
    fsdp_data_loader *loader;
} run;

static fsdp_status build(run *r, const samples *s)
{
    const int64_t world = fsdp_context_world_size(r->c);
    const fsdp_data_field fields[] = {{.name = "x", .dtype = FSDP_F32, .ndim = 1, .shape = {FEATURES}},
                                      {.name = "y", .dtype = FSDP_I32}};
    const void *const arrays[] = {s->x, s->y};
    const fsdp_sampler_options shuffled = {
        .length = SAMPLES, .rank = fsdp_context_rank(r->c), .world_size = (int)world, .shuffle = true};
    fsdp_data_loader_options batches = {.batch_size = BATCH};
    fsdp_parameters parameters;

    FSDP_TRY(fsdp_mesh_create(r->c, 1, &world, NULL, &r->mesh)); /* init_device_mesh("cpu", (world,)) */
    r->model = fsdp_linear_create(r->c, fsdp_cpu(r->c), FEATURES, CLASSES, NULL); /* nn.Linear(128, 10) */
    if (!r->model)
        return fsdp_last_status();
    FSDP_TRY(fsdp_module_initialize(r->model, 1));
    /* FSDP(model, device_mesh=mesh, use_orig_params=True) */
    FSDP_TRY(fsdp_fsdp1_wrap(r->model, &(fsdp_fsdp1_options){.mesh = r->mesh, .use_orig_params = true}));
    FSDP_TRY(fsdp_module_parameters(r->model, &parameters));                       /* model.parameters() */
    FSDP_TRY(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 2}, &r->sgd)); /* SGD(..., lr=2) */
    fsdp_parameters_release(&parameters);
    FSDP_TRY(fsdp_dataset_from_memory(fields, arrays, 2, SAMPLES, &r->data)); /* TensorDataset(x, y) */
    FSDP_TRY(fsdp_distributed_sampler_create(&shuffled, &r->sampler));        /* DistributedSampler(dataset) */
    batches.sampler = r->sampler;
    return fsdp_data_loader_create(&r->data, &batches, &r->loader); /* DataLoader(dataset, 32, sampler=sampler) */
}

/* Trains for one epoch; *mean is this rank's loss. */
static fsdp_status train(run *r, int epoch, float *mean)
{
    fsdp_device *cpu = fsdp_cpu(r->c);
    fsdp_data_batch batch;
    double loss, sum = 0;
    bool more;

    FSDP_TRY(fsdp_distributed_sampler_set_epoch(r->sampler, epoch)); /* sampler.set_epoch(epoch) */
    FSDP_TRY(fsdp_data_loader_next(r->loader, &batch, &more));       /* for x, y in loader: */
    while (more) {
        fsdp_tensor *logits, *error;

        FSDP_TRY(fsdp_scope_begin(r->c));
        logits = fsdp_call(r->model, fsdp_batch_tensor(cpu, &batch, 0));
        error = fsdp_cross_entropy(logits, fsdp_batch_tensor(cpu, &batch, 1));
        if (!error)
            return fsdp_last_status();
        FSDP_TRY(fsdp_tensor_item(error, &loss));
        FSDP_TRY(fsdp_backward(error));             /* loss.backward() */
        FSDP_TRY(fsdp_optimizer_step(r->sgd));      /* optimizer.step() */
        FSDP_TRY(fsdp_optimizer_zero_grad(r->sgd)); /* optimizer.zero_grad() */
        fsdp_scope_end(r->c, NULL);
        sum += loss;
        FSDP_TRY(fsdp_data_loader_next(r->loader, &batch, &more));
    }
    *mean = (float)(sum / (double)fsdp_data_loader_length(r->loader));
    return FSDP_OK;
}

static fsdp_status train_all(run *r)
{
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(r->c));
    float first = 0, loss = 0;

    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        const int64_t *mine;

        FSDP_TRY(train(r, epoch, &loss));
        FSDP_TRY(fsdp_all_reduce(fsdp_world(r->c), &loss, &loss, 1, FSDP_F32, FSDP_AVG, stream));
        first = epoch == 0 ? loss : first;
        mine = fsdp_distributed_sampler_indices(r->sampler);
        if (fsdp_context_rank(r->c) == 0)
            printf("epoch %d: samples %lld %lld %lld ... %lld of them on rank 0; loss %.3f\n", epoch,
                   (long long)mine[0], (long long)mine[1], (long long)mine[2],
                   (long long)fsdp_distributed_sampler_length(r->sampler), loss);
    }
    return loss < first ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "the loss went from %g to %g", first, loss);
}

int main(void)
{
    samples *s = malloc(sizeof *s);
    run r = {0};
    fsdp_status status = fsdp_context_from_env(&r.c);

    make_samples(s);
    if (status == FSDP_OK)
        status = build(&r, s);
    if (status == FSDP_OK)
        status = train_all(&r);
    if (status != FSDP_OK)
        fprintf(stderr, "06_linear_fsdp1: %s\n", fsdp_last_error());
    fsdp_data_loader_free(r.loader);
    fsdp_distributed_sampler_free(r.sampler);
    fsdp_dataset_release(&r.data);
    fsdp_optimizer_free(r.sgd);
    fsdp_module_unref(r.model);
    fsdp_mesh_unref(r.mesh);
    fsdp_context_free(r.c);
    free(s);
    return status != FSDP_OK;
}
