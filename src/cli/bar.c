/* bar.c - shows how far a run is, as a line on a terminal that is redrawn again and again. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/text.h"
#include "cli/bar.h"

enum {
    USUAL_COLUMNS = 80, /* if the terminal does not say */
    WIDEST = 32,        /* '=' in a bar */
    NARROWEST = 8,      /* a narrower bar says nothing */
    AGAIN_NS = 100 * 1000 * 1000
};

bool fsdp__bar_possible(void)
{
    const char *terminal = getenv("TERM");

    /* A dumb terminal, such as an editor's, cannot go back to the start of a line and clear it. */
    return isatty(STDERR_FILENO) && terminal && *terminal && strcmp(terminal, "dumb") != 0;
}

const char *fsdp__left_text(double seconds, char *text, size_t bytes)
{
    long long minutes = (long long)(seconds / 60);

    if (minutes < 60)
        snprintf(text, bytes, "%lld:%02d", minutes, (int)fmod(seconds, 60));
    else
        snprintf(text, bytes, "%lld:%02lld:%02d", minutes / 60, minutes % 60, (int)fmod(seconds, 60));
    return text;
}

/* Writes "[====>    ] 12/100  1:03 left" and a note in at most `columns` - 1 characters. If there is not enough room it
 * leaves out the note, then the bar, and then cuts the rest. */
static void bar_text(int64_t step, int64_t steps, double seconds_left, const char *note, int columns, char *text,
                     size_t text_bytes)
{
    char numbers[160], bar[WIDEST + 1];
    int length, width, done;

    length = snprintf(numbers, sizeof numbers, "%lld/%lld  %s left%s%s", (long long)step, (long long)steps,
                      fsdp__left_text(seconds_left, FSDP__ROOM(40)), *note ? "  " : "", note);
    /* The last column stays free, because some terminals wrap a line that fills it. */
    width = FSDP__MIN(columns - 1 - length - 3, (int)WIDEST);
    if (width < NARROWEST && *note) {
        bar_text(step, steps, seconds_left, "", columns, text, text_bytes);
        return;
    }
    if (width < NARROWEST) {
        snprintf(text, text_bytes, "%.*s", FSDP__MAX(columns - 1, 0), numbers);
        return;
    }
    done = (int)((double)width * (double)step / (double)steps);
    memset(bar, '=', (size_t)done);
    memset(bar + done, ' ', (size_t)(width - done));
    if (done < width)
        bar[done] = '>';
    snprintf(text, text_bytes, "[%.*s] %s", width, bar, numbers);
}

void fsdp__bar_begin(fsdp__bar *bar)
{
    bar->possible = fsdp__bar_possible();
    bar->began_ns = fsdp__clock_ns();
}

void fsdp__bar_draw(fsdp__bar *bar, int64_t step, int64_t steps)
{
    int64_t now = fsdp__clock_ns();
    double left = (double)(now - bar->began_ns) * 1e-9 / (double)step * (double)(steps - step);
    struct winsize size = {0};
    char text[220];

    if (!bar->possible || (bar->drawn && now - bar->drawn_ns < AGAIN_NS))
        return;
    /* The width is read every time, because the user may have resized the terminal. */
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        size.ws_col = USUAL_COLUMNS;
    bar_text(step, steps, left, bar->note, size.ws_col, text, sizeof text);
    fprintf(stderr, "\r%s\033[K", text);
    fflush(stderr);
    bar->drawn = true;
    bar->drawn_ns = now;
}

void fsdp__bar_draw_bytes(fsdp__bar *bar, uint64_t done, uint64_t all)
{
    fsdp__bar_draw(bar, FSDP__MAX((int64_t)(done >> 20), 1), (int64_t)(all >> 20) + 1);
}

void fsdp__bar_clear(fsdp__bar *bar)
{
    if (atomic_exchange(&bar->drawn, false))
        fputs("\r\033[K", stderr);
}
