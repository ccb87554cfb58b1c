/* tree.c - what a folder holds, as one text. */
#include "faults/tree.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "support/test.h"

static int no_dots(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static void print_file(FILE *out, const char *path, const char *shown)
{
    size_t bytes = 0;
    char *data = test_read_file(path, &bytes);

    fprintf(out, "file %s %zu %016llx\n", shown, bytes,
            (unsigned long long)fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, data, bytes));
}

static void print_folder(FILE *out, const char *path, size_t shown_at, const char *skip)
{
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, no_dots, alphasort);

    CHECK(count >= 0);
    for (int i = 0; i < count; i++) {
        char *below = test_path(path, entries[i]->d_name);
        struct stat info;

        CHECK(lstat(below, &info) == 0);
        if (skip && strcmp(entries[i]->d_name, skip) == 0) {
            free(entries[i]);
            continue;
        }
        if (S_ISDIR(info.st_mode)) {
            fprintf(out, "folder %s\n", below + shown_at);
            print_folder(out, below, shown_at, skip);
        } else {
            print_file(out, below, below + shown_at);
        }
        free(entries[i]);
    }
    free(entries);
}

char *tree_text(const char *path, const char *skip)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    CHECK(out != NULL);
    if (fsdp__path_exists(path))
        print_folder(out, path, strlen(path) + 1, skip);
    else
        fputs("nothing", out);
    fclose(out);
    return text;
}

static void copy_below(const char *from, const char *to)
{
    struct dirent **entries = NULL;
    int count = scandir(from, &entries, no_dots, alphasort);

    CHECK(count >= 0 && mkdir(to, 0755) == 0);
    for (int i = 0; i < count; i++) {
        char *source = test_path(from, entries[i]->d_name), *target = test_path(to, entries[i]->d_name);
        struct stat info;
        size_t bytes;
        char *data;

        CHECK(lstat(source, &info) == 0);
        if (S_ISDIR(info.st_mode)) {
            copy_below(source, target);
        } else {
            data = test_read_file(source, &bytes);
            test_write_file(target, data, bytes);
        }
        free(entries[i]);
    }
    free(entries);
}

void tree_copy(const char *from, const char *to)
{
    test_remove_tree(to);
    if (fsdp__path_exists(from))
        copy_below(from, to);
}
