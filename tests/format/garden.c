/* garden.c - folders of a kind of their own. */
#include "format/garden.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/journal.h"
#include "support/test.h"

static const char *const alone[] = {"roses", "roses.index", NULL};
static const fsdp__folder_kind kind = {.noun = "garden", .mark = "gate", .alone = alone};

garden garden_create(void)
{
    garden g = {.context = test_context(), .directory = test_directory()};

    g.folder = test_path(g.directory, "garden");
    g.options = (fsdp__publish_options){.folder = g.folder, .kind = &kind, .overwrite_hint = "please"};
    return g;
}

void garden_free(garden *g)
{
    fsdp__publication_free(g->publication);
    test_directory_free(g->directory);
    fsdp_context_free(g->context);
}

void garden_check_file(const char *folder, const char *name, const char *text)
{
    char *path = test_path(folder, name), *found = NULL;

    CHECK_EQ(fsdp__path_exists(path), text != NULL);
    if (text)
        found = test_read_file(path, NULL);
    if (text)
        CHECK_STRING(found, text);
}

void garden_add(const garden *g, const char *name, const char *text)
{
    fsdp__directory content;

    CHECK_OK(fsdp__publication_content(g->publication, &content));
    test_write_text(content.path, name, text);
    fsdp__directory_close(&content);
}

fsdp_status garden_begin(garden *g)
{
    fsdp__publication_free(g->publication);
    g->publication = CHECK_PTR(fsdp__publication_create(g->context));
    return fsdp__publication_begin(g->publication, &g->options);
}

fsdp_status garden_plant(garden *g, const char *flower, const char *text)
{
    FSDP_TRY(garden_begin(g));
    garden_add(g, "gate", text);
    garden_add(g, flower, text);
    return fsdp__publication_commit(g->publication);
}

void garden_check(const garden *g, const char *flower, const char *text)
{
    garden_check_file(g->folder, "gate", text);
    garden_check_file(g->folder, flower, text);
    garden_check_file(g->folder, FSDP__JOURNAL_NAME, NULL);
    garden_check_file(g->folder, FSDP__STAGING_NAME, NULL);
    garden_check_file(g->directory, "garden.saving", NULL);
}
