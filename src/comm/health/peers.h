/* peers.h - what a rank hears of the ranks of other machines outside of collectives: that they live, what they do, that
 * one has left.
 *
 * Ranks say it in messages that nobody waits for (transport/network/watch.h): every second, or four times in a timeout,
 * each tells its counterparts, the same local rank of every other machine. What a rank hears of them it writes into
 * their rows of its machine's board, along with what it says itself. So every rank knows of all, and each hears from
 * one rank of each machine.
 *
 * A rank that waits for another looks here whether that one will come (verdict.h). Time is counted in ticks that a
 * thread of the rank has slept through. No tick passes while a rank is itself stopped. A remote rank's silence counts
 * only while somebody is known to listen: its listener, which has the same local rank on the reader's machine, must be
 * heard of. */
#pragma once

#include "comm/health/calls.h"
#include "comm/health/places.h"
#include "comm/health/pulse.h"
#include "comm/health/signature.h"

enum {
    FSDP__DOING_BYTES = 320 /* room for the text of what a rank does */
};

/* Holds what this rank has counted of another rank. */
typedef struct fsdp__known {
    uint64_t beats; /* as last seen on the board */
    int64_t silent; /* ticks since the last beat, without those in which a rank of this machine got no core */
    uint64_t ready; /* threads of a silent one of this machine that were ready to run: see process.h */
    int64_t left;   /* ticks since the rank has left; 0: it has not */
} fsdp__known;

typedef struct fsdp__peers {
    fsdp__health *own;
    const fsdp__places *places;
    _Atomic int64_t ticks;
    _Atomic int in;              /* number of calls of this rank begun and not done */
    _Atomic int awaits;          /* 1 + a rank that one of them waits for over the network; 0: none */
    _Atomic uint64_t wait_beats; /* beats of the heart that only say that this rank waits */
    fsdp__pulse pulse;           /* this rank's own */
    uint64_t beats;              /* beats of the heart when the pulse was taken, without `wait_beats` */
    int64_t still;               /* number of looks in which this rank got nothing done */
    pthread_mutex_t mutex;       /* guards `known`, and the rows that this rank writes */
    fsdp__known *known;          /* by rank; NULL: not open */
} fsdp__peers;

fsdp_status fsdp__peers_open(fsdp__peers *peers, fsdp__health *own, const fsdp__places *places);
void fsdp__peers_close(fsdp__peers *peers);

/* Notes a moment of a call on this rank. */
void fsdp__peers_note(fsdp__peers *peers, fsdp__moment moment);
/* Notes what a rank has said in a meeting of the group about its call: this is fresher than its last beat. Only what a
 * counterpart says is written down. */
void fsdp__peers_met(fsdp__peers *peers, int rank, const char *group, int tag, const fsdp__signature *theirs);

/* Serve the thread that tells and listens. Gets what this rank says of itself, having looked whether it gets anything
 * done: `still` is then the number of such looks in which it did not. */
void fsdp__peers_say(fsdp__peers *peers, fsdp__said *out);
/* Writes down what this rank, or a counterpart, has said. */
void fsdp__peers_hear(fsdp__peers *peers, int rank, const fsdp__said *said);
/* Counts a tick. */
void fsdp__peers_tick(fsdp__peers *peers);
/* Returns the time between two beats of a rank. */
int64_t fsdp__peers_beat_ms(const fsdp__peers *peers);

/* Writes what this rank does: "in call 6 of group 'world' (...)". */
void fsdp__peers_doing_text(const fsdp__peers *peers, char *text, size_t bytes);
fsdp__known fsdp__peers_known(fsdp__peers *peers, int rank);
/* Returns the number of ticks in which a rank that can speak does so. */
int64_t fsdp__peers_fresh_ticks(const fsdp__peers *peers);
/* Returns whether the board shows what the rank is doing now: it speaks, and is listened to. */
bool fsdp__peers_is_fresh(fsdp__peers *peers, int rank);
