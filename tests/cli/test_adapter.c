/* `--adapter` of eval, generate and convert: one adapter, several, merged, and what is refused. */
#include <stdlib.h>

#include "cli/fixture.h"

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
    fixture *f = *state;
    program base = RUN(0, "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=20");
    program two =
        RUN(0, "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=20", "-n", "2", "--adapter", START "," DORA);

    CHECK_NEAR(loss_behind(two.output, "adapter: " START), loss_behind(base.output, "data:"), 2e-6);
    CHECK(loss_behind(two.output, "adapter: " DORA) < loss_behind(base.output, "data:") - 0.01);
}

FIXTURE_TEST(the_merged_model_is_the_base_with_its_adapter)
{
    fixture *f = *state;
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
    fixture *f = *state;
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
    fixture *f = *state;
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
    SAYS(1, "no layer for the adapter's targets 'c_attn'", "eval", LLAMA, "--data", TOKENS, "--adapter=" GPT2_ADAPTER);
    SAYS(1, "no layer for the adapter's targets 'c_attn'", "convert", LLAMA, out, "--adapter=" GPT2_ADAPTER);
    SAYS(1, "--adapter:", "generate", LLAMA, "--tokens=1", "--adapter=" GPT2_ADAPTER);
    SAYS(2, "expected a folder, or several with commas", "eval", LLAMA, "--data", TOKENS, "--adapter=a,,b");
    SAYS(2, "leave --ranks out", "convert", LLAMA, out, "--adapter", DORA, "-n", "2");
}

/* A run says how little it trains, and the adapter that it leaves is that which eval reads. */
FIXTURE_TEST(a_run_says_what_it_trains)
{
    fixture *f = *state;
    char *out = test_path(f->directory, "adapter"), *path = malloc(400);

    snprintf(path, 400, "--export.path=%s", out);
    SAYS(0, "adapter: LoRA of rank 4, beside 6 layers: trains 2,688 parameters, 1.59 % of the model's", "train", "-n",
         "2", "--model.path=" LLAMA, "--data.path=" TOKENS, "--training.steps=2", "--training.seq_len=16",
         "--training.local_batch_size=1", "--adapter.rank=4", "--adapter.targets=q_proj", "--adapter.targets=v_proj",
         path);
    SAYS(0, "adapter: ", "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=2", "--adapter", out);
    free(path);
}

#define TRAIN                                                                                             \
    "train", "--model.path=" LLAMA, "--data.path=" TOKENS, "--training.steps=2", "--training.seq_len=16", \
        "--training.local_batch_size=1", "--adapter.rank=4", "--checkpoint.folder", checkpoint

/* The checkpoint of an adapter is no model and no adapter's folder, and says how to get one. */
FIXTURE_TEST(an_adapter_comes_out_of_a_checkpoint_by_the_same_command)
{
    fixture *f = *state;
    char *checkpoint = test_path(f->directory, "ckpt"), *taken = test_path(f->directory, "taken");

    SAYS(0, "saved:", TRAIN, "-n", "2");
    SAYS(0, "every checksum is right; its adapter (LoRA) fits its config.json; all weights are finite", "verify",
         checkpoint);
    SAYS(1, "of a checkpoint, the run's command with export.path makes that folder", "eval", checkpoint, "--data",
         TOKENS);
    SAYS(1, "of a checkpoint, the run's command with export.path makes that folder", "eval", LLAMA, "--data", TOKENS,
         "--adapter", checkpoint);
    SAYS(0, "all steps are done", TRAIN, "--export.path", taken);
    SAYS(0, "adapter: ", "eval", LLAMA, "--data", TOKENS, "--seq-len=32", "--steps=2", "--adapter", taken);
}
