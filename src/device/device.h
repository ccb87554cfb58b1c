/* device.h - what a device implementation provides and what the layers above use of a device.
 *
 * A device is two const tables: memory/copy/stream/event operations, and kernels (kernels.h). backend/ fills them and
 * registry.c lists them; nothing else knows which devices exist. All memory of a device goes through its ledger's
 * allocator (allocator.c), which takes large segments from the backend and hands out 64-byte aligned blocks.
 *
 * [Note: whose pointers]
 * A pointer to device memory is an address for the device's kernels and for the copies below. The host follows one only
 * where fsdp__device_host_access says so, and then as a faster way to do what the copies do. Kernels and collectives of
 * a device are given its own memory, or host memory that was allocated or registered with it.
 *
 * [Note: order of memory]
 * Memory is handed out and given back in the order of the device's own stream (fsdp_device_stream), at the moment when
 * the host makes the call. Work on another stream may use a block after that stream has waited for an event recorded on
 * the device's stream after the allocation; the block may be freed after the device's stream has waited for an event
 * recorded on the other stream after its last use. */
#pragma once

#include "base/probe.h"
#include "fsdp/device.h"

/* ---- devices ---- */

/* Returns the context's device `ordinal` of a backend, or, below 0, the one that the rank takes by itself. It is made
 * on first use and owned by the context. NULL and a last error on failure. */
fsdp_device *fsdp__device_open(fsdp_context *context, const char *name, int ordinal);
/* Returns that device if it was opened before, otherwise NULL. */
fsdp_device *fsdp__device_find(const fsdp_context *context, const char *name, int ordinal);
/* Returns the device on which a run computes whose caller names none: the CPU, until another is set. Only public entry
 * points ask for it. */
fsdp_device *fsdp__front_device(fsdp_context *context);
void fsdp__set_front_device(fsdp_device *device);

enum {
    FSDP__MOST_GPUS = 16, /* in a context */
    FSDP__DEVICE_KIND = 24
};
/* Splits a device's name into what comes before the colon and the number behind it, -1 if there is none. Returns
 * whether it is such a name at all. */
bool fsdp__device_name_split(const char *name, char kind[FSDP__DEVICE_KIND], int *ordinal);
/* Refuses what a user cannot name as the device of a run: it must be "cpu", "cuda", "cuda:N", or "auto". `option` is
 * where it was given. Opens nothing. */
fsdp_status fsdp__device_name_check(const char *option, const char *name);
/* Counts the devices of a backend on this machine; fails, and says why, where there is none. Opens none. */
fsdp_status fsdp__device_count(const char *kind, int *out);

/* Describes a GPU. */
typedef struct fsdp__device_facts {
    char card[64];                  /* "NVIDIA H200"; "": the device is no GPU, and the rest is not known */
    int capability;                 /* 90: 9.0 */
    int driver;                     /* 13000: for CUDA 13.0 */
    int multiprocessors, clock_mhz; /* its highest clock */
    size_t memory_bytes, free_bytes;
} fsdp__device_facts;

fsdp__device_facts fsdp__device_look(fsdp_device *device);
/* Fails, and says why, where the device has failed for good. [thread-safe] */
fsdp_status fsdp__device_alive(const fsdp_device *device);
/* Writes what the device is: its name, and of a GPU the card, its memory and how much of that is free. */
void fsdp__device_describe(fsdp_device *device, char *text, size_t bytes);
/* Writes which devices so many ranks of this machine have, and by what they are joined: "8 x NVIDIA H200, joined by
 * NVLink (18 links each)"; "": they have one, or nothing is known. */
void fsdp__device_links(fsdp_device *device, int ranks, char *text, size_t bytes);
/* Returns the stream for work of the hosts on host memory (what ranks tell each other). NULL and a last error on
 * failure. */
fsdp_stream *fsdp__host_stream(fsdp_context *context);

/* Returns what a message adds to the name of `device`, beside that of `other`: " of another context", or nothing. */
const char *fsdp__device_elsewhere(const fsdp_device *device, const fsdp_device *other);

/* Returns the context's device on which everything happens and is counted, but nothing is computed: modules are
 * materialized and trained there as on the CPU, without bytes. What is read from it is zero. NULL and a last error on
 * failure. */
fsdp_device *fsdp__dry(fsdp_context *context);
bool fsdp__device_has_bytes(const fsdp_device *device); /* false: meta or dry */

/* Returns whether the host may follow the device's pointers, and its kernels the host's. */
bool fsdp__device_host_access(const fsdp_device *device);
/* Returns whether the device computes on memory that the ranks of a machine share. */
bool fsdp__device_shared_memory(const fsdp_device *device);
/* Returns whether collectives can be issued on the device's streams. */
bool fsdp__device_carries(const fsdp_device *device);
/* Ends the use of such a device, because it computes with what has not come: whoever waits for it, now and later, fails
 * with `text`. [thread-safe] */
void fsdp__device_condemn(fsdp_device *device, fsdp_status status, const char *text);
/* Condemns such a device as soon as `judge` of `world` fails, which is asked on any thread whenever something has
 * waited for the device, before anybody takes what it has computed for a result. `world` must outlive the device. */
void fsdp__device_judge(fsdp_device *device, fsdp_status (*judge)(void *world), void *world);
/* Returns whether one product of several weights is better than several. */
bool fsdp__device_joins_products(const fsdp_device *device);
/* Return how many rows a head and its loss take at a time at least, and whether logits have the dtype of its weight. */
int64_t fsdp__device_head_rows(const fsdp_device *device);
bool fsdp__device_narrow_logits(const fsdp_device *device);
/* Returns whether gradients of 16-bit weights are best computed in f32, where they are reduced in it. */
bool fsdp__device_wide_gradients(const fsdp_device *device);
/* Returns whether a product adds up one of its operands in less time than a pass over it takes. */
bool fsdp__device_sums_operands(const fsdp_device *device);
/* Returns whether a product takes GELU, or its gradient, along in less time than a pass over its result takes. */
bool fsdp__device_gelu_products(const fsdp_device *device);
/* Returns whether cheap results of a forward are best computed again in the backward, and not kept. */
bool fsdp__device_makes_again(const fsdp_device *device);

/* ---- memory ---- */

/* Allocates `bytes` of `kind`, 64-byte aligned, uninitialised. Zero bytes give a non-NULL pointer that counts nothing.
 * On the meta device the pointer must not be followed. A probe (FSDP__POINT_ALLOCATION). */
fsdp_status fsdp__device_alloc(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, void **out);
/* Frees memory: `bytes` as allocated, `kind` as counted now. NULL is allowed. */
void fsdp__device_free(fsdp_device *device, void *pointer, size_t bytes, fsdp_memory_kind kind);

/* Describes memory that a function takes for itself. It goes back with its scope, in the order of the device's stream:
 * FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace work = {0}; */
typedef struct fsdp__workspace {
    fsdp_device *device; /* NULL: it was not taken */
    void *data;
    size_t bytes;
} fsdp__workspace;
fsdp_status fsdp__workspace_take(fsdp_device *device, size_t bytes, fsdp__workspace *out);
void fsdp__workspace_release(const fsdp__workspace *workspace);
/* Counts what was allocated at `pointer` under `kind` from now on. */
void fsdp__device_recount(fsdp_device *device, const void *pointer, fsdp_memory_kind kind);
/* Counts what was allocated at `pointer`, `bytes` of `kind`, as that of `owner` (fsdp__taker) from now on. */
void fsdp__device_reown(fsdp_device *device, const void *pointer, size_t bytes, fsdp_memory_kind kind,
                        const void *owner);
/* Counts here bytes that live elsewhere (memory shared with peers), rounded as a block would be: they must be taken
 * away in the same pieces in which they were added, from the same owner (fsdp__taker). `shared`: a peer counts them as
 * well. */
void fsdp__device_account(fsdp_device *device, const void *owner, fsdp_memory_kind kind, int64_t delta_bytes,
                          bool shared);
/* Remembers who owns what, because the device has refused memory, until somebody asks (fsdp_device_owners). */
void fsdp__device_note_refusal(fsdp_device *device);
/* Writes who owns what now, as fsdp_device_owners does, behind `where`. */
const char *fsdp__device_owners_now(fsdp_device *device, const char *where, char *text, size_t bytes);
/* Calls `visit`, which must not use the device, for every live block, and for every sum of memory from elsewhere. */
struct fsdp__owned;
void fsdp__device_each_owned(const fsdp_device *device, void (*visit)(void *arg, const struct fsdp__owned *owned),
                             void *arg);
/* Returns a device of the context that has refused memory since somebody has asked it; NULL: none has. */
fsdp_device *fsdp__device_that_refused(const fsdp_context *context);

/* Says what lies in a part of a block, for subscribers (base/probe.h): until the block, or another part of it there, is
 * handed out. A NULL name says nothing. */
static inline void fsdp__device_name_memory(const fsdp_device *owner, const void *memory, size_t bytes,
                                            fsdp_memory_kind kind, const char *name)
{
    if (name)
        FSDP__TELL(MEMORY_NAMED, .context = fsdp_device_context(owner), .memory = memory, .bytes = bytes,
                   .kind = (int)kind, .name = name);
}

/* Returns what the ledger counts for a request: the bytes, rounded up to 64. */
size_t fsdp__device_rounded(size_t bytes);

/* Allocate and free host memory that the device's kernels, collectives and copies use in place. It is not counted. */
fsdp_status fsdp__device_alloc_host(fsdp_device *device, size_t bytes, void **out);
void fsdp__device_free_host(fsdp_device *device, void *memory, size_t bytes); /* NULL is allowed */
/* Make such memory of memory that the caller has, until it is unregistered. FSDP_UNSUPPORTED: the system refuses. */
fsdp_status fsdp__device_register_host(fsdp_device *device, void *memory, size_t bytes);
void fsdp__device_unregister_host(fsdp_device *device, void *memory, size_t bytes);

/* Copy bytes between host and device, and on the device, in the order of the stream. Both sides must live, and the
 * source must not change, until the work is done. On the meta device nothing happens. [stream] */
fsdp_status fsdp__copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes);
fsdp_status fsdp__copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes);
fsdp_status fsdp__copy_on_device(fsdp_stream *stream, void *dst, const void *src, size_t bytes);
/* Copies as fsdp__copy_to_device does, and the host's memory is the caller's again on return. It waits for the stream
 * where there is no other way (see hand_to_device in backend.h), and with more than a MiB where work is queued.
 * Failures of earlier work may be returned. [blocks] */
fsdp_status fsdp__hand_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes);

/* Waits, inside the stream's work, until the kernels that it has run are complete, for somebody who is about to tell
 * this to another thread or process by host memory. Does nothing where a kernel is complete when it returns. */
fsdp_status fsdp__stream_settle(fsdp_stream *stream);

/* Copy from inside the stream's work, where fsdp__run_kernel is called: after what was run there before, and done on
 * return. The device's side may be the stream's scratch; the host's side may be any host memory. */
fsdp_status fsdp__run_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes);
fsdp_status fsdp__run_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes);

/* ---- memory that devices of other ranks read, and words by which they wait for each other ---- */

enum {
    FSDP__EXPORT_NAME = 192,
    FSDP__EXPORT_CARD = 16
};

/* Memory of a device, and what the ranks of its machine need to know to read it with theirs. Ranks may hand it to each
 * other as bytes. */
typedef struct fsdp__export {
    void *memory;
    size_t bytes;                          /* that it takes: a little more than were asked for */
    bool counted;                          /* as workspace of the device; otherwise whoever has it counts it */
    char card[FSDP__EXPORT_CARD];          /* in whose memory it is: equal for ranks of a machine that share a GPU */
    unsigned char name[FSDP__EXPORT_NAME]; /* the backend's own */
} fsdp__export;

/* Allocate memory that others may read, and with `counted` count it, and free it: no device may use it any more. Where
 * there is none left, what was queued is waited for. FSDP_UNSUPPORTED: the system does not let others. [blocks] */
fsdp_status fsdp__device_export(fsdp_device *device, size_t bytes, bool counted, fsdp__export *out);
void fsdp__device_unexport(fsdp_device *device, const fsdp__export *memory);
/* Leaves such memory to the end of the process instead, since others may still have it open. */
void fsdp__device_leave_export(fsdp_device *device, const fsdp__export *memory);
/* Give an address where the device reads another rank's memory, and give it up unused. FSDP_UNSUPPORTED: it cannot. */
fsdp_status fsdp__device_import(fsdp_device *device, const fsdp__export *theirs, void **out);
void fsdp__device_unimport(fsdp_device *device, const fsdp__export *theirs, void *memory);

/* A word is 4 bytes of host memory that is registered with the device. Finds out, by the word, whether the device's
 * streams can write words and wait for them: FSDP_UNSUPPORTED, and why, where they cannot. [blocks] */
fsdp_status fsdp__device_try_words(fsdp_device *device, uint32_t *word);
/* From inside a stream's work: makes the stream write a word, when all that was issued before is done and others can
 * read what it wrote; and makes it wait until a word is `value` or was counted beyond it (as a difference of 32 bits).
 * Nothing of the device is busy while it waits, and anybody may write the word. */
fsdp_status fsdp__stream_write_word(fsdp_stream *stream, uint32_t *word, uint32_t value);
fsdp_status fsdp__stream_await_word(fsdp_stream *stream, uint32_t *word, uint32_t value);

/* ---- streams ---- */

/* When a stream's device gets to a place in the stream's work, by the device's own clock. */
typedef struct fsdp__stamp {
    struct fsdp__device_moment *moment; /* NULL: it is known */
    int64_t ns;
} fsdp__stamp;

/* Takes a stamp, from inside the stream's work, as a subscriber is told where something begins and is done
 * (base/probe.h): it lies after what was issued before, and costs time on the device where kernels run behind the
 * host. Each stamp is read once, and before its device is closed. Fails on a device without bytes, where nothing takes
 * time. */
fsdp_status fsdp__stream_stamp(fsdp_stream *stream, fsdp__stamp *out);
/* Waits until the device has got there, and gives when it did: nanoseconds of the device's clock, which is set by that
 * of base/clock.h when a stamp is first taken, and anew after a pause without any. The stamp is spent, also on failure.
 * [thread-safe] [blocks] */
fsdp_status fsdp__stamp_read(fsdp__stamp *stamp, int64_t *ns);

/* ---- what a device says itself that it has run ---- */

typedef enum fsdp__activity_kind {
    FSDP__ACTIVITY_KERNEL,
    FSDP__ACTIVITY_COPY,
    FSDP__ACTIVITY_FILL
} fsdp__activity_kind;

/* Something that a device has run, by its own record. */
typedef struct fsdp__device_activity {
    int64_t begin, end; /* by the clock of base/clock.h */
    uint64_t issuer;    /* what was entered last, on the thread that issued it; 0: nothing, or it is not known */
    uint64_t bytes;     /* of a copy or fill */
    uint32_t stream;    /* the device's own number of the stream */
    fsdp__activity_kind kind;
    const char *name; /* of a kernel: its function; valid while it is told */
} fsdp__device_activity;

typedef struct fsdp__activity_sum {
    int64_t told, issued; /* `issued`: at least so many kernels, copies and fills were */
    int64_t dropped;      /* by the recorder, which had no room */
} fsdp__activity_sum;

typedef void fsdp__activity_listener(void *arg, const fsdp__device_activity *activity);

/* Returns whether the device can keep a record of its own: GPUs, by a library that comes with them. */
bool fsdp__device_has_activities(const fsdp_device *device);
/* Starts the record of the device. Launches take longer until it stops. Fails, and says what to do, where the library
 * is missing or the system refuses. */
fsdp_status fsdp__device_activities_start(fsdp_device *device);
/* Stops it, and tells all that the device has run since, in any order: on success and on failure, as far as it is
 * known. Does nothing if it was not started. [blocks] */
fsdp_status fsdp__device_activities_stop(fsdp_device *device, fsdp__activity_listener *tell, void *arg,
                                         fsdp__activity_sum *out);
/* Say, around what a thread issues, by which number (below 2^40) its activities are to be known. Calls may nest.
 * [thread-safe] */
void fsdp__device_activity_enter(fsdp_device *device, uint64_t number);
void fsdp__device_activity_leave(fsdp_device *device);

/* ---- scratch and work ---- */

/* Returns grow-only scratch of a stream, counted as workspace; valid until the next call with the same stream. NULL and
 * a last error when out of memory. For kernels, from inside stream work. */
void *fsdp__stream_workspace(fsdp_stream *stream, size_t bytes);

/* Runs `work(argument copy)` in stream order. `argument` of `bytes` is copied when the work runs later. A failure on a
 * worker is kept and returned by fsdp_stream_synchronize, and later work still runs; a failure inline is returned at
 * once. Work runs on the meta device too (it may have something to free) and must not follow that device's pointers. It
 * runs on a thread of the host and may block, but not for its own stream, which waits for it: inside the work, call
 * fsdp__run_kernel and the fsdp__run_copy functions instead of those that queue. */
typedef fsdp_status (*fsdp__stream_work)(fsdp_stream *stream, const void *argument);
fsdp_status fsdp__stream_enqueue(fsdp_stream *stream, fsdp__stream_work work, const void *argument, size_t bytes);
/* Returns FSDP_STATE where the caller is the stream's own work and so cannot wait for it; `what` it wants to do. Ask
 * before anything is queued that uses memory of the caller's. */
fsdp_status fsdp__stream_check_caller(fsdp_stream *stream, const char *what);

/* Returns the first failure of the work done so far, and clears it; waits for nothing. After the host has waited for an
 * event of the stream this tells whether the work before the event succeeded. A stream that waits for an event fails
 * with the work before the event, so the failure of a stream that others wait for reaches whoever synchronizes with
 * them. */
fsdp_status fsdp__stream_check(fsdp_stream *stream);
fsdp_device *fsdp__stream_device(const fsdp_stream *stream);
bool fsdp__stream_is_inline(const fsdp_stream *stream);

/* Returns whether the caller may do the stream's next item in its own thread, as from inside the stream's work; then it
 * must leave. So it is where a device runs behind the host anyway, and nothing is queued that would come before. */
bool fsdp__stream_enter(fsdp_stream *stream);
void fsdp__stream_leave(fsdp_stream *stream);
