/* process.h - what the program does about the process that it is, before and after a command. */
#ifndef CLI_PROCESS_H
#define CLI_PROCESS_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* ---- init.c ---- */

/* Process 1 of a container: goes on as its child, while process 1 passes signals on to it, takes the end of processes
 * that nobody waits for, and exits as it does. (The kernel drops signals to process 1 that it has no handler for.) */
void fsdp__leave_process_one(void);

/* ---- spin.c ---- */

/* Starts this program anew with a short spin of libgomp's threads in its environment (launch/variables.h), which is
 * read before main. Not where the user says how threads wait, under valgrind, in a setuid program, or without /proc. To
 * be called before anything is read. */
void fsdp__start_with_short_spin(char **argv);

/* ---- output.c ---- */

/* Whether something could not be written to stdout; then `text` says so. */
bool fsdp__output_failed(char *text, size_t text_bytes);

/* ---- fatal.c ---- */

/* Has SIGBUS say which file was cut short while it was read, before it ends the process as ever. */
void fsdp__explain_bus_errors(void);
/* Ends this process by `signal`, as whoever started it expects. Process 1 exits with 128 + signal. */
_Noreturn void fsdp__die_of(int signal);

#endif
