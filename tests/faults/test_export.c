/* A model is written while the process is killed, the disk fails or is full, at every call that changes a folder: what
 * was there before is there, or what was asked for, and what is not the export's stays. */
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "faults/tree.h"
#include "fsdp/hub.h"
#include "support/program.h"

#define TESTS TEST_BINARY_DIR "/tests/"

enum {
    MOST_CALLS = 1000,
    SPARSE = 14 /* of the calls in between, every so manyth in the quick version */
};

/* What is in the folder when an export into it begins, and how it is asked for. */
typedef struct scene {
    const char *name;
    bool exported;  /* an export wrote it */
    bool foreign;   /* files of others are there */
    bool overwrite; /* the others' include config.json */
} scene;

typedef struct stage {
    const scene *scene;
    char *directory; /* of the test */
    char *area;      /* the one in which the calls are counted */
    char *folder;    /* in it: the export's */
    char *before;    /* beside it: a copy of the folder before */
    char *source;    /* a folder with a tokenizer */
    char *old_text, *new_text;
} stage;

/* ---- runs ---- */

/* A save into the stage's folder; returns its exit status. */
static int save(const stage *s, const char *value, const char *files)
{
    program p = program_start(s->directory, (const char *const[]){TESTS "program_save", s->folder, value, files,
                                                                  s->scene->overwrite ? "1" : "0", s->source, NULL});
    int status;

    program_wait(&p);
    status = p.status;
    return status;
}

static int save_new(const stage *s)
{
    return save(s, "2", "3");
}

/* With the n-th call killed or failed; 0: with all calls written to `log`. */
static int save_with(const stage *s, int nth, const char *act, const char *log)
{
    char number[16];
    int status;

    snprintf(number, sizeof number, "%d", nth);
    setenv("LD_PRELOAD", TESTS "preload_calls.so", 1);
    setenv("CALLS_BELOW", s->area, 1);
    setenv("CALLS_ACT", act, 1);
    setenv("CALLS_NTH", number, 1);
    setenv("CALLS_LOG", log ? log : "", 1);
    if (!log)
        unsetenv("CALLS_LOG");
    status = save_new(s);
    unsetenv("LD_PRELOAD");
    return status;
}

/* ---- the folder ---- */

static void build(stage *s)
{
    if (s->scene->exported)
        CHECK_EQ(save(s, "1", "1"), 0);
    if (!s->scene->foreign)
        return;
    CHECK_OK(fsdp__make_directories(s->folder));
    test_write_text(s->folder, "README.md", "theirs");
    test_write_text(s->folder, "notes", "theirs");
    if (s->scene->overwrite)
        test_write_text(s->folder, "config.json", "{}");
}

static void restore(const stage *s)
{
    test_remove_tree(s->area);
    CHECK_OK(fsdp__make_directories(s->area));
    tree_copy(s->before, s->folder);
}

static stage stage_create(const scene *what)
{
    stage s = {.scene = what, .directory = test_directory()};

    s.area = test_path(s.directory, "area");
    s.folder = test_path(s.area, "model");
    s.before = test_path(s.directory, "before");
    s.source = test_path(s.directory, "source");
    CHECK_OK(fsdp__make_directories(s.source));
    CHECK_OK(fsdp__make_directories(s.area));
    test_write_text(s.source, "tokenizer.json", "{\"tokens\": []}");
    build(&s);
    tree_copy(s.folder, s.before);
    s.old_text = tree_text(s.folder, NULL);
    CHECK_EQ(save_new(&s), 0);
    s.new_text = tree_text(s.folder, NULL);
    CHECK(strcmp(s.old_text, s.new_text) != 0);
    return s;
}

static void stage_free(stage *s)
{
    free(s->old_text);
    free(s->new_text);
    test_directory_free(s->directory);
}

/* ---- one fault ---- */

/* The folder is the old one or the new one; `status` is how the save ended. */
static void check_folder(const stage *s, int status, const char *act, int nth)
{
    char *text;
    bool is_old, is_new;

    if (strcmp(act, "KILL") == 0 && fsdp__path_exists(s->folder))
        CHECK_OK(fsdp_hub_repair(s->folder, NULL));
    text = tree_text(s->folder, ".saving");
    is_old = strcmp(text, s->old_text) == 0;
    is_new = strcmp(text, s->new_text) == 0;
    if (!(status == 0 ? is_new : status == 1 ? is_old : is_old || is_new))
        TEST_FAIL("%s, %s at call %d: exit status %d, and the folder holds\n%s\nbefore:\n%s\nasked for:\n%s",
                  s->scene->name, act, nth, status, text, s->old_text, s->new_text);
    free(text);
}

/* The next save finds nothing in its way, and leaves nothing of the one before. */
static void check_next(const stage *s, const char *act, int nth)
{
    char *text, *area;

    if (save_new(s) != 0)
        TEST_FAIL("%s, %s at call %d: the next save failed", s->scene->name, act, nth);
    text = tree_text(s->folder, NULL);
    CHECK_STRING(text, s->new_text);
    free(text);
    test_remove_tree(s->folder);
    area = tree_text(s->area, NULL);
    CHECK_STRING(area, ""); /* nothing beside it either */
    free(area);
}

static void try(const stage *s, int nth, const char *act)
{
    int status;

    restore(s);
    status = save_with(s, nth, act, NULL);
    if (strcmp(act, "KILL") == 0)
        CHECK_EQ(status, 128 + SIGKILL);
    check_folder(s, status, act, nth);
    check_next(s, act, nth);
}

/* ---- all of them ---- */

/* The names of the calls of a save without a fault; returns how many. */
static int list_calls(const stage *s, char (*names)[16])
{
    char *log = test_path(s->directory, "log"), *text;
    int count = 0;

    restore(s);
    (void)unlink(log);
    CHECK_EQ(save_with(s, 0, "EIO", log), 0);
    text = test_read_file(log, NULL);
    for (char *line = strtok(text, "\n"); line && count < MOST_CALLS; line = strtok(NULL, "\n"))
        snprintf(names[count++], sizeof names[0], "%s", line);
    return count;
}

/* All of them, or the first and last of each name, and some in between. */
static bool is_tried(char (*names)[16], int count, int index)
{
    bool first = true, last = true;

    for (int i = 0; i < index; i++)
        first &= strcmp(names[i], names[index]) != 0;
    for (int i = index + 1; i < count; i++)
        last &= strcmp(names[i], names[index]) != 0;
    return test_long() || first || last || index % SPARSE == 0;
}

static void sweep(const scene *what)
{
    static const char *const acts[] = {"KILL", "EIO", "ENOSPC"};
    stage s = stage_create(what);
    char names[MOST_CALLS][16];
    int count = list_calls(&s, names), tried = 0;

    CHECK(count > 20 && count < MOST_CALLS);
    for (int i = 0; i < count; i++) {
        if (!is_tried(names, count, i))
            continue;
        for (int a = 0; a < 3; a++)
            if (test_long() || (i + a) % 3 == 0 || a == 0)
                try(&s, i + 1, acts[a]);
        tried++;
    }
    printf("%s: %d of %d calls\n", what->name, tried, count);
    stage_free(&s);
}

TEST(into_a_new_folder)
{
    sweep(&(scene){.name = "a new folder"});
}

TEST(in_place_of_an_export)
{
    sweep(&(scene){.name = "an export", .exported = true});
}

TEST(in_place_of_an_export_with_other_files_beside)
{
    sweep(&(scene){.name = "an export with other files", .exported = true, .foreign = true});
}

TEST(over_a_folder_of_others)
{
    sweep(&(scene){.name = "a folder of others", .foreign = true, .overwrite = true});
}

TEST_FILE_IN_MEMORY(TEST_SANITIZED, "a sanitizer's library must come before any that is preloaded")
