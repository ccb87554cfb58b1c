/* handoff.c - hands a descriptor to other processes of this machine. */
#include "comm/transport/arena/handoff.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/limits.h"

enum {
    LOOK_MS = 20,     /* how often a waiting process checks whether to give up */
    RETRY_MS = 2,     /* how often a taker checks whether there is a giver */
    WORD = 0x66736470 /* the word that is sent along, and sent back */
};

static fsdp_status make_address(const char *name, struct sockaddr_un *out, socklen_t *bytes)
{
    size_t length = name ? strlen(name) : 0;

    if (length == 0 || length > FSDP__HANDOFF_NAME)
        return FSDP_FAIL(FSDP_INVALID, "a name to hand a descriptor over has 1 to %d bytes, not %zu",
                         FSDP__HANDOFF_NAME, length);
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    /* byte 0 stays zero: it is not the name of a file */
    snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "fsdp-%s", name);
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(out->sun_path + 1));
    return FSDP_OK;
}

/* Checks whether to go on waiting. `*wait_ms` is the time until the next check. */
static fsdp_status look(const fsdp__handoff *handoff, int64_t began, int most_ms, int *wait_ms)
{
    int64_t left = began + handoff->timeout_ns - fsdp__clock_ns();
    const char *why = handoff->stopped ? handoff->stopped(handoff->argument) : NULL;

    if (why)
        return FSDP_FAIL(FSDP_INTERRUPTED, "handing over '%s' was given up: %s", handoff->name, why);
    *wait_ms = (int)FSDP__MIN(FSDP__MAX(left / 1000000 + 1, 0), most_ms);
    return left > 0 ? FSDP_OK : FSDP_COMM;
}

static double seconds(const fsdp__handoff *handoff)
{
    return (double)handoff->timeout_ns / 1e9;
}

/* ---- messages ---- */

/* Returns whether the other side runs as the same user. */
static bool is_ours(int connection, struct ucred *out)
{
    socklen_t bytes = sizeof *out;

    memset(out, 0, sizeof *out);
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, out, &bytes) == 0 && out->uid == geteuid();
}

static fsdp_status fail_stranger(const fsdp__handoff *handoff, const struct ucred *peer)
{
    return FSDP_FAIL(FSDP_COMM, "'%s' is given by process %d of user %u, not by one of this user (%u)", handoff->name,
                     (int)peer->pid, (unsigned)peer->uid, (unsigned)geteuid());
}

static bool send_word(int connection, int fd)
{
    int word = WORD;
    struct iovec data = {.iov_base = &word, .iov_len = sizeof word};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof fd)];
    } control = {0};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    return sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof word;
}

/* Receives the word. `*fd` is the descriptor that came along, or -1. */
static bool receive_word(int connection, int *fd)
{
    int word = 0;
    struct iovec data = {.iov_base = &word, .iov_len = sizeof word};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof *fd)];
    } control = {0};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL;

    *fd = -1;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(header), sizeof *fd);
    return got == (ssize_t)sizeof word && word == WORD;
}

/* ---- giving ---- */

typedef struct giving {
    int fd, takers, taken;
    struct pollfd *sockets; /* the listener, then connections to those who have not confirmed yet that they have it */
    int count;
} giving;

static void drop(giving *g, int at)
{
    (void)close(g->sockets[at].fd);
    g->sockets[at] = g->sockets[--g->count];
}

static fsdp_status accept_one(const fsdp__handoff *handoff, giving *g)
{
    int connection = accept4(g->sockets[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), error = errno;
    struct ucred peer;

    /* The connection would stay in the backlog, and poll would report it at once, again and again: so fail. */
    if (connection < 0 && (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM))
        return FSDP_FAIL(FSDP_IO, "cannot take in a process of this machine, to give it '%s': %s%s", handoff->name,
                         strerror(error), fsdp__limit_behind(error));
    if (connection < 0)
        return FSDP_OK;
    g->sockets[g->count++] = (struct pollfd){.fd = connection, .events = POLLIN};
    if (!is_ours(connection, &peer) || !send_word(connection, g->fd))
        drop(g, g->count - 1);
    return FSDP_OK;
}

/* Serves the sockets from the last to the first, since a dropped one is replaced by one that was already served. */
static fsdp_status serve(const fsdp__handoff *handoff, giving *g)
{
    int extra;

    for (int i = g->count - 1; i > 0; i--) {
        if (!g->sockets[i].revents)
            continue;
        if (receive_word(g->sockets[i].fd, &extra))
            g->taken++;
        if (extra >= 0)
            (void)close(extra);
        drop(g, i);
    }
    return g->sockets[0].revents && g->count <= g->takers ? accept_one(handoff, g) : FSDP_OK;
}

static fsdp_status give_all(const fsdp__handoff *handoff, giving *g)
{
    int64_t began = fsdp__clock_ns();

    while (g->taken < g->takers) {
        int wait_ms = 0;
        fsdp_status status = look(handoff, began, LOOK_MS, &wait_ms);

        if (status == FSDP_COMM)
            return FSDP_FAIL(FSDP_COMM, "%d of %d other processes of this machine have not come for '%s' within %.1f s",
                             g->takers - g->taken, g->takers, handoff->name, seconds(handoff));
        FSDP_TRY(status);
        g->sockets[0].events = g->count <= g->takers ? POLLIN : 0;
        if (poll(g->sockets, (nfds_t)g->count, wait_ms) > 0)
            FSDP_TRY(serve(handoff, g));
    }
    return FSDP_OK;
}

/* Fails with who has the name that this process was to use. */
static fsdp_status fail_taken(const fsdp__handoff *handoff, const struct sockaddr_un *address, socklen_t bytes)
{
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred peer = {0};
    bool answers = connection >= 0 && connect(connection, (const struct sockaddr *)address, bytes) == 0;
    bool ours = answers && is_ours(connection, &peer);

    if (connection >= 0)
        (void)close(connection);
    if (ours)
        return FSDP_FAIL(FSDP_STATE, "process %d gives a descriptor as '%s'", (int)peer.pid, handoff->name);
    if (answers)
        return fail_stranger(handoff, &peer);
    return FSDP_FAIL(
        FSDP_COMM,
        "another process has the name '%s' and does not answer: it may be one of another user, who then is "
        "in the way ('ss -xlp' lists the names)",
        handoff->name);
}

static fsdp_status open_listener(const fsdp__handoff *handoff, int takers, int *out)
{
    struct sockaddr_un address;
    socklen_t bytes;
    int error;

    FSDP_TRY(make_address(handoff->name, &address, &bytes));
    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*out >= 0 && bind(*out, (const struct sockaddr *)&address, bytes) == 0 && listen(*out, takers) == 0)
        return FSDP_OK;
    error = errno;
    if (*out >= 0)
        (void)close(*out);
    if (error == EADDRINUSE)
        return fail_taken(handoff, &address, bytes);
    return FSDP_FAIL(FSDP_IO, "cannot give a descriptor as '%s': %s", handoff->name, strerror(error));
}

fsdp_status fsdp__handoff_give(const fsdp__handoff *handoff, int fd, int takers)
{
    giving g = {.fd = fd, .takers = takers, .count = 1};
    fsdp_status status = FSDP_OK;
    int listener = -1;

    if (takers <= 0)
        return FSDP_OK;
    FSDP_TRY(open_listener(handoff, takers, &listener));
    g.sockets = fsdp__malloc(((size_t)takers + 1) * sizeof *g.sockets);
    if (!g.sockets) {
        (void)close(listener);
        return fsdp_last_status();
    }
    g.sockets[0] = (struct pollfd){.fd = listener};
    status = give_all(handoff, &g);
    while (g.count > 0)
        drop(&g, g.count - 1);
    fsdp__free(g.sockets);
    return status;
}

/* ---- taking ---- */

/* Connects to the giver; `*out` stays -1 while there is none. */
static fsdp_status try_to_connect(const fsdp__handoff *handoff, int *out)
{
    struct sockaddr_un address;
    struct ucred peer;
    socklen_t bytes;
    int error = 0;

    FSDP_TRY(make_address(handoff->name, &address, &bytes));
    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*out < 0)
        return FSDP_FAIL(FSDP_IO, "cannot take a descriptor as '%s': %s", handoff->name, strerror(errno));
    if (connect(*out, (const struct sockaddr *)&address, bytes) == 0) {
        if (is_ours(*out, &peer))
            return FSDP_OK;
        (void)close(*out);
        *out = -1;
        return fail_stranger(handoff, &peer);
    }
    error = errno;
    (void)close(*out);
    *out = -1;
    if (error == ECONNREFUSED || error == EAGAIN || error == EINTR)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_IO, "cannot take a descriptor as '%s': %s", handoff->name, strerror(error));
}

static fsdp_status await_giver(const fsdp__handoff *handoff, int64_t began, int *connection)
{
    int wait_ms = 0;

    for (;;) {
        fsdp_status status;

        FSDP_TRY(try_to_connect(handoff, connection));
        if (*connection >= 0)
            return FSDP_OK;
        status = look(handoff, began, RETRY_MS, &wait_ms);
        if (status == FSDP_COMM)
            return FSDP_FAIL(FSDP_COMM,
                             "no process of this machine has given '%s' within %.1f s: it has ended, or is in another "
                             "container",
                             handoff->name, seconds(handoff));
        FSDP_TRY(status);
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)wait_ms * 1000000}, NULL);
    }
}

static fsdp_status receive(const fsdp__handoff *handoff, int64_t began, int connection, int *out)
{
    struct pollfd socket = {.fd = connection, .events = POLLIN};
    int wait_ms = 0;
    bool whole;

    do {
        fsdp_status status = look(handoff, began, LOOK_MS, &wait_ms);

        if (status == FSDP_COMM)
            return FSDP_FAIL(FSDP_COMM, "the process that gives '%s' has not done so within %.1f s", handoff->name,
                             seconds(handoff));
        FSDP_TRY(status);
    } while (poll(&socket, 1, wait_ms) <= 0);
    whole = receive_word(connection, out);
    if (whole && *out >= 0 && send_word(connection, -1))
        return FSDP_OK;
    if (*out >= 0)
        (void)close(*out);
    *out = -1;
    return FSDP_FAIL(FSDP_COMM, "the process that was to give '%s' has ended, or gives it to others only",
                     handoff->name);
}

fsdp_status fsdp__handoff_take(const fsdp__handoff *handoff, int *out)
{
    int64_t began = fsdp__clock_ns();
    int connection = -1;
    fsdp_status status;

    *out = -1;
    FSDP_TRY(await_giver(handoff, began, &connection));
    status = receive(handoff, began, connection, out);
    (void)close(connection);
    return status;
}
