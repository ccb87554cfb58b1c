/* bar.h - shows how far a run is, as a line on a terminal that is redrawn again and again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fsdp__bar {
    _Atomic bool drawn; /* it is on the terminal; whoever logs, on any thread, clears it */
    int64_t drawn_ns;
    char note[100]; /* shown after the time */
    bool possible;  /* stderr is a terminal that can redraw a line; otherwise nothing is drawn */
    int64_t began_ns;
} fsdp__bar;

/* Returns whether standard error is a terminal that can redraw a line. */
bool fsdp__bar_possible(void);
/* Writes a duration: "1:03", "4:18:44". */
const char *fsdp__left_text(double seconds, char *text, size_t bytes);

/* Begins to measure the time, and finds out whether a bar can be drawn. */
void fsdp__bar_begin(fsdp__bar *bar);
/* Draws the bar on stderr, at most a few times a second. Call it after the first step: before that nothing is known
 * about the time. */
void fsdp__bar_draw(fsdp__bar *bar, int64_t step, int64_t steps);
/* Does the same in MiB, however few bytes there are. */
void fsdp__bar_draw_bytes(fsdp__bar *bar, uint64_t done, uint64_t all);
void fsdp__bar_clear(fsdp__bar *bar);
