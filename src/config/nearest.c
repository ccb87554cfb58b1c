/* nearest.c - computes an edit distance in which swapping two neighbours counts once. */
#include "config/nearest.h"

#include <stddef.h>
#include <string.h>

#include "base/compiler.h"

#define LONGEST 40 /* keys and commands are shorter; longer words are compared only up to here */

static int distance(const char *a, const char *b)
{
    int rows[3][LONGEST + 1];
    int la = (int)FSDP__MIN(strlen(a), (size_t)LONGEST);
    int lb = (int)FSDP__MIN(strlen(b), (size_t)LONGEST);

    for (int j = 0; j <= lb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= la; i++) {
        int *now = rows[i % 3];
        const int *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];

        now[0] = i;
        for (int j = 1; j <= lb; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);

            best = FSDP__MIN(best, up[j] + 1);
            best = FSDP__MIN(best, now[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = FSDP__MIN(best, up2[j - 2] + 1);
            now[j] = best;
        }
    }
    return rows[la % 3][lb];
}

const char *fsdp__nearest(const char *word, const char *const *words)
{
    const char *found = NULL;
    int least = 1 + (int)(strlen(word) / 3);

    if (least > 4)
        least = 4;
    for (; *words; words++) {
        int d = distance(word, *words);

        if (d <= least && d < (int)strlen(*words)) {
            found = *words;
            least = d - 1;
        }
    }
    return found;
}
