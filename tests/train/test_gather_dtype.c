/* parallelism.gather_dtype: fewer bytes are sent, and the run is nearly the same. */
#include <math.h>

#include "fsdp/train.h"
#include "train/config.h"
#include "train/steps.h"

enum {
    STEPS = 4,
    DTYPES = 3
};

typedef struct fixture {
    fsdp_train_config *config;
    fsdp_train_report reports[STEPS];
} fixture;

static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;

    train_steps(context, f->config, STEPS, f->reports);
}

static void configure(fixture *f, const char *data)
{

    f->config = test_config("model.preset=llama-1m model.n_layers=2 model.dim=48 model.n_heads=2 model.n_kv_heads=1 "
                            "model.ffn_dim=100 model.tie_word_embeddings=false data.workers=0 training.seq_len=16 "
                            "training.local_batch_size=4 metrics.log_freq=1 data.path=%s",
                            data);
}

/* Against the run that sends what it computes with. */
static void compare(const fixture *run, const fixture *none, bool float8)
{
    for (int step = 0; step < STEPS; step++) {
        const fsdp_train_report *r = &run->reports[step], *n = &none->reports[step];

        CHECK_EQ(r->all_gather, n->all_gather);
        CHECK_EQ(r->reduce_scatter, n->reduce_scatter);
        CHECK_EQ(r->all_reduce, n->all_reduce + float8);
        CHECK(r->bytes_sent < n->bytes_sent * 3 / 4); /* gradients, embedding and head are f32 as ever */
        CHECK_NEAR(r->loss, n->loss, 0.02);
    }
}

TEST(fewer_bytes_are_sent_and_the_losses_stay)
{
    static const char *const dtypes[DTYPES] = {"none", "float8", "int8"};
    char *directory = test_directory(), *data = test_path(directory, "data.txt");
    fixture runs[DTYPES] = {{0}};

    test_write_letters(data, 4096, 23);
    for (int d = 0; d < DTYPES; d++) {
        configure(&runs[d], data);
        CHECK_OK(fsdp_train_config_set(runs[d].config, "parallelism.gather_dtype", dtypes[d]));
        CHECK_EQ(runs[d].config->parallelism.gather_dtype, d);
        test_run_ranks(2, train, &runs[d]);
        if (d > 0)
            compare(&runs[d], &runs[0], d == FSDP_TRAIN_GATHER_FLOAT8);
        CHECK_ERROR(fsdp_train_config_set(runs[d].config, "parallelism.gather_dtype", "fp8"), FSDP_INVALID, "float8");
    }
}
