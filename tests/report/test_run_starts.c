/* Several runs in one file, at once and one after the other: each line is shown with the run that wrote it, and a run
 * that was resumed with what it continues. */
#include "report/run_starts.h"
#include "support/dice.h"
#include "support/test.h"

/* A header of a start, and a step of it; `more` begins with a comma. */
#define START(id, more) "{\"run\": \"" id "\", \"id\": \"" id "\", \"steps\": 9" more "}\n"
#define GOES_ON(id, from, step, more) START(id, ", \"resumed_from\": " step ", \"continues\": \"" from "\"" more)
#define STEP(id, step, loss) "{\"step\": " step ", \"id\": \"" id "\", \"loss\": " loss "}\n"
#define OLD_START(more) "{\"run\": \"old\", \"steps\": 9" more "}\n"
#define OLD_STEP(step, loss) "{\"step\": " step ", \"loss\": " loss "}\n"
#define IN(folder) ", \"settings\": {\"checkpoint.folder\": \"" folder "\"}"

static fsdp_status read_text(const char *text, fsdp__recorded_runs *runs)
{
    char *folder = test_directory(), *file = test_path(folder, "metrics.jsonl");
    fsdp_status status;

    test_write_file(file, text, strlen(text));
    *runs = (fsdp__recorded_runs){0};
    status = fsdp__recorded_runs_read(runs, file);
    test_directory_free(folder);
    return status;
}

/* Returns the losses of all runs, "1:5 2:4 | 1:6"; free() it. */
static char *losses_of(const fsdp__recorded_runs *runs)
{
    FILE *out = test_begin_text();

    for (int64_t i = 0; i < runs->count; i++) {
        const fsdp__series *loss = fsdp__series_of(&runs->runs[i], "loss");

        fprintf(out, "%s", i ? " |" : "");
        for (int64_t k = 0; loss && k < loss->count; k++)
            fprintf(out, "%s%g:%g", i || k ? " " : "", loss->points[k].step, loss->points[k].value);
    }
    return test_end_text(out);
}

static void check_losses(const char *text, const char *expected)
{
    fsdp__recorded_runs runs;
    char *losses;

    CHECK_OK(read_text(text, &runs));
    losses = losses_of(&runs);
    CHECK_STRING(losses, expected);
    fsdp__recorded_runs_free(&runs);
}

TEST(runs_that_write_at_once_are_told_apart)
{
    check_losses(START("a", "") STEP("a", "1", "5") START("b", "") STEP("a", "2", "4") STEP("b", "1", "7")
                     STEP("b", "2", "6") STEP("a", "3", "3"),
                 "1:5 2:4 3:3 | 1:7 2:6");
}

/* What it has in common is one run, and the other one has nothing of it. */
TEST(a_run_goes_on_after_another_has_written)
{
    static const char text[] =
        START("a", ", \"world_size\": 4") STEP("a", "1", "5") STEP("a", "2", "4") STEP("a", "3", "3") START("b", "")
            STEP("b", "1", "7") GOES_ON("c", "a", "2", ", \"world_size\": 2") STEP("c", "3", "2");
    fsdp__recorded_runs runs;

    check_losses(text, "1:7 | 1:5 2:4 3:2");
    CHECK_OK(read_text(text, &runs));
    CHECK_EQ(runs.runs[0].continued, 0);
    CHECK_EQ(runs.runs[1].continued, 1);
    CHECK_STRING(runs.runs[1].ranks, "4, then 2");
    CHECK_NEAR(runs.runs[1].resumes.points[0].step, 2, 0);
    CHECK_EQ(json_array_size(runs.runs[1].starts), 2);
    fsdp__recorded_runs_free(&runs);
}

/* What a crash has cost, and what a run in the same folder has set aside, is no run. */
TEST(work_that_was_lost_is_no_run)
{
    check_losses(START("a", "") STEP("a", "1", "5") STEP("a", "2", "4") GOES_ON("b", "a", "1", "") STEP("b", "2", "3")
                     GOES_ON("c", "a", "1", "") STEP("c", "2", "2") GOES_ON("d", "a", "1", ""),
                 "1:5");
    check_losses(START("a", "") STEP("a", "1", "5") STEP("a", "2", "4") GOES_ON("b", "a", "2", "") STEP("b", "3", "3")
                     GOES_ON("c", "a", "1", "") STEP("c", "2", "2"),
                 "1:5 2:2");
}

TEST(a_fork_is_two_runs)
{
    /* In folders of their own. */
    check_losses(START("a", IN("x")) STEP("a", "1", "5") GOES_ON("b", "a", "1", IN("x")) STEP("b", "2", "4")
                     GOES_ON("c", "a", "1", IN("y")) STEP("c", "2", "3"),
                 "1:5 2:4 | 1:5 2:3");
    check_losses(START("a", IN("x")) STEP("a", "1", "5") STEP("a", "2", "4") GOES_ON("b", "a", "1", IN("y")),
                 "1:5 2:4 | 1:5");
    /* At once. */
    check_losses(START("a", "") STEP("a", "1", "5") GOES_ON("b", "a", "1", "") STEP("b", "2", "4")
                     GOES_ON("c", "a", "1", "") STEP("c", "2", "3") STEP("b", "3", "2"),
                 "1:5 2:4 3:2 | 1:5 2:3");
    check_losses(START("a", "") STEP("a", "1", "5") GOES_ON("b", "a", "1", "") STEP("a", "2", "4") STEP("b", "2", "3"),
                 "1:5 2:4 | 1:5 2:3");
    /* One had come to its end. */
    check_losses(START("a", "") STEP("a", "1", "5") STEP("a", "9", "4") GOES_ON("b", "a", "1", "") STEP("b", "2", "3"),
                 "1:5 9:4 | 1:5 2:3");
    /* One went on later than the other, which has not taken a step of its own yet. */
    check_losses(START("a", IN("x")) STEP("a", "1", "5") STEP("a", "2", "4") GOES_ON("b", "a", "2", IN("x"))
                     GOES_ON("c", "a", "1", IN("y")) STEP("c", "2", "3"),
                 "1:5 2:4 | 1:5 2:3");
}

TEST(lines_without_an_id_belong_to_the_last_header_without_one)
{
    check_losses(OLD_START("") OLD_STEP("1", "5") START("a", "") OLD_STEP("2", "4") STEP("a", "1", "7")
                     OLD_STEP("3", "3"),
                 "1:5 2:4 3:3 | 1:7");
    check_losses(START("a", "") STEP("a", "1", "7") OLD_STEP("5", "3"), "1:7 | 5:3");
    /* A checkpoint of an older version does not say whose it is. */
    check_losses(OLD_START("") OLD_STEP("1", "5") OLD_STEP("2", "4") START("x", "") STEP("x", "1", "8")
                     START("a", ", \"resumed_from\": 1") STEP("a", "2", "3"),
                 "1:8 | 1:5 2:3");
    check_losses(START("x", "") STEP("x", "1", "8") START("a", ", \"resumed_from\": 1") STEP("a", "2", "3"),
                 "1:8 | 2:3");
    /* An older version goes on from what this one has left. */
    check_losses(START("a", "") STEP("a", "1", "5") STEP("a", "2", "4") OLD_START(", \"resumed_from\": 1")
                     OLD_STEP("2", "3"),
                 "1:5 2:3");
}

TEST(a_header_may_be_missing_or_there_twice)
{
    check_losses(STEP("a", "4", "5") STEP("b", "1", "7") STEP("a", "5", "4"), "4:5 5:4 | 1:7");
    check_losses(START("a", "") STEP("a", "1", "5") STEP("a", "2", "4") START("a", "") STEP("a", "1", "5"), "1:5 2:4");
    check_losses(STEP("a", "2", "4") START("a", "") STEP("a", "1", "5"), "1:5 2:4");
    check_losses(GOES_ON("b", "gone", "3", "") STEP("b", "4", "5"), "4:5");
    check_losses(GOES_ON("a", "b", "1", "") STEP("a", "2", "5") GOES_ON("b", "a", "2", "") STEP("b", "3", "4"),
                 "2:5 | 3:4"); /* no file of runs has such a circle */
    check_losses(GOES_ON("a", "a", "1", "") STEP("a", "2", "5"), "2:5");
    /* A header that says too little would close it. */
    check_losses(STEP("a", "1", "5") OLD_START(", \"resumed_from\": 1") START("a", ", \"resumed_from\": 1")
                     STEP("a", "2", "4") OLD_STEP("3", "3"),
                 "1:5 3:3");
}

/* Joining takes time with the square of the starts; with their cube this would take very long. */
TEST(a_run_may_have_been_resumed_very_often)
{
    const int often = 3000;
    FILE *out = test_begin_text();
    fsdp__recorded_runs runs;

    for (int i = 0; i < often; i++) {
        fprintf(out, "{\"run\": \"%d\", \"id\": \"%d\"", i, i);
        if (i > 0)
            fprintf(out, ", \"resumed_from\": %d, \"continues\": \"%d\"", i - 1, i - 1);
        fprintf(out, "}\n{\"step\": %d, \"id\": \"%d\", \"loss\": 1}\n", i, i);
    }
    CHECK_OK(read_text(test_end_text(out), &runs));
    CHECK_EQ(runs.count, 1);
    CHECK_EQ(runs.runs[0].continued, often - 1);
    fsdp__recorded_runs_free(&runs);
}

TEST(a_line_that_is_cut_off_costs_no_other_run_its_line)
{
    static const char cut[] = "{\"step\": 2, \"id\": \"a\", \"lo";
    fsdp__recorded_runs runs;
    char text[1000];

    snprintf(text, sizeof text, "%s%s%s", START("a", "") STEP("a", "1", "5") START("b", "") STEP("b", "1", "7"), cut,
             STEP("b", "2", "6") STEP("b", "3", "5") START("c", ""));
    check_losses(text, "1:5 | 1:7 2:6 3:5 |");
    snprintf(text, sizeof text, "%s%s\n%s", START("a", "") STEP("a", "1", "5"), cut,
             START("c", "") STEP("c", "1", "6"));
    check_losses(text, "1:5 | 1:6");
    snprintf(text, sizeof text, "%s%s%s", START("a", ""), "{\"run\": \"d\", \"settings\": {\"x\": \"y\"}",
             STEP("a", "1", "5"));
    check_losses(text, "1:5");
    snprintf(text, sizeof text, "%s%s\n%s", START("a", ""), cut, STEP("a", "2", "5"));
    CHECK_OK(read_text(text, &runs));
    CHECK_CONTAINS(CHECK_PTR(runs.left_out), "line 2 is no JSON object");
    fsdp__recorded_runs_free(&runs);
}

TEST(warnings_and_validations_are_those_of_their_run)
{
    static const char text[] = START("a", "") START("b", "") STEP("a", "1", "5")
        STEP("b", "1",
             "6") "{\"validation\": 1, \"id\": \"a\", \"loss\": 4}\n{\"validation\": 1, \"id\": \"b\", \"loss\": 3}\n"
                  "{\"warning\": 1, \"id\": \"a\", \"of\": \"x\", \"text\": \"y\"}\n"
                  "{\"warning\": 1, \"id\": \"a\", \"of\": \"x\", \"text\": \"y\"}\n";
    fsdp__recorded_runs runs;

    CHECK_OK(read_text(text, &runs));
    CHECK_NEAR(runs.runs[0].validation.points[0].value, 4, 0);
    CHECK_NEAR(runs.runs[1].validation.points[0].value, 3, 0);
    CHECK_EQ(json_array_size(runs.runs[0].warnings), 1);
    CHECK_EQ(json_array_size(runs.runs[1].warnings), 0);
    fsdp__recorded_runs_free(&runs);
}

/* ---- any order of runs, resumes, forks and kills ---- */

enum {
    STARTS = 10,
    FOLDERS = 10,
    LONGEST = 40, /* steps */
    GOAL = 7,
    CHANGES = 60
};

/* A start: what it has written, behind what it has taken over. */
typedef struct start {
    int parent, from; /* -1: it has begun anew */
    int folder, name; /* of its checkpoints, and what that is called: others may call theirs so */
    int steps;        /* its last one */
    int kept;         /* what the chain of its losses has, up to its last step */
    int losses[LONGEST];
    int begun, ended; /* numbers of its header and of its last line */
    bool old, lives;
} start;

typedef struct world {
    uint64_t seed;
    FILE *file;
    start starts[STARTS];
    int count, written, folders;
    struct checkpoint {
        int start, step; /* -1: there is none */
    } newest[FOLDERS];
    int names[FOLDERS];
    bool within; /* the file ends within a line */
    char *copy;  /* a line that was written before */
} world;

static void put(world *w, const char *line)
{
    fputs(line, w->file);
    w->written++;
    w->within = false;
    if (w->copy && !dice_chance(&w->seed, 20))
        return;
    free(w->copy);
    w->copy = strdup(line);
}

static void put_header(world *w, const start *s, int number)
{
    char line[400], more[200] = "";

    if (s->parent >= 0)
        snprintf(more, sizeof more, ", \"resumed_from\": %d, \"continues\": \"%d\"", s->from, s->parent);
    if (s->old)
        snprintf(line, sizeof line, "%s{\"run\": \"%d\", \"steps\": %d}\n", w->within ? "\n" : "", number, GOAL);
    else
        snprintf(line, sizeof line,
                 "%s{\"run\": \"%d\", \"id\": \"%d\", \"steps\": %d%s, \"settings\": {\"checkpoint.folder\": "
                 "\"%d\"}}\n",
                 w->within ? "\n" : "", number, number, GOAL, more, s->name);
    put(w, line);
}

/* Starts a run, anew or from a checkpoint. */
static void begin(world *w, int parent, int from, int folder, bool old)
{
    start *s = &w->starts[w->count];

    if (w->count == STARTS)
        return;
    *s = (start){.parent = parent, .from = from, .folder = folder, .name = w->names[folder], .old = old, .lives = true};
    s->steps = s->kept = parent >= 0 ? from : 0;
    for (int i = 0; parent >= 0 && i < from; i++)
        s->losses[i] = w->starts[parent].losses[i];
    for (int i = 0; old && i < w->count; i++) /* of two such runs nobody could tell the lines apart */
        w->starts[i].lives = w->starts[i].lives && !w->starts[i].old;
    put_header(w, s, w->count++);
    s->begun = s->ended = w->written;
}

static int new_folder(world *w)
{
    w->newest[w->folders] = (struct checkpoint){-1, -1};
    w->names[w->folders] = dice_below(&w->seed, 2) * dice_below(&w->seed, FOLDERS);
    return w->folders++;
}

/* Takes a step, of which a full disk may cut off the line and end the run. */
static void step(world *w, int number, bool cut)
{
    start *s = &w->starts[number];
    int loss = 100 * (number + 1) + s->steps + 1, bytes;
    char line[200], id[40] = "";

    if (s->steps == LONGEST)
        return;
    if (!s->old)
        snprintf(id, sizeof id, ", \"id\": \"%d\"", number);
    bytes = snprintf(line, sizeof line, "{\"step\": %d%s, \"loss\": %d}\n", s->steps + 1, id, loss);
    if (cut) {
        line[1 + dice_below(&w->seed, bytes - 3)] = '\0';
        fputs(line, w->file);
        w->within = true;
        s->lives = false;
        return;
    }
    s->losses[s->steps++] = loss;
    s->kept = s->steps;
    put(w, line);
    s->ended = w->written;
}

static bool is_held(const world *w, int folder)
{
    for (int i = 0; i < w->count; i++)
        if (w->starts[i].lives && w->starts[i].folder == folder)
            return true;
    return false;
}

/* Goes on from the newest checkpoint of a folder, there, or in a copy of it. */
static void go_on(world *w)
{
    int folder = w->folders > 0 ? dice_below(&w->seed, w->folders) : -1;
    struct checkpoint from = folder < 0 ? (struct checkpoint){-1, -1} : w->newest[folder];

    if (from.start < 0 || w->count == STARTS)
        return;
    if (w->folders < FOLDERS && (is_held(w, folder) || dice_chance(&w->seed, 30))) {
        int copy = new_folder(w);

        w->newest[copy] = from;
        folder = copy;
    }
    if (!is_held(w, folder))
        begin(w, from.start, from.step, folder, false);
}

static void change(world *w)
{
    int number = w->count > 0 ? dice_below(&w->seed, w->count) : -1, what = dice_below(&w->seed, 100);
    start *s = number < 0 ? NULL : &w->starts[number];

    if (what < 10 && w->folders < FOLDERS)
        begin(w, -1, -1, new_folder(w), dice_chance(&w->seed, 25));
    else if (what < 20)
        go_on(w);
    else if (what < 24 && w->copy && strstr(w->copy, "\"id\"") && !w->within)
        put(w, strdupa(w->copy + (w->copy[0] == '\n')));
    else if (!s || !s->lives)
        return;
    else if (what < 30)
        s->lives = false;
    else if (what < 50 && !s->old && s->steps > (s->parent >= 0 ? s->from : 0))
        w->newest[s->folder] = (struct checkpoint){number, s->steps};
    else
        step(w, number, what > 97);
}

/* Returns whether a start is no run of its own: another has gone on from where this one was, and this one has nothing
 * more, or has lost it. */
static bool is_over(const world *w, int number)
{
    const start *s = &w->starts[number];

    for (int i = number + 1; i < w->count; i++) {
        const start *other = &w->starts[i];

        if (other->parent < 0 || s->kept < other->from ||
            memcmp(s->losses, other->losses, (size_t)other->from * sizeof *s->losses) != 0)
            continue;
        if (s->kept == other->from || (s->name == other->name && s->ended < other->begun &&
                                       !(s->steps >= GOAL && s->steps > (s->parent >= 0 ? s->from : 0))))
            return true;
    }
    return false;
}

static char *expected_of(const world *w)
{
    FILE *out = test_begin_text();
    bool first = true;

    for (int i = 0; i < w->count; i++) {
        if (is_over(w, i))
            continue;
        fprintf(out, "%s", first ? "" : " |");
        for (int k = 0; k < w->starts[i].kept; k++)
            fprintf(out, "%s%d:%d", first && k == 0 ? "" : " ", k + 1, w->starts[i].losses[k]);
        first = false;
    }
    return test_end_text(out);
}

TEST(any_order_of_runs_resumes_forks_and_kills_is_shown_as_it_was)
{
    const dice_seeds seeds = dice_seeds_of("RUNS", test_long() ? 20000 : test_brief() ? 60 : 300);
    int64_t resumes = 0, cuts = 0, runs_shown = 0;

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        world w = {.seed = seed, .file = test_begin_text()};
        fsdp__recorded_runs runs;
        char *text, *losses, *expected;

        begin(&w, -1, -1, new_folder(&w), false);
        for (int i = 0; i < CHANGES; i++) {
            change(&w);
            cuts += w.within;
        }
        text = test_end_text(w.file);
        free(w.copy);
        CHECK_OK(read_text(text, &runs));
        losses = losses_of(&runs);
        expected = expected_of(&w);
        if (strcmp(losses, expected) != 0)
            TEST_FAIL("seed %llu: '%s' is shown as\n%s\nand not\n%s", (unsigned long long)seed, text, losses, expected);
        for (int64_t i = 0; i < runs.count; i++)
            resumes += runs.runs[i].continued;
        runs_shown += runs.count;
        fsdp__recorded_runs_free(&runs);
    }
    CHECK(seeds.only || (resumes > 20 && cuts > 20 && runs_shown > 100));
}

TEST(an_allocation_that_fails_is_an_error)
{
    char *folder = test_directory(), *file = test_path(folder, "metrics.jsonl");
    static const char text[] = START("a", "") STEP("a", "1", "5") "{\"step\": 2, \"l" STEP("b", "1", "6")
        GOES_ON("c", "a", "1", ", \"world_size\": 2") STEP("c", "2", "4") STEP("a", "1", "5");

    test_write_file(file, text, strlen(text));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__recorded_runs runs = {0};
        fsdp_status status = fsdp__recorded_runs_read(&runs, file);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__recorded_runs_free(&runs);
    }
    test_directory_free(folder);
}
