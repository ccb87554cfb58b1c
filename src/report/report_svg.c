/* report_svg.c - the one picture of a report that is a file of its own. */
#include <string.h>

#include "base/text.h"
#include "report/report.h"
#include "report/step_picture.h"

enum {
    TITLE = 120
};

/* Writes the title of a file's picture: its name without endings, and with blanks for "_". */
static void title_of(const char *path, char title[TITLE])
{
    const char *name = strrchr(path, '/');

    name = name ? name + 1 : path;
    snprintf(title, TITLE, "%.*s", (int)strcspn(name, "."), name);
    for (char *at = title; *at; at++)
        *at = *at == '_' ? ' ' : *at;
}

/* Gives each trace a title; of those that have one name, as runs in folders of their own do, the path. */
static void give_titles(const char *const *paths, int count, char titles[][TITLE])
{
    char other[TITLE];

    for (int i = 0; i < count; i++) {
        bool shared = false;

        title_of(paths[i], titles[i]);
        for (int k = 0; k < count && !shared; k++) {
            title_of(paths[k], other);
            shared = k != i && strcmp(other, titles[i]) == 0;
        }
        if (shared)
            (void)fsdp__shown(paths[i], titles[i], TITLE);
    }
}

fsdp_status fsdp__report_svg(const fsdp__report *report, FILE *out)
{
    const fsdp__sources *sources = &report->sources;
    const fsdp__traced_step *steps[FSDP__MOST_SOURCES];
    char titles[FSDP__MOST_SOURCES][TITLE];
    const char *paths[FSDP__MOST_SOURCES], *shown[FSDP__MOST_SOURCES];
    int count = 0;

    for (int i = 0; i < sources->count; i++) {
        if (sources->items[i].kind != FSDP__SOURCE_TRACE)
            continue;
        paths[count] = sources->items[i].path;
        shown[count] = titles[count];
        steps[count++] = &sources->items[i].of.step;
    }
    give_titles(paths, count, titles);
    return count > 0 ? fsdp__step_pictures(steps, shown, count, out) : fsdp__losses_picture(&sources->runs, out);
}
