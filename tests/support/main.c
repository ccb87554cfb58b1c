/* main.c - the program of all test files of a layer:
 *
 *     test_shard parity             runs tests/shard/test_parity.c
 *     test_shard parity '*batch'    runs the cases of it that the pattern matches (* and ?)
 */
#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "support/test.h"

static test_entry *cases; /* by path, those of a file by line */

static bool comes_before(const test_entry *a, const test_entry *b)
{
    int paths = strcmp(a->path, b->path);

    return paths < 0 || (paths == 0 && a->line < b->line);
}

void test_add_entry(test_entry *added)
{
    test_entry **place = &cases;

    while (*place && comes_before(*place, added))
        place = &(*place)->next;
    added->next = *place;
    *place = added;
}

/* ---- the environment, which a case may change ---- */

static char **found; /* as the case found it */

static void keep_environment(void)
{
    size_t count = 0;

    while (environ[count])
        count++;
    found = calloc(count + 1, sizeof *found);
    for (size_t i = 0; i < count; i++)
        found[i] = strdup(environ[i]);
}

/* Finds "NAME=" of an entry among entries. */
static const char *find_name(char *const *entries, const char *entry)
{
    size_t bytes = strcspn(entry, "=") + 1;

    while (*entries && strncmp(*entries, entry, bytes) != 0)
        entries++;
    return *entries;
}

static void set_entry(const char *entry, bool there)
{
    char *name = strndup(entry, strcspn(entry, "="));

    if (there)
        (void)setenv(name, entry + strlen(name) + 1, 1);
    else
        (void)unsetenv(name);
    free(name);
}

/* Leaves alone what has not changed: threads that a case has left may look at it. */
static void restore_environment(void)
{
    for (size_t i = 0; environ[i];)
        if (find_name(found, environ[i]))
            i++;
        else
            set_entry(environ[i], false);
    for (char **entry = found; *entry; entry++) {
        const char *now = find_name(environ, *entry);

        if (!now || strcmp(now, *entry) != 0)
            set_entry(*entry, true);
        free(*entry);
    }
    free(found);
}

static const test_entry *running;

static int begin_case(void **state)
{
    running = *state;
    *state = NULL;
    keep_environment();
    return running->test.setup_func ? running->test.setup_func(state) : 0;
}

static pthread_t case_thread;
static void (*cmocka_handler)(int number); /* the same for every signal */

/* Says in which case a signal has come to a thread that is not the case's own, of which cmocka would end the program
 * without a word, and lets it end the program. */
static void tell_signal(int number)
{
    bool own = pthread_equal(pthread_self(), case_thread);
    char text[256];
    int bytes = snprintf(text, sizeof text, "SIG%s in another thread of the case %s\n", sigabbrev_np(number),
                         running->test.name);

    if (!own)
        (void)!write(STDERR_FILENO, text, (size_t)bytes);
    (void)signal(number, own ? cmocka_handler : SIG_DFL);
    (void)raise(number);
}

/* Runs where cmocka has set its handler for the case. */
static void run_case(void **state)
{
    static const int caught[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS};

    case_thread = pthread_self();
    for (size_t i = 0; i < FSDP__COUNT_OF(caught); i++)
        cmocka_handler = signal(caught[i], tell_signal);
    running->test.test_func(state);
}

static int end_case(void **state)
{
    int result = running->test.teardown_func ? running->test.teardown_func(state) : 0;

    test_drop_case();
    restore_environment();
    return result;
}

static const char *pattern = "*"; /* of the cases to run */

static int run_cases(const char *path)
{
    struct CMUnitTest tests[1000];
    size_t count = 0;
    bool any = false;

    for (test_entry *c = cases; c; c = c->next) {
        if (c->line <= 0 || strcmp(c->path, path) != 0)
            continue;
        if (count == sizeof tests / sizeof *tests) {
            print_error("%s has more than %zu cases\n", path, count);
            return 1;
        }
        any = any || fnmatch(pattern, c->test.name, 0) == 0;
        tests[count++] = (struct CMUnitTest){c->test.name, run_case, begin_case, end_case, c};
    }
    if (!any) {
        print_error("%s has no case '%s'\n", path, pattern);
        return 1;
    }
    cmocka_set_test_filter(pattern);
    return _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
}

typedef struct cases_thread {
    const char *path;
    int result;
} cases_thread;

static void *run_cases_of(void *arg)
{
    cases_thread *thread = arg;

    thread->result = run_cases(thread->path);
    return NULL;
}

/* Has the cases on a stack that processes share which are forked later, by other threads: support/processes.h. */
static int run_cases_shared(const char *path)
{
    enum {
        STACK_BYTES = 16 << 20
    };
    cases_thread thread = {path, 1};
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t id;

    if (stack == MAP_FAILED || test_heap_share() != 0 || pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstack(&attributes, stack, STACK_BYTES) != 0 ||
        pthread_create(&id, &attributes, run_cases_of, &thread) != 0) {
        print_error("cannot make the stack of %s\n", path);
        return 1;
    }
    pthread_join(id, NULL);
    return thread.result;
}

int test_run_cases(const char *path)
{
    return getenv("FSDP_TEST_RANKS") ? run_cases_shared(path) : run_cases(path);
}

int test_run_in_memory(const char *path, const char *skipped)
{
    if (skipped) {
        printf("skipped: %s\n", skipped);
        return 77;
    }
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    return test_run_cases(path);
}

/* Returns whether the file is test_<name>.c. */
static bool is_called(const test_entry *file, const char *name)
{
    const char *slash = strrchr(file->path, '/');
    char wanted[256];

    snprintf(wanted, sizeof wanted, "test_%s.c", name);
    return strcmp(slash ? slash + 1 : file->path, wanted) == 0;
}

/* Makes signals do what they do by default: a shell that has started the tests with some ignored, as nohup or & in a
 * script does, or blocked, would have cases wait for ever for processes that they signal. */
static void hear_all_signals(void)
{
    struct sigaction action;
    sigset_t none;

    for (int signal = 1; signal < NSIG; signal++)
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            (void)sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Has the system give pages of the usual size, to the programs that a case starts, too. Most cases use a few pages of
 * each segment of memory, and to clear a huge page for these took a fourth of the system's time in the tests of shard.
 */
static void take_small_pages(void)
{
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* a system without huge pages refuses: no harm */
}

int main(int argc, char **argv)
{
    const char *before = "";
    int result;

    hear_all_signals();
    take_small_pages();
    for (const test_entry *file = cases; file && argc > 1; file = file->next)
        if (is_called(file, argv[1])) {
            pattern = argc > 2 ? argv[2] : pattern;
            result = file->main ? file->main() : test_run_cases(file->path);
            test_drop_case();
            return result;
        }
    fprintf(stderr, "%s X [PATTERN]: runs the cases of test_X.c, or those whose names PATTERN matches. It has:\n",
            argv[0]);
    for (const test_entry *file = cases; file; before = file->path, file = file->next)
        if (strcmp(before, file->path) != 0)
            fprintf(stderr, "    %s\n", file->path);
    return 2;
}
