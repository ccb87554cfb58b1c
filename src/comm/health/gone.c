/* gone.c - ranks of this machine that have left or died. */
#include "comm/health/gone.h"

#include <stdio.h>
#include <string.h>

#include "comm/health/calls.h"
#include "comm/health/process.h"

/* Appends the rank's last call. On one machine that is not said. */
static void add_last_call(const fsdp__board *board, int rank, char *text, size_t bytes)
{
    size_t length = strlen(text);
    char call[FSDP__CALL_BYTES];

    if (board->host[0] && fsdp__call_text_of(board, -1, rank, call, sizeof call))
        snprintf(text + length, bytes - length, ", last in %s", call);
}

static void gone_text(const fsdp__board *board, int rank, const char *how, char *text, size_t bytes)
{
    const char *host = board->host;

    snprintf(text, bytes, "rank %d%s%s%s has %s", fsdp__board_global(board, rank), host[0] ? " (machine '" : "", host,
             host[0] ? "')" : "", how);
}

static void abort_gone(fsdp__board *board, int rank, const char *how)
{
    char text[FSDP__HOST_BYTES + 96 + FSDP__CALL_BYTES];

    gone_text(board, rank, how, text, sizeof text);
    add_last_call(board, rank, text, sizeof text);
    fsdp__board_abort(board, FSDP_COMM, fsdp__board_global(board, rank), text);
}

void fsdp__gone_abort_left(fsdp__board *board, int rank)
{
    abort_gone(board, rank, "left");
}

static void death_text(const fsdp__board *board, int rank, char *text, size_t bytes)
{
    snprintf(text, bytes, "died (process %d)", atomic_load(&fsdp__row_at(board, rank)->pid));
}

bool fsdp__gone_found_dead(const fsdp__board *board, int rank)
{
    char text[FSDP__HOST_BYTES + 96], how[48];

    death_text(board, rank, how, sizeof how);
    gone_text(board, rank, how, text, sizeof text);
    return fsdp__board_aborted(board) && strncmp(board->abort_text, text, strlen(text)) == 0;
}

void fsdp__gone_check_alive(fsdp__board *board, int rank)
{
    const fsdp__row *row = fsdp__row_at(board, rank);
    char how[48];

    /* A process that has left its world in good order may end when it likes, even between these two checks. */
    if (!fsdp__process_is_dead(atomic_load(&row->pid), atomic_load(&row->start_ticks)) ||
        atomic_load(&row->state) != FSDP__RANK_JOINED)
        return;
    death_text(board, rank, how, sizeof how);
    abort_gone(board, rank, how);
}

void fsdp__gone_check_keeper(fsdp__board *board)
{
    if (fsdp__process_is_dead(atomic_load(&board->keeper), atomic_load(&board->keeper_ticks)))
        fsdp__board_abort(board, FSDP_COMM, -1, "the process that started the ranks has died");
}
