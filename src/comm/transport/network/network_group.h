/* network_group.h - a group of ranks of several machines.
 *
 *   local    all its members are on one machine: it is its group of the arena, and all calls are that group's.
 *   regular  the same local ranks on each of several machines: those of a machine meet in the arena, and each exchanges
 *            with its counterparts, the same local rank on the other machines.
 *   flat     any other group, and all groups where one level was asked for: each rank exchanges with each, nothing is
 *            shared.
 *
 * A rank's *column* is the set of ranks that it exchanges with, itself included: its counterparts, or in a flat group
 * all members. So a flat group is a regular one with one rank on each of as many machines as it has members.
 *
 * [Note: a world on paper]
 * In a world on paper (comm/transport/fake/) only this rank exists, and its calls run to count what they would send.
 * Every rank is taken to call what this one calls, and to have what it has. The code is the same, except for what a
 * world does with its own functions (fsdp__world_acts): on paper an exchange counts its legs and puts nothing on its
 * way, and all headers are this rank's own. Nothing is done on this machine, which has no arena. So a call on paper
 * follows no pointer to a buffer, and takes no memory for what would be sent or would arrive. */
#pragma once

#include "comm/transport/arena/arena_group.h"
#include "comm/transport/coalesced.h"
#include "comm/transport/network/watch.h"

typedef struct fsdp__network_group fsdp__network_group;

struct fsdp__exchange;
struct fsdp__leg;
struct fsdp__meeting;

/* Holds what a world does in its own way. */
typedef struct fsdp__world_acts {
    bool on_paper;
    /* Carry the packed pieces of coalesced calls. */
    fsdp__collective all_gather, all_to_all;
    /* Opens the group's members on this machine as a group of the arena. */
    fsdp_status (*open_local)(fsdp__network_group *group, const fsdp__process_group_spec *spec);
    /* Returns memory for so many bytes of data; NULL and a last error when out of memory. */
    void *(*take)(size_t bytes);
    /* Copies between data and messages. */
    void (*copy)(void *to, const void *from, size_t bytes);
    /* Puts what an exchange has counted on its way. */
    fsdp_status (*carry)(struct fsdp__exchange *exchange, const struct fsdp__leg *sends, int send_count,
                         const struct fsdp__leg *receives, int receive_count);
    /* Compares the headers of a meeting. */
    fsdp_status (*compare)(const struct fsdp__meeting *meeting);
    /* Shows the machine's ranks where the contributions to a reduction lie; `*visible`: all of them see all. */
    fsdp_status (*show)(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic, bool *visible);
    /* Returns whether a local rank contributes to buffer i. */
    bool (*adds)(const fsdp__network_group *group, const fsdp__call *call, int local, int64_t i);
} fsdp__world_acts;

/* Holds one rank's world of several machines. */
typedef struct fsdp__network_view {
    const fsdp__world_acts *acts;
    /* On paper only the places of the link, one_level and the groups are used of what follows. */
    fsdp__link link;
    fsdp__arena *arena; /* of this machine */
    fsdp__arena_view *local;
    fsdp__peers peers;
    fsdp__watch watch;
    bool one_level;
    bool awaited;                /* all ranks wait to hear whether this one has joined */
    fsdp__network_group *groups; /* all that are not freed */
} fsdp__network_view;

struct fsdp__network_group {
    fsdp__network_group *next;
    fsdp__network_view *world;
    fsdp__arena_group *local; /* the members on this machine; NULL: the group is flat, or on paper */
    bool flat;
    char *name;
    int *ranks; /* global */
    int rank, size;
    int tag;            /* the first of the group's own tags */
    int machines;       /* number of machines on which it has members */
    int block;          /* of a flat group: see comm/transport/order.h */
    int *column;        /* global ranks */
    int columns, place; /* size of the column, and this rank's place in it */
    int rounds;         /* rounds of its meetings: see meeting.h */
    int locals, local_rank;
    void *scratch; /* of the running call; kept for the next one */
    size_t scratch_bytes;
    unsigned char *messages; /* of its meeting: see meeting.c; also kept */
    void *paper;             /* what a world on paper keeps of the group */
};

fsdp_status fsdp__network_group_world(fsdp__network_view *machines, fsdp__arena_group *local,
                                      fsdp__network_group **out);

/* Fill slots of the transport's table. */
fsdp_status fsdp__network_group_open(void *transport, const fsdp__process_group_spec *spec, void **out);
void fsdp__network_group_ready(void *group);
void fsdp__network_group_free(void *group);

/* Opens the group's members on this machine as a group of the arena. */
fsdp_status fsdp__network_open_local(fsdp__network_group *group, const fsdp__process_group_spec *spec);

/* Returns memory for the data of the running call; NULL and a last error when out of memory. */
void *fsdp__network_scratch(fsdp__network_group *group, size_t bytes);

/* Returns whether the whole group is on one machine, so that its group of the arena does everything. */
static inline bool fsdp__network_is_local(const fsdp__network_group *group)
{
    return group->columns == 1;
}

static inline bool fsdp__network_on_paper(const fsdp__network_group *group)
{
    return group->world->acts->on_paper;
}

/* Returns the group rank of the local rank `local` at a place. */
static inline int fsdp__network_member(const fsdp__network_group *group, int place, int local)
{
    return place * group->locals + local;
}
