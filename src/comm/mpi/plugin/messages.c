/* messages.c - messages on their way: MPI's requests, and what was expected of them. */
#include "comm/mpi/plugin/messages.h"

#include <limits.h>
#include <stdlib.h>

#include "comm/mpi/plugin/complaint.h"

enum {
    SLAB = 64,  /* messages */
    BATCH = 64, /* requests that are tested in one call; segments that are described without allocation */
};

struct fsdp__mpi_message {
    MPI_Request request;
    bool receives, shorter;
    int peer, tag;
    size_t bytes;
    fsdp__mpi_message *next; /* also used in the list of unused messages */
};

struct fsdp__mpi_slab {
    fsdp__mpi_slab *next;
    fsdp__mpi_message messages[SLAB];
};

/* ---- memory for them ---- */

static bool add_slab(fsdp__mpi *mpi)
{
    fsdp__mpi_slab *slab = malloc(sizeof *slab);

    if (!slab)
        return false;
    slab->next = mpi->slabs;
    mpi->slabs = slab;
    for (int i = 0; i < SLAB; i++) {
        slab->messages[i].next = mpi->unused;
        mpi->unused = &slab->messages[i];
    }
    return true;
}

static fsdp__mpi_message *take_message(fsdp__mpi *mpi)
{
    fsdp__mpi_message *message = NULL;

    pthread_mutex_lock(&mpi->lock);
    if (mpi->unused || add_slab(mpi)) {
        message = mpi->unused;
        mpi->unused = message->next;
    }
    pthread_mutex_unlock(&mpi->lock);
    return message;
}

static void give_message(fsdp__mpi *mpi, fsdp__mpi_message *message)
{
    pthread_mutex_lock(&mpi->lock);
    message->next = mpi->unused;
    mpi->unused = message;
    pthread_mutex_unlock(&mpi->lock);
}

void fsdp__mpi_free_messages(fsdp__mpi *mpi)
{
    for (fsdp__mpi_slab *slab = mpi->slabs, *next; slab; slab = next) {
        next = slab->next;
        free(slab);
    }
    mpi->slabs = NULL;
    mpi->unused = NULL;
}

/* ---- starting ---- */

static bool sum_bytes(const fsdp__segment *segments, int count, size_t *out, char *text)
{
    *out = 0;
    for (int i = 0; i < count; i++) {
        if (segments[i].bytes > INT_MAX - *out)
            return fsdp__mpi_refuse(text, "a message of MPI has at most %d bytes; this one has more", INT_MAX);
        *out += segments[i].bytes;
    }
    return true;
}

/* Describes the segments as an MPI type with absolute addresses. */
static bool describe(const fsdp__segment *segments, int count, MPI_Datatype *out, char *text)
{
    int few_lengths[BATCH], *lengths = few_lengths, code = MPI_SUCCESS;
    MPI_Aint few_places[BATCH], *places = few_places;
    void *memory = NULL;

    if (count > BATCH) {
        memory = malloc((size_t)count * (sizeof *places + sizeof *lengths));
        if (!memory)
            return fsdp__mpi_refuse(text, "out of memory for a message of %d segments", count);
        places = memory;
        lengths = (int *)(places + count);
    }
    for (int i = 0; i < count; i++) {
        lengths[i] = (int)segments[i].bytes;
        MPI_Get_address(segments[i].data, &places[i]);
    }
    code = MPI_Type_create_hindexed(count, lengths, places, MPI_BYTE, out);
    free(memory);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(out);
    return code == MPI_SUCCESS || fsdp__mpi_fail(text, code, "cannot describe a message of %d segments", count);
}

/* Posts a message in one piece, or in the pieces that `type` describes. */
static int post(fsdp__mpi *mpi, fsdp__mpi_message *message, void *data, int count, MPI_Datatype type)
{
    return message->receives ? MPI_Irecv(data, count, type, message->peer, message->tag, mpi->comm, &message->request)
                             : MPI_Isend(data, count, type, message->peer, message->tag, mpi->comm, &message->request);
}

static bool start(fsdp__mpi *mpi, fsdp__mpi_message *message, const fsdp__segment *segments, int count, char *text)
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    int code;

    if (!sum_bytes(segments, count, &message->bytes, text))
        return false;
    if (count <= 1 || message->bytes == 0) {
        code = post(mpi, message, message->bytes ? segments->data : NULL, (int)message->bytes, MPI_BYTE);
    } else {
        if (!describe(segments, count, &type, text))
            return false;
        code = post(mpi, message, MPI_BOTTOM, 1, type);
        MPI_Type_free(&type); /* MPI keeps it until the message has arrived */
    }
    return code == MPI_SUCCESS ||
           fsdp__mpi_fail(text, code, "cannot %s %zu bytes %s MPI's rank %d", message->receives ? "receive" : "send",
                          message->bytes, message->receives ? "from" : "to", message->peer);
}

static bool begin(fsdp__mpi *mpi, fsdp__mpi_message what, const fsdp__segment *segments, int count,
                  fsdp__network_request *out, char *text)
{
    fsdp__mpi_message *message = take_message(mpi);

    *out = 0;
    if (!message)
        return fsdp__mpi_refuse(text, "out of memory for a message");
    *message = what;
    if (!start(mpi, message, segments, count, text)) {
        give_message(mpi, message);
        return false;
    }
    *out = (fsdp__network_request)message;
    return true;
}

bool fsdp__mpi_send(void *network, int to, int tag, const fsdp__segment *segments, int count,
                    fsdp__network_request *out, char *text)
{
    return begin(network, (fsdp__mpi_message){.peer = to, .tag = tag}, segments, count, out, text);
}

bool fsdp__mpi_receive(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                       fsdp__network_request *out, char *text)
{
    const fsdp__mpi_message message = {.peer = from, .tag = tag, .receives = true, .shorter = shorter};

    return begin(network, message, segments, count, out, text);
}

/* ---- arriving ---- */

static bool check_message(const fsdp__mpi_message *message, int code, const MPI_Status *status, char *text)
{
    const char *way = message->receives ? "from" : "to";
    MPI_Count got = 0;

    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "a message of %zu bytes %s MPI's rank %d was lost", message->bytes, way,
                              message->peer);
    if (!message->receives)
        return true;
    code = MPI_Get_elements_x(status, MPI_BYTE, &got);
    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "a message from MPI's rank %d has no length", message->peer);
    if (message->shorter ? (size_t)got > message->bytes : (size_t)got != message->bytes)
        return fsdp__mpi_refuse(text, "MPI's rank %d has sent %lld bytes where this rank expects %zu", message->peer,
                                (long long)got, message->bytes);
    return true;
}

/* Tests the requests at `where`, `count` of them and at most BATCH. */
static bool test_batch(fsdp__mpi *mpi, fsdp__network_request *const *where, int count, char *text)
{
    MPI_Request handles[BATCH];
    MPI_Status statuses[BATCH];
    int done[BATCH], arrived = 0, code;
    bool good = true;

    for (int i = 0; i < count; i++)
        handles[i] = ((const fsdp__mpi_message *)*where[i])->request;
    code = MPI_Testsome(count, handles, &arrived, done, statuses);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS)
        return fsdp__mpi_fail(text, code, "cannot look after %d messages", count);
    for (int i = 0; arrived != MPI_UNDEFINED && i < arrived; i++) {
        fsdp__mpi_message *message = (fsdp__mpi_message *)*where[done[i]];
        int own = code == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS;

        if (own == MPI_ERR_PENDING)
            continue;
        if (good)
            good = check_message(message, own, &statuses[i], text);
        *where[done[i]] = 0;
        give_message(mpi, message);
    }
    return good;
}

bool fsdp__mpi_test(void *network, fsdp__network_request *requests, int count, char *text)
{
    fsdp__network_request *where[BATCH];

    for (int at = 0; at < count;) {
        int found = 0;

        for (; at < count && found < BATCH; at++)
            if (requests[at])
                where[found++] = &requests[at];
        if (found && !test_batch(network, where, found, text))
            return false;
    }
    return true;
}

bool fsdp__mpi_poll(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text)
{
    fsdp__mpi *mpi = network;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    MPI_Count have = 0;
    int there = 0, code;

    *from = -1;
    *got = 0;
    code = MPI_Improbe(MPI_ANY_SOURCE, tag, mpi->comm, &there, &message, &status);
    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "cannot look for messages with tag %d", tag);
    if (!there)
        return true;
    code = MPI_Get_elements_x(&status, MPI_BYTE, &have);
    if (code != MPI_SUCCESS)
        return fsdp__mpi_fail(text, code, "a message from MPI's rank %d has no length", status.MPI_SOURCE);
    if ((size_t)have > bytes)
        return fsdp__mpi_refuse(text, "MPI's rank %d has sent %lld bytes where at most %zu are expected",
                                status.MPI_SOURCE, (long long)have, bytes);
    *from = status.MPI_SOURCE;
    *got = (size_t)have;
    code = MPI_Mrecv(data, (int)have, MPI_BYTE, &message, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS ||
           fsdp__mpi_fail(text, code, "cannot receive %zu bytes from MPI's rank %d", *got, *from);
}
