/* fatal.c - ends the process by a signal. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/temporary.h"
#include "cli/own_process.h"

/* ---- SIGBUS: only system calls ---- */

static void say(const char *text)
{
    ssize_t unheard = write(STDERR_FILENO, text, strlen(text));

    (void)unheard;
}

static uintptr_t read_hex(const char **at)
{
    uintptr_t value = 0;

    for (;; (*at)++) {
        char c = **at;

        if (c >= '0' && c <= '9')
            value = value * 16 + (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value * 16 + (uintptr_t)(c - 'a' + 10);
        else
            return value;
    }
}

/* Returns the path in a line of /proc/self/maps, "start-end mode offset device inode   path", if `address` lies in its
 * range. */
static const char *path_in(const char *line, uintptr_t address)
{
    const char *at = line;
    uintptr_t start = read_hex(&at), end;

    if (*at++ != '-')
        return NULL;
    end = read_hex(&at);
    return address >= start && address < end ? strchr(line, '/') : NULL;
}

static void say_file(uintptr_t address)
{
    char line[4096 + 128];
    size_t used = 0;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    char c;

    while (fd >= 0 && read(fd, &c, 1) == 1) {
        const char *path;

        if (c != '\n') {
            if (used + 1 < sizeof line)
                line[used++] = c;
            continue;
        }
        line[used] = '\0';
        used = 0;
        path = path_in(line, address);
        if (!path)
            continue;
        say("'");
        say(path);
        say("'");
        return;
    }
    say("a file");
}

static void bus_error(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    say("fsdp: ");
    say_file((uintptr_t)info->si_addr);
    say(" was cut short while it was read (signal 7, bus error)\n");
    /* The handler is gone by now, so the same access ends the process. */
}

void fsdp__explain_bus_errors(void)
{
    struct sigaction action = {.sa_sigaction = bus_error, .sa_flags = SA_SIGINFO | SA_RESETHAND};

    (void)sigaction(SIGBUS, &action, NULL);
}

/* ---- dying of a signal ---- */

_Noreturn void fsdp__die_of(int signal_number)
{
    sigset_t set;

    fsdp__temporaries_end();
    (void)signal(signal_number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(signal_number);
    _exit(128 + signal_number);
}

const int fsdp__ending_signals[FSDP__ENDING_SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU};

void fsdp__die_in_order(void)
{
    struct sigaction ends = {.sa_handler = fsdp__die_of}, before;

    for (int i = 0; i < FSDP__ENDING_SIGNALS; i++)
        if (sigaction(fsdp__ending_signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            (void)sigaction(fsdp__ending_signals[i], &ends, NULL);
}
