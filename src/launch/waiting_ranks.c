/* waiting_ranks.c - ranks that wait for each other, as the names of their sockets. */
#include "launch/waiting_ranks.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/file.h"
#include "comm/health/board.h"

#define NAME "fsdp-rank-%u-%d-%d-%d-%d-%llu-%llx-%llx"
enum {
    NAME_FIELDS = 8,
    LINE_BYTES = 512 /* of a socket's line; a longer one is of another's, and is read in parts */
};

static socklen_t address_of(const fsdp__waiting_rank *r, struct sockaddr_un *out)
{
    int length;

    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* Byte 0 stays zero: it is not the name of a file. */
    length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, NAME, (unsigned)geteuid(), r->rank, r->size, r->pid,
                      r->parent, (unsigned long long)r->parent_ticks, (unsigned long long)r->run,
                      (unsigned long long)r->command);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int fsdp__waiting_rank_show(const fsdp__waiting_rank *self)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(self, &address);
    int fd = open_socket();

    if (fd >= 0 && (bind(fd, (const struct sockaddr *)&address, bytes) != 0 || listen(fd, FSDP__BOARD_RANKS) != 0)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* Returns whether the process that the name tells has the socket, and is of this user: anybody may give a socket any
 * name, but the system says who listens. */
static bool is_true(const fsdp__waiting_rank *r)
{
    FSDP__CLOSED int fd = open_socket();
    struct sockaddr_un address;
    socklen_t bytes = address_of(r, &address), peer_bytes = sizeof(struct ucred);
    struct ucred peer = {0};

    return fd >= 0 && connect(fd, (const struct sockaddr *)&address, bytes) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 && peer.pid == r->pid &&
           peer.uid == geteuid();
}

static bool is_same(const fsdp__waiting_rank *a, const fsdp__waiting_rank *b)
{
    return a->rank == b->rank && a->size == b->size && a->pid == b->pid && a->parent == b->parent &&
           a->parent_ticks == b->parent_ticks && a->run == b->run && a->command == b->command;
}

/* Notes the rank, unless there is one. One that was seen before is not asked again: who waits answers nobody, so not
 * many may ask. */
static void note(const fsdp__waiting_rank *r, const fsdp__waiting_rank *before, fsdp__waiting_rank *out)
{
    if (out->pid == 0 && (is_same(r, before) || is_true(r)))
        *out = *r;
}

typedef struct looking {
    const fsdp__waiting_rank *self;
    fsdp__waiting_seen before;
    fsdp__rank_set own_size, other_size; /* ranks of the same parent, run and command */
} looking;

static void see(looking *l, const fsdp__waiting_rank *r, fsdp__waiting_seen *out)
{
    const fsdp__waiting_rank *self = l->self;
    bool same_parent = r->parent == self->parent && r->parent_ticks == self->parent_ticks;
    bool same_run = r->run == self->run, beside = same_parent && same_run && r->command == self->command;

    if (beside) {
        out->most = FSDP__MAX(out->most, r->size);
        fsdp__rank_set_add(r->size == self->size ? &l->own_size : &l->other_size, r->rank);
    }
    if (beside && r->size != self->size)
        note(r, &l->before.other_size, &out->other_size);
    else if (same_parent != same_run && r->size == self->size && r->rank != self->rank)
        note(r, &l->before.apart, &out->apart);
}

/* Counts the ranks that are together: each once, since the system lists those who ask a socket under its name, too. If
 * one is there with this size and with another, these are two runs of one shell. */
static void count(const looking *l, fsdp__waiting_seen *out)
{
    for (int r = 0; r < FSDP__BOARD_RANKS; r++) {
        bool own = fsdp__rank_set_has(&l->own_size, r), other = fsdp__rank_set_has(&l->other_size, r);

        out->together += own + other;
        out->two_runs |= own && other;
    }
}

void fsdp__waiting_ranks_look(const fsdp__waiting_rank *self, fsdp__waiting_seen *seen)
{
    FILE *file = fopen("/proc/net/unix", "re");
    looking l = {.self = self, .before = *seen};
    char line[LINE_BYTES];

    *seen = (fsdp__waiting_seen){.most = self->size};
    while (file && fgets(line, sizeof line, file)) {
        const char *name = strstr(line, "@fsdp-rank-");
        unsigned long long ticks, run, command;
        fsdp__waiting_rank r;
        unsigned user;

        if (!name ||
            sscanf(name + 1, NAME, &user, &r.rank, &r.size, &r.pid, &r.parent, &ticks, &run, &command) != NAME_FIELDS ||
            user != geteuid() || r.rank < 0 || r.rank >= FSDP__BOARD_RANKS)
            continue;
        r.parent_ticks = ticks;
        r.run = run;
        r.command = command;
        see(&l, &r, seen);
    }
    if (file)
        (void)fclose(file);
    count(&l, seen);
}
