/* fsdp eval on pairs of a chosen and a rejected answer: the numbers of the training's validations, on any ranks. */
#include <math.h>

#include "cli/fixture.h"

#define LLAMA REFERENCE "/models/tiny-llama"
#define PAIRS REFERENCE "/finetune/dpo-train.jsonl"
#define TOKENIZER REFERENCE "/finetune/byte-chat"

static double number_behind(const char *text, const char *name)
{
    const char *at = text ? strstr(text, name) : NULL;

    if (!at)
        TEST_FAIL("no '%s' in:\n%s", name, text);
    return strtod(at + strlen(name), NULL);
}

/* Trains three steps on the pairs, with up to three more keys, and validates on the same. */
static void train(const fixture *f, const char *const *keys, const char *to)
{
    char path[600], cache[600], metrics[600];
    program p;

    snprintf(path, sizeof path, "--export.path=%s", to);
    snprintf(metrics, sizeof metrics, "--metrics.jsonl=%s/m.jsonl", f->directory);
    snprintf(cache, sizeof cache, "--data.cache=%s/c", f->directory);
    p = RUN(0, "train", "--model.path=" LLAMA, "--data.path=" PAIRS, "--data.tokenizer=" TOKENIZER,
            "--validation.path=" PAIRS, "--training.objective=dpo", "--training.seq_len=200",
            "--training.local_batch_size=8", "--training.steps=3", "--optimizer.lr=0.003", metrics, cache, path,
            keys[0], keys[0] ? keys[1] : NULL, keys[0] && keys[1] ? keys[2] : NULL);

    CHECK_CONTAINS(p.output, "valid:  8 pairs; after every ");
    CHECK_CONTAINS(p.output, "valid:  3  loss: 0.");
    CHECK_CONTAINS(p.output, "  accuracy: 1.00  pairs: 8  best\n");
}

/* What the training has said of its last validation. */
static char *last_validation(const fixture *f)
{
    char *path = test_path(f->directory, "m.jsonl");
    char *text = test_read_file(path, NULL), *line = strstr(text, "{\"validation\": 3"), *copy;

    copy = strdup(CHECK_PTR(line));
    CHECK_EQ(remove(path), 0);
    return copy;
}

static void check_line(const char *line, const char *output)
{
    CHECK_NEAR(number_behind(output, "\nloss: "), number_behind(line, "\"loss\": "), 1e-5);
    CHECK_NEAR(number_behind(output, "  margin: "), number_behind(line, "\"reward_margin\": "), 1e-5);
    CHECK_NEAR(number_behind(output, "  chosen: "), number_behind(line, "\"reward_chosen\": "), 1e-5);
    CHECK_NEAR(number_behind(output, "  rejected: "), number_behind(line, "\"reward_rejected\": "), 1e-5);
    CHECK_NEAR(number_behind(output, "  tokens: "), number_behind(line, "\"tokens\": "), 0);
    CHECK_CONTAINS(output, "  accuracy: 1.0000  ");
    CHECK_CONTAINS(output, "data:   8 pairs of ");
}

FIXTURE_TEST(a_tuned_model_is_compared_with_its_reference)
{
    static const char *const ranks[] = {"1", "2", "3"};
    char *tuned = test_path(f->directory, "tuned"), *line;

    train(f, (const char *const[3]){NULL}, tuned);
    line = last_validation(f);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        program p = RUN(0, "eval", tuned, "--data", PAIRS, "--reference", LLAMA, "--batch-size=3", "-n", ranks[i]);

        check_line(line, p.output);
    }
    free(line);
}

/* The base is what the run has held: in the codes that it has made of the weights. */
FIXTURE_TEST(a_checkpoint_of_an_adapter_is_compared_with_its_base)
{
    static const char *const keys[] = {"--adapter.dora=true", "--adapter.quantize=nf4"};
    static const char *const ranks[] = {"2", "1"};

    for (int i = 0; i < 2; i++) {
        char *checkpoint = test_path(f->directory, ranks[i]), option[600], *line;
        program p;

        snprintf(option, sizeof option, "--checkpoint.folder=%s", checkpoint);
        train(f, (const char *const[]){"--adapter.rank=4", option, keys[i]}, "");
        line = last_validation(f);
        p = RUN(0, "eval", checkpoint, "--data", PAIRS, "--tokenizer", TOKENIZER, "-n", ranks[i]);
        check_line(line, p.output);
        free(line);
    }
}

FIXTURE_TEST(an_adapter_is_compared_with_its_base)
{
    char *lora = test_path(f->directory, "lora"), *line;
    program p;

    train(f, (const char *const[3]){"--adapter.rank=4"}, lora);
    line = last_validation(f);
    p = RUN(0, "eval", LLAMA, "--adapter", lora, "--data", PAIRS, "--tokenizer", TOKENIZER);
    check_line(line, p.output);
    free(line);
}

FIXTURE_TEST(a_model_is_no_better_than_itself)
{
    program p = RUN(0, "eval", LLAMA, "--data", PAIRS, "--tokenizer", TOKENIZER, "--reference", LLAMA, "--beta=0.5");

    CHECK_CONTAINS(p.output, "loss: 0.693147  margin: 0.000000  accuracy: 0.0000  chosen: 0.000000");
}

FIXTURE_TEST(what_pairs_need_is_said)
{
    SAYS(1, "has pairs, on which a model is compared with another: name that with --reference FOLDER", "eval", LLAMA,
         "--data", PAIRS, "--tokenizer", TOKENIZER);
    SAYS(1, "--reference is for pairs of chosen and rejected answers, and --data '", "eval", LLAMA, "--data",
         REFERENCE "/tokens.bin", "--reference", LLAMA);
    SAYS(1, "--train-on is all, but --data '", "eval", LLAMA, "--data", PAIRS, "--tokenizer", TOKENIZER,
         "--train-on=all", "--reference", LLAMA);
    SAYS(1, "--on-long-row is split, but --data '", "eval", LLAMA, "--data", PAIRS, "--tokenizer", TOKENIZER,
         "--on-long-row=split", "--reference", LLAMA);
    SAYS(2, "--beta is '0': expected a number greater than 0", "eval", LLAMA, "--data", PAIRS, "--beta=0");
    SAYS(1, "--reference: ", "eval", LLAMA, "--data", PAIRS, "--tokenizer", TOKENIZER, "--reference", "none");
    SAYS(1, "pair 1 of '", "eval", LLAMA, "--data", PAIRS, "--tokenizer", TOKENIZER, "--reference", LLAMA,
         "--seq-len=90");
}
