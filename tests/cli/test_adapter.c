/* `--adapter` of eval, generate and convert: one adapter, several, merged, and what is refused. */
#include <stdlib.h>

#include "cli/fixture.h"
#include "cli/saved.h"

#define LLAMA REFERENCE "/models/tiny-llama"
#define DORA REFERENCE "/finetune/lora-llama-dora/final"
#define START REFERENCE "/finetune/lora-llama-dora/initial"
#define GPT2_ADAPTER REFERENCE "/finetune/lora-gpt2/final"
#define TOKENS REFERENCE "/tokens.bin"

static double loss_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name), *loss = at ? strstr(at, "loss: ") : NULL;

    if (!loss)
        TEST_FAIL("no loss behind '%s' in:\n%s", name, text);
    return strtod(loss + strlen("loss: "), NULL);
}

FIXTURE_TEST(eval_prints_the_loss_of_each_adapter)
{
    program base = RUN(0, "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=20");
    program two =
        RUN(0, "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=20", "-n", "2", "--adapter", START "," DORA);

    CHECK_CONTAINS(two.output, "adapter: " START "\nloss: ");
    CHECK_NEAR(loss_behind(two.output, "adapter: " START), loss_behind(base.output, "data:"), 2e-6);
    CHECK(loss_behind(two.output, "adapter: " DORA) < loss_behind(base.output, "data:") - 0.01);
}

FIXTURE_TEST(the_merged_model_is_the_base_with_its_adapter)
{
    char *merged = test_path(f->directory, "merged");
    program with, alone;

    SAYS(0, "model written to", "convert", LLAMA, merged, "--adapter", DORA);
    with = RUN(0, "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=20", "--adapter=" DORA);
    alone = RUN(0, "eval", merged, "--data", TOKENS, "--seq-len=32", "--steps=20");
    CHECK_NEAR(loss_behind(with.output, "adapter:"), loss_behind(alone.output, "data:"), 2e-6);
    with = RUN(0, "generate", LLAMA, "--tokens=1,2,3", "--max-new-tokens=8", "--temperature=0", "--adapter", DORA);
    alone = RUN(0, "generate", merged, "--tokens=1,2,3", "--max-new-tokens=8", "--temperature=0", "-n", "2");
    CHECK_STRING(with.output, alone.output);
}

FIXTURE_TEST(generate_prints_what_each_adapter_continues)
{
    char both[4096];
    program one = RUN(0, "generate", LLAMA, "--tokens=1,2,3", "--max-new-tokens=8", "--adapter", START);
    program other = RUN(0, "generate", LLAMA, "--tokens=1,2,3", "--max-new-tokens=8", "--adapter", DORA);
    program all;

    snprintf(both, sizeof both, "adapter: %s\n%sadapter: %s\n%s", START, one.output, DORA, other.output);
    all = RUN(0, "generate", LLAMA, "--tokens=1,2,3", "--max-new-tokens=8", "--adapter", START "," DORA);
    CHECK_STRING(all.output, both);
    all = RUN(0, "generate", LLAMA, "--tokens=1,2,3", "--max-new-tokens=8", "--adapter", START "," DORA, "-n", "2");
    CHECK_STRING(all.output, both);
    all = RUN(0, "generate", LLAMA, "--tokens=1,2,3", "--max-new-tokens=8", "--adapter", START "," DORA, "-n", "2",
              "--tensor-parallel=2");
    CHECK_STRING(all.output, both);
    SAYS(2, "--chat talks with one adapter", "generate", LLAMA, "--chat", "--adapter", START "," DORA);
    SAYS(2, "expected a folder, or several with commas", "generate", LLAMA, "--tokens=1", "--adapter=a,");
}

FIXTURE_TEST(what_is_no_adapter_of_the_model_is_refused)
{
    char *out = test_path(f->directory, "out");
    program p;

    SAYS(1, "--adapter: there is no '/nowhere/at/all'", "eval", LLAMA, "--data", TOKENS, "--adapter=/nowhere/at/all");
    p = program_run(
        f->directory, 1,
        (const char *const[]){PROGRAM, "eval", LLAMA, "--data", TOKENS, "--adapter=" START ",nowhere", NULL});
    CHECK_CONTAINS(p.output, "--adapter: there is no 'nowhere'");
    CHECK_NULL(strstr(p.output, "loss: ")); /* of the first: no work is done for it */
    SAYS(1, "is an adapter (LoRA) for another model: name that model, and this folder with --adapter", "generate", DORA,
         "--tokens=1");
    SAYS(1, "is not the folder of an adapter", "eval", LLAMA, "--data", TOKENS, "--adapter=" LLAMA);
    SAYS(1, "no layer for the adapter's target 'c_attn'", "eval", LLAMA, "--data", TOKENS, "--adapter=" GPT2_ADAPTER);
    SAYS(1, "no layer for the adapter's target 'c_attn'", "convert", LLAMA, out, "--adapter=" GPT2_ADAPTER);
    SAYS(1, "--adapter:", "generate", LLAMA, "--tokens=1", "--adapter=" GPT2_ADAPTER);
    SAYS(2, "expected a folder, or several with commas", "eval", LLAMA, "--data", TOKENS, "--adapter=a,,b");
    SAYS(2, "leave --ranks out", "convert", LLAMA, out, "--adapter", DORA, "-n", "2");
}

/* A run says how little it trains, and the adapter that it leaves is that which eval reads. */
FIXTURE_TEST(a_run_says_what_it_trains)
{
    char *out = test_path(f->directory, "adapter"), *path = malloc(400);

    snprintf(path, 400, "--export.path=%s", out);
    SAYS(0, "adapter: LoRA of rank 4, beside 6 layers: trains 2,688 parameters, 1.59 % of the model's", "train", "-n",
         "2", "--model.path=" LLAMA, "--data.path=" TOKENS, "--training.steps=2", "--training.seq_len=16",
         "--training.local_batch_size=1", "--adapter.rank=4", "--adapter.targets=q_proj", "--adapter.targets=v_proj",
         path);
    SAYS(0, "adapter: ", "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=2", "--adapter", out);
    free(path);
}

/* ---- checkpoints of an adapter ---- */

#define WINDOWS "--data", TOKENS, "--seq-len=16", "--batch-size=1", "--steps=4"

/* Trains two steps with a checkpoint, and returns the loss of the last validation, which is of the tokens that WINDOWS
 * has. */
static double train(fixture *f, const char *model, const char *checkpoint, const char *ranks, const char *key)
{
    program p =
        RUN(0, "train", "--data.path=" TOKENS, "--training.steps=2", "--training.seq_len=16",
            "--training.local_batch_size=1", "--adapter.rank=4", "--optimizer.lr=0.05", "--validation.path=" TOKENS,
            "--validation.freq=2", "--validation.steps=4", model, "--checkpoint.folder", checkpoint, "-n", ranks, key);

    return loss_behind(p.output, "valid:  2");
}

/* With the base that the run had, in codes as well; so an export, which is for the model as it is, may differ. */
FIXTURE_TEST(a_checkpoint_of_an_adapter_is_what_the_run_has_validated)
{
    static const char *const keys[] = {"--adapter.dora=true", "--adapter.modules_to_save=lm_head",
                                       "--adapter.quantize=nf4", "--adapter.base_dtype=bfloat16"};
    static const char *const ranks[] = {"1", "2", "4", "1"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[20], *checkpoint;
        double loss;

        snprintf(name, sizeof name, "ckpt-%zu", i);
        checkpoint = test_path(f->directory, name);
        loss = train(f, "--model.path=" LLAMA, checkpoint, ranks[(i + 1) % 4], keys[i]);
        CHECK_NEAR(loss_behind(RUN(0, "eval", checkpoint, WINDOWS, "-n", ranks[i]).output, "data:"), loss, 1e-4);
    }
}

FIXTURE_TEST(a_checkpoint_of_an_adapter_is_used_directly)
{
    char *checkpoint = test_path(f->directory, "ckpt"), *taken = test_path(f->directory, "taken");
    char *other = test_path(f->directory, "other"), *further = test_path(f->directory, "ckpt/step-2");
    double loss = train(f, "--model.path=" LLAMA, checkpoint, "2", NULL);
    program with, alone;

    SAYS(0, "every checksum is right; its adapter (LoRA) fits its config.json; all weights are finite", "verify",
         checkpoint);
    CHECK_NEAR(loss_behind(RUN(0, "eval", LLAMA, WINDOWS, "--adapter", checkpoint).output, "/step-2"), loss, 1e-4);
    SAYS(0, "adapter written to ", "convert", checkpoint, taken);
    CHECK_NEAR(loss_behind(RUN(0, "eval", LLAMA, WINDOWS, "--adapter", taken).output, "adapter:"), loss, 1e-4);
    SAYS(0, "checkpoint of 3 ranks", "convert", checkpoint, other, "--ranks=3");
    CHECK_NEAR(loss_behind(RUN(0, "eval", other, WINDOWS, "-n", "2", "--tensor-parallel=2").output, "data:"), loss,
               1e-4);
    with = RUN(0, "generate", checkpoint, "--tokens=1,2,3", "--max-new-tokens=8", "--temperature=0");
    alone = RUN(0, "generate", LLAMA, "--tokens=1,2,3", "--max-new-tokens=8", "--temperature=0", "--adapter", taken);
    CHECK_CONTAINS(with.output, alone.output); /* behind the line that names adapter and base */
    taken = test_path(f->directory, "merged");
    SAYS(0, "model written to", "convert", LLAMA, taken, "--adapter", checkpoint);
    CHECK_NEAR(loss_behind(RUN(0, "eval", taken, WINDOWS).output, "data:"), loss, 1e-4);
    SAYS(0, "/step-2, beside 21 layers", "train", "--model.path=" LLAMA, "--data.path=" TOKENS, "--training.steps=1",
         "--training.seq_len=16", "--adapter.path", further);
    SAYS(0, "beside 21 layers", "train", "--model.path=" LLAMA, "--data.path=" TOKENS, "--training.steps=1",
         "--training.seq_len=16", "--adapter.path", checkpoint);
    SAYS(0, "/step-2' beside the base '", "eval", checkpoint, WINDOWS);
    SAYS(0, "/step-2' beside the base '", "generate", checkpoint, "--tokens=1", "--max-new-tokens=1", "-n", "2");
}

FIXTURE_TEST(what_a_checkpoint_of_an_adapter_cannot_be_used_for_is_told)
{
    char *checkpoint = test_path(f->directory, "ckpt"), *out = test_path(f->directory, "out");

    train(f, "--model.path=" LLAMA, checkpoint, "1", "--adapter.quantize=int8");
    SAYS(1, "with which its model computes: leave --adapter out", "eval", checkpoint, WINDOWS, "--adapter", DORA);
    SAYS(1, "--tensor-parallel would cut the blocks of the base of '", "eval", checkpoint, WINDOWS, "-n", "2",
         "--tensor-parallel=2");
    SAYS(1, "is a checkpoint of an adapter (LoRA), not of a whole model: name the model", "convert", checkpoint, out,
         "--adapter", DORA);
    SAYS(1, "is a checkpoint of an adapter (LoRA), not of a whole model: name the model", "convert", checkpoint, out,
         "--to=gguf");
    SAYS(1, "checkpoint.initial_load_path: '", "train", "--model.path=" LLAMA, "--data.path=" TOKENS,
         "--training.steps=1", "--training.seq_len=16", "--checkpoint.initial_load_path", checkpoint);
}

FIXTURE_TEST(a_whole_model_with_the_config_of_an_adapter_beside_it_is_no_adapter)
{
    char *checkpoint = test_path(f->directory, "ckpt"), *out = test_path(f->directory, "out");

    SAYS(0, "written to", "convert", LLAMA, checkpoint, "--ranks=1", "--step=1");
    test_copy_file(DORA, "adapter_config.json", checkpoint, "step-1/adapter_config.json");
    SAYS(1, "it was saved without the adapter_config.json that lies in it", "convert", checkpoint, out);
}

/* Goes on with other keys, which is refused with what it says. */
static void goes_on(fixture *f, const char *checkpoint, const char *rank, const char *key, const char *says)
{
    SAYS(1, says, "train", "--model.path=" LLAMA, "--data.path=" TOKENS, "--training.steps=3", "--training.seq_len=16",
         "--training.local_batch_size=1", "--checkpoint.folder", checkpoint, rank, key);
}

FIXTURE_TEST(a_run_goes_on_with_the_adapter_that_it_began_with)
{
    char *checkpoint = test_path(f->directory, "ckpt");

    train(f, "--model.path=" LLAMA, checkpoint, "2", "--adapter.dropout=0.25");
    goes_on(f, checkpoint, "--adapter.rank=4", "--adapter.dropout=0.5", "adapter.dropout is 0.25 and 0.5: ");
    goes_on(f, checkpoint, "--adapter.rank=8", "--adapter.dropout=0.25", "adapter.rank is 4 and 8, adapter.alpha");
    goes_on(f, checkpoint, "--adapter.rank=4", "--adapter.quantize=nf4",
            "adapter.quantize is none and nf4, adapter.dropout is 0.25 and 0: ");
    goes_on(f, checkpoint, "--training.seed=42", NULL,
            "is of a run that trains an adapter (section adapter), and this run trains the whole model");
}

FIXTURE_TEST(the_base_of_a_checkpoint_must_be_there_and_be_what_it_was)
{
    char *checkpoint = test_path(f->directory, "ckpt"), *base = test_path(f->directory, "base");
    char *weights = test_path(f->directory, "base/model-00003-of-00014.safetensors"), *content;
    char model[600];
    size_t bytes;

    snprintf(model, sizeof model, "--model.path=%s", base);
    program_run(f->directory, 0, (const char *const[]){"cp", "-r", LLAMA, base, NULL});
    train(f, model, checkpoint, "1", NULL);
    content = test_read_file(weights, &bytes);
    content[bytes - 1] ^= 1;
    test_write_file(weights, content, bytes);
    SAYS(0, " (a hash)\n", "inspect", checkpoint); /* of what it was validated on */
    SAYS(1, "which is no longer what it was: then ", "eval", checkpoint, WINDOWS);
    SAYS(0, "adapter: ", "eval", base, WINDOWS, "--adapter", checkpoint);
    CHECK_EQ(rename(base, test_path(f->directory, "elsewhere")), 0);
    SAYS(1, "and there is no such folder here: name the model, and the checkpoint with --adapter", "generate",
         checkpoint, "--tokens=1", "-n", "2");
}

/* A model that was drawn has no folder: it is drawn again. */
FIXTURE_TEST(a_base_that_was_drawn_is_drawn_again)
{
    char *checkpoint = test_path(f->directory, "ckpt");
    double loss = train(f, "--model.preset=llama-1m", checkpoint, "2", "--model.n_layers=2");

    CHECK_NEAR(loss_behind(RUN(0, "eval", checkpoint, WINDOWS, "-n", "2").output, "data:"), loss, 1e-4);
}

/* Of an older version, which has not said in its checkpoints what the adapter is. */
FIXTURE_TEST(an_adapter_comes_out_of_an_old_checkpoint_by_the_command_of_its_run)
{
    char *checkpoint = test_path(f->directory, "ckpt"), *old = test_path(f->directory, "old");
    char *cut = test_path(f->directory, "cut"), *folders[] = {old, cut};
    double loss = train(f, "--model.path=" LLAMA, checkpoint, "2", NULL);

    saved_without(test_path(f->directory, "ckpt/step-2"), "adapter_config.json", old);
    SAYS(1, "that an older version of fsdp has written: it has no adapter_config.json", "eval", old, WINDOWS);
    SAYS(1, "that an older version of fsdp has written: it has no adapter_config.json", "eval", LLAMA, WINDOWS,
         "--adapter", old);
    SAYS(1, "that an older version of fsdp has written: it has no adapter_config.json", "convert", old, cut);
    SAYS(0, "checkpoint of 3 ranks written to", "convert", old, cut, "--ranks=3");
    for (int i = 0; i < 2; i++) {
        char *taken = test_path(f->directory, i ? "cut-taken" : "taken"), option[600];

        snprintf(option, sizeof option, "--export.path=%s", taken);
        SAYS(0, "all steps are done", "train", "--model.path=" LLAMA, "--data.path=" TOKENS, "--training.steps=2",
             "--training.seq_len=16", "--training.local_batch_size=2", "--adapter.rank=4", "--optimizer.lr=0.05",
             "--checkpoint.folder", folders[i], option);
        CHECK_NEAR(loss_behind(RUN(0, "eval", LLAMA, WINDOWS, "--adapter", taken).output, "adapter: "), loss, 1e-4);
    }
}
