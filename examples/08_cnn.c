/* 08_cnn.c - a small CNN on images in IDX files, MNIST's format, sharded over ranks. Without files it makes some: 256
 * pictures of 12 x 12 with a bar that lies, stands, or leans one way or the other. For MNIST unpack its files and run
 *
 *     ./08_cnn train-images-idx3-ubyte train-labels-idx1-ubyte
 *
 *     fsdp run -n 3 -- ./08_cnn */
#include <fsdp/fsdp.h>
#include <stdlib.h>

enum {
    BATCH = 16,
    EPOCHS = 4,
    CLASSES = 10
};

/* ---- files: two zeros, the type (8: bytes), how many dimensions, each of them as 4 bytes, the data ---- */

static fsdp_status write_idx(const char *path, int ndim, const int *shape, const uint8_t *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    bool ok = file != NULL;

    ok = ok && fwrite((const uint8_t[]){0, 0, 8, (uint8_t)ndim}, 4, 1, file) == 1;
    for (int i = 0; i < ndim; i++)
        ok = ok && fwrite((const uint8_t[]){0, 0, (uint8_t)(shape[i] >> 8), (uint8_t)shape[i]}, 4, 1, file) == 1;
    ok = ok && fwrite(data, bytes, 1, file) == 1;
    if (file && fclose(file) != 0)
        ok = false;
    return ok ? FSDP_OK : FSDP_FAIL(FSDP_IO, "cannot write '%s'", path);
}

static fsdp_status make_files(const char *images, const char *labels)
{
    static const int shape[] = {256, 12, 12};
    uint8_t *pixels = calloc(256, 144), kinds[256];
    unsigned seed = 1;
    fsdp_status status;

    for (int i = 0; i < 256; i++) {
        int at = 3 + rand_r(&seed) % 6;

        kinds[i] = (uint8_t)(i % 4);
        for (int j = 0; j < 12; j++) { /* row j and column `at`, or the other way, or both */
            int row = kinds[i] == 0 ? at : j, column = kinds[i] == 0 ? j : kinds[i] == 1 ? at : (j + at) % 12;

            pixels[i * 144 + row * 12 + (kinds[i] == 3 ? 11 - column : column)] = (uint8_t)(155 + rand_r(&seed) % 100);
        }
    }
    status = write_idx(images, 3, shape, pixels, 256 * 144);
    free(pixels);
    return status == FSDP_OK ? write_idx(labels, 1, shape, kinds, 256) : status;
}

/* ---- the model: (N,1,H,W) -> (N,10) ---- */

static fsdp_module *cnn_create(fsdp_device *device, int64_t height, int64_t width)
{
    fsdp_context *c = fsdp_device_context(device);
    const fsdp_conv2d_layer_options same = {.conv.padding = {1, 1}};
    const fsdp_pool2d_options halve = {.kernel = {2, 2}};
    fsdp_module *layers[] = {fsdp_conv2d_create(c, device, 1, 8, 3, 3, &same),
                             fsdp_relu_create(c),
                             fsdp_max_pool2d_create(c, &halve),
                             fsdp_conv2d_create(c, device, 8, 16, 3, 3, &same),
                             fsdp_relu_create(c),
                             fsdp_max_pool2d_create(c, &halve),
                             fsdp_flatten_create(c, 1, -1),
                             fsdp_linear_create(c, device, 16 * (height / 4) * (width / 4), CLASSES, NULL)};

    return fsdp_sequential_create(c, layers, sizeof layers / sizeof *layers);
}

/* ---- the run ---- */

typedef struct run {
    fsdp_context *c;
    fsdp_module *model;
    fsdp_optimizer *adamw;
    fsdp_dataset data;
    fsdp_data_field fields[2]; /* of a batch: floats of 0 to 1, and i32 */
    fsdp_distributed_sampler *sampler;
    fsdp_data_loader *loader;
} run;

/* Converts images and labels of bytes into what the model takes: PyTorch's collate_fn. */
static fsdp_status collate(void *arg, int64_t size, void *const *items, void *const *out)
{
    const int64_t *shape = ((const run *)arg)->fields[0].shape, pixels = size * shape[1] * shape[2];

    for (int64_t i = 0; i < pixels; i++)
        ((float *)out[0])[i] = (float)((const uint8_t *)items[0])[i] / 255;
    for (int64_t i = 0; i < size; i++)
        ((int32_t *)out[1])[i] = ((const uint8_t *)items[1])[i];
    return FSDP_OK;
}

static fsdp_status open_data(run *r, const char *images, const char *labels)
{
    const fsdp_data_file files[] = {{"image", images}, {"label", labels}};
    fsdp_sampler_options order = {
        .rank = fsdp_context_rank(r->c), .world_size = fsdp_context_world_size(r->c), .shuffle = true};
    fsdp_data_loader_options batches = {.batch_size = BATCH, .workers = 1, .collate = collate, .collate_arg = r};

    FSDP_TRY(fsdp_dataset_open(files, 2, &r->data));
    r->fields[0] = (fsdp_data_field){.name = "image", .dtype = FSDP_F32, .ndim = 3, .shape = {1}};
    r->fields[0].shape[1] = r->data.fields[0].shape[0];
    r->fields[0].shape[2] = r->data.fields[0].shape[1];
    r->fields[1] = (fsdp_data_field){.name = "label", .dtype = FSDP_I32};
    order.length = r->data.length(r->data.arg);
    FSDP_TRY(fsdp_distributed_sampler_create(&order, &r->sampler));
    batches.sampler = r->sampler;
    batches.fields = r->fields;
    batches.field_count = 2;
    return fsdp_data_loader_create(&r->data, &batches, &r->loader);
}

static fsdp_status build(run *r)
{
    const fsdp_wrap_policy layers = {.kind = FSDP_WRAP_SIZE, .min_num_params = 1000}; /* the second conv, the linear */
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_parameters parameters;

    r->model = cnn_create(fsdp_meta(r->c), r->fields[0].shape[1], r->fields[0].shape[2]);
    if (!r->model)
        return fsdp_last_status();
    FSDP_TRY(fsdp_fully_shard_by_policy(r->model, &layers, NULL));
    FSDP_TRY(fsdp_module_materialize(r->model, fsdp_cpu(r->c)));
    FSDP_TRY(fsdp_module_initialize(r->model, 1));
    if (fsdp_context_rank(r->c) == 0)
        FSDP_TRY(fsdp_module_print(r->model, stdout));
    FSDP_TRY(fsdp_module_parameters(r->model, &parameters));
    options.lr = 1e-2;
    FSDP_TRY(fsdp_adamw_create(&parameters, &options, &r->adamw));
    fsdp_parameters_release(&parameters);
    return FSDP_OK;
}

static fsdp_status step(run *r, const fsdp_data_batch *batch, double *loss)
{
    fsdp_device *cpu = fsdp_cpu(r->c);
    fsdp_tensor *logits = fsdp_call(r->model, fsdp_batch_tensor(cpu, batch, 0));
    fsdp_tensor *error = fsdp_cross_entropy(logits, fsdp_batch_tensor(cpu, batch, 1));

    if (!error)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_item(error, loss));
    FSDP_TRY(fsdp_backward(error));
    FSDP_TRY(fsdp_optimizer_step(r->adamw));
    return fsdp_optimizer_zero_grad(r->adamw);
}

static fsdp_status train(run *r)
{
    fsdp_data_batch batch;
    double loss = 0, sum = 0, first = 0;
    bool more;

    for (int epoch = 0; epoch < EPOCHS; epoch++, first = epoch == 1 ? sum : first) {
        FSDP_TRY(fsdp_distributed_sampler_set_epoch(r->sampler, epoch));
        FSDP_TRY(fsdp_data_loader_next(r->loader, &batch, &more));
        for (sum = 0; more; sum += loss) {
            FSDP_TRY(fsdp_scope_begin(r->c));
            FSDP_TRY(step(r, &batch, &loss));
            fsdp_scope_end(r->c, NULL);
            FSDP_TRY(fsdp_data_loader_next(r->loader, &batch, &more));
        }
        if (fsdp_context_rank(r->c) == 0)
            printf("epoch %d: loss %.2f on rank 0\n", epoch, sum / (double)fsdp_data_loader_length(r->loader));
    }
    return sum < first ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "the loss does not go down");
}

int main(int argc, char **argv)
{
    const char *images = argc > 2 ? argv[1] : "bars-images-idx3-ubyte";
    const char *labels = argc > 2 ? argv[2] : "bars-labels-idx1-ubyte";
    run r = {0};
    fsdp_status status = fsdp_context_from_env(&r.c);

    if (status == FSDP_OK && argc <= 2 && fsdp_context_rank(r.c) == 0)
        status = make_files(images, labels);
    if (r.c)
        status = fsdp_agree(fsdp_world(r.c), status); /* the files are there on all ranks, or none goes on */
    if (status == FSDP_OK)
        status = open_data(&r, images, labels);
    if (status == FSDP_OK)
        status = build(&r);
    if (status == FSDP_OK)
        status = train(&r);
    if (status != FSDP_OK)
        fprintf(stderr, "08_cnn: %s\n", fsdp_last_error());
    fsdp_data_loader_free(r.loader);
    fsdp_distributed_sampler_free(r.sampler);
    fsdp_dataset_release(&r.data);
    fsdp_optimizer_free(r.adamw);
    fsdp_module_unref(r.model);
    fsdp_context_free(r.c);
    return status != FSDP_OK;
}
