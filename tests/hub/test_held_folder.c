/* A folder held for a model: the tokenizer comes along, the source stays, and what cannot fit is known before. */
#include "hub/held_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "support/ranks.h"

typedef struct fixture {
    fsdp_context *context;
    char *directory, *folder, *source;
    fsdp_state_dict *state;
    fsdp_model_config config;
    fsdp_hub_hold *held; /* of rank 0 */
} fixture;

static void add(fsdp_state_dict *state, fsdp_context *context, const char *name, int64_t rows)
{
    const int64_t shape[] = {rows, 4};
    fsdp_tensor *tensor = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, shape, FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, (const float[64]){0}));
    CHECK_OK(fsdp_state_dict_add(state, name, tensor));
    fsdp_tensor_unref(tensor);
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char *tokenizer;

    f->context = test_context();
    f->directory = test_directory();
    f->folder = test_path(f->directory, "model");
    f->source = test_path(f->directory, "source");
    CHECK_OK(fsdp__make_directories(f->source));
    tokenizer = test_path(f->source, "tokenizer.json");
    test_write_file(tokenizer, "{}", 2);
    CHECK_OK(fsdp_model_preset("llama-1m", &f->config));
    CHECK_OK(fsdp_state_dict_create(&f->state));
    add(f->state, f->context, "w", 3);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_state_dict_free(f->state);
    CHECK_EQ(test_live_bytes(f->context), 0);
    fsdp_context_free(f->context);
    return 0;
}

TEST_OF(the_tokenizer_comes_with_the_model, setup, teardown, fixture *f)
{
    const fsdp__hub_target target = {.folder = f->folder, .source = f->source};
    fsdp_hub_hold *hold = CHECK_PTR(fsdp__hub_hold_create(f->context, &target));
    char *tokenizer = test_path(f->folder, "tokenizer.json"), *text;

    CHECK_OK(fsdp__hub_hold_begin(hold));
    CHECK_OK(fsdp__hub_hold_check(hold, f->state, &f->config, FSDP_F32, FSDP__FILE_LIMIT_BYTES));
    CHECK_OK(fsdp__hub_save_held(hold, f->state, &f->config, FSDP_F32, fsdp_world(f->context), 1 << 20));
    text = test_read_file(tokenizer, NULL);
    CHECK_STRING(text, "{}");
    fsdp__hub_hold_free(hold);
}

TEST_OF(the_source_is_never_written_to, setup, teardown, fixture *f)
{
    const fsdp__hub_target target = {.folder = f->source, .source = f->source, .overwrite = true};
    fsdp_hub_hold *hold = CHECK_PTR(fsdp__hub_hold_create(f->context, &target));

    CHECK_ERROR(fsdp__hub_hold_begin(hold), FSDP_INVALID, "the files are read from this folder");
    fsdp__hub_hold_free(hold);
}

TEST_OF(names_that_are_taken_are_known_before, setup, teardown, fixture *f)
{
    const fsdp__hub_target target = {.folder = f->folder, .source = f->source, .overwrite_hint = "overwrite"};
    char *tokenizer = test_path(f->folder, "tokenizer.json");
    fsdp_hub_hold *hold;

    CHECK_OK(fsdp_hub_save(f->folder, f->state, &f->config, FSDP_F32, fsdp_world(f->context)));
    test_write_file(tokenizer, "theirs", 6);
    hold = CHECK_PTR(fsdp__hub_hold_create(f->context, &target));
    CHECK_OK(fsdp__hub_hold_begin(hold));
    CHECK_ERROR(fsdp__hub_hold_check(hold, f->state, &f->config, FSDP_F32, FSDP__FILE_LIMIT_BYTES), FSDP_INVALID,
                "it holds 'tokenizer.json', which no export wrote: name another folder, or set overwrite");
    fsdp_hub_abandon(hold);
    CHECK_ERROR(fsdp__hub_hold_check(hold, f->state, &f->config, FSDP_F32, FSDP__FILE_LIMIT_BYTES), FSDP_INTERRUPTED,
                "it was given up");
    fsdp__hub_hold_free(hold);
}

TEST_OF(a_tokenizer_that_cannot_be_copied_is_known_before, setup, teardown, fixture *f)
{
    const fsdp__hub_target target = {.folder = f->folder, .source = f->source};
    fsdp_hub_hold *hold = CHECK_PTR(fsdp__hub_hold_create(f->context, &target));
    char *vocab = test_path(f->source, "vocab.json");

    CHECK_OK(fsdp__hub_hold_begin(hold));
    CHECK_EQ(mkfifo(vocab, 0666), 0);
    CHECK_ERROR(fsdp__hub_hold_check(hold, f->state, &f->config, FSDP_F32, FSDP__FILE_LIMIT_BYTES), FSDP_IO,
                "it is a FIFO, not a regular");
    test_remove_tree(vocab);
    CHECK_OK(fsdp__make_directories(vocab));
    CHECK_ERROR(fsdp__hub_hold_check(hold, f->state, &f->config, FSDP_F32, FSDP__FILE_LIMIT_BYTES), FSDP_IO,
                "it is a directory, not a regular");
    test_remove_tree(vocab);
    CHECK_OK(fsdp__hub_hold_check(hold, f->state, &f->config, FSDP_F32, FSDP__FILE_LIMIT_BYTES));
    fsdp__hub_hold_free(hold);
}

/* Rank 1 gives rank 0's hold up when the files are made and before anything is written into them. */
static void give_up_between(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    const fsdp__hub_target target = {.folder = f->folder};
    bool first = fsdp_context_rank(context) == 0;
    fsdp_state_dict *state = NULL;

    CHECK_OK(fsdp_state_dict_create(&state));
    add(state, context, "w", 3);
    if (first) {
        f->held = CHECK_PTR(fsdp__hub_hold_create(context, &target));
        CHECK_OK(fsdp__hub_hold_begin(f->held));
    }
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (!first) {
        char *made = test_path(f->directory, "model.saving/new/model.safetensors");

        while (!fsdp__path_exists(made))
            usleep(100);
        fsdp_hub_abandon(f->held);
    }
    CHECK_ERROR(fsdp__hub_save_held(first ? f->held : NULL, state, NULL, FSDP_F32, fsdp_world(context), 1 << 20),
                FSDP_INTERRUPTED, "it was given up");
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (first)
        fsdp__hub_hold_free(f->held);
    fsdp_state_dict_free(state);
}

TEST_OF(what_is_given_up_says_so_whatever_it_fails_at, setup, teardown, fixture *f)
{
    for (int i = 0; i < 10; i++) {
        test_run_ranks(2, give_up_between, f);
        CHECK(!fsdp__path_exists(f->folder));
    }
}
