/* bar.h - how far a run is, as a line on a terminal that is drawn over and over. */
#ifndef CLI_BAR_H
#define CLI_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fsdp__bar {
    _Atomic bool drawn; /* it stands on the terminal; whoever logs, on any thread, takes it away */
    int64_t drawn_ns;
    char note[100]; /* behind the time */
} fsdp__bar;

/* Whether the descriptor is a terminal that can draw a line again. */
bool fsdp__bar_possible(int fd);
/* "1:03", "4:18:44" */
const char *fsdp__left_text(double seconds, char *text, size_t bytes);

/* On stderr, a few times a second at most. There has been a step, or nothing is known of the time. */
void fsdp__bar_draw(fsdp__bar *bar, int64_t step, int64_t steps, int64_t began_ns);
/* The same in MiB, of however few bytes. */
void fsdp__bar_draw_bytes(fsdp__bar *bar, uint64_t done, uint64_t all, int64_t began_ns);
void fsdp__bar_clear(fsdp__bar *bar);

#endif
