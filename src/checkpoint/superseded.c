/* superseded.c - names of superseded checkpoints. */
#include "checkpoint/superseded.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

#define SUFFIX ".superseded-"

enum {
    MOST_DIGITS = 18 /* all such numbers are int64 */
};

static bool parse(const char *name, fsdp__superseded *out)
{
    const char *suffix = strstr(name, SUFFIX), *turn = suffix ? suffix + sizeof SUFFIX - 1 : "";
    size_t digits = strspn(turn, "0123456789");

    if (digits == 0 || digits > MOST_DIGITS || turn[digits] != '\0' || turn[0] == '0')
        return false;
    out->turn = strtoll(turn, NULL, 10);
    return fsdp__step_name(name, suffix, &out->step);
}

const char *fsdp__superseded_text(const fsdp__superseded *of, char name[FSDP__STEP_NAME])
{
    char suffix[FSDP__STEP_NAME / 2];

    snprintf(suffix, sizeof suffix, SUFFIX "%lld", (long long)of->turn);
    return fsdp__step_text(of->step, suffix, name);
}

static int latest_first(const void *a, const void *b)
{
    const fsdp__superseded *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? 1 : -1;
    return x->turn < y->turn ? 1 : -1;
}

static fsdp_status scan(DIR *directory, const char *folder, fsdp__superseded **list, int64_t *count, int64_t *capacity)
{
    fsdp_status status = FSDP_OK;
    struct dirent *entry;
    fsdp__superseded found;

    while ((entry = fsdp__directory_next(directory, folder, &status))) {
        if (!parse(entry->d_name, &found))
            continue;
        if (fsdp__grow(list, *count, capacity, sizeof **list) != 0)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list checkpoints");
        (*list)[(*count)++] = found;
    }
    return status;
}

fsdp_status fsdp__superseded_list(const fsdp__directory *folder, fsdp__superseded **out, int64_t *out_count)
{
    int64_t capacity = 0;
    fsdp_status status;
    DIR *directory;

    *out = NULL;
    *out_count = 0;
    FSDP_TRY(fsdp__directory_list(folder, &directory));
    status = scan(directory, folder->path, out, out_count, &capacity);
    closedir(directory);
    if (status != FSDP_OK) {
        fsdp__free(fsdp__take(out));
        *out_count = 0;
    } else if (*out_count > 1) {
        qsort(*out, (size_t)*out_count, sizeof **out, latest_first);
    }
    return status;
}

/* Chooses the next number after those that exist for this step. */
static fsdp_status next_turn(const fsdp__directory *folder, fsdp__superseded *of)
{
    FSDP__FREED fsdp__superseded *list = NULL;
    int64_t count = 0;

    of->turn = 1;
    FSDP_TRY(fsdp__superseded_list(folder, &list, &count));
    for (int64_t i = 0; i < count; i++)
        if (list[i].step == of->step && list[i].turn >= of->turn)
            of->turn = list[i].turn + 1;
    return FSDP_OK;
}

static fsdp_status rename_step(const fsdp__directory *folder, int64_t step, const char *name)
{
    char old_name[FSDP__STEP_NAME];

    FSDP_TRY(fsdp__directory_rename(folder, fsdp__step_text(step, "", old_name), folder, name, FSDP__RENAME_NEW));
    return fsdp__directory_sync(folder);
}

fsdp_status fsdp__supersede(const fsdp__directory *folder, int64_t step, char **out)
{
    fsdp__superseded of = {.step = step};
    char name[FSDP__STEP_NAME];
    fsdp_status status;

    *out = NULL;
    FSDP_TRY(next_turn(folder, &of));
    *out = fsdp__path_join(folder->path, fsdp__superseded_text(&of, name));
    status = *out ? rename_step(folder, step, name)
                  : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot rename a checkpoint in '%s'", folder->path);
    if (status != FSDP_OK)
        fsdp__free(fsdp__take(out));
    return status;
}
