/* spin.c - restarts the program with a short spin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "cli/own_process.h"
#include "launch/variables.h"

#ifdef _OPENMP

/* Returns whether this runs under valgrind, whose tools preload libraries of this name. Valgrind cannot restart the
 * program by /proc/self/exe. */
static bool under_valgrind(void)
{
    const char *preload = getenv("LD_PRELOAD");

    return preload && strstr(preload, "vgpreload");
}

void fsdp__start_with_short_spin(char **argv)
{
    char count[16];

    /* This happens once: the second time the variable is set. */
    if (fsdp__user_says_how_to_wait() || under_valgrind() || getauxval(AT_SECURE))
        return;
    snprintf(count, sizeof count, "%d", FSDP__SPIN_COUNT);
    if (setenv(FSDP__SPIN_VARIABLE, count, 1) != 0)
        return;
    (void)execv("/proc/self/exe", argv);
    (void)unsetenv(FSDP__SPIN_VARIABLE); /* slower beside other programs, and otherwise the same */
}

#else

void fsdp__start_with_short_spin(char **argv)
{
    (void)argv;
}

#endif
