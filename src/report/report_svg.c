/* report_svg.c - the one picture of a report that is a file of its own. */
#include <string.h>

#include "report/report.h"
#include "report/step_picture.h"

/* Writes the name of a file without its endings, and with blanks for "_": the title of its picture. */
static void title_of(const char *path, char *title, size_t bytes)
{
    const char *name = strrchr(path, '/');

    snprintf(title, bytes, "%s", name ? name + 1 : path);
    title[strcspn(title, ".")] = '\0';
    for (char *at = title; *at; at++)
        *at = *at == '_' ? ' ' : *at;
}

fsdp_status fsdp__report_svg(const fsdp__report *report, FILE *out)
{
    const fsdp__sources *sources = &report->sources;
    const fsdp__traced_step *steps[FSDP__MOST_SOURCES];
    char titles[FSDP__MOST_SOURCES][64];
    const char *shown[FSDP__MOST_SOURCES];
    int count = 0;

    for (int i = 0; i < sources->count; i++) {
        if (sources->items[i].kind != FSDP__SOURCE_TRACE)
            continue;
        title_of(sources->items[i].path, titles[count], sizeof titles[count]);
        shown[count] = titles[count];
        steps[count++] = &sources->items[i].of.step;
    }
    return count > 0 ? fsdp__step_pictures(steps, shown, count, out) : fsdp__losses_picture(&sources->runs, out);
}
