/* fake_nccl.h - what the two files of the fake NCCL share.
 *
 * [Note: mailboxes]
 * The members of a communicator share a file in memory, which its id names. For each pair of members it has a mailbox
 * of one letter, from one to the other. A letter has a part of what is sent, and the call that it is part of. Whoever
 * receives compares that with its own call, and where they differ it takes the letter never: both hang, as with the
 * real one, until they are aborted. FSDP_FAKENCCL_TELL=1 says which calls they were. */
#pragma once

#include "backend/cuda/nccl_calls.h"
#include "backend/fakecuda/fake.h"

enum {
    FAKE_MEMBERS = 16,
    FAKE_LETTER = 64 << 10,
    FAKE_NAME = 16
};

/* A call as all its members must make it. */
typedef struct fake_heading {
    char name[FAKE_NAME]; /* "AllGather" */
    int64_t count;
    int type, op, root;
    int64_t from, to; /* where its buffers lie in memory that is registered, from 1; 0: elsewhere; -1: in place */
} fake_heading;

typedef struct fake_box {
    atomic_int full;
    fake_heading heading;
    size_t bytes;
    unsigned char letter[FAKE_LETTER];
} fake_box;

/* The file. */
typedef struct fake_hall {
    _Atomic uint32_t moves;            /* that were made; changes whenever something here has */
    atomic_int sleepers;               /* that are to be woken then */
    atomic_int members, joined, left;  /* how many there are to be, have come, have finalized */
    atomic_int come[FAKE_MEMBERS];     /* 1 + the device of each that has come, */
    atomic_uint machine[FAKE_MEMBERS]; /* and on which machine that is: a hash of its name */
    atomic_int process[FAKE_MEMBERS];
    atomic_int version[FAKE_MEMBERS];
    atomic_int windows[FAKE_MEMBERS]; /* that each has asked for, and of how many bytes the last one is */
    atomic_ullong window_bytes[FAKE_MEMBERS];
    fake_box boxes[FAKE_MEMBERS][FAKE_MEMBERS]; /* [from][to] */
} fake_hall;

struct ncclComm {
    fake_hall *_Atomic hall; /* NULL: not mapped yet, by the thread that joins */
    fsdp__nccl_id id;
    int rank, ranks, device;
    bool blocking, finalized;
    bool by_copies;   /* NCCL_CTA_POLICY_ZERO */
    pthread_t joiner; /* the thread that joins, or makes a window, */
    bool joins;       /* which is to be waited for */
    struct fake_shown *shown;
    atomic_int state; /* a result of NCCL's */
    atomic_int aborted;
    atomic_int under_way;       /* operations that streams have not ended */
    struct fake_operation *due; /* was issued, and is launched when the caller looks for the state */
};

#define FAKE_NCCL(result, name, arguments) result nccl##name arguments;
FSDP__NCCL_MAP(FAKE_NCCL)
FSDP__NCCL_WINDOWS_MAP(FAKE_NCCL)
FSDP__NCCL_ALL_TO_ALL_MAP(FAKE_NCCL)
#undef FAKE_NCCL

/* ---- fake_nccl.c ---- */

/* Keeps the text of a failure, and returns its number. */
int fake_nccl_fail(int result, const char *text);
/* Returns the result that a test has asked for. */
#define FAKE_NCCL_USE(call)                                        \
    do {                                                           \
        int result_ = fake_use(FAKE_##call);                       \
                                                                   \
        if (result_)                                               \
            return fake_nccl_fail(result_, "asked for by a test"); \
    } while (0)
/* Returns a number of the environment. */
int fake_nccl_setting(const char *name, int otherwise);
int fake_nccl_version(void);
/* Lets a thread of the communicator do something, and its result be the state then. */
int fake_nccl_behind(struct ncclComm *comm, void *(*work)(void *comm));

/* ---- fake_nccl_memory.c ---- */

/* Fills in where the buffers of a call lie. Returns whether copy engines do it. */
bool fake_nccl_places(const struct ncclComm *comm, fake_heading *heading, const void *send, const void *recv,
                      size_t bytes);
/* Forgets what a communicator that ends has registered. `aborted`: it may have something. */
void fake_nccl_forget(struct ncclComm *comm, bool aborted);

/* ---- fake_nccl_run.c ---- */

/* Tells whoever sleeps that something in the hall has changed; and sleeps until it has since `moves` was read, or for a
 * while. */
void fake_hall_moved(fake_hall *hall);
void fake_hall_sleep(fake_hall *hall, uint32_t moves);

/* Returns the bytes of a call's count. */
size_t fake_bytes(const fake_heading *heading);

typedef struct fake_operation fake_operation;

/* Begins an operation, to which calls are added; NULL: no memory. */
fake_operation *fake_operation_new(struct ncclComm *comm, cudaStream_t stream);
struct ncclComm *fake_operation_comm(const fake_operation *o);
cudaStream_t fake_operation_stream(const fake_operation *o);
/* Adds a call; false: a buffer is not memory of the device. `peer`: of a Send or Recv. */
bool fake_operation_add(fake_operation *o, const fake_heading *h, const void *send, void *recv, int peer);
/* Gives it to its stream. */
void fake_operation_launch(fake_operation *o);
void fake_operation_free(fake_operation *o);
