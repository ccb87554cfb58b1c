/* What stands out while a run trains is said once, in its log and its metrics, and changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "train/story.h"

static int count(const char *text, const char *part)
{
    int found = 0;

    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        found++;
    return found;
}

static char *metrics_of(story *s)
{
    char *path = test_path(s->directory, "m.jsonl"), *text;
    size_t bytes;

    text = test_read_file(path, &bytes);
    free(path);
    return text;
}

static void begin(story *s)
{
    char *path = test_path(s->directory, "m.jsonl");

    story_set(s, "metrics.jsonl", path);
    story_set(s, "metrics.histogram_freq", "2");
    free(path);
}

STORY_TEST(a_healthy_run_is_warned_of_nothing)
{
    story *s = *state;
    double losses[STORY_STEPS + 1];
    char *text;

    story_go(s, 2);
    memcpy(losses, s->losses, sizeof losses);
    begin(s);
    story_go(s, 2);
    text = metrics_of(s);
    CHECK_EQ(count(text, "\"warning\""), 0);
    CHECK_EQ(count(text, "{\"step\": "), STORY_STEPS);
    CHECK_BYTES(s->losses + 1, losses + 1, sizeof losses - sizeof *losses);
    free(text);
}

/* Every rank's part counts, however it is sharded. */
STORY_TEST(steps_that_are_too_large_are_said_once)
{
    static const char *const strategies[] = {"fsdp2", "zero1", "ddp"};
    story *s = *state;

    begin(s);
    story_set(s, "optimizer.name", "sgd");
    story_set(s, "optimizer.lr", "50");
    story_set(s, "training.max_norm", "0");
    story_set(s, "training.on_nan", "continue");
    for (int i = 0; i < 3; i++) {
        char *text;

        story_set(s, "parallelism.strategy", strategies[i]);
        story_go(s, 1 + i);
        text = metrics_of(s);
        CHECK_EQ(count(text, "\"of\": \"large updates\", \"text\": \"A step changes the weights of "), i + 1);
        CHECK_EQ(count(s->log, "step 2: A step changes the weights of "), 1);
        free(text);
    }
}
