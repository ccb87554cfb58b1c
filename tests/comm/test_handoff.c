/* test_handoff.c - a descriptor goes from process to process. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/transport/arena/handoff.h"
#include "support/test.h"

enum {
    TAKERS = 3
};

/* A name that no other test has. */
static const char *own_name(const char *what)
{
    static char name[64];

    snprintf(name, sizeof name, "test-%s-%d", what, (int)getpid());
    return name;
}

static fsdp__handoff long_one(const char *name)
{
    return (fsdp__handoff){.name = name, .timeout_ns = 1200LL * 1000000000};
}

static int memory_file(const char *text)
{
    int fd = memfd_create("handoff", MFD_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, text, strlen(text)), (int64_t)strlen(text));
    return fd;
}

/* In a process of its own: takes, and writes into byte `place` of the file. Ends with 0 when all went well. */
static pid_t start_taker(const fsdp__handoff *handoff, int place)
{
    pid_t pid = fork();
    char text[4] = "";
    int fd = -1;

    CHECK(pid >= 0);
    if (pid)
        return pid;
    if (fsdp__handoff_take(handoff, &fd) != FSDP_OK) {
        fprintf(stderr, "%s\n", fsdp_last_error());
        _exit(1);
    }
    if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC))
        _exit(2);
    if (pread(fd, text, 1, 0) != 1 || pwrite(fd, "x", 1, place) != 1)
        _exit(3);
    _exit(text[0] == '.' ? 0 : 4);
}

static int status_of(pid_t pid)
{
    int status = 0;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int open_descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Those who come before the giver wait for it, and those after it too. */
TEST(several_processes_take_one_file)
{
    fsdp__handoff handoff = long_one(own_name("several"));
    int fd = memory_file(".---"), before = open_descriptors();
    pid_t takers[TAKERS];
    char text[8] = "";

    for (int round = 0; round < 3; round++) { /* the name is free again */
        CHECK_EQ(pwrite(fd, ".---", 4, 0), 4);
        for (int i = 0; i < TAKERS; i++) {
            takers[i] = start_taker(&handoff, i + 1);
            if (i == round - 1)
                usleep(20000);
        }
        CHECK_OK(fsdp__handoff_give(&handoff, fd, TAKERS));
        for (int i = 0; i < TAKERS; i++)
            CHECK_EQ(status_of(takers[i]), 0);
        CHECK_EQ(pread(fd, text, 4, 0), 4);
        CHECK_STRING(text, ".xxx");
    }
    CHECK_OK(fsdp__handoff_give(&handoff, fd, 0));
    CHECK_EQ(open_descriptors(), before);
    (void)close(fd);
}

static void connect_to(const char *name, int *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "fsdp-%s", name);

    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    while (connect(*out, (struct sockaddr *)&address,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)) != 0)
        usleep(1000);
}

/* One that connects and dies, and one that connects and never says anything. */
TEST(who_dies_on_the_way_is_not_counted)
{
    fsdp__handoff handoff = long_one(own_name("dies"));
    int fd = memory_file(".---"), connection;
    pid_t giver = fork(), taker;

    CHECK(giver >= 0);
    if (giver == 0)
        _exit(fsdp__handoff_give(&handoff, fd, 2) == FSDP_OK ? 0 : 1);
    connect_to(handoff.name, &connection);
    (void)close(connection);
    connect_to(handoff.name, &connection);
    taker = start_taker(&handoff, 1);
    CHECK_EQ(status_of(taker), 0);
    CHECK_EQ(waitpid(giver, NULL, WNOHANG), 0); /* still waits for the second */
    CHECK_EQ(write(connection, "wrong", 5), 5); /* another protocol's word */
    (void)close(connection);
    CHECK_EQ(status_of(start_taker(&handoff, 2)), 0);
    CHECK_EQ(status_of(giver), 0);
    (void)close(fd);
}

TEST(nothing_stays_of_a_giver_that_was_killed)
{
    fsdp__handoff handoff = long_one(own_name("killed"));
    int fd = memory_file("."), connection, out;
    pid_t giver = fork();

    CHECK(giver >= 0);
    if (giver == 0)
        _exit(fsdp__handoff_give(&handoff, fd, 2) == FSDP_OK ? 0 : 1);
    connect_to(handoff.name, &connection);
    CHECK_EQ(kill(giver, SIGKILL), 0);
    CHECK_EQ(status_of(giver), 128 + SIGKILL);
    (void)close(connection);
    handoff.timeout_ns = 50 * 1000000;
    CHECK_ERROR(fsdp__handoff_take(&handoff, &out), FSDP_COMM, "has given 'test-killed-");
    CHECK_EQ(out, -1);
    CHECK_ERROR(fsdp__handoff_give(&handoff, fd, 1), FSDP_COMM, "1 of 1 other processes"); /* the name is free */
    (void)close(fd);
}

/* A giver that takes leave in the middle: who has connected is told so, and does not wait for the timeout. */
TEST(a_giver_that_ends_is_named)
{
    fsdp__handoff handoff = long_one(own_name("ends"));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "fsdp-%s", handoff.name), out,
        listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    char gives[80];
    pid_t other;

    CHECK_EQ(bind(listener, (struct sockaddr *)&address,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)),
             0);
    CHECK_ERROR(fsdp__handoff_give(&handoff, 0, 1), FSDP_COMM, "has the name 'test-ends-");
    CHECK_EQ(listen(listener, 4), 0);
    snprintf(gives, sizeof gives, "process %d gives a descriptor as 'test-ends-", (int)getpid());
    CHECK_ERROR(fsdp__handoff_give(&handoff, 0, 1), FSDP_STATE, gives);
    (void)close(accept(listener, NULL, NULL)); /* it has asked who that is */
    other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        (void)close(accept(listener, NULL, NULL));
        _exit(0);
    }
    CHECK_ERROR(fsdp__handoff_take(&handoff, &out), FSDP_COMM, "has ended, or gives it to others only");
    CHECK_EQ(out, -1);
    CHECK_EQ(status_of(other), 0);
    handoff.timeout_ns = 50 * 1000000;
    CHECK_ERROR(fsdp__handoff_take(&handoff, &out), FSDP_COMM, "has not done so within 0.1 s"); /* nobody accepts */
    CHECK_EQ(out, -1);
    (void)close(listener);
}

static const char *count_down(void *argument)
{
    return --*(int *)argument <= 0 ? "it has counted down" : NULL;
}

TEST(who_waits_can_be_told_to_stop)
{
    int looks = 3, out;
    fsdp__handoff handoff = {
        .name = own_name("stopped"), .timeout_ns = 1200LL * 1000000000, .stopped = count_down, .argument = &looks};

    CHECK_ERROR(fsdp__handoff_take(&handoff, &out), FSDP_INTERRUPTED, "was given up: it has counted down");
    CHECK_EQ(looks, 0);
    looks = 3;
    CHECK_ERROR(fsdp__handoff_give(&handoff, 0, 1), FSDP_INTERRUPTED, "was given up");
    CHECK_EQ(looks, 0);
}

TEST(names_have_a_length)
{
    char name[FSDP__HANDOFF_NAME + 2];
    fsdp__handoff handoff = {.name = ""};
    int out;

    CHECK_ERROR(fsdp__handoff_take(&handoff, &out), FSDP_INVALID, "1 to 96 bytes, not 0");
    CHECK_ERROR(fsdp__handoff_give(&handoff, 0, 1), FSDP_INVALID, "1 to 96 bytes, not 0");
    memset(name, 'n', sizeof name);
    name[FSDP__HANDOFF_NAME + 1] = '\0';
    handoff.name = name;
    CHECK_ERROR(fsdp__handoff_take(&handoff, &out), FSDP_INVALID, "not 97");
    name[FSDP__HANDOFF_NAME] = '\0';
    CHECK_ERROR(fsdp__handoff_take(&handoff, &out), FSDP_COMM, "within 0.0 s");
}

/* Root can be another user for a while. */
TEST(other_users_get_nothing)
{
    fsdp__handoff handoff = long_one(own_name("user"));
    int fd = memory_file(".--"), out;
    pid_t giver, stranger;

    if (geteuid() != 0)
        skip();
    giver = fork();
    CHECK(giver >= 0);
    if (giver == 0)
        _exit(fsdp__handoff_give(&handoff, fd, 1) == FSDP_OK ? 0 : 1);
    stranger = fork();
    CHECK(stranger >= 0);
    if (stranger == 0) /* who waits for it, and who would give by the same name */
        _exit(setuid(65534) == 0 && fsdp__handoff_take(&handoff, &out) == FSDP_COMM &&
                      strstr(fsdp_last_error(), "of user 0, not by one of this user (65534)") &&
                      fsdp__handoff_give(&handoff, fd, 1) == FSDP_COMM &&
                      strstr(fsdp_last_error(), "of user 0, not by one of this user (65534)")
                  ? 0
                  : 1);
    CHECK_EQ(status_of(stranger), 0);
    stranger = fork();
    CHECK(stranger >= 0);
    if (stranger == 0) { /* one that does not look who gives */
        char byte;

        if (setuid(65534) != 0)
            _exit(1);
        connect_to(handoff.name, &out);
        _exit(recv(out, &byte, 1, 0) == 0 ? 0 : 2);
    }
    CHECK_EQ(status_of(stranger), 0);
    CHECK_EQ(status_of(start_taker(&handoff, 1)), 0);
    CHECK_EQ(status_of(giver), 0);
    (void)close(fd);
}

/* For the listener, and none for who comes: it says so, and does not wait for the time to be over. */
TEST(a_giver_without_descriptors_says_so)
{
    fsdp__handoff handoff = long_one(own_name("limit"));
    int fd = memory_file(".-"), next = dup(fd);
    pid_t taker = start_taker(&handoff, 1);
    struct rlimit before, few;

    (void)close(next);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)next + 1;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    CHECK_ERROR(fsdp__handoff_give(&handoff, fd, 1), FSDP_IO, "Too many open files");
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(status_of(taker), 1);
    (void)close(fd);
}

TEST(memory_that_is_not_there)
{
    fsdp__handoff handoff = {.name = own_name("memory")};

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__handoff_give(&handoff, 0, 1);

        CHECK(status == FSDP_NO_MEMORY || status == FSDP_COMM); /* nobody comes */
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status == FSDP_COMM ? FSDP_OK : status);
    }
}
