/* main.c - the program of all test files of a layer:
 *
 *     test_shard parity             runs tests/shard/test_parity.c
 *     test_shard parity '*batch'    runs the cases of it that the pattern matches (* and ?)
 */
#include "support/test.h"

static test_file *files;

void test_add_file(test_file *file)
{
    file->next = files;
    files = file;
}

/* Returns whether the file is test_<name>.c. */
static bool is_called(const test_file *file, const char *name)
{
    const char *slash = strrchr(file->path, '/');
    char wanted[256];

    snprintf(wanted, sizeof wanted, "test_%s.c", name);
    return strcmp(slash ? slash + 1 : file->path, wanted) == 0;
}

int main(int argc, char **argv)
{
    for (const test_file *file = files; file && argc > 1; file = file->next)
        if (is_called(file, argv[1])) {
            cmocka_set_test_filter(argv[2]); /* NULL: all */
            return file->main();
        }
    fprintf(stderr, "%s X [PATTERN]: runs the cases of test_X.c, or those whose names PATTERN matches. It has:\n",
            argv[0]);
    for (const test_file *file = files; file; file = file->next)
        fprintf(stderr, "    %s\n", file->path);
    return 2;
}
