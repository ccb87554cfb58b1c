/* side_stream.h - a stream for communication beside computing, and the events by which the two streams wait for each
 * other.
 *
 * A NULL lane is the device's stream itself: what travels runs in its turn, and nobody waits. */
#ifndef PARALLEL_SIDE_STREAM_H
#define PARALLEL_SIDE_STREAM_H

#include "autograd/autograd.h"
#include "fsdp/comm.h"

enum {
    FSDP__LANE_EVENTS = 4
};

typedef struct fsdp__lane {
    int64_t refs;
    fsdp_device *device;
    fsdp_stream *stream;
    fsdp_event *ready, *done[FSDP__LANE_EVENTS];
} fsdp__lane;

/* Makes `*lane`, which may be NULL, a lane of the device, unless it is one. The caller has a reference to it. */
fsdp_status fsdp__lane_open(fsdp__lane **lane, fsdp_device *device);
/* Gives a reference back; NULL is allowed. The last one waits for the lane's work. */
void fsdp__lane_unref(fsdp__lane *lane);

/* Returns the stream that calls are issued on. */
fsdp_stream *fsdp__lane_stream(const fsdp__lane *lane, fsdp_stream *compute);
/* Lets the lane follow what `compute` has been given. */
fsdp_status fsdp__lane_follow(const fsdp__lane *lane, fsdp_stream *compute);
/* Marks what the lane has been given as the i-th thing to wait for. */
fsdp_status fsdp__lane_mark(const fsdp__lane *lane, int i);
/* Lets `compute` wait for that; the calls are the group's. An i-th thing that was never marked is not waited for. */
fsdp_status fsdp__lane_await(const fsdp__lane *lane, int i, fsdp_process_group *group, fsdp_stream *compute);
/* Returns `status`. If it is a failure, waits on the host until nothing of the lane runs any more: memory can be given
 * back then. */
fsdp_status fsdp__lane_settled(const fsdp__lane *lane, fsdp_status status);

/* ---- of nodes ---- */

/* Holds what a node communicates by, in its forward and its backward. Its state begins with it. */
typedef struct fsdp__route {
    fsdp_process_group *group;
    fsdp__lane *lane; /* or NULL */
} fsdp__route;

/* Records an operation whose state begins with a route, and whose free_state is fsdp__route_free: its node refers to
 * both until it has run, since modules, meshes and groups may be freed before the backward. Otherwise as
 * fsdp__record_with. */
fsdp_status fsdp__route_record(const fsdp__traits *traits, const fsdp__op *op, fsdp_tensor *const *inputs,
                               int input_count, fsdp_tensor *const *outputs, int output_count,
                               fsdp_tensor *const *saved, int saved_count, const void *state, size_t state_bytes);
void fsdp__route_free(void *state);

#endif
