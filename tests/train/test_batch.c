/* A user's data, from files to a model that learns it on several ranks, and to a GPU. */
#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#endif
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/story.h"

enum {
    ITEMS = 23,
    SIDE = 3,
    CLASSES = 3,
    EPOCHS = 12
};

typedef struct pictures {
    char *directory, *images, *labels;
} pictures;

/* The class of a picture is the row that is bright. */
static pictures pictures_create(void)
{
    pictures p = {.directory = test_directory()};
    unsigned char images[16 + ITEMS * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, ITEMS, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    unsigned char labels[8 + ITEMS] = {0, 0, 8, 1, 0, 0, 0, ITEMS};

    for (int i = 0; i < ITEMS; i++) {
        labels[8 + i] = (unsigned char)(i % CLASSES);
        for (int k = 0; k < SIDE * SIDE; k++)
            images[16 + i * SIDE * SIDE + k] = (unsigned char)(k / SIDE == i % CLASSES ? 200 + i : (i * 7 + k) % 20);
    }
    p.images = test_path(p.directory, "images");
    p.labels = test_path(p.directory, "labels");
    test_write_file(p.images, images, sizeof images);
    test_write_file(p.labels, labels, sizeof labels);
    return p;
}

static void pictures_free(pictures *p)
{
    test_directory_free(p->directory);
}

/* Mean loss of an epoch. */
static double learn(fsdp_module *model, fsdp_optimizer *sgd, fsdp_data_loader *loader)
{
    fsdp_context *context = model->context;
    double sum = 0, loss;
    fsdp_data_batch batch;
    bool more;

    for (;;) {
        fsdp_tensor *x, *y, *mean;

        CHECK_OK(fsdp_data_loader_next(loader, &batch, &more));
        if (!more)
            return sum / (double)fsdp_data_loader_length(loader);
        CHECK_OK(fsdp_scope_begin(context));
        x = CHECK_PTR(fsdp_batch_tensor(test_device(context), &batch, 0));
        CHECK_EQ(fsdp_tensor_dtype(x), FSDP_U8);
        CHECK_EQ(fsdp_tensor_ndim(x), 3);
        x = fsdp_flatten(fsdp_scale(fsdp_cast(x, FSDP_F32), 1.0 / 255), 1, -1);
        y = fsdp_cast(fsdp_batch_tensor(test_device(context), &batch, 1), FSDP_I32);
        mean = CHECK_PTR(fsdp_cross_entropy(fsdp_call(model, x), y));
        CHECK_OK(fsdp_tensor_item(mean, &loss));
        sum += loss;
        CHECK_OK(fsdp_backward(mean));
        fsdp_scope_end(context, NULL);
        CHECK_OK(fsdp_optimizer_step(sgd));
        CHECK_OK(fsdp_optimizer_zero_grad(sgd));
    }
}

static fsdp_optimizer *sgd_of(fsdp_module *model)
{
    fsdp_sgd_options options = {.lr = 0.5};
    fsdp_parameters parameters;
    fsdp_optimizer *sgd;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &options, &sgd));
    fsdp_parameters_release(&parameters);
    return sgd;
}

static void learn_on_a_rank(fsdp_context *context, void *arg)
{
    const pictures *p = arg;
    const fsdp_data_file files[] = {{"image", p->images}, {"label", p->labels}};
    fsdp_data_loader_options options = {.batch_size = 4, .workers = fsdp_context_rank(context)};
    fsdp_sampler_options order = {.length = ITEMS,
                                  .rank = fsdp_context_rank(context),
                                  .world_size = fsdp_context_world_size(context),
                                  .shuffle = true};
    fsdp_module *model = fsdp_linear_create(context, test_device(context), SIDE * SIDE, CLASSES, NULL);
    double first = 0, last = 0;
    fsdp_optimizer *sgd;
    fsdp_data_loader *loader;
    fsdp_dataset data;

    CHECK_OK(fsdp_module_initialize(CHECK_PTR(model), 1));
    CHECK_OK(fsdp_fully_shard(model, NULL));
    sgd = sgd_of(model);
    CHECK_OK(fsdp_dataset_open(files, 2, &data));
    CHECK_OK(fsdp_distributed_sampler_create(&order, &options.sampler));
    CHECK_OK(fsdp_data_loader_create(&data, &options, &loader));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        CHECK_OK(fsdp_distributed_sampler_set_epoch(options.sampler, epoch));
        last = learn(model, sgd, loader);
        first = epoch == 0 ? last : first;
    }
    CHECK(last < 0.5 * first);
    fsdp_data_loader_free(loader);
    fsdp_distributed_sampler_free(options.sampler);
    fsdp_dataset_release(&data);
    fsdp_optimizer_free(sgd);
    fsdp_module_unref(model);
    test_drop_workspace(context);
}

TEST(a_model_learns_from_files_on_several_ranks)
{
    pictures p = pictures_create();

    test_run_worlds(1, 3, learn_on_a_rank, &p);
    pictures_free(&p);
}

CONTEXT_TEST(a_field_that_is_none_is_refused)
{
    const fsdp_data_batch empty = {0};

    CHECK_NULL(fsdp_batch_tensor(test_device(context), &empty, 0));
    CHECK_CONTAINS(fsdp_last_error(), "a batch of 0 fields has no field 0");
    CHECK_NULL(fsdp_batch_tensor(test_device(context), NULL, 0));
}

#ifdef FSDP_HAVE_FAKECUDA
/* What a run copies between the host and a fake GPU (tests/backend/fakecuda): all of it through memory that the device
 * reaches. Returns how often. */
static fakecuda_copies copies_of(story *s, int world)
{
    fakecuda_copies pageable, pinned;

    (void)fakecuda.copies(false);
    (void)fakecuda.copies(true);
    story_go(s, world);
    pageable = fakecuda.copies(false);
    pinned = fakecuda.copies(true);
    CHECK_EQ(pageable.to_device, 0);
    CHECK_EQ(pageable.to_host, 0);
    return pinned;
}

STORY_TEST(batches_checkpoints_and_exports_of_a_gpu_go_through_pinned_memory)
{
    if (test_brief()) {
        print_message("skipped under a sanitizer, but for make test-long: a GPU's kernels take too long there\n");
        skip();
    }
    test_set_keys(s->config, "training.device=cuda training.global_batch_size=4 export.overwrite=true");
    for (int world = 1; world <= 2; world++) {
        fakecuda_copies trained, saved, resumed;

        test_set_keys(s->config, "checkpoint.folder= export.path= training.steps=2");
        trained = copies_of(s, world);
        CHECK(trained.to_device >= 2 * 4 * 2); /* the inputs and targets of each sequence */
        story_set(s, "checkpoint.folder", s->folder);
        story_set(s, "checkpoint.async_mode", world == 1 ? "disabled" : "async");
        story_set(s, "export.path", s->model);
        saved = copies_of(s, world);
        CHECK(saved.to_host > trained.to_host);
        story_set(s, "training.steps", "3");
        resumed = copies_of(s, world);
        CHECK_EQ(s->resumed_step, 2);
        CHECK(resumed.to_device > 4 * 2);
        test_remove_tree(s->folder);
    }
}
#endif
