/* test_machines_deadline.c - calls that come back in time go through, others end the process. With real MPIs, and
 * worlds in the middle of their work, it is test_stuck.sh. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/transport/network/deadline.h"
#include "support/test.h"

enum {
    JOIN_MS = 300
};

/* A carrier of one rank, that says what it was called with. */
static struct {
    bool open_fails, stays;
    int closed;
} carrier;

static bool carrier_open(void **network, fsdp__network_world *out, char *text)
{
    if (carrier.open_fails) {
        snprintf(text, FSDP__NETWORK_TEXT, "no cable");
        return false;
    }
    *network = &carrier;
    *out = (fsdp__network_world){.size = 1, .host = "here"};
    return true;
}

static void carrier_close(void *network, bool whole)
{
    CHECK(network == &carrier);
    carrier.closed += whole ? 10 : 1;
}

static bool carrier_exchange(void *network, const void *mine, size_t bytes, void *all, char *text)
{
    (void)text;
    while (carrier.stays)
        pause();
    CHECK(network == &carrier);
    memcpy(all, mine, bytes);
    return true;
}

static bool carrier_send(void *network, int to, int tag, const fsdp__segment *segments, int count,
                         fsdp__network_request *out, char *text)
{
    CHECK(network == &carrier);
    *out = (fsdp__network_request)to * 1000 + (fsdp__network_request)tag * 10 + (fsdp__network_request)count;
    snprintf(text, FSDP__NETWORK_TEXT, "%zu bytes", segments->bytes);
    return false;
}

static bool carrier_receive(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                            fsdp__network_request *out, char *text)
{
    (void)carrier_send(network, from, tag, segments, count, out, text);
    return shorter;
}

static bool carrier_test(void *network, fsdp__network_request *requests, int count, char *text)
{
    (void)text;
    CHECK(network == &carrier);
    requests[count - 1] = 0;
    return true;
}

static bool carrier_poll(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text)
{
    (void)text;
    CHECK(network == &carrier);
    memset(data, tag, bytes);
    *from = 3;
    *got = bytes;
    return true;
}

static const fsdp__network_ops carrier_ops = {.version = FSDP__NETWORK_VERSION,
                                              .open = carrier_open,
                                              .close = carrier_close,
                                              .exchange = carrier_exchange,
                                              .send = carrier_send,
                                              .receive = carrier_receive,
                                              .test = carrier_test,
                                              .poll = carrier_poll};

static void *open_joining(const fsdp__joining *joining)
{
    char text[FSDP__NETWORK_TEXT] = "";
    fsdp__network_world world;
    void *network = NULL;

    CHECK(fsdp__deadline_open(&carrier_ops, joining, &network, &world, text));
    CHECK_STRING(world.host, "here");
    CHECK(fsdp__deadline_of(&fsdp__deadline_ops, network) == network);
    CHECK_NULL(fsdp__deadline_of(&carrier_ops, network));
    return network;
}

static void *open_carrier(int64_t join_ms)
{
    return open_joining(&(fsdp__joining){.ms = join_ms});
}

TEST(calls_go_through)
{
    const fsdp__network_ops *ops = &fsdp__deadline_ops;
    void *network = open_carrier(60000);
    char text[FSDP__NETWORK_TEXT] = "";
    fsdp__segment segment = {text, 7};
    fsdp__network_request request = 0, requests[2] = {1, 2};
    int mine = 5, all = 0, from = -1;
    unsigned char data[2] = {0};
    size_t got = 0;

    carrier.closed = 0;
    CHECK(ops->exchange(network, &mine, sizeof mine, &all, text));
    CHECK_EQ(all, 5);
    CHECK_EQ(ops->send(network, 4, 3, &segment, 2, &request, text), false);
    CHECK_EQ(request, 4032);
    CHECK_STRING(text, "7 bytes");
    CHECK_EQ(ops->receive(network, 6, 5, &segment, 1, false, &request, text), false);
    CHECK_EQ(request, 6051);
    CHECK_EQ(ops->receive(network, 6, 5, &segment, 1, true, &request, text), true);
    CHECK(ops->test(network, requests, 2, text));
    CHECK_EQ(requests[0], 1);
    CHECK_EQ(requests[1], 0);
    CHECK(ops->poll(network, 9, data, sizeof data, &from, &got, text));
    CHECK_EQ(from, 3);
    CHECK_EQ(got, 2);
    CHECK_EQ(data[1], 9);
    ops->close(network, true);
    CHECK_EQ(carrier.closed, 10);
    ops->close(open_carrier(60000), false);
    CHECK_EQ(carrier.closed, 11);
}

TEST(what_cannot_be_opened_is_none)
{
    char text[FSDP__NETWORK_TEXT] = "";
    fsdp__network_world world;
    void *network = &carrier;

    carrier.open_fails = true;
    CHECK_EQ(fsdp__deadline_open(&carrier_ops, &(fsdp__joining){.ms = 60000}, &network, &world, text), false);
    carrier.open_fails = false;
    CHECK_NULL(network);
    CHECK_STRING(text, "no cable");
}

/* ---- in a process of its own ---- */

static void join_too_late(void)
{
    char text[FSDP__NETWORK_TEXT] = "";
    void *network = open_carrier(JOIN_MS);
    int mine = 0, all;

    carrier.stays = true;
    (void)fsdp__deadline_ops.exchange(network, &mine, sizeof mine, &all, text);
}

/* In whatever it waits: here for nothing of the network. */
static void join_too_slowly(void)
{
    (void)open_carrier(JOIN_MS);
    for (;;)
        pause();
}

static int two(void)
{
    return 2;
}

static int unknown(void)
{
    return -1;
}

static void join_beside_two_of_three(void)
{
    (void)open_joining(&(fsdp__joining){.ms = 1000, .warns = true, .started = 3, .living = two});
    for (;;)
        pause();
}

static void join_beside_two_of_two(void)
{
    (void)open_joining(&(fsdp__joining){.ms = JOIN_MS, .warns = true, .started = 2, .living = two});
    for (;;)
        pause();
}

static void join_beside_some(void)
{
    (void)open_joining(&(fsdp__joining){.ms = JOIN_MS, .started = 3, .living = unknown});
    for (;;)
        pause();
}

static int run_apart(void (*act)(void), char *said, size_t bytes)
{
    int ends[2], status = 0;
    pid_t child;
    ssize_t got;
    size_t all = 0;

    CHECK_EQ(pipe(ends), 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        act();
        _exit(3);
    }
    close(ends[1]);
    while (all < bytes - 1 && (got = read(ends[0], said + all, bytes - 1 - all)) > 0)
        all += (size_t)got;
    said[all] = '\0';
    close(ends[0]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(a_join_that_lasts_too_long_ends_the_process)
{
    char said[512];

    CHECK_EQ(run_apart(join_too_late, said, sizeof said), 1);
    CHECK_CONTAINS(said, "not all ranks have joined within 0.3 s (FSDP_JOIN_TIMEOUT)");
    CHECK_EQ(run_apart(join_too_slowly, said, sizeof said), 1);
    CHECK_CONTAINS(said, "not all ranks have joined within 0.3 s");
}

TEST(one_that_has_ended_before_it_joined_is_not_waited_for)
{
    char said[512];

    CHECK_EQ(run_apart(join_beside_two_of_three, said, sizeof said), 1);
    CHECK_CONTAINS(said, "of 3 processes that were started here 1 has ended without joining the others");
    CHECK_EQ(run_apart(join_beside_two_of_two, said, sizeof said), 1);
    CHECK_CONTAINS(said, "not all ranks have joined yet; they have 0.3 s for it (FSDP_JOIN_TIMEOUT)");
    CHECK_CONTAINS(said, "not all ranks have joined within 0.3 s");
    CHECK_EQ(run_apart(join_beside_some, said, sizeof said), 1);
    CHECK_EQ(strstr(said, "yet") == NULL, true);
    CHECK_CONTAINS(said, "not all ranks have joined within 0.3 s");
}
