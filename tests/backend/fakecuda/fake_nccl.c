/* fake_nccl.c - the part of NCCL that the plug-in calls, as libnccl.so.2 beside the tests, for threads and processes.
 *
 * It is as unforgiving as the real one: a collective makes no progress before all members have issued it, and hangs for
 * ever where they issue different ones; a member that is aborted releases only its own streams; after a call of a
 * communicator that does not block nothing is on the stream until ncclCommGetAsyncError has said that it is through. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "backend/fakecuda/fake_nccl.h"

enum {
    GROUPED = 64 /* operations that a group may begin */
};

/* What an id says. */
typedef struct hall_id {
    int process, file;
    uint64_t number;
} hall_id;

static atomic_ullong number; /* of ids that this process has made */
static _Thread_local int depth;
static _Thread_local fake_operation *grouped[GROUPED];
static _Thread_local int group_count;
static const char *_Atomic last; /* error of any thread, as with the real one */

int fake_nccl_setting(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text ? (int)strtol(text, NULL, 10) : otherwise;
}

int fake_nccl_fail(int result, const char *text)
{
    last = text;
    return result;
}

static void nap(void)
{
    (void)nanosleep(&(struct timespec){0, 100000}, NULL);
}

int fake_nccl_version(void)
{
    int version = fake_nccl_setting("FSDP_FAKENCCL_VERSION", 23007);
    const char *of = getenv("FSDP_FAKENCCL_OTHER"); /* "1=22809": rank 1 of a launcher has another */
    const char *rank = getenv("RANK");

    if (of && rank && strtol(of, NULL, 10) == strtol(rank, NULL, 10) && strchr(of, '='))
        version = (int)strtol(strchr(of, '=') + 1, NULL, 10);
    return version;
}

int ncclGetVersion(int *version)
{
    FAKE_NCCL_USE(ncclGetVersion);
    *version = fake_nccl_version();
    return FSDP__NCCL_Success;
}

const char *ncclGetErrorString(int error)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};

    return error >= 0 && error < (int)(sizeof texts / sizeof *texts) ? texts[error] : "unknown result code";
}

const char *ncclGetLastError(fsdp__nccl_comm *comm)
{
    (void)comm;
    return last;
}

/* ---- joining ---- */

int ncclGetUniqueId(fsdp__nccl_id *id)
{
    hall_id made = {.process = getpid(), .number = atomic_fetch_add(&number, 1) + 1};

    FAKE_NCCL_USE(ncclGetUniqueId);
    made.file = memfd_create("fakenccl", MFD_CLOEXEC);
    if (made.file < 0 || ftruncate(made.file, sizeof(fake_hall)) != 0)
        return fake_nccl_fail(FSDP__NCCL_SystemError, "no file in memory");
    memset(id, 0, sizeof *id);
    memcpy(id, &made, sizeof made);
    return FSDP__NCCL_Success;
}

static fake_hall *map_hall(const fsdp__nccl_id *id)
{
    hall_id of;
    char path[64];
    void *mapped;
    int file;

    memcpy(&of, id, sizeof of);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", of.process, of.file);
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    mapped = mmap(NULL, sizeof(fake_hall), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* The id's own process closes its file when all have mapped it. */
static void close_id(const fsdp__nccl_id *id, int rank)
{
    hall_id of;

    memcpy(&of, id, sizeof of);
    if (of.process == getpid() && rank == 0)
        (void)close(of.file);
}

/* Returns what is wrong with what has come; NULL: nothing. */
static const char *misfit(const struct ncclComm *c)
{
    bool shares = fake_nccl_setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1 && fake_nccl_version() >= 23000;

    for (int r = 0; r < c->ranks; r++) {
        if (c->hall->version[r] != c->hall->version[c->rank])
            return "Mismatched NCCL version detected";
        for (int other = 0; other < r && !shares; other++)
            if (c->hall->come[r] == c->hall->come[other] && c->hall->machine[r] == c->hall->machine[other])
                return "Duplicate GPU detected";
    }
    return NULL;
}

static unsigned this_machine(void)
{
    struct utsname name;
    unsigned hash = 5381;

    if (uname(&name) != 0)
        return 0;
    for (const char *at = name.nodename; *at; at++)
        hash = hash * 33 + (unsigned char)*at;
    return hash;
}

static int join(struct ncclComm *c)
{
    int members = 0, nobody = 0;
    const char *why;

    c->hall = map_hall(&c->id);
    if (!c->hall)
        return FSDP__NCCL_SystemError;
    atomic_compare_exchange_strong(&c->hall->members, &members, c->ranks);
    if ((members != 0 && members != c->ranks) ||
        !atomic_compare_exchange_strong(&c->hall->come[c->rank], &nobody, 1 + c->device))
        return FSDP__NCCL_InvalidArgument;
    c->hall->process[c->rank] = getpid();
    c->hall->version[c->rank] = fake_nccl_version();
    c->hall->machine[c->rank] = this_machine();
    atomic_fetch_add(&c->hall->joined, 1);
    fake_hall_moved(c->hall);
    for (uint32_t moves = c->hall->moves; c->hall->joined < c->ranks && !c->aborted; moves = c->hall->moves)
        fake_hall_sleep(c->hall, moves);
    close_id(&c->id, c->rank);
    why = c->aborted ? NULL : misfit(c);
    return why ? fake_nccl_fail(FSDP__NCCL_InvalidUsage, why) : FSDP__NCCL_Success;
}

static void *join_behind(void *argument)
{
    struct ncclComm *c = argument;

    atomic_store(&c->state, join(c));
    return NULL;
}

/* Returns the policy that a configuration asks for; -1: there is no such one. */
static int policy_of(const fsdp__nccl_config *config)
{
    int version = fake_nccl_version();

    if (version < FSDP__NCCL_WINDOWS || config->version < FSDP__NCCL_WINDOWS ||
        config->size < offsetof(fsdp__nccl_config, shrink_share) || config->cta_policy == FSDP__NCCL_UNDEFINED)
        return 0;
    if (config->cta_policy < 0 || config->cta_policy > (version < FSDP__NCCL_COPIES ? 1 : 2))
        return -1;
    return config->cta_policy;
}

int fake_nccl_behind(struct ncclComm *c, void *(*work)(void *comm))
{
    if (c->joins)
        (void)pthread_join(c->joiner, NULL); /* it has ended */
    c->state = FSDP__NCCL_InProgress;
    c->joins = pthread_create(&c->joiner, NULL, work, c) == 0;
    return c->joins ? FSDP__NCCL_InProgress : FSDP__NCCL_SystemError;
}

int ncclCommInitRankConfig(fsdp__nccl_comm **out, int ranks, fsdp__nccl_id id, int rank, fsdp__nccl_config *config)
{
    struct ncclComm *c;
    int result, policy = policy_of(config);

    FAKE_NCCL_USE(ncclCommInitRankConfig);
    if (config->magic != FSDP__NCCL_CONFIG_MAGIC || config->size < offsetof(fsdp__nccl_config, traffic_class) ||
        policy < 0 || ranks < 1 || ranks > FAKE_MEMBERS || rank < 0 || rank >= ranks || depth > 0)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "ncclCommInitRankConfig");
    c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->id = id;
    c->rank = rank;
    c->ranks = ranks;
    c->device = fake_current();
    c->blocking = config->blocking != 0;
    c->by_copies = policy == FSDP__NCCL_ZERO_CTAS;
    fake_count_object(1);
    *out = c;
    if (c->blocking) {
        result = join(c);
        c->state = result;
        return result;
    }
    return fake_nccl_behind(c, join_behind);
}

/* ---- leaving ---- */

static void free_comm(struct ncclComm *c, bool aborted)
{
    c->aborted = 1;
    if (c->hall)
        fake_hall_moved(c->hall);
    if (c->joins)
        (void)pthread_join(c->joiner, NULL);
    if (c->due)
        fake_operation_free(c->due);
    if (c->hall)
        fake_hall_moved(c->hall);
    while (c->under_way > 0)
        nap();
    fake_nccl_forget(c, aborted);
    if (c->hall)
        (void)munmap(c->hall, sizeof *c->hall);
    free(c);
    fake_count_object(-1);
}

/* It releases this member's streams alone. */
int ncclCommAbort(fsdp__nccl_comm *c)
{
    int result = fake_use(FAKE_ncclCommAbort);

    free_comm(c, true);
    return result;
}

int ncclCommFinalize(fsdp__nccl_comm *c)
{
    FAKE_NCCL_USE(ncclCommFinalize);
    if (c->state != FSDP__NCCL_Success || c->finalized)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "ncclCommFinalize of a communicator that is not ready");
    c->finalized = true;
    atomic_fetch_add(&c->hall->left, 1);
    while (c->blocking && c->hall->left < c->ranks)
        nap();
    if (!c->blocking)
        c->state = FSDP__NCCL_InProgress;
    return c->blocking ? FSDP__NCCL_Success : FSDP__NCCL_InProgress;
}

int ncclCommDestroy(fsdp__nccl_comm *c)
{
    int result = fake_use(FAKE_ncclCommDestroy);

    if (!c->finalized || c->hall->left < c->ranks)
        fprintf(stderr, "fakenccl: rank %d destroys a communicator that not all have finalized\n", c->rank);
    free_comm(c, false);
    return result;
}

int ncclCommGetAsyncError(fsdp__nccl_comm *c, int *error)
{
    fake_operation *due = c->due;
    int asked = fake_use(FAKE_ncclCommGetAsyncError);

    *error = asked ? asked : c->state;
    if (asked)
        c->state = fake_nccl_fail(asked, "asked for by a test");
    else if (due) {
        c->due = NULL;
        fake_operation_launch(due);
        c->state = FSDP__NCCL_Success; /* which the next look says */
    } else if (c->finalized && c->hall->left == c->ranks && c->under_way == 0) {
        c->state = FSDP__NCCL_Success;
        *error = c->state;
    }
    return FSDP__NCCL_Success;
}

/* ---- calls ---- */

int ncclGroupStart(void)
{
    FAKE_NCCL_USE(ncclGroupStart);
    depth++;
    return FSDP__NCCL_Success;
}

int ncclGroupEnd(void)
{
    int result = fake_use(FAKE_ncclGroupEnd), count = group_count;

    if (depth == 0)
        return fake_nccl_fail(FSDP__NCCL_InvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--depth > 0)
        return result;
    group_count = 0;
    for (int i = 0; i < count; i++) {
        struct ncclComm *c = fake_operation_comm(grouped[i]);

        if (result) {
            fake_operation_free(grouped[i]);
            continue;
        }
        if (c->blocking) {
            fake_operation_launch(grouped[i]);
            continue;
        }
        if (c->due) /* one operation for each stream; here a communicator has one */
            abort();
        c->due = grouped[i];
        c->state = FSDP__NCCL_InProgress;
    }
    if (result)
        return fake_nccl_fail(result, "asked for by a test");
    return count > 0 && !fake_operation_comm(grouped[0])->blocking ? FSDP__NCCL_InProgress : FSDP__NCCL_Success;
}

/* Returns the operation of the thread's group to which a call belongs; NULL: there is no room. */
static fake_operation *operation_of(struct ncclComm *c, cudaStream_t stream)
{
    for (int i = 0; i < group_count; i++)
        if (fake_operation_comm(grouped[i]) == c && fake_operation_stream(grouped[i]) == stream)
            return grouped[i];
    if (group_count == GROUPED)
        return NULL;
    return grouped[group_count++] = fake_operation_new(c, stream);
}

static int call(struct ncclComm *c, const fake_heading *asked, const void *send, void *recv, int peer,
                cudaStream_t stream)
{
    fake_heading placed = *asked, *h = &placed;
    fake_operation *o;
    int ended;

    if (!c || c->state != FSDP__NCCL_Success || c->finalized)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "the communicator is not ready");
    if (!fake_is_stream(stream) || fake_stream_device(stream) != c->device || fake_current() != c->device)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "not a stream of the communicator's device");
    if (h->count < 0 || h->root < 0 || h->root >= c->ranks || peer < 0 || peer >= c->ranks)
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "a count or rank");
    if (h->count == 0)
        return FSDP__NCCL_Success;
    if (fake_nccl_places(c, h, send, recv, fake_bytes(h)))
        (void)fake_use(FAKE_ncclCopies);
    depth++;
    o = operation_of(c, stream);
    if (!o || !fake_operation_add(o, h, send, recv, peer)) {
        depth--;
        return fake_nccl_fail(FSDP__NCCL_InvalidArgument, "a buffer is not memory of the device");
    }
    if (depth > 1) {
        depth--;
        return FSDP__NCCL_Success;
    }
    ended = ncclGroupEnd();
    return ended;
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, fsdp__nccl_comm *c, cudaStream_t stream)
{
    FAKE_NCCL_USE(ncclAllGather);
    return call(c, &(fake_heading){"AllGather", (int64_t)count, type, 0, 0, 0, 0}, send, recv, 0, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, fsdp__nccl_comm *c,
                      cudaStream_t stream)
{
    FAKE_NCCL_USE(ncclReduceScatter);
    return call(c, &(fake_heading){"ReduceScatter", (int64_t)count, type, op, 0, 0, 0}, send, recv, 0, stream);
}

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, fsdp__nccl_comm *c, cudaStream_t stream)
{
    FAKE_NCCL_USE(ncclAllReduce);
    return call(c, &(fake_heading){"AllReduce", (int64_t)count, type, op, 0, 0, 0}, send, recv, 0, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, fsdp__nccl_comm *c,
                  cudaStream_t stream)
{
    FAKE_NCCL_USE(ncclBroadcast);
    return call(c, &(fake_heading){"Broadcast", (int64_t)count, type, 0, root, 0, 0}, send, recv, 0, stream);
}

int ncclAlltoAll(const void *send, void *recv, size_t count, int type, fsdp__nccl_comm *c, cudaStream_t stream)
{
    FAKE_NCCL_USE(ncclAlltoAll);
    if (fake_nccl_version() < FSDP__NCCL_ALL_TO_ALL)
        abort(); /* there is no such function in it */
    return call(c, &(fake_heading){"AlltoAll", (int64_t)count, type, 0, 0, 0, 0}, send, recv, 0, stream);
}

int ncclSend(const void *send, size_t count, int type, int peer, fsdp__nccl_comm *c, cudaStream_t stream)
{
    FAKE_NCCL_USE(ncclSend);
    return call(c, &(fake_heading){"Send", (int64_t)count, type, 0, 0, 0, 0}, send, NULL, peer, stream);
}

int ncclRecv(void *recv, size_t count, int type, int peer, fsdp__nccl_comm *c, cudaStream_t stream)
{
    FAKE_NCCL_USE(ncclRecv);
    return call(c, &(fake_heading){"Recv", (int64_t)count, type, 0, 0, 0, 0}, NULL, recv, peer, stream);
}
