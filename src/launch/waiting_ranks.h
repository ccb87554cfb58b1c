/* waiting_ranks.h - ranks of this machine that wait for each other, as they see each other before they have met: so
 * those that cannot meet say what differs.
 *
 * A rank shows itself by an abstract Unix socket. Its name says it all, and /proc/net/unix lists it. Others connect
 * only to learn from the system whose it is. Where there is no such file, a rank sees nobody. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp__waiting_rank {
    int rank, size;
    int pid, parent;
    uint64_t parent_ticks; /* when the parent started */
    uint64_t run;          /* a hash of the variables that tell one run from another */
    uint64_t command;      /* a hash of the command line, see below */
} fsdp__waiting_rank;

/* Shows a rank while the descriptor that it returns is open. Returns -1 where it cannot. */
int fsdp__waiting_rank_show(const fsdp__waiting_rank *self);

/* Holds what a rank sees of the others. Where pid is 0, there is none.
 *
 * Two runs that one shell has started side by side look like ranks of one run that have got different sizes, unless
 * their command lines differ. So a rank with another size counts only if it runs the same command. */
typedef struct fsdp__waiting_seen {
    fsdp__waiting_rank other_size; /* of the same parent, run and command: it never comes */
    fsdp__waiting_rank apart;      /* of a world of this size, with either another parent or another run */
    int together, most; /* ranks of the same parent, run and command, with this one; the largest size of theirs */
    bool two_runs;      /* of theirs, one is there with this size and with another */
} fsdp__waiting_seen;

/* Looks again. `*seen` is what was seen before; at first, zeros. */
void fsdp__waiting_ranks_look(const fsdp__waiting_rank *self, fsdp__waiting_seen *seen);
