/* A folder published whole: what may be replaced, where it may stand, and that undoing brings the old one back. */
#include "format/publish.h"

#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "support/test.h"

static const fsdp__folder_kind kind = {.noun = "garden", .mark = "gate"};

/* A folder "<directory>/<name>" with one file in it. */
static char *make_folder(const char *directory, const char *name, const char *file)
{
    char *folder = test_path(directory, name), *path = test_path(folder, file);

    CHECK(mkdir(folder, 0755) == 0);
    test_write_file(path, name, strlen(name));
    free(path);
    return folder;
}

static void only_a_folder_of_its_kind_may_be_replaced(void **state)
{
    char *directory = test_directory(), *ours = make_folder(directory, "ours", "gate");
    char *theirs = make_folder(directory, "theirs", "letters"), *file = test_path(theirs, "letters");
    char *slashes = test_path(directory, "ours//");

    (void)state;
    CHECK_OK(fsdp__publish_check(ours, &kind));
    CHECK_OK(fsdp__publish_check(slashes, &kind));
    CHECK_ERROR(fsdp__publish_check(theirs, &kind), FSDP_INVALID,
                "theirs': it holds files but no gate, so it is not a garden folder: name another");
    CHECK_ERROR(fsdp__publish_check(file, &kind), FSDP_INVALID, "letters': it exists and is not a folder");
    free(slashes);
    free(file);
    free(theirs);
    free(ours);
    test_directory_free(directory);
}

static void the_folder_it_stands_in_is_made_or_named(void **state)
{
    char *directory = test_directory(), *deep = test_path(directory, "a/b/garden"),
         *parent = test_path(directory, "a/b");
    char *blocked = test_path(directory, "file/garden"), *file = test_path(directory, "file");

    (void)state;
    CHECK_OK(fsdp__publish_check(deep, &kind));
    CHECK(fsdp__path_exists(parent));
    CHECK(!fsdp__path_exists(deep));
    test_write_file(file, "x", 1);
    CHECK_ERROR(fsdp__publish_check(blocked, &kind), FSDP_IO, "cannot write the garden to '");
    CHECK_CONTAINS(fsdp_last_error(), "a file of that name exists");
    CHECK_ERROR(fsdp__publish_check("/proc/none/garden", &kind), FSDP_NOT_FOUND,
                "cannot write the garden to '/proc/none/garden'");
    free(file);
    free(blocked);
    free(parent);
    free(deep);
    test_directory_free(directory);
}

static void a_published_folder_replaces_the_old_one_until_it_is_undone(void **state)
{
    fsdp_context *context = test_context();
    char *directory = test_directory(), *folder = make_folder(directory, "garden", "gate");
    char *gate = test_path(folder, "gate"), *temporary = NULL, *new_gate, *text;
    bool replaced = false;
    size_t bytes = 0;

    (void)state;
    CHECK_OK(fsdp__publish_begin(folder, &kind, &temporary));
    new_gate = test_path(temporary, "gate");
    test_write_file(new_gate, "new", 3);
    CHECK_OK(fsdp__publish(temporary, folder, &replaced));
    CHECK(replaced);
    text = test_read_file(gate, &bytes);
    CHECK_STRING(text, "new");
    free(text);
    CHECK_OK(fsdp__publish_undo(temporary, folder, replaced));
    text = test_read_file(gate, &bytes);
    CHECK_STRING(text, "garden");
    free(text);
    fsdp__publish_finish(context, temporary);
    CHECK(!fsdp__path_exists(temporary));
    free(new_gate);
    fsdp__free(temporary);
    free(gate);
    free(folder);
    test_directory_free(directory);
    fsdp_context_free(context);
}

TEST_MAIN(cmocka_unit_test(only_a_folder_of_its_kind_may_be_replaced),
          cmocka_unit_test(the_folder_it_stands_in_is_made_or_named),
          cmocka_unit_test(a_published_folder_replaces_the_old_one_until_it_is_undone))
