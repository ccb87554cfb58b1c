/* Another user may write where this one saves, and swaps what has a name for something else: nothing of the user's
 * outside of that goes, or changes, and what the other one has put there is not believed. Root is the user here, since
 * only root can be another one for a while. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/retention.h"
#include "checkpoint/scene.h"
#include "data/token_cache.h"
#include "faults/tree.h"
#include "format/garden.h"
#include "format/journal.h"
#include "fsdp/hub.h"
#include "tokenizer/small.h"

enum {
    OTHER = 65534,
    WORLD = 2,
    TRIES = 40,
    SWAPS = 40,
    MOST = 400
};

/* ---- the other user ---- */

/* In a process of its own, for good. */
static void become_other(void)
{
    umask(0);
    if (setresgid(OTHER, OTHER, OTHER) != 0 || setresuid(OTHER, OTHER, OTHER) != 0)
        _exit(2);
}

/* Does it in a process of the other user's, who may do what anybody may: false leaves a failure. */
static void as_other(bool (*body)(void *), void *arg)
{
    int status = 0;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        become_other();
        _exit(body(arg) ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

/* What it swaps, with what. */
typedef struct swapper {
    const char *const *names; /* in the area, up to a NULL */
    const char *area, *precious;
    atomic_long *swaps; /* in memory that both have */
    pid_t pid;
} swapper;

/* What the user has made goes away, and a link has its name; the next time that goes, and it may come back. Where there
 * is nothing, a folder of the other user's may come first, for whoever takes what is there. */
static void swap_one(const swapper *s, const char *name, int turn)
{
    char path[400], away[440];
    struct stat info;

    snprintf(path, sizeof path, "%s/%s", s->area, name);
    snprintf(away, sizeof away, "%s.away-%d", path, turn % 50);
    if (lstat(path, &info) != 0) {
        if (turn % 8 == 0)
            (void)mkdir(path, 0777);
    } else if (S_ISLNK(info.st_mode)) {
        snprintf(away, sizeof away, "%s.away-%d", path, (turn - 1) % 50);
        (void)unlink(path);
        if (turn % 3 == 0)
            (void)rename(away, path);
    } else if (info.st_uid == OTHER) {
        (void)(S_ISDIR(info.st_mode) ? rmdir(path) : unlink(path));
    } else if (rename(path, away) == 0 && symlink(s->precious, path) == 0) {
        atomic_fetch_add(s->swaps, 1);
        sched_yield();
    }
}

static void swapper_start(swapper *s)
{
    s->swaps = mmap(NULL, sizeof *s->swaps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s->swaps != MAP_FAILED);
    s->pid = fork();
    CHECK(s->pid >= 0);
    if (s->pid != 0)
        return;
    become_other();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves nobody */
    for (int turn = 0;; turn++)
        for (const char *const *name = s->names; *name; name++)
            swap_one(s, *name, turn);
}

static void swapper_stop(swapper *s)
{
    CHECK_EQ(kill(s->pid, SIGKILL), 0);
    CHECK_EQ(waitpid(s->pid, NULL, 0), s->pid);
    munmap(s->swaps, sizeof *s->swaps);
}

/* Whether there is to be another try: the other user must have swapped something, or nothing was tried. */
static bool goes_on(const swapper *s, int tries)
{
    long swaps = atomic_load(s->swaps);

    CHECK(tries < MOST || swaps > 0);
    sched_yield();
    return tries < TRIES || (tries < MOST && swaps < SWAPS);
}

/* ---- the user ---- */

typedef struct fixture {
    char *directory, *area, *precious; /* everybody may write to the area; the precious folder is the user's alone */
    char *before;                      /* what that holds */
    fsdp_context *context;
} fixture;

static void put(const char *folder, const char *name, const char *text)
{
    char *path = test_path(folder, name), *parent = fsdp__path_parent(path);

    CHECK_OK(fsdp__make_directories(parent));
    test_write_file(path, text, strlen(text));
    fsdp__free(parent);
    free(path);
}

static int setup(void **state)
{
    static const char *const names[] = {"letter",        "gate",     "roses",      "config.json", "model.safetensors",
                                        "new/letter",    "new/gate", "old/letter", "old/gate",    "parts/letter",
                                        "step-1/letter", "a/b/c/d",  "new/rank-x"};
    fixture *f = calloc(1, sizeof *f);

    if (geteuid() != 0)
        skip();
    f->directory = test_directory();
    f->area = test_path(f->directory, "area");
    f->precious = test_path(f->directory, "precious");
    CHECK_EQ(chmod(f->directory, 0755), 0);
    CHECK_EQ(mkdir(f->area, 0777), 0);
    CHECK_EQ(chmod(f->area, 0777), 0);
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        put(f->precious, names[i], names[i]);
    f->before = tree_text(f->precious, NULL);
    f->context = test_context();
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_context_free(f->context);
    free(f->before);
    free(f->precious);
    free(f->area);
    test_directory_free(f->directory);
    free(f);
    return 0;
}

static void check_precious(const fixture *f)
{
    char *now = tree_text(f->precious, NULL);

    CHECK_STRING(now, f->before);
    free(now);
}

/* A folder of the user's in the area that everybody may write to. */
static char *open_folder(const fixture *f, const char *name)
{
    char *path = test_path(f->area, name);

    CHECK_OK(fsdp__make_directories(path));
    CHECK_EQ(chmod(path, 0777), 0);
    return path;
}

/* ---- an export ---- */

/* Every rank, with its rows; how it ends is not asked. */
static void export_rows(fsdp_context *context, void *arg)
{
    fsdp_placement by_rows = {.kind = FSDP_SHARD};
    fsdp_tensor *whole = NULL, *local = NULL;
    fsdp_state_dict *state = NULL;
    fsdp_mesh *mesh = NULL;

    CHECK_OK(fsdp_mesh_create(context, 1, &(int64_t){WORLD}, NULL, &mesh));
    CHECK_OK(fsdp_state_dict_create(&state));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(5, 3), FSDP_MEMORY_PARAMETER_SHARD, &whole));
    CHECK_OK(fsdp_tensor_fill_(whole, 1));
    CHECK_OK(fsdp_distribute_tensor(whole, mesh, &by_rows, &local));
    CHECK_OK(fsdp_state_dict_add(state, "weight", local));
    (void)fsdp_hub_save(arg, state, NULL, FSDP_F32, fsdp_world(context));
    fsdp_tensor_unref(local);
    fsdp_tensor_unref(whole);
    fsdp_state_dict_free(state);
    fsdp_mesh_unref(mesh);
}

static void an_export_changes_nothing_outside_of_its_folder(void **state)
{
    static const char *const names[] = {"model.saving",      "model",      "there/.saving",
                                        "there/.saving/new", "there/gate", NULL};
    fixture *f = *state;
    char *folders[] = {test_path(f->area, "model"), open_folder(f, "there")};
    swapper s = {.names = names, .area = f->area, .precious = f->precious};

    swapper_start(&s);
    for (int tries = 0; goes_on(&s, tries); tries++)
        test_run_ranks(WORLD, export_rows, folders[tries % 2]);
    swapper_stop(&s);
    check_precious(f);
    free(folders[0]);
    free(folders[1]);
}

/* Between the calls of a publication, where a training run may take hours. */
static bool swap_staging(void *arg)
{
    const fixture *f = arg;
    char path[400], away[400];

    snprintf(path, sizeof path, "%s/model.saving", f->area);
    snprintf(away, sizeof away, "%s/away", f->area);
    return rename(path, away) == 0 && symlink(f->precious, path) == 0;
}

static void a_staging_folder_that_was_swapped_is_left(void **state)
{
    fixture *f = *state;
    garden g = garden_create();
    char *folder = test_path(f->area, "model"), *link = test_path(f->area, "model.saving");
    char *away = test_path(f->area, "away");

    g.options.folder = folder;
    for (int commits = 0; commits < 2; commits++) {
        CHECK_OK(garden_begin(&g));
        garden_add(&g, "gate", "red");
        as_other(swap_staging, f);
        if (commits)
            CHECK_OK(fsdp__publication_commit(g.publication));
        fsdp__publication_abandon(g.publication);
        check_precious(f);
        CHECK_EQ(rmdir(away), 0); /* it was emptied, and is not known by that name */
        CHECK_EQ(unlink(link), 0);
    }
    garden_check_file(folder, "gate", "red");
    free(away);
    free(link);
    free(folder);
    garden_free(&g);
}

static bool make_staging(void *arg)
{
    char path[400];

    snprintf(path, sizeof path, "%s/model.saving", (const char *)arg);
    return mkdir(path, 0777) == 0;
}

static void a_staging_folder_of_another_is_refused_by_name(void **state)
{
    fixture *f = *state;
    garden g = garden_create();
    char *folder = test_path(f->area, "model"), *link = test_path(f->area, "model.saving");

    g.options.folder = folder;
    as_other(make_staging, f->area);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID,
                "model.saving' is in the way: it is needed as a temporary folder, and belongs to user 65534: name "
                "another folder, or have it removed if no run writes there");
    CHECK_EQ(rmdir(link), 0);
    CHECK_EQ(symlink(f->precious, link), 0);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID,
                "model.saving' is in the way: it is needed as a temporary folder, and "
                "is no folder");
    check_precious(f);
    free(link);
    free(folder);
    garden_free(&g);
}

/* By a umask of those days; the lock's file is a second name of a letter. */
static void a_staging_folder_that_was_open_to_others_is_closed_and_not_believed(void **state)
{
    fixture *f = *state;
    garden g = garden_create();
    char *folder = test_path(f->area, "model"), *staging = open_folder(f, "model.saving");
    char *lock = test_path(staging, "held-by"), *letter = test_path(f->precious, "letter");
    struct stat info;

    g.options.folder = folder;
    CHECK_EQ(link(letter, lock), 0);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "held-by': it is not what a run of this user's has left");
    CHECK_EQ(unlink(lock), 0);
    CHECK_EQ(mkfifo(lock, 0666), 0);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, "held-by': it is not what a run of this user's has left");
    CHECK_EQ(unlink(lock), 0);
    CHECK_OK(garden_begin(&g));
    CHECK(stat(staging, &info) == 0 && (info.st_mode & 0777) == 0700);
    check_precious(f);
    free(letter);
    free(lock);
    free(staging);
    free(folder);
    garden_free(&g);
}

/* ---- lists and journals ---- */

static bool plant(const char *folder, const char *name, const char *text)
{
    char path[400];
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0;
}

static bool plant_list(void *arg)
{
    return plant(arg, FSDP__LIST_NAME, "{\"version\": 1, \"files\": [{\"name\": \"letter\", \"bytes\": 4}]}");
}

static void a_list_of_another_removes_nothing(void **state)
{
    fixture *f = *state;
    garden g = garden_create();
    char *folder = open_folder(f, "model");

    g.options.folder = folder;
    put(folder, "letter", "mine");
    as_other(plant_list, folder);
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID,
                FSDP__LIST_NAME "' belongs to user 65534, and what it says is not done");
    g.options.overwrite = true;
    CHECK_OK(garden_plant(&g, "roses", "red"));
    garden_check_file(folder, "letter", "mine");
    garden_check_file(folder, "roses", "red");
    free(folder);
    garden_free(&g);
}

#define JOURNAL                                                                                          \
    "{\"version\": 1, \"new\": [{\"name\": \"gate\", \"bytes\": 4}], \"gone\": [{\"name\": \"letter\", " \
    "\"bytes\": 4}]}"

static bool plant_journal(void *arg)
{
    char path[400];

    snprintf(path, sizeof path, "%s/" FSDP__STAGING_NAME, (const char *)arg);
    return plant(arg, FSDP__JOURNAL_NAME, JOURNAL) && mkdir(path, 0777) == 0 && plant(path, "held-by", "") &&
           strcat(path, "/new") && mkdir(path, 0777) == 0 && plant(path, "gate", "evil");
}

static void a_journal_of_another_moves_nothing(void **state)
{
    fixture *f = *state;
    garden g = garden_create();
    char *folder = open_folder(f, "model"), *journal = test_path(folder, FSDP__JOURNAL_NAME), *before, *now;
    bool finished = true;

    g.options.folder = folder;
    put(folder, "letter", "mine");
    put(folder, "gate", "mine");
    as_other(plant_journal, folder);
    before = tree_text(folder, NULL);
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_INVALID, FSDP__JOURNAL_NAME "' belongs to user 65534");
    CHECK(!finished);
    g.options.overwrite = true;
    CHECK_ERROR(garden_begin(&g), FSDP_INVALID, FSDP__JOURNAL_NAME "' belongs to user 65534");
    CHECK_EQ(chown(journal, 0, 0), 0); /* as one of the user's that was moved here from another folder */
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_INVALID, ".saving' is in the way");
    now = tree_text(folder, NULL);
    CHECK_STRING(now, before);
    free(now);
    free(before);
    free(journal);
    free(folder);
    garden_free(&g);
}

/* One of the user's own, of another folder: what it lists is not what stands ready here. */
static void a_journal_of_another_folder_moves_nothing(void **state)
{
    fixture *f = *state;
    char *folder = open_folder(f, "model"), *staging = test_path(folder, FSDP__STAGING_NAME), *before, *now;
    bool finished = true;

    put(folder, "letter", "mine");
    put(folder, "gate", "mine");
    put(folder, FSDP__STAGING_NAME "/held-by", "");
    put(folder, FSDP__STAGING_NAME "/new/gate", "other");
    put(folder, FSDP__JOURNAL_NAME, JOURNAL);
    before = tree_text(folder, "held-by");
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_STATE, "'gate' has another size");
    now = tree_text(folder, "held-by");
    CHECK_STRING(now, before);
    CHECK(!finished);
    free(now);
    free(before);
    free(staging);
    free(folder);
}

static bool give_folder_a_files_name(void *arg)
{
    char from[400], to[400];

    snprintf(from, sizeof from, "%s/diary", (const char *)arg);
    snprintf(to, sizeof to, "%s/gate", (const char *)arg);
    return rename(from, to) == 0;
}

/* Who may write to the folder cannot look into the diary, but may call it what the journal moves away. */
static void a_folder_that_gets_the_name_of_a_file_is_not_moved(void **state)
{
    fixture *f = *state;
    char *folder = open_folder(f, "model"), *diary;
    bool finished = true;

    put(folder, "diary/monday", "mine");
    put(folder, FSDP__STAGING_NAME "/held-by", "");
    put(folder, FSDP__STAGING_NAME "/new/gate", "good");
    put(folder, FSDP__JOURNAL_NAME, JOURNAL);
    as_other(give_folder_a_files_name, folder);
    CHECK_ERROR(fsdp_hub_repair(folder, &finished), FSDP_STATE, "gate' has become a folder, which is not moved");
    diary = test_path(folder, "gate");
    garden_check_file(diary, "monday", "mine");
    free(diary);
    free(folder);
}

/* ---- checkpoints ---- */

typedef struct saving {
    const char *folder;
    int64_t step;
} saving;

static void save_step(fsdp_context *context, void *arg)
{
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = 1};
    const saving *what = arg;
    fsdp_checkpoint_saver *saver = NULL;
    scene_content c;

    scene_content_create(&c, context, SCENE_ROWS, what->step, 1);
    CHECK_OK(fsdp_checkpoint_saver_create(what->folder, &options, fsdp_world(context), &saver));
    (void)fsdp_checkpoint_saver_save(saver, &c.content);
    fsdp_checkpoint_saver_free(saver);
    scene_content_free(&c);
}

static void a_checkpoint_changes_nothing_outside_of_its_folder(void **state)
{
    static const char *const names[] = {
        "runs/step-1.saving", "runs/step-2.saving",   "runs/step-1", "runs/step-2.removing",
        "runs/step-2",        "runs/step-1.removing", NULL};
    fixture *f = *state;
    saving what = {.folder = open_folder(f, "runs")};
    swapper s = {.names = names, .area = f->area, .precious = f->precious};

    swapper_start(&s);
    for (int tries = 0; goes_on(&s, tries); tries++) {
        what.step = 1 + tries % 2;
        test_run_ranks(WORLD, save_step, &what);
    }
    swapper_stop(&s);
    check_precious(f);
    free((char *)(uintptr_t)what.folder);
}

static bool make_leftovers(void *arg)
{
    const fixture *f = arg;
    char path[400];

    snprintf(path, sizeof path, "%s/runs/step-8.saving", f->area);
    if (symlink(f->precious, path) != 0)
        return false;
    snprintf(path, sizeof path, "%s/runs/step-9.removing", f->area);
    if (symlink(f->precious, path) != 0)
        return false;
    snprintf(path, sizeof path, "%s/runs/step-7.saving", f->area);
    return mkdir(path, 0777) == 0 && plant(path, "held-by", "") && plant(path, "theirs", "theirs");
}

static void what_another_calls_a_leftover_stays(void **state)
{
    fixture *f = *state;
    char *folder = open_folder(f, "runs"), *theirs = test_path(folder, "step-7.saving");

    as_other(make_leftovers, f);
    fsdp__remove_leftovers(f->context, folder);
    check_precious(f);
    garden_check_file(theirs, "theirs", "theirs");
    scene_save_to(folder, f->context, SCENE_PLAIN, 1, 1);
    check_precious(f);
    free(theirs);
    free(folder);
}

/* ---- the cache of tokens ---- */

typedef struct cache {
    fixture *f;
    char *folder, *text, *name; /* the last: of the tokens, where nobody else has any */
    fsdp_tokenizer *tokenizer;
} cache;

static fsdp_status get(const cache *c, fsdp__cached_tokens *out)
{
    return fsdp__token_cache_get(c->tokenizer, (const char *const *)&c->text, 1, c->folder, true,
                                 &(fsdp_tokenize_options){.no_eos = true, .threads = 1}, out);
}

static cache cache_create(fixture *f)
{
    cache c = {.f = f, .folder = open_folder(f, "cache"), .text = test_path(f->directory, "text.txt")};
    char *json = small_json(&(small_parts){.added_tokens = NULL}), *path = test_path(f->directory, "tokenizer.json");
    fsdp__cached_tokens tokens;

    test_write_file(path, json, strlen(json));
    test_write_file(c.text, "the thing", 9);
    CHECK_OK(fsdp_tokenizer_open(path, &c.tokenizer));
    CHECK_OK(get(&c, &tokens));
    c.name = strdup(strrchr(tokens.path, '/') + 1);
    CHECK_EQ(unlink(tokens.path), 0);
    fsdp__free(tokens.path);
    free(path);
    free(json);
    return c;
}

static void cache_free(cache *c)
{
    fsdp_tokenizer_close(c->tokenizer);
    free(c->name);
    free(c->text);
    free(c->folder);
}

static bool plant_tokens(void *arg)
{
    const cache *c = arg;

    return plant(c->folder, c->name, "other tokens");
}

static void tokens_of_another_are_not_used(void **state)
{
    cache c = cache_create(*state);
    fsdp__cached_tokens tokens;

    as_other(plant_tokens, &c);
    for (int again = 0; again < 2; again++) {
        CHECK_OK(get(&c, &tokens));
        CHECK_EQ(tokens.made, !again);
        CHECK_CONTAINS(tokens.path, "-user-0.bin");
        fsdp__free(tokens.path);
    }
    garden_check_file(c.folder, c.name, "other tokens");
    /* The folder's owner decides what lies in it. */
    CHECK_EQ(chown(c.folder, OTHER, OTHER), 0);
    CHECK_EQ(chmod(c.folder, 0755), 0);
    CHECK_STATUS(get(&c, &tokens), FSDP_OK);
    CHECK(!strstr(tokens.path, "-user-"));
    fsdp__free(tokens.path);
    cache_free(&c);
}

/* The other user makes the lock's file and holds it; returns the process, when it does. */
static pid_t hold_lock(const char *path)
{
    int ends[2];
    char byte;
    pid_t holder;

    CHECK_EQ(pipe(ends), 0);
    holder = fork();
    CHECK(holder >= 0);
    if (holder == 0) {
        int fd;

        become_other();
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = open(path, O_RDWR | O_CREAT, 0666);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || write(ends[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    CHECK_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return holder;
}

static void a_lock_of_another_stalls_nobody(void **state)
{
    fixture *f = *state;
    cache c = cache_create(f);
    char *lock = fsdp__sprintf("%s/%s.lock", c.folder, c.name), *letter = test_path(f->precious, "letter");
    fsdp__cached_tokens tokens;
    pid_t holder = hold_lock(lock);

    CHECK_ERROR(get(&c, &tokens), FSDP_INVALID,
                ".lock' is user 65534's, or has a second name, in a folder that others");
    CHECK_EQ(kill(holder, SIGKILL), 0);
    CHECK_EQ(waitpid(holder, NULL, 0), holder);
    CHECK_EQ(unlink(lock), 0);
    CHECK_EQ(symlink(letter, lock), 0);
    CHECK_ERROR(get(&c, &tokens), FSDP_IO, ".lock': Too many levels of symbolic links");
    CHECK_EQ(unlink(lock), 0);
    CHECK_EQ(mkfifo(lock, 0666), 0);
    CHECK_ERROR(get(&c, &tokens), FSDP_INVALID, ".lock' is user 0's");
    CHECK_EQ(unlink(lock), 0);
    CHECK_OK(get(&c, &tokens));
    CHECK(tokens.made && !strstr(tokens.path, "-user-"));
    check_precious(f);
    fsdp__free(tokens.path);
    fsdp__free(lock);
    free(letter);
    cache_free(&c);
}

static void making_tokens_changes_nothing_outside_of_the_cache(void **state)
{
    fixture *f = *state;
    cache c = cache_create(f);
    char lock[400], tokens[400];
    const char *names[] = {lock, tokens, NULL};
    swapper s = {.names = names, .area = f->area, .precious = f->precious};

    snprintf(lock, sizeof lock, "cache/%s.lock", c.name);
    snprintf(tokens, sizeof tokens, "cache/%s", c.name);
    swapper_start(&s);
    for (int tries = 0; goes_on(&s, tries); tries++) {
        fsdp__cached_tokens made;

        if (get(&c, &made) == FSDP_OK)
            (void)unlink(made.path); /* to be made again */
        fsdp__free(made.path);
    }
    swapper_stop(&s);
    check_precious(f);
    cache_free(&c);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {T(an_export_changes_nothing_outside_of_its_folder),
                                       T(a_staging_folder_that_was_swapped_is_left),
                                       T(a_staging_folder_of_another_is_refused_by_name),
                                       T(a_staging_folder_that_was_open_to_others_is_closed_and_not_believed),
                                       T(a_list_of_another_removes_nothing),
                                       T(a_journal_of_another_moves_nothing),
                                       T(a_journal_of_another_folder_moves_nothing),
                                       T(a_folder_that_gets_the_name_of_a_file_is_not_moved),
                                       T(a_checkpoint_changes_nothing_outside_of_its_folder),
                                       T(what_another_calls_a_leftover_stays),
                                       T(tokens_of_another_are_not_used),
                                       T(a_lock_of_another_stalls_nobody),
                                       T(making_tokens_changes_nothing_outside_of_the_cache)};

    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    if (geteuid() != 0)
        return 77; /* only root can be another user */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
