/* The id of a run: the same on all ranks, in each of its lines and its checkpoints, and in the header of the run that
 * continues it. */
#include <jansson.h>

#include "train/run.h"
#include "train/run_start.h"
#include "train/story.h"

typedef struct ids {
    story *story;
    char of[STORY_RANKS][FSDP__RUN_ID];
} ids;

static void note_id(fsdp_context *context, void *arg)
{
    ids *all = arg;
    fsdp_train_summary summary;
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, all->story->config, &run));
    fsdp_train_run_summary(run, &summary);
    CHECK(fsdp__train_is_id(summary.run));
    snprintf(all->of[fsdp_context_rank(context)], FSDP__RUN_ID, "%s", summary.run);
    CHECK_NULL(summary.resumed_run);
    fsdp_train_run_free(run);
}

STORY_TEST(all_ranks_of_a_run_have_one_id_and_no_other_run_has_it)
{
    static const int worlds[] = {1, 2, 3, 4, 8};
    ids *all = test_new(sizeof *all);
    char before[FSDP__RUN_ID] = "";

    all->story = s;
    story_set(all->story, "training.global_batch_size", STORY_BATCH_OF_8);
    for (size_t i = 0; i < FSDP__COUNT_OF(worlds); i++) {
        test_run_ranks(worlds[i], note_id, all);
        for (int rank = 1; rank < worlds[i]; rank++)
            CHECK_STRING(all->of[rank], all->of[0]);
        CHECK(strcmp(all->of[0], before) != 0);
        memcpy(before, all->of[0], sizeof before);
    }
}

/* ---- in its files ---- */

/* The n-th line of a file of lines, from 0. json_decref it. */
static json_t *line_of(const char *path, int n)
{
    const char *text = test_read_file(path, NULL);
    json_t *line;

    for (; n > 0; n--) {
        text = CHECK_PTR(strchr(text, '\n'));
        text++;
    }
    line = json_loadb(text, strcspn(text, "\n"), 0, NULL);
    return CHECK_PTR(line);
}

/* Checks what a line has under a key; NULL: nothing. Returns it, which belongs to the case. */
static const char *check_key(const char *path, int n, const char *key, const char *expected)
{
    json_t *line = line_of(path, n);
    const char *text = json_string_value(json_object_get(line, key));
    char *own = test_new(80);

    if (expected)
        CHECK_STRING(CHECK_PTR(text), expected);
    snprintf(own, 80, "%s", text ? text : "");
    json_decref(line);
    return own;
}

STORY_TEST(each_line_is_of_its_run_and_a_resumed_run_says_what_it_continues)
{
    char *path = test_path(s->directory, "m.jsonl");
    const char *first, *second;

    story_set(s, "metrics.jsonl", path);
    story_set(s, "validation.share", "0.1");
    story_set(s, "validation.freq", "2");
    story_set(s, "checkpoint.folder", s->folder);
    s->end_after = 2;
    story_run(s, 2);
    s->end_after = 3;
    story_run(s, 3);
    first = check_key(path, 0, "id", NULL);
    CHECK(fsdp__train_is_id(first));
    CHECK_STRING(check_key(path, 0, "run", first), first);
    CHECK_STRING(check_key(path, 0, "continues", NULL), "");
    for (int n = 1; n <= 3; n++) /* two steps and a validation */
        (void)check_key(path, n, "id", first);
    second = check_key(path, 4, "id", NULL);
    CHECK(strcmp(first, second) != 0);
    (void)check_key(path, 4, "continues", first);
    (void)check_key(path, 5, "id", second);
    s->end_after = 0;
    story_go(s, 1); /* it continues the second one */
    (void)check_key(path, 6, "continues", second);
}

/* As those of before there were ids; or as nobody writes them. */
STORY_TEST(a_checkpoint_that_names_no_run_is_gone_on_from)
{
    static const char *const edits[][2] = {{"\"train.run\"", "\"train.nor\""}, {"\"text\":\"", "\"text\":\"X"}};
    char *path = test_path(s->directory, "m.jsonl");
    json_t *header;

    story_set(s, "metrics.jsonl", path);
    story_set(s, "checkpoint.folder", s->folder);
    for (int i = 0; i < 2; i++) {
        s->end_after = 2 + 2 * i;
        story_run(s, 2);
        story_edit_manifest(s, i ? "step-4" : "step-2", edits[i][0], edits[i][1]);
    }
    story_go_on(s, 2);
    for (int i = 0; i < 2; i++) {
        header = line_of(path, 3 + 3 * i);
        CHECK_EQ(json_integer_value(json_object_get(header, "resumed_from")), 2 + 2 * i);
        CHECK_NULL(json_object_get(header, "continues"));
        json_decref(header);
    }
}

/* ---- that numbers do not depend on it ---- */

STORY_TEST(an_id_takes_no_number_from_the_training)
{
    double losses[STORY_STEPS + 1];
    size_t bytes, again_bytes;
    char *weights, *again;

    story_set(s, "export.path", s->model);
    story_go(s, 2);
    memcpy(losses, s->losses, sizeof losses);
    weights = story_weights(s, &bytes);
    story_go(s, 2); /* has another id */
    again = story_weights(s, &again_bytes);
    CHECK_BYTES(s->losses + 1, losses + 1, STORY_STEPS * sizeof *losses);
    CHECK_EQ(bytes, again_bytes);
    CHECK_BYTES(again, weights, bytes);
}
