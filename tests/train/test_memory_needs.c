/* test_memory_needs.c - a run that cannot fit is refused with the sum, before it takes memory; one that fits is not. */
#include <sys/resource.h>

#include "base/text.h"
#include "fsdp/train.h"
#include "support/test.h"
#include "train/config.h"
#include "train/run_start.h"
#include "train/story.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#endif

typedef struct fixture {
    fsdp_context *context;
    fsdp_train_config *config;
    fsdp_train_run run;
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->config = test_empty_config();
    f->context = test_context();
    f->run.context = f->context;
    f->run.config = f->config;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_context_free(f->context);
    return 0;
}

/* A Llama of `layers` layers and a vocabulary of 1000. */
static void take_model(fixture *f, int64_t layers)
{
    CHECK_OK(fsdp_model_preset("llama-8b", &f->run.model_config));
    f->run.model_config.n_layers = layers;
    f->run.model_config.vocab_size = 1000;
}

TEST_OF(what_fits_is_not_refused, setup, teardown, fixture *f)
{
    CHECK_OK(fsdp_model_preset("llama-1m", &f->run.model_config));
    CHECK_OK(fsdp__train_check_needs(&f->run));
}

TEST_OF(what_no_machine_has_is_refused_with_the_sum, setup, teardown, fixture *f)
{
    char text[64], size[24];
    double gib;

    take_model(f, 10000);
    gib = 4 * (double)fsdp_model_config_parameters(&f->run.model_config) / (1 << 30);
    CHECK(gib > 1000);
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, "the run needs at least");
    CHECK_CONTAINS(fsdp_last_error(), "optimizer state");
    CHECK_CONTAINS(fsdp_last_error(), "but memory");
    CHECK_CONTAINS(fsdp_last_error(), "training.local_batch_size");
    /* The optimizer's part follows its kind. */
    SET(f, "optimizer.name", "sgd");
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, "optimizer state 0.0KiB");
    /* Every copy takes its own. */
    SET(f, "parallelism.data_parallel_replicate_degree", "3");
    snprintf(text, sizeof text, "(parameters %s,", fsdp__size_text(3 * gib * (1 << 30), size, sizeof size));
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, text);
    SET(f, "parallelism.data_parallel_replicate_degree", "1");
    /* A batch that no integer counts. */
    CHECK_OK(fsdp_model_preset("llama-8b", &f->run.model_config));
    SET(f, "training.local_batch_size", "16777216");
    SET(f, "training.seq_len", "268435456");
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, "activations");
    /* A rank of a team has its part of a sequence, and of a layer: of 28,672 numbers in each of 32 layers. */
    SET(f, "training.local_batch_size", "1");
    SET(f, "parallelism.context_parallel_degree", "4");
    SET(f, "parallelism.tensor_parallel_degree", "2");
    snprintf(text, sizeof text, "activations %s)",
             fsdp__size_text(32.0 * 28672 * 4 * 268435456 / 8, size, sizeof size));
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, text);
}

/* Before the model is built, no more of an adapter's base counts than it has for certain. */
TEST_OF(a_frozen_base_counts_as_it_is_held, setup, teardown, fixture *f)
{
    static const struct {
        const char *key, *value;
        double bytes;
    } cases[] = {
        {"adapter.base_dtype", "bfloat16", 2}, {"adapter.quantize", "int8", 1}, {"adapter.quantize", "nf4", 0.5}};
    char text[64], size[24];
    double numel;

    take_model(f, 10000);
    f->run.lora = (fsdp_lora_options *)(uintptr_t)1; /* there is one */
    SET(f, "adapter.rank", "4");
    numel = (double)fsdp_model_config_parameters(&f->run.model_config);
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        SET(f, cases[i].key, cases[i].value);
        snprintf(text, sizeof text, "(parameters %s, optimizer state 0.0KiB",
                 fsdp__size_text(cases[i].bytes * numel, size, sizeof size));
        CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, text);
    }
    f->run.parameter_bytes = 0.6 * numel;
    snprintf(text, sizeof text, "(parameters %s,", fsdp__size_text(0.6 * numel, size, sizeof size));
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, text);
}

static void limit(int resource, rlim_t bytes)
{
    struct rlimit l;

    CHECK_EQ(getrlimit((__rlimit_resource_t)resource, &l), 0);
    l.rlim_cur = bytes;
    CHECK_EQ(setrlimit((__rlimit_resource_t)resource, &l), 0);
}

TEST_OF(limits_of_the_process_are_named, setup, teardown, fixture *f)
{
    take_model(f, 2);
    limit(RLIMIT_DATA, (rlim_t)2 << 30);
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, "this rank needs at least");
    CHECK_CONTAINS(fsdp_last_error(), "'ulimit -d' leaves a process is 1.94GiB");
    limit(RLIMIT_DATA, (rlim_t)10 << 20);
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, "less than the program itself needs");
    limit(RLIMIT_DATA, RLIM_INFINITY);
    CHECK_OK(fsdp__train_check_needs(&f->run));
}

/* The host lacks what the card has, and the other way. */
TEST_OF(what_lies_on_a_gpu_is_compared_with_its_memory, setup, teardown, fixture *f)
{
#ifdef FSDP_HAVE_FAKECUDA

    take_model(f, 10000);
    fakecuda.set_memory((size_t)1 << 50);
    f->run.device = CHECK_PTR(fsdp_cuda(f->context, 0));
    CHECK_OK(fsdp__train_check_needs(&f->run));
    SET(f, "training.enable_cpu_offload", "true");
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, "the run needs at least");
    CHECK_CONTAINS(fsdp_last_error(), "activations 0.0KiB");
    SET(f, "training.enable_cpu_offload", "false");
    fakecuda.set_memory((size_t)1 << 30);
    CHECK_ERROR(fsdp__train_check_needs(&f->run), FSDP_NO_MEMORY, "but the memory of its GPU is 1.00GiB");
    CHECK_OK(fsdp_model_preset("llama-1m", &f->run.model_config));
    CHECK_OK(fsdp__train_check_needs(&f->run));
    fakecuda.set_memory(0);
#else
    (void)state;
    print_message("skipped: CUDA's headers were not found\n");
    skip();
#endif
}

/* ---- who has it ---- */

STORY_TEST(a_start_that_is_refused_says_who_would_have_the_memory)
{
    test_set_keys(s->config, "training.global_batch_size=-1 training.local_batch_size=16777216 training.seq_len=256");
    story_run(s, 2);
    CHECK_STATUS(s->status, FSDP_NO_MEMORY);
    CHECK_CONTAINS(s->message, "need at least");
    if (TEST_SANITIZED) /* which may leave no room for the addresses of a dry run of that size */
        return;
    CHECK_CONTAINS(s->message, "\n  a rank would have at the peak of a step: ");
    CHECK_CONTAINS(s->message, "activation           model.layers.1.");
    CHECK_CONTAINS(s->message, " others");
}

/* Allocations fail here and there: in the making of the run, in a forward, in a backward. */
STORY_TEST(a_run_without_memory_says_who_has_it)
{
    bool of_block = false;

    s->kind = FSDP__FAULT_ALLOCATION;
    story_set(s, "training.steps", "3");
    for (s->nth = 900; s->nth < 6000; s->nth += 1023) {
        story_run(s, 1);
        if (!s->fired)
            break;
        CHECK_STATUS(s->status, FSDP_NO_MEMORY);
        CHECK(!strchr(s->message, '\n') == !strstr(s->message, "\n  live on device '"));
        of_block = of_block || strstr(s->message, "model.layers.0");
    }
    CHECK(of_block);
}
