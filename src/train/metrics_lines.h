/* metrics_lines.h - a file to which every run adds lines, and which none empties. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "fsdp/context.h"

typedef struct fsdp__metrics_lines {
    FILE *file;
    const char *key, *path; /* borrowed: "metrics.csv", and what it says */
    bool begun;             /* the file had content when it was opened */
    size_t unfinished;      /* it had so many bytes of what a file begins with, and no more: the rest must follow */
    bool cut_off;           /* its last line had no end: the first line that is written must begin with one */
    char *buffer;           /* of a line */
} fsdp__metrics_lines;

/* Checks that the file can be written and, if it has any content, begins with one of `firsts`, which ends with NULL, or
 * holds only a part of the first of them; `otherwise` says what is wrong if it does not. Opens nothing for writing;
 * makes the folder, as fsdp__metrics_make_folder does. */
fsdp_status fsdp__metrics_lines_check(const char *key, const char *path, const char *const *firsts,
                                      const char *otherwise);
/* Opens the file behind what it holds; one that is empty will begin with `first`. On a failure `lines` is empty.
 * Several runs may write lines at once, but one after the other begins: this waits for its turn, for some seconds at
 * most, and says so after the first. */
fsdp_status fsdp__metrics_lines_open(fsdp_context *context, const char *key, const char *path, const char *first,
                                     fsdp__metrics_lines *lines);
/* Lets others begin, too: the run's first line is written. Checks for errors. */
fsdp_status fsdp__metrics_lines_begun(const fsdp__metrics_lines *lines);
/* Writes the line that the stream holds, in one piece, and checks for errors; call it after every line. */
fsdp_status fsdp__metrics_lines_written(const fsdp__metrics_lines *lines);
fsdp_status fsdp__metrics_lines_close(fsdp__metrics_lines *lines); /* an empty one is allowed */

/* Fails with "metrics.csv: cannot write 'm.csv': " and errno. */
fsdp_status fsdp__metrics_cannot_write(const char *key, const char *path);
/* Makes the folder in which `path` lies, if there is none, and checks that it can be written to. */
fsdp_status fsdp__metrics_make_folder(const char *key, const char *path);
/* Checks what the file begins with, as fsdp__metrics_lines_check does, but takes no part of it. */
fsdp_status fsdp__metrics_check_contents(const char *key, const char *path, const char *const *firsts,
                                         const char *otherwise);
