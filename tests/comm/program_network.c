/* program_network.c - a process that mpirun has started exchanges messages through the plug-in of that MPI, as its
 * argument says. Run by test_mpi.sh. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi/load.h"
#include "support/test.h"

enum {
    MPI_MULTIPLE = 3, /* MPI_THREAD_MULTIPLE of both MPIs */
    LARGE = 9 << 20
};

typedef struct peer {
    const fsdp__network_ops *ops;
    void *network;
    fsdp__network_world world;
    char text[FSDP__NETWORK_TEXT];
} peer;

#define CHECK_CALL(p, call) ((call) ? (void)0 : test_fail(__FILE__, __LINE__, "%s: %s", #call, (p)->text))

static void load(peer *p)
{
    fsdp__mpi_start start;

    CHECK_OK(fsdp__mpi_started(&start));
    CHECK_PTR(start.kind);
    CHECK_OK(fsdp__mpi_load(start.kind, &p->ops));
    CHECK_EQ(p->ops->version, FSDP__NETWORK_VERSION);
}

static void join(peer *p)
{
    CHECK_CALL(p, p->ops->open(&p->network, &p->world, p->text));
    CHECK(p->world.rank >= 0 && p->world.rank < p->world.size);
    CHECK(p->world.machine >= 0 && p->world.machine <= p->world.rank);
    CHECK(p->world.host[0]);
}

static void await(peer *p, fsdp__network_request *requests, int count)
{
    for (int open = 1; open;) {
        CHECK_CALL(p, p->ops->test(p->network, requests, count, p->text));
        open = 0;
        for (int i = 0; i < count; i++)
            open += requests[i] != 0;
        sched_yield();
    }
}

static unsigned char pattern(int rank, int tag, size_t at)
{
    return (unsigned char)(rank * 31 + tag * 7 + (int)(at % 251));
}

/* To the next rank and from the one before, of `bytes` in `pieces` segments each, which are cut in different places. */
static void ring(peer *p, int tag, size_t bytes, int pieces)
{
    int size = p->world.size, to = (p->world.rank + 1) % size, from = (p->world.rank + size - 1) % size;
    unsigned char *sent = calloc(bytes + 1, 1), *got = calloc(bytes + 1, 1);
    fsdp__segment *out = calloc((size_t)pieces, sizeof *out), *in = calloc((size_t)pieces + 1, sizeof *in);
    fsdp__network_request requests[2];
    size_t each = bytes / (size_t)pieces, first = each / 2;

    for (size_t i = 0; i < bytes; i++)
        sent[i] = pattern(p->world.rank, tag, i);
    for (int i = 0; i < pieces; i++) {
        size_t begin = (size_t)i * each, end = i == pieces - 1 ? bytes : begin + each;

        out[i] = (fsdp__segment){sent + begin, end - begin};
        in[i] = (fsdp__segment){got + (i ? begin - first : 0), i ? end - begin : end - begin - first};
    }
    in[pieces] = (fsdp__segment){got + bytes - first, first};
    CHECK_CALL(p, p->ops->receive(p->network, from, tag, in, pieces + 1, false, &requests[0], p->text));
    CHECK_CALL(p, p->ops->send(p->network, to, tag, out, pieces, &requests[1], p->text));
    memset(in, 0, sizeof *in * (size_t)(pieces + 1)); /* the list is copied */
    memset(out, 0, sizeof *out * (size_t)pieces);
    await(p, requests, 2);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != pattern(from, tag, i))
            TEST_FAIL("byte %zu of %zu with tag %d is wrong", i, bytes, tag);
    free(sent);
    free(got);
    free(out);
    free(in);
}

/* Many on their way to and from every rank, in the order in which they were sent. */
static void all_at_once(peer *p)
{
    enum {
        EACH = 70
    };
    int size = p->world.size, count = size * EACH;
    int *sent = calloc((size_t)count, sizeof *sent), *got = calloc((size_t)count, sizeof *got);
    fsdp__network_request *requests = calloc((size_t)count * 2, sizeof *requests);

    for (int i = 0; i < count; i++) {
        fsdp__segment in = {&got[i], sizeof *got}, out = {&sent[i], sizeof *sent};
        int other = i / EACH;

        sent[i] = p->world.rank * 100000 + i % EACH;
        CHECK_CALL(p, p->ops->receive(p->network, other, 5, &in, 1, false, &requests[i], p->text));
        CHECK_CALL(p, p->ops->send(p->network, other, 5, &out, 1, &requests[count + i], p->text));
    }
    await(p, requests, count * 2);
    for (int i = 0; i < count; i++)
        CHECK_EQ(got[i], i / EACH * 100000 + i % EACH);
    free(sent);
    free(got);
    free(requests);
}

/* To the next rank, which has room for more; and for just as much. */
static void shorter(peer *p)
{
    int size = p->world.size, to = (p->world.rank + 1) % size, from = (p->world.rank + size - 1) % size;

    for (size_t room = 5; room <= 9; room += 4) {
        unsigned char sent[] = {1, 2, 3, 4, (unsigned char)p->world.rank}, got[10];
        fsdp__segment out = {sent, sizeof sent}, in = {got, room};
        fsdp__network_request requests[2];

        memset(got, 7, sizeof got);
        CHECK_CALL(p, p->ops->receive(p->network, from, 6, &in, 1, true, &requests[0], p->text));
        CHECK_CALL(p, p->ops->send(p->network, to, 6, &out, 1, &requests[1], p->text));
        await(p, requests, 2);
        CHECK_EQ(got[3], 4);
        CHECK_EQ(got[4], from);
        for (size_t i = 5; i < sizeof got; i++)
            CHECK_EQ(got[i], 7);
    }
}

/* Every rank tells every other one its number, of which nobody knows when it comes. */
static void poll_all(peer *p)
{
    fsdp__network_request requests[64] = {0};
    fsdp__segment mine = {&p->world.rank, sizeof p->world.rank};
    int sum = 0, from, got, nothing;
    size_t bytes;

    CHECK_CALL(p, p->ops->poll(p->network, 8, &nothing, sizeof nothing, &from, &bytes, p->text));
    CHECK_EQ(from, -1);
    CHECK(p->world.size <= 64);
    for (int i = 0; i < p->world.size; i++)
        CHECK_CALL(p, p->ops->send(p->network, i, FSDP__NETWORK_TAGS - 1, &mine, 1, &requests[i], p->text));
    for (int heard = 0; heard < p->world.size;) {
        CHECK_CALL(p, p->ops->poll(p->network, FSDP__NETWORK_TAGS - 1, &got, sizeof got, &from, &bytes, p->text));
        if (from < 0)
            continue;
        CHECK_EQ(bytes, sizeof got);
        CHECK_EQ(got, from);
        sum += got;
        heard++;
    }
    CHECK_EQ(sum, p->world.size * (p->world.size - 1) / 2);
    await(p, requests, p->world.size);
}

/* Of the MPI that the plug-in has brought: the beginning of what it says of itself. */
static const char *library_name(void)
{
    static char name[8192]; /* MPI_MAX_LIBRARY_VERSION_STRING */
    int (*tell)(char *, int *) = (int (*)(char *, int *))dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    int bytes = 0;

    CHECK(tell && tell(name, &bytes) == 0);
    name[strcspn(name, ",:\n")] = '\0';
    return name;
}

static void exchange(peer *p)
{
    int mine[2] = {p->world.rank, p->world.machine}, *all = calloc((size_t)p->world.size, sizeof mine);

    CHECK_CALL(p, p->ops->exchange(p->network, mine, sizeof mine, all, p->text));
    for (int i = 0; i < p->world.size; i++) {
        CHECK_EQ(all[2 * i], i);
        CHECK_EQ(all[2 * all[2 * i + 1] + 1], all[2 * i + 1]); /* the lowest rank of a machine is its number */
    }
    if (p->world.rank == 0) {
        printf("%d ranks of %s on '%s', machines", p->world.size, library_name(), p->world.host);
        for (int i = 0; i < p->world.size; i++)
            printf(" %d", all[2 * i + 1]);
        printf("\n");
    }
    free(all);
}

static void *rings_of_a_thread(void *argument)
{
    peer *p = argument;
    static atomic_int next = 100;
    int tag = atomic_fetch_add(&next, 1);

    for (int i = 0; i < 20; i++)
        ring(p, tag, 3000 * (size_t)i + 7, 3);
    return NULL;
}

static void messages(peer *p)
{
    fsdp__network_request none[2] = {0};
    pthread_t threads[3];
    peer own[3];

    exchange(p);
    CHECK_CALL(p, p->ops->test(p->network, none, 2, p->text));
    ring(p, 0, 0, 1);
    ring(p, 1, 1, 1);
    ring(p, 2, 100003, 4);
    ring(p, 3, 5000, 100);
    ring(p, 4, LARGE, 1);
    ring(p, 4, LARGE, 9);
    all_at_once(p);
    shorter(p);
    poll_all(p);
    for (int i = 0; i < 3; i++) {
        own[i] = *p;
        CHECK_EQ(pthread_create(&threads[i], NULL, rings_of_a_thread, &own[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    exchange(p);
}

/* Rank 1 sends `bytes` to rank 0, which expects 20 of them; returns with what rank 0 is told. */
static void wrong_length(peer *p, size_t bytes)
{
    char data[64] = {0};
    fsdp__segment segment = {data, p->world.rank == 0 ? 20 : bytes};
    fsdp__network_request request = 0;
    bool good = true;

    if (p->world.rank == 1) {
        CHECK_CALL(p, p->ops->send(p->network, 0, 3, &segment, 1, &request, p->text));
        await(p, &request, 1);
    } else if (p->world.rank == 0) {
        CHECK_CALL(p, p->ops->receive(p->network, 1, 3, &segment, 1, false, &request, p->text));
        while (good && request)
            good = p->ops->test(p->network, &request, 1, p->text);
        CHECK_EQ(good, false);
        printf("told: %s\n", p->text);
    }
}

static void polled_too_long(peer *p)
{
    char data[64] = {0};
    fsdp__segment segment = {data, sizeof data};
    fsdp__network_request request = 0;
    int from = -1;
    size_t got;

    if (p->world.rank == 1) {
        CHECK_CALL(p, p->ops->send(p->network, 0, 3, &segment, 1, &request, p->text));
        await(p, &request, 1);
    } else if (p->world.rank == 0) {
        while (p->ops->poll(p->network, 3, data, 10, &from, &got, p->text))
            CHECK_EQ(from, -1);
        printf("told: %s\n", p->text);
    }
}

static void refused(peer *p)
{
    fsdp__segment half[] = {{p, INT_MAX / 2}, {p, INT_MAX / 2}, {p, 2}}, small = {p, 1};
    fsdp__network_request request = 1;

    CHECK_EQ(p->ops->send(p->network, 0, 3, half, 3, &request, p->text), false);
    CHECK_CONTAINS(p->text, "at most 2147483647 bytes");
    CHECK_EQ(request, 0);
    CHECK_EQ(p->ops->receive(p->network, 0, 3, half, 3, false, &request, p->text), false);
    CHECK_CONTAINS(p->text, "at most 2147483647 bytes");
    CHECK_EQ(p->ops->exchange(p->network, p, (size_t)INT_MAX + 1, p, p->text), false);
    CHECK_CONTAINS(p->text, "at most 2147483647 bytes");
    CHECK_EQ(p->ops->send(p->network, p->world.size, 3, &small, 1, &request, p->text), false);
    CHECK_CONTAINS(p->text, "nvalid rank");
    CHECK_EQ(p->ops->receive(p->network, p->world.size, 3, &small, 1, false, &request, p->text), false);
    CHECK_CONTAINS(p->text, "nvalid rank");
}

/* Rank 0 closes the network at once, while the others are in MPI and look for messages, as long as a sleep lasts. */
static void closed_late(peer *p)
{
    int nothing, from = -1;
    size_t got;

    exchange(p);
    ring(p, 1, 1, 1);
    for (int i = 0; i < 300 && p->world.rank != 0; i++) {
        CHECK_CALL(p, p->ops->poll(p->network, 8, &nothing, sizeof nothing, &from, &got, p->text));
        CHECK_EQ(from, -1);
        usleep(1000);
    }
}

/* ---- joining ---- */

static void join_again(peer *p)
{
    peer second = *p;

    CHECK_EQ(p->ops->open(&second.network, &second.world, second.text), false);
    CHECK_CONTAINS(second.text, "has joined a world of MPI before");
    CHECK_NULL(second.network);
    p->ops->close(p->network, true);
    CHECK_EQ(p->ops->open(&second.network, &second.world, second.text), false);
    CHECK_CONTAINS(second.text, "MPI is finalised in this process");
}

/* The functions of the MPI that the plug-in has brought, without its header. */
static void *function(const char *name)
{
    return test_check_pointer(dlsym(RTLD_DEFAULT, name), name, __FILE__, __LINE__);
}

static void of_the_program(peer *p, int level)
{
    int (*init)(void *, void *, int, int *);
    int (*question)(int *);
    int (*finalize)(void);
    int given = 0, over = 1;

    *(void **)&init = function("MPI_Init_thread");
    *(void **)&question = function("MPI_Finalized");
    *(void **)&finalize = function("MPI_Finalize");
    CHECK_EQ(init(NULL, NULL, level, &given), 0);
    if (level < MPI_MULTIPLE) {
        CHECK_EQ(p->ops->open(&p->network, &p->world, p->text), false);
        CHECK_NULL(p->network);
        CHECK_CONTAINS(p->text, "call MPI_Init_thread with MPI_THREAD_MULTIPLE");
    } else {
        for (int i = 0; i < 2; i++) { /* may come and go while MPI is there */
            join(p);
            ring(p, 2, 100003, 4);
            p->ops->close(p->network, true);
            CHECK_EQ(question(&over), 0);
            CHECK_EQ(over, 0);
        }
    }
    CHECK_EQ(finalize(), 0);
}

static void act(peer *p, const char *what)
{
    load(p);
    if (strcmp(what, "initialised") == 0)
        return of_the_program(p, MPI_MULTIPLE);
    if (strcmp(what, "funneled") == 0)
        return of_the_program(p, 1);
    join(p);
    if (strcmp(what, "twice") == 0)
        return join_again(p);
    if (strcmp(what, "short") == 0)
        wrong_length(p, 10);
    else if (strcmp(what, "long") == 0)
        wrong_length(p, 30);
    else if (strcmp(what, "polled") == 0)
        polled_too_long(p);
    else if (strcmp(what, "refused") == 0)
        refused(p);
    else if (strcmp(what, "late") == 0)
        closed_late(p);
    else
        messages(p);
    p->ops->close(p->network, true);
}

int main(int argc, char **argv)
{
    static test_thread escape;
    static peer p;

    test_enter_thread(&escape);
    if (setjmp(escape.escape)) {
        fprintf(stderr, "%s\n", escape.message);
        if (p.network)
            p.ops->close(p.network, false);
        _Exit(1);
    }
    act(&p, argc > 1 ? argv[1] : "messages");
    return 0;
}
