/* plugin.c - the table of messages between machines, on MPI. It is compiled once for each MPI, since their types
 * differ, into a library that is loaded at run time and uses nothing else of the project. */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/mpi/plugin/complaint.h"
#include "comm/mpi/plugin/messages.h"

/* A process has one MPI, so it can open the plug-in once. */
static atomic_flag taken = ATOMIC_FLAG_INIT;

/* ---- opening ---- */

static const char *level_name(int level)
{
    return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                            : "MPI_THREAD_MULTIPLE";
}

/* Initialises MPI unless the program has. A program that has keeps it: its error handlers, and the finalising. */
static bool start_mpi(bool *initialised, char *text)
{
    int was = 0, is_over = 0, level = MPI_THREAD_SINGLE, code;

    *initialised = false;
    MPI_Finalized(&is_over);
    if (is_over)
        return fsdp__mpi_refuse(text, "MPI is finalised in this process: a process joins a world once");
    MPI_Initialized(&was);
    if (was) {
        MPI_Query_thread(&level);
        return level >= MPI_THREAD_MULTIPLE ||
               fsdp__mpi_refuse(text,
                                "the program has initialised MPI with %s: call MPI_Init_thread with "
                                "MPI_THREAD_MULTIPLE, or leave it to this library",
                                level_name(level));
    }
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "cannot initialise MPI");
    *initialised = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (level < MPI_THREAD_MULTIPLE)
        return fsdp__mpi_refuse(text,
                                "this MPI gives %s where MPI_THREAD_MULTIPLE is needed: take one that is built "
                                "with it",
                                level_name(level));
    return true;
}

static bool own_communicator(fsdp__mpi *mpi, char *text)
{
    int *highest = NULL, known = 0, code = MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm);

    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "cannot copy MPI_COMM_WORLD");
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    code = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &highest, &known);
    if (code != MPI_SUCCESS || !known)
        return fsdp__mpi_refuse(text, "this MPI does not say which tags it has");
    if (*highest < FSDP__NETWORK_TAGS - 1)
        return fsdp__mpi_refuse(text, "this MPI has tags up to %d, and %d are needed", *highest,
                                FSDP__NETWORK_TAGS - 1);
    return true;
}

/* Finds the machine of this rank. MPI has to say who can share memory: what a process can see by itself (names, pids,
 * files) may be the same on two machines, and differ in two containers on one machine. */
static bool find_machine(fsdp__mpi *mpi, int rank, int *out, char *text)
{
    MPI_Comm shared = MPI_COMM_NULL;
    int code = MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared);

    if (code == MPI_SUCCESS)
        code = MPI_Allreduce(&rank, out, 1, MPI_INT, MPI_MIN, shared);
    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "cannot find the ranks of this machine");
    MPI_Comm_free(&shared);
    return true;
}

static bool look_around(fsdp__mpi *mpi, fsdp__network_world *out, char *text)
{
    char host[MPI_MAX_PROCESSOR_NAME + 1] = "";
    int bytes = 0, code = MPI_Comm_rank(mpi->comm, &out->rank);

    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(mpi->comm, &out->size);
    if (code == MPI_SUCCESS)
        code = MPI_Get_processor_name(host, &bytes);
    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "cannot ask MPI for the world");
    snprintf(out->host, sizeof out->host, "%.*s", (int)sizeof out->host - 1, host);
    return find_machine(mpi, out->rank, &out->machine, text);
}

/* Makes all ranks stop using MPI before it is finalised. Over TCP (UCX), MPI_Finalize of MPICH before 4.2 has every
 * rank ask every other one to acknowledge all that it sent, and then sit in a barrier where nobody acknowledges any
 * more. A rank whose last question comes when another one is already in that barrier waits for ever. That happens if
 * the other one had its own answers from ranks that were still in MPI, but not yet in MPI_Finalize. So all ranks stop
 * here, wait for the last one to do so, and only then finalise MPI. */
static void fall_silent(fsdp__mpi *mpi)
{
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 40200000
    const struct timespec look = {.tv_nsec = 1000000}, silence = {.tv_sec = 1};
    MPI_Request all = MPI_REQUEST_NULL;
    int done = 0, left = 5000; /* five seconds or more: a rank may have died meanwhile */

    if (MPI_Ibarrier(mpi->comm, &all) != MPI_SUCCESS)
        return;
    while (MPI_Test(&all, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done && left-- > 0)
        (void)nanosleep(&look, NULL);
    (void)nanosleep(&silence, NULL);
#else
    (void)mpi;
#endif
}

static void close_network(void *network, bool whole)
{
    fsdp__mpi *mpi = network;

    if (whole) {
        fall_silent(mpi);
        MPI_Comm_free(&mpi->comm);
        if (mpi->initialised)
            MPI_Finalize();
    }
    fsdp__mpi_free_messages(mpi);
    pthread_mutex_destroy(&mpi->lock);
    free(mpi);
    if (whole) /* otherwise other ranks may be dead, and MPI would wait for them */
        atomic_flag_clear(&taken);
}

static bool open_network(void **network, fsdp__network_world *out, char *text)
{
    fsdp__mpi *mpi;

    *network = NULL;
    memset(out, 0, sizeof *out);
    if (atomic_flag_test_and_set(&taken))
        return fsdp__mpi_refuse(text,
                                "this process has joined a world of MPI before: free its context first; where that "
                                "world was broken, start the process again");
    mpi = calloc(1, sizeof *mpi);
    if (!mpi) {
        atomic_flag_clear(&taken);
        return fsdp__mpi_refuse(text, "out of memory");
    }
    pthread_mutex_init(&mpi->lock, NULL);
    if (!start_mpi(&mpi->initialised, text) || !own_communicator(mpi, text) || !look_around(mpi, out, text)) {
        close_network(mpi, false);
        return false;
    }
    *network = mpi;
    return true;
}

static bool exchange(void *network, const void *mine, size_t bytes, void *all, char *text)
{
    fsdp__mpi *mpi = network;
    int missing = !all, code;

    if (bytes > INT_MAX)
        return fsdp__mpi_refuse(text, "an exchange has at most %d bytes of each rank, not %zu", INT_MAX, bytes);
    code = MPI_Allreduce(MPI_IN_PLACE, &missing, 1, MPI_INT, MPI_SUM, mpi->comm);
    if (code == MPI_SUCCESS && missing > 0)
        return fsdp__mpi_refuse(text, "%d of the ranks cannot go on", missing);
    if (code == MPI_SUCCESS)
        code = MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi->comm);
    return code == MPI_SUCCESS || fsdp__mpi_fail(text, code, "cannot exchange %zu bytes with all ranks", bytes);
}

static const fsdp__network_ops ops = {
    .version = FSDP__NETWORK_VERSION,
    .open = open_network,
    .close = close_network,
    .exchange = exchange,
    .send = fsdp__mpi_send,
    .receive = fsdp__mpi_receive,
    .test = fsdp__mpi_test,
    .poll = fsdp__mpi_poll,
};

__attribute__((visibility("default"))) const fsdp__network_ops *fsdp_network_plugin(void);
const fsdp__network_ops *fsdp_network_plugin(void)
{
    return &ops;
}
