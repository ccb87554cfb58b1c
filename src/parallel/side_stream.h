/* side_stream.h - a stream for communication beside computing, and the events by which the two streams wait for each
 * other.
 *
 * A NULL side is the device's stream itself: what travels runs in its turn, and nobody waits. */
#pragma once

#include "autograd/autograd.h"
#include "fsdp/comm.h"

enum {
    FSDP__SIDE_STREAM_EVENTS = 4
};

typedef struct fsdp__side_stream {
    int64_t refs;
    fsdp_device *device;
    fsdp_stream *stream;
    fsdp_event *ready, *done[FSDP__SIDE_STREAM_EVENTS];
} fsdp__side_stream;

/* Makes `*side`, which may be NULL, a side stream of the device, unless it is one. The caller has a reference to it. */
fsdp_status fsdp__side_stream_open(fsdp__side_stream **side, fsdp_device *device);
/* Gives a reference back; NULL is allowed. The last one waits for the side stream's work. */
void fsdp__side_stream_unref(fsdp__side_stream *side);

/* Returns the stream that calls are issued on. */
fsdp_stream *fsdp__side_stream_or_compute(const fsdp__side_stream *side, fsdp_stream *compute);
/* Lets the side stream follow what `compute` has been given. */
fsdp_status fsdp__side_stream_follow(const fsdp__side_stream *side, fsdp_stream *compute);
/* Marks what the side stream has been given as the i-th thing to wait for. */
fsdp_status fsdp__side_stream_mark(const fsdp__side_stream *side, int i);
/* Lets `compute` wait for that; the calls are the group's. An i-th thing that was never marked is not waited for. */
fsdp_status fsdp__side_stream_await(const fsdp__side_stream *side, int i, fsdp_process_group *group,
                                    fsdp_stream *compute);
/* Returns `status`. If it is a failure, waits on the host until nothing of the side stream runs any more: memory can be
 * given back then. */
fsdp_status fsdp__side_stream_settled(const fsdp__side_stream *side, fsdp_status status);

/* ---- of nodes ---- */

/* Holds what a node communicates by, in its forward and its backward. Its state begins with it. */
typedef struct fsdp__route {
    fsdp_process_group *group;
    fsdp__side_stream *side; /* or NULL */
} fsdp__route;

/* Records an operation whose state begins with a route, and whose free_state is fsdp__route_free: its node refers to
 * both until it has run, since modules, meshes and groups may be freed before the backward. Otherwise as
 * fsdp__record_with. */
fsdp_status fsdp__route_record(const fsdp__traits *traits, const fsdp__op *op, fsdp_tensor *const *inputs,
                               int input_count, fsdp_tensor *const *outputs, int output_count,
                               fsdp_tensor *const *saved, int saved_count, const void *state, size_t state_bytes);
void fsdp__route_free(void *state);
