/* main.c - the program of all test files of a layer:
 *
 *     test_shard parity             runs tests/shard/test_parity.c
 *     test_shard parity '*batch'    runs the cases of it that the pattern matches (* and ?)
 */
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

static const test_entry *running;

static int begin_case(void **state)
{
    running = *state;
    *state = NULL;
    return running->test.setup_func ? running->test.setup_func(state) : 0;
}

static int end_case(void **state)
{
    int result = running->test.teardown_func ? running->test.teardown_func(state) : 0;

    test_drop_case();
    return result;
}

int test_run_cases(const char *path)
{
    struct CMUnitTest tests[1000];
    size_t count = 0;

    for (test_entry *c = cases; c; c = c->next) {
        if (c->line <= 0 || strcmp(c->path, path) != 0)
            continue;
        if (count == sizeof tests / sizeof *tests) {
            print_error("%s has more than %zu cases\n", path, count);
            return 1;
        }
        tests[count++] = (struct CMUnitTest){c->test.name, c->test.test_func, begin_case, end_case, c};
    }
    return _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
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

int main(int argc, char **argv)
{
    const char *before = "";
    int result;

    for (const test_entry *file = cases; file && argc > 1; file = file->next)
        if (is_called(file, argv[1])) {
            cmocka_set_test_filter(argv[2]); /* NULL: all */
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
