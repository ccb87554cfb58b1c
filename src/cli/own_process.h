/* own_process.h - what the program does to its own process, before and after a command. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* ---- process_one.c ---- */

/* Lets process 1 of a container go on as its child. Process 1 passes signals on to the child, reaps orphaned processes,
 * and exits as the child does. (The kernel drops signals to process 1 that it has no handler for.) */
void fsdp__leave_process_one(void);

/* ---- spin.c ---- */

/* Restarts this program with a short spin for libgomp's threads in its environment (launch/variables.h), which is read
 * before main. It does not do so if the user says how threads wait, under valgrind, in a setuid program, or without
 * /proc. Call it before anything is read. */
void fsdp__start_with_short_spin(char **argv);

/* ---- output.c ---- */

/* Returns whether something could not be written to stdout; if so, `text` says it. */
bool fsdp__output_failed(char *text, size_t text_bytes);

/* ---- fatal.c ---- */

/* Makes SIGBUS say which file was cut short while it was read, before it ends the process as usual. */
void fsdp__explain_bus_errors(void);
enum {
    FSDP__ASKING_SIGNALS = 3, /* of those below, the first: they ask a run that saves to end */
    FSDP__ENDING_SIGNALS = 6
};
/* Signals that end a process without a handler, and come from outside, or, as SIGPIPE, from a limit or a pipe. */
extern const int fsdp__ending_signals[FSDP__ENDING_SIGNALS];
/* Lets these signals end this process by fsdp__die_of, where they are not ignored. Call it while there is one thread.
 */
void fsdp__die_in_order(void);
/* Ends this process by `signal`, as its parent expects, without its temporary files. Process 1 exits with 128 + signal.
 */
_Noreturn void fsdp__die_of(int signal);
