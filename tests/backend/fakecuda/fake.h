/* fake.h - what the files of the fake runtime share. */
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "backend/fakecuda/control.h"
#include "base/compiler.h"

/* ---- fake_device.c: devices, errors, faults ---- */

enum {
    FAKE_DEVICES = 8 /* at most */
};

typedef enum fake_call {
#define FAKE_CALL(name) FAKE_##name,
    FAKECUDA_CALLS(FAKE_CALL)
#undef FAKE_CALL
    FAKE_CALLS
} fake_call;

/* Counts a use. Returns the error that it ends with at once: the one that a test has asked for, or what the current
 * device was lost with. */
cudaError_t fake_begin(fake_call call);
/* Counts a use of a call that has errors of its own. Returns the one that a test has asked for; 0: none. */
int fake_use(fake_call call);
#define FAKE_BEGIN(call)                             \
    do {                                             \
        cudaError_t begun = fake_begin(FAKE_##call); \
                                                     \
        if (begun != cudaSuccess)                    \
            return begun;                            \
    } while (0)
/* Keeps an error as the thread's last one; returns it. */
cudaError_t fake_error(cudaError_t error);
/* Returns the device of the calling thread. */
int fake_current(void);
void fake_set_current(int device);
/* Loses a device: all its calls fail from now on, and what is queued there does nothing. */
void fake_lose(int device, cudaError_t error);
bool fake_is_lost(int device);
size_t fake_capacity(int device);
/* Returns the shared memory that a block of threads can have. */
size_t fake_shared_bytes(void);

/* ---- fake_memory.c ---- */

typedef enum fake_kind {
    FAKE_DEVICE_RANGE, /* cuMemAddressReserve */
    FAKE_DEVICE_MEMORY,
    FAKE_IMPORTED,                /* cudaIpcOpenMemHandle */
    FAKE_DEVICE_MEMORY_OF_STREAM, /* cudaMallocAsync */
    FAKE_HOST_MEMORY,
    FAKE_REGISTERED
} fake_kind;

/* Where the bytes of a pointer are. */
typedef struct fake_place {
    bool found; /* the pointer lies in a range; false: other memory of the host */
    bool whole; /* and so do all of its bytes */
    fake_kind kind;
    int device; /* of device memory */
    void *mapped;
} fake_place;

/* Finds a pointer, to one or the other mapping of device memory. */
fake_place fake_find(const void *pointer, size_t bytes);
/* Returns the file of cudaMalloc's memory that begins there; -1: it is none. */
int fake_file_of(const void *pointer, size_t *bytes);
/* Maps such a file, which it takes, and gives it up again. */
cudaError_t fake_import(int file, size_t bytes, void **out);
bool fake_give_up_import(void *pointer);
/* Forgets all memory, as where a process ends. */
void fake_forget_memory(void);
/* Returns how many ranges there are, and how much memory to be mapped. */
long fake_ranges(void);
size_t fake_used(int device);
/* Returns the most that was used since the last call. */
size_t fake_peak(int device);

/* ---- fake_stream.c ---- */

typedef void (*fake_work)(const void *argument);

/* Returns whether it is a stream that lives, and none of the default ones. */
bool fake_is_stream(cudaStream_t stream);
int fake_stream_device(cudaStream_t stream);
/* Queues work with a copy of its argument, which is aligned to 16 bytes. `even_lost`: it is done on a lost device,
 * too. */
cudaError_t fake_enqueue(cudaStream_t stream, fake_work work, const void *argument, size_t bytes, bool even_lost);
/* Waits until all is done that the stream, or the device's streams, have now. */
void fake_stream_wait(cudaStream_t stream);
void fake_device_wait(int device);
long fake_streams_and_events(void);
/* Forgets all of them, as where a process ends. */
void fake_forget_streams(void);
/* Counts others among them. */
void fake_count_object(int change);

/* ---- fake_hardware.c ---- */

/* Returns the queue of a device's stream; -1: it has its own, and the others do nothing. */
int fake_hardware_of(int device, uint32_t stream);
/* Returns the turn of what is queued now; waits for all before it; and says that it is done. */
uint64_t fake_hardware_queue(int queue);
void fake_hardware_wait(int queue, uint64_t turn);
void fake_hardware_pass(int queue);
void fake_pause(uint64_t seed);

/* ---- fake_peers.c ---- */

/* Returns whether kernels of a device reach the memory of another one, for which somebody has asked. */
bool fake_reaches(int device, int other);
/* Returns whether streams can wait for words. */
bool fake_words(void);
void fake_slow_words(void *stream, long ns);

/* ---- fake_copy.c ---- */

/* Returns the copies since the last call for the same kind of memory. */
fakecuda_copies fake_copies(bool pinned);
void fake_stream_hold(void *stream, const atomic_int *open);
bool fake_stream_waits(void *stream);
/* Says that the calling thread's stream, if it has one, waits for another stream or device, or no longer does. */
void fake_tell_wait(bool waits);

/* ---- what records what runs ---- */

typedef enum fake_sort {
    FAKE_RUNS_KERNEL,
    FAKE_COPIES_TO_DEVICE,
    FAKE_COPIES_TO_HOST,
    FAKE_FILLS
} fake_sort;

typedef struct fake_recorder {
    /* The calling thread has given this to a stream: returns its number, which `ran` is called with when it is done on
     * that stream's thread; 0: nobody wants to know. */
    uint32_t (*issued)(fake_sort sort, cudaStream_t stream, size_t bytes);
    void (*ran)(uint32_t number, int64_t begin, int64_t end); /* by CLOCK_MONOTONIC */
} fake_recorder;

/* Sets who records; NULL: nobody. No call is under way. */
void fake_record(const fake_recorder *recorder);
/* Queues work as fake_enqueue does, and lets it be recorded; `amount`: bytes of a copy or fill. */
cudaError_t fake_enqueue_recorded(cudaStream_t stream, fake_sort sort, size_t amount, fake_work work,
                                  const void *argument, size_t bytes);
/* Returns the time of the devices' clocks. */
int64_t fake_clock_ns(void);
void fake_set_clock_rate(long millionths);
void fake_skip_time(long long ns);
/* Returns a number that the stream has for itself. */
uint32_t fake_stream_number(cudaStream_t stream);

/* ---- kernels ---- */

/* What a kernel is launched with in place of its arguments: the first is this, the second is its body, which is copied
 * as bytes. cudash/launch.h has the same struct. */
typedef struct fake_body {
    size_t bytes;
    void (*run)(const unsigned grid[3], unsigned block, size_t shared_bytes, const void *body);
} fake_body;

/* ---- fresh memory ---- */

/* Fills a file of so many bytes with ones from `done` on, or its first 8 MB. */
void fake_fill(int file, size_t bytes, size_t done);
/* Maps a file of ones, of which only the pages that are used become the memory's own: most are not, by tests. NULL:
 * there is not so much memory. */
unsigned char *fake_map_ones(size_t bytes);
void fake_unmap_ones(unsigned char *memory, size_t bytes);
