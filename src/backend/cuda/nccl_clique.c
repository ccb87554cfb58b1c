/* nccl_clique.c - GPUs of several ranks, joined by NCCL.
 *
 * [Note: nothing of NCCL blocks]
 * Communicators are made with blocking = 0: a call of NCCL returns at once, and ncclCommGetAsyncError says when it is
 * through. In between nothing else may be asked of the communicator but to abort it. Every call holds the member's
 * mutex, for a moment; so one thread may interrupt a member while another looks whether it is ready.
 *
 * [Note: an abort waits]
 * But ncclCommAbort does block. It tells the communicator's kernels to end, and then waits until the device has got to
 * the last of them. On its stream that may lie behind a kernel of another communicator, which waits for a rank that is
 * gone. So each abort has a thread of its own, and whoever interrupts goes on to the next communicator; they have all
 * ended when all were told to.
 *
 * [Note: what is shown]
 * Memory is NCCL's own (ncclMemAlloc): mapped in one piece of the driver's granularity, with the handles by which GPUs,
 * machines and networks reach it, which differ from system to system. From 2.27 on it becomes a window, in which all
 * members have the same places. That is a collective call, which is through when all have made it, and says by a NULL
 * that the GPUs of this communicator have no windows; then, and before 2.27, each member registers the memory for
 * itself. A member that leaves deregisters before the communicator is finalized, when it has done its calls: that asks
 * nobody else. One that is aborted does not, because that might wait for the device as the abort does: the abort ends
 * what was registered, too. In both cases the communicator is gone before the memory is. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/nccl_calls.h"
#include "base/alloc.h"
#include "base/lock.h"
#include "device/clique.h"

struct fsdp__clique {
    fsdp_device *device;
    const fsdp__nccl *nccl;
    int members, member;
    pthread_mutex_t mutex;
    fsdp__nccl_comm *comm; /* guarded by the mutex, as what follows; NULL: there is none any more */
    bool leaving;          /* it is to leave, */
    bool leaves;           /* and NCCL was told */
    bool by_copies;
    void *shown; /* memory, of so many bytes; NULL: none was */
    size_t shown_bytes;
    fsdp__nccl_window *window; /* NULL: none, or not yet */
    void *handle;              /* of what is registered without a window; NULL: nothing is */
    bool unseen;               /* it is neither */
    fsdp__nccl_comm *aborted;  /* by this thread, which is to be waited for; NULL: there is none */
    pthread_t aborts;
    cudaStream_t due;   /* of a call that is being issued; NULL: none is */
    cudaEvent_t done;   /* after the last call that was issued; NULL: there was none */
    fsdp_status failed; /* what the first failure was; later calls fail as it did */
    char why[512];
};

/* ---- the library ---- */

/* Returns the device's NCCL, which is opened when it is first asked for; NULL and a last error on failure. */
static const fsdp__nccl *nccl_of(fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    fsdp__nccl *made;

    FSDP__HELD(&state->mutex);
    if (state->nccl)
        return state->nccl;
    made = fsdp__calloc(1, sizeof *made);
    if (made && fsdp__nccl_open(made) != FSDP_OK) {
        fsdp__free(made);
        return NULL;
    }
    state->nccl = made;
    return made;
}

static fsdp_status open_library(fsdp_device *device, int *version)
{
    const fsdp__nccl *nccl = nccl_of(device);

    if (!nccl)
        return fsdp_fail_hop(fsdp_last_status(), __FILE__, __LINE__);
    *version = nccl->version;
    return FSDP_OK;
}

void fsdp__cuda_cliques_close(fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);

    fsdp__free(state->nccl);
    state->nccl = NULL;
}

/* ---- a member ---- */

/* Keeps the first failure. Call it with the mutex held. */
static fsdp_status fail(fsdp__clique *c, fsdp_status status)
{
    if (status != FSDP_OK && c->failed == FSDP_OK) {
        c->failed = status;
        snprintf(c->why, sizeof c->why, "%s", fsdp_last_error());
    }
    return status;
}

/* Fails as the member has failed before. Call it with the mutex held. */
static fsdp_status alive(const fsdp__clique *c)
{
    if (c->failed != FSDP_OK)
        return FSDP_FAIL(c->failed, "%s", c->why);
    if (!c->comm)
        return FSDP_FAIL(FSDP_COMM, "the collectives of NCCL were interrupted");
    return FSDP_OK;
}

static fsdp_status name_clique(fsdp_device *device, unsigned char id[FSDP__CLIQUE_ID_BYTES])
{
    const fsdp__nccl *nccl = nccl_of(device);
    fsdp__nccl_id made;

    _Static_assert(sizeof made == FSDP__CLIQUE_ID_BYTES, "an id of NCCL is what names a clique");
    if (!nccl)
        return fsdp_fail_hop(fsdp_last_status(), __FILE__, __LINE__);
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP_TRY(FSDP__NCCL_CALL(nccl, NULL, GetUniqueId, &made));
    memcpy(id, &made, sizeof made);
    return FSDP_OK;
}

static void free_member(fsdp__clique *c)
{
    (void)fsdp__cuda_use(c->device);
    if (c->done)
        FSDP__CUDA_GIVE_BACK(c->device, cudaEventDestroy(c->done));
    pthread_mutex_destroy(&c->mutex);
    fsdp__free(c);
}

/* Returns the configuration of a communicator. Without `by_copies` it is what NCCL takes by itself: it then does not
 * read the later fields. */
static fsdp__nccl_config config_of(bool by_copies)
{
    fsdp__nccl_config config = {.size = offsetof(fsdp__nccl_config, traffic_class),
                                .magic = FSDP__NCCL_CONFIG_MAGIC,
                                .version = FSDP__NCCL_OLDEST,
                                .cga_cluster_size = FSDP__NCCL_UNDEFINED,
                                .min_ctas = FSDP__NCCL_UNDEFINED,
                                .max_ctas = FSDP__NCCL_UNDEFINED,
                                .split_share = FSDP__NCCL_UNDEFINED,
                                .traffic_class = FSDP__NCCL_UNDEFINED,
                                .collnet_enable = FSDP__NCCL_UNDEFINED,
                                .cta_policy = FSDP__NCCL_ZERO_CTAS,
                                .shrink_share = FSDP__NCCL_UNDEFINED,
                                .nvls_ctas = FSDP__NCCL_UNDEFINED};

    if (by_copies) {
        config.size = sizeof config;
        config.version = FSDP__NCCL_WINDOWS;
    }
    return config;
}

static fsdp_status join(fsdp_device *device, const fsdp__clique_place *place, fsdp__clique **out)
{
    const fsdp__nccl *nccl = nccl_of(device);
    fsdp__nccl_config config;
    fsdp__nccl_id id;
    fsdp__clique *c;
    fsdp_status status;

    if (!nccl)
        return fsdp_fail_hop(fsdp_last_status(), __FILE__, __LINE__);
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP__TRY_NEW(c = fsdp__calloc(1, sizeof *c));
    *c = (fsdp__clique){.device = device,
                        .nccl = nccl,
                        .members = place->members,
                        .member = place->member,
                        .by_copies = place->by_copies && nccl->version >= FSDP__NCCL_COPIES};
    pthread_mutex_init(&c->mutex, NULL);
    config = config_of(c->by_copies);
    memcpy(&id, place->id, sizeof id);
    status = FSDP__NCCL_CALL(nccl, NULL, CommInitRankConfig, &c->comm, place->members, id, place->member, &config);
    if (status != FSDP_OK) {
        if (c->comm)
            (void)nccl->CommAbort(c->comm);
        free_member(c);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    *out = c;
    return FSDP_OK;
}

/* Marks the end of what was issued to a stream. Call it with the mutex held. */
static fsdp_status mark_end(fsdp__clique *c, cudaStream_t stream)
{
    c->due = NULL;
    FSDP_TRY(fsdp__cuda_use(c->device));
    if (!c->done)
        FSDP__CUDA_TRY(c->device, cudaEventCreateWithFlags(&c->done, cudaEventDisableTiming));
    FSDP__CUDA_TRY(c->device, cudaEventRecord(c->done, stream));
    return FSDP_OK;
}

static bool busy(fsdp__clique *c)
{
    FSDP__HELD(&c->mutex);
    if ((!c->comm && !c->aborted) || fsdp__cuda_use(c->device) != FSDP_OK)
        return false;
    return (c->comm && c->due) || (c->done && cudaEventQuery(c->done) == cudaErrorNotReady);
}

/* Ends what was registered. Call it with the mutex held. */
static fsdp_status deregister(fsdp__clique *c)
{
    fsdp__nccl_window *window = c->window;
    void *handle = c->handle;

    c->window = NULL;
    c->handle = NULL;
    c->shown = NULL;
    if (window)
        FSDP_TRY(FSDP__NCCL_CALL(c->nccl, c->comm, CommWindowDeregister, c->comm, window));
    if (handle)
        FSDP_TRY(FSDP__NCCL_CALL(c->nccl, c->comm, CommDeregister, c->comm, handle));
    return FSDP_OK;
}

/* Begins to leave, if the device has done the calls. Call it with the mutex held, when NCCL is idle. */
static fsdp_status begin_to_leave(fsdp__clique *c)
{
    FSDP_TRY(fsdp__cuda_use(c->device));
    if (c->done && cudaEventQuery(c->done) == cudaErrorNotReady)
        return FSDP_OK;
    FSDP_TRY(deregister(c));
    c->leaves = true;
    return FSDP__NCCL_CALL(c->nccl, c->comm, CommFinalize, c->comm);
}

/* Registers what was shown and has become no window. Call it with the mutex held, when NCCL is idle. */
static fsdp_status register_alone(fsdp__clique *c)
{
    FSDP_TRY(fsdp__cuda_use(c->device));
    FSDP_TRY(FSDP__NCCL_CALL(c->nccl, c->comm, CommRegister, c->comm, c->shown, c->shown_bytes, &c->handle));
    c->unseen = !c->handle; /* NCCL's own settings say so */
    return FSDP_OK;
}

static fsdp_status look(fsdp__clique *c, bool *idle)
{
    int state = FSDP__NCCL_Success;

    *idle = false;
    FSDP__HELD(&c->mutex);
    FSDP_TRY(alive(c));
    FSDP_TRY(fail(c, FSDP__NCCL_CALL(c->nccl, c->comm, CommGetAsyncError, c->comm, &state)));
    FSDP_TRY(fail(c, fsdp__nccl_check(c->nccl, c->comm, state, "ncclCommGetAsyncError", __FILE__, __LINE__)));
    if (state != FSDP__NCCL_Success)
        return FSDP_OK;
    if (c->due)
        FSDP_TRY(fail(c, mark_end(c, c->due)));
    if (c->shown && !c->window && !c->handle && !c->unseen)
        FSDP_TRY(fail(c, register_alone(c)));
    if (c->leaving && !c->leaves)
        return fail(c, begin_to_leave(c));
    *idle = true;
    return FSDP_OK;
}

static void *abort_behind(void *argument)
{
    const fsdp__clique *c = argument;

    if (fsdp__cuda_use(c->device) == FSDP_OK)
        (void)c->nccl->CommAbort(c->aborted);
    return NULL;
}

/* Begins an abort: [Note: an abort waits]. */
static void interrupt(fsdp__clique *c)
{
    FSDP__HELD(&c->mutex);
    if (!c->comm || fsdp__cuda_use(c->device) != FSDP_OK)
        return;
    c->aborted = c->comm;
    c->comm = NULL;
    if (pthread_create(&c->aborts, NULL, abort_behind, c) != 0) {
        (void)abort_behind(c);
        c->aborted = NULL;
    }
}

static fsdp_status leave(fsdp__clique *c)
{
    FSDP__HELD(&c->mutex);
    FSDP_TRY(alive(c));
    c->leaving = true;
    return fail(c, begin_to_leave(c));
}

static void clique_free(fsdp__clique *c)
{
    bool idle = false;

    if (!c)
        return;
    if (c->leaves && look(c, &idle) == FSDP_OK && idle && fsdp__cuda_use(c->device) == FSDP_OK) {
        (void)c->nccl->CommDestroy(c->comm);
        c->comm = NULL;
    }
    interrupt(c);
    if (c->aborted)
        (void)pthread_join(c->aborts, NULL);
    free_member(c);
}

/* ---- memory that members show ---- */

static fsdp_status take_memory(fsdp_device *device, size_t bytes, void **out)
{
    const fsdp__nccl *nccl = nccl_of(device);

    *out = NULL;
    if (!nccl)
        return fsdp_fail_hop(fsdp_last_status(), __FILE__, __LINE__);
    FSDP_TRY(fsdp__cuda_use(device));
    return FSDP__NCCL_CALL(nccl, NULL, MemAlloc, out, bytes);
}

static void give_back(fsdp_device *device, void *memory)
{
    const fsdp__nccl *nccl = memory ? nccl_of(device) : NULL;

    if (nccl && fsdp__cuda_use(device) == FSDP_OK)
        (void)nccl->MemFree(memory);
}

static fsdp_status show(fsdp__clique *c, void *memory, size_t bytes)
{
    FSDP__HELD(&c->mutex);
    FSDP_TRY(alive(c));
    FSDP_TRY(fsdp__cuda_use(c->device));
    c->shown = memory;
    c->shown_bytes = bytes;
    if (!c->nccl->CommWindowRegister)
        return FSDP_OK;
    return fail(c, FSDP__NCCL_CALL(c->nccl, c->comm, CommWindowRegister, c->comm, memory, bytes, &c->window,
                                   FSDP__NCCL_SYMMETRIC));
}

static fsdp__clique_sight sight(fsdp__clique *c)
{
    FSDP__HELD(&c->mutex);
    if (!c->window)
        return c->handle ? FSDP__CLIQUE_SEEN : FSDP__CLIQUE_UNSEEN;
    return c->by_copies ? FSDP__CLIQUE_COPIES : FSDP__CLIQUE_WINDOW;
}

/* ---- calls ---- */

static int type_of(fsdp_dtype dtype)
{
    switch (dtype) {
    case FSDP_F32:
        return FSDP__NCCL_Float32;
    case FSDP_BF16:
        return FSDP__NCCL_Bfloat16;
    case FSDP_F16:
        return FSDP__NCCL_Float16;
    case FSDP_I32:
        return FSDP__NCCL_Int32;
    case FSDP_I64:
        return FSDP__NCCL_Int64;
    default:
        return FSDP__NCCL_Uint8;
    }
}

static int op_of(fsdp__rank_op op)
{
    return op == FSDP__RANK_MAX ? FSDP__NCCL_Max : op == FSDP__RANK_MIN ? FSDP__NCCL_Min : FSDP__NCCL_Sum;
}

/* Sends and receives all parts, the member's own, too. Call it inside a group of NCCL's. */
static fsdp_status swap_parts(const fsdp__clique *c, const fsdp__clique_call *k, cudaStream_t stream)
{
    const fsdp__nccl *nccl = c->nccl;
    size_t count = (size_t)k->count, bytes = count * fsdp_dtype_size(k->dtype);
    int type = type_of(k->dtype);

    if (nccl->AlltoAll)
        return FSDP__NCCL_CALL(nccl, c->comm, AlltoAll, k->send, k->recv, count, type, c->comm, stream);
    for (int m = 0; m < c->members; m++) {
        FSDP_TRY(FSDP__NCCL_CALL(nccl, c->comm, Send, (const char *)k->send + (size_t)m * bytes, count, type, m,
                                 c->comm, stream));
        FSDP_TRY(
            FSDP__NCCL_CALL(nccl, c->comm, Recv, (char *)k->recv + (size_t)m * bytes, count, type, m, c->comm, stream));
    }
    return FSDP_OK;
}

static fsdp_status issue_one(const fsdp__clique *c, const fsdp__clique_call *k, cudaStream_t stream)
{
    const fsdp__nccl *nccl = c->nccl;
    size_t count = (size_t)k->count;
    int type = type_of(k->dtype), op = op_of(k->op);

    if (count == 0)
        return FSDP_OK;
    switch (k->kind) {
    case FSDP__CLIQUE_GATHER:
        return FSDP__NCCL_CALL(nccl, c->comm, AllGather, k->send, k->recv, count, type, c->comm, stream);
    case FSDP__CLIQUE_REDUCE:
        return FSDP__NCCL_CALL(nccl, c->comm, AllReduce, k->send, k->recv, count, type, op, c->comm, stream);
    case FSDP__CLIQUE_SCATTER:
        return FSDP__NCCL_CALL(nccl, c->comm, ReduceScatter, k->send, k->recv, count, type, op, c->comm, stream);
    case FSDP__CLIQUE_BROADCAST:
        return FSDP__NCCL_CALL(nccl, c->comm, Broadcast, k->send, k->recv, count, type, k->root, c->comm, stream);
    case FSDP__CLIQUE_ALL_TO_ALL:
        return swap_parts(c, k, stream);
    default:
        return FSDP_OK;
    }
}

/* Lets the stream wait for the calls before, which may be on another one: those of a communicator must run on all ranks
 * in the order in which they were issued. Call it with the mutex held. */
static fsdp_status follow(fsdp__clique *c, cudaStream_t stream)
{
    if (c->due)
        FSDP_TRY(mark_end(c, c->due));
    if (c->done)
        FSDP__CUDA_TRY(c->device, cudaStreamWaitEvent(stream, c->done, 0));
    return FSDP_OK;
}

static fsdp_status follow_by(fsdp__clique *c, fsdp_stream *stream)
{
    FSDP__HELD(&c->mutex);
    FSDP_TRY(alive(c));
    FSDP_TRY(fsdp__cuda_use(c->device));
    return fail(c, follow(c, fsdp__cuda_native(stream)));
}

static fsdp_status belongs(fsdp__clique *c, fsdp_stream *stream)
{
    FSDP__HELD(&c->mutex);
    FSDP_TRY(alive(c));
    return fail(c, mark_end(c, fsdp__cuda_native(stream)));
}

static fsdp_status issue(fsdp__clique *c, const fsdp__clique_call *calls, int count, fsdp_stream *stream)
{
    fsdp_status status = FSDP_OK, ended;

    FSDP__HELD(&c->mutex);
    FSDP_TRY(alive(c));
    FSDP_TRY(fsdp__cuda_use(c->device));
    FSDP_TRY(fail(c, follow(c, fsdp__cuda_native(stream))));
    FSDP_TRY(fail(c, FSDP__NCCL_CALL(c->nccl, c->comm, GroupStart)));
    for (int i = 0; i < count && status == FSDP_OK; i++)
        status = fail(c, issue_one(c, &calls[i], fsdp__cuda_native(stream)));
    /* A group that has begun is ended in any case: it belongs to the thread. */
    ended = FSDP__NCCL_CALL(c->nccl, c->comm, GroupEnd);
    FSDP_TRY(status);
    FSDP_TRY(fail(c, ended));
    c->due = fsdp__cuda_native(stream);
    return FSDP_OK;
}

const fsdp__clique_ops fsdp__cuda_cliques = {.library = "NCCL",
                                             .open = open_library,
                                             .name_clique = name_clique,
                                             .join = join,
                                             .alloc = take_memory,
                                             .give_back = give_back,
                                             .show = show,
                                             .sight = sight,
                                             .follow = follow_by,
                                             .belongs = belongs,
                                             .look = look,
                                             .issue = issue,
                                             .busy = busy,
                                             .interrupt = interrupt,
                                             .leave = leave,
                                             .free = clique_free};
