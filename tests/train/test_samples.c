/* Texts that the model makes of a prompt while it is trained. */
#include "format/event_reader.h"
#include "train/config.h"
#include "train/story.h"

/* Sets metrics.tensorboard to a folder in the story's directory. */
static char *set_board(story *s, const char *name)
{
    char *path = test_path(s->directory, name);

    story_set(s, "metrics.tensorboard", path);
    return path;
}

/* Neither a bit nor a gather of the steps changes. */
STORY_TEST(a_text_is_continued_every_few_steps)
{
    static const char *const strategies[] = {"fsdp2", "fsdp1", "ddp", "zero1", "fsdp2"};
    double losses[STORY_STEPS + 1];
    const read_event *text;
    read_events plain, events;
    char *folder, name[20];

    story_set(s, "metrics.sample_freq", "3");
    story_set(s, "metrics.sample_tokens", "5");
    for (size_t i = 0; i < FSDP__COUNT_OF(strategies); i += test_brief() ? 2 : 1) {
        story_set(s, "parallelism.strategy", strategies[i]);
        story_set(s, "parallelism.context_parallel_degree", i == 4 ? "2" : "1"); /* each computes all of the text */
        story_set(s, "metrics.sample_prompt", "");
        snprintf(name, sizeof name, "plain%zu", i);
        folder = set_board(s, name);
        story_go(s, 2);
        memcpy(losses, s->losses, sizeof losses);
        plain = events_read_folder(folder, NULL, 0);
        snprintf(name, sizeof name, "texts%zu", i);
        folder = set_board(s, name);
        story_set(s, "metrics.sample_prompt", "99 bottles\nof");
        story_go(s, 2);
        CHECK_BYTES(s->losses + 1, losses + 1, sizeof losses - sizeof *losses);
        events = events_read_folder(folder, NULL, 0);
        for (int step = 1; step <= STORY_STEPS; step++) {
            static const char gathers[] = "communication/all_gather";

            CHECK(events_find(&events, gathers, step, true)->number ==
                  events_find(&plain, gathers, step, true)->number);
            text = events_find(&events, "sample", step, step % 3 == 0);
            CHECK((text != NULL) == (step % 3 == 0));
            if (text) {
                CHECK_CONTAINS(text->text, "    99 bottles\n    of");
                CHECK(strlen(text->text) > strlen("    99 bottles\n    of"));
            }
        }
        events_free(&plain);
        events_free(&events);
    }
}

STORY_TEST(a_prompt_that_cannot_be_continued_is_refused_at_the_start)
{
    char *tokens = test_path(s->directory, "tokens.bin");
    uint16_t numbers[2000];

    for (size_t i = 0; i < FSDP__COUNT_OF(numbers); i++)
        numbers[i] = (uint16_t)(i * 7 % 250);
    story_set(s, "metrics.sample_prompt", "text");
    CHECK_ERROR(fsdp_train_config_check(s->config, 1), FSDP_INVALID,
                "metrics.sample_prompt needs metrics.tensorboard: set that");
    set_board(s, "board");
    story_set(s, "model.vocab_size", "128");
    story_set(s, "metrics.sample_prompt", "\xc3\xa4");
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "metrics.sample_prompt: token 0 is 195, which a model of 128 tokens does not have");
    test_write_file(tokens, numbers, sizeof numbers);
    test_set_keys(s->config, "data.path=%s data.dtype=uint16 model.vocab_size=256", tokens);
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, "metrics.sample_prompt: data.path has tokens, and there is no tokenizer");
}
