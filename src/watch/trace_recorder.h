/* trace_recorder.h - notes what a context does, as a subscriber of its probes (base/probe.h).
 *
 * A note is 56 bytes, and takes no lock: any thread takes the next place. Names are copied, because modules and groups
 * may be gone when the notes are read. */
#pragma once

#include "base/probe.h"
#include "device/device.h"
#include "fsdp/device.h"
#include "watch/trace_names.h"

enum {
    FSDP__LANES = 128, /* threads, streams and devices that are told apart; the last takes all others */
    /* Values of `point` for notes that come from no probe. The first two: `bytes` are live from here on, of a kind, and
     * of a module. */
    FSDP__NOTE_LEDGER = FSDP__POINTS,
    FSDP__NOTE_OWNED,
    /* What a GPU has run by its own record: from `ns` to `number`; kind: fsdp__activity_kind, label: 1 + the index of
     * the note of what has issued it, 0: not known. */
    FSDP__NOTE_ACTIVITY
};

typedef struct fsdp__note {
    int64_t ns;
    struct fsdp__device_moment *moment; /* when it was on the device, whose time is read later; NULL: `ns` is it */
    uint64_t bytes;
    /* That of the event; of kernels their operations, of waits since when, of units the state; 1: the first of what is
     * live when a recording begins or goes on */
    uint64_t number;
    uint32_t name, label, group; /* numbers of names; 0: none */
    uint16_t thread, lane;       /* that told it; the stream or device that it is about, 0: the thread itself */
    uint8_t point, kind, dtype;
} fsdp__note;

typedef struct fsdp__trace_lane {
    const void *_Atomic key; /* a thread, a stream with a thread of its own, or a device */
    uint32_t own;            /* of a device's own record: 1 + its number of the stream; 0: of ours */
    char device[24];         /* of a stream, or itself; "": a thread */
} fsdp__trace_lane;

/* Holds what GPUs have recorded themselves. */
typedef struct fsdp__own_record {
    bool wanted;            /* there is a GPU */
    fsdp__activity_sum sum; /* of all GPUs of the context, and all of the recording */
    char missing[400];      /* why there is none, or not all; "": there is */
} fsdp__own_record;

typedef struct fsdp__recorder fsdp__recorder;

/* Returns the recorder of a context, which is made when it is first asked for and belongs to the context; NULL: out of
 * memory. Call it on the context's own thread, as all that follows. */
fsdp__recorder *fsdp__recorder_of(fsdp_context *context);
/* Makes room for notes. FSDP_STATE: it has some. */
fsdp_status fsdp__recorder_open(fsdp__recorder *recorder, int64_t most_bytes);
/* Drops all notes. */
void fsdp__recorder_close(fsdp__recorder *recorder);
/* Notes what happens, from what is live on. */
void fsdp__recorder_start(fsdp__recorder *recorder);
/* Returns when nobody notes anything any more, and all times are known. [blocks] */
void fsdp__recorder_stop(fsdp__recorder *recorder);

/* ---- reading, while it is stopped ---- */

fsdp_context *fsdp__recorder_context(const fsdp__recorder *recorder);
const fsdp__note *fsdp__recorder_notes(const fsdp__recorder *recorder, int64_t *count);
int64_t fsdp__recorder_dropped(const fsdp__recorder *recorder); /* notes for which there was no room */
const fsdp__own_record *fsdp__recorder_own(const fsdp__recorder *recorder);
const fsdp__trace_lane *fsdp__recorder_lanes(const fsdp__recorder *recorder);
const char *fsdp__recorder_name(const fsdp__recorder *recorder, uint32_t number);         /* "" for 0 */
uint32_t fsdp__recorder_names(const fsdp__recorder *recorder);                            /* so many: from 1 on */
fsdp__traced_ranks fsdp__recorder_ranks(const fsdp__recorder *recorder, uint32_t number); /* of a group's name */
