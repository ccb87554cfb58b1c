/* in_flight.h - a reduction that a stream may still be at: all that it reads and writes.
 *
 * While it is at it, each result's storage has its event (`written`), so that whoever uses the result before it has
 * landed waits for it. */
#ifndef SHARD_IN_FLIGHT_H
#define SHARD_IN_FLIGHT_H

#include "fsdp/shard.h"
#include "shard/region.h"

typedef struct fsdp__in_flight {
    fsdp_tensor **unsharded; /* the unsharded gradients that are reduced; NULL where this rank has none */
    fsdp_tensor **gradients; /* this rank's part of the result; NULL where the result is partial */
    fsdp_tensor **arriving;  /* shards whose gradient it is, where hooks see it first or it may be none; else NULL */
    int64_t count, capacity;
    fsdp_stream *stream; /* that it goes on */
    /* Whether any rank had a gradient, when `done`: asked where this one had none, whose result then arrives or not. */
    uint8_t *contributed;
    bool asked;
    bool together;          /* the first of `contributed` is of all: they are one buffer */
    fsdp__storage *results; /* on the device, of `gradients` on the host; NULL: those are the results */
    fsdp__storage *partial; /* gradients reduced inside the replica; NULL: none */
    fsdp__region *packed;   /* for a function of the caller's; NULL: the library reduces */
    fsdp_event *done;
    fsdp_post_accumulate_grad_hook landed; /* the caller's, told when shards have their gradients; NULL: nobody is */
    void *landed_arg;
    fsdp_tensor **shards; /* of whom; NULLs where nobody is */
} fsdp__in_flight;

/* Room for `count`, on `stream`; nothing may be in flight. */
fsdp_status fsdp__in_flight_reserve(fsdp__in_flight *flight, int64_t count, fsdp_stream *stream);
/* Whether any rank had a gradient for the i-th, as far as it is known. */
bool fsdp__in_flight_contributed(const fsdp__in_flight *flight, int64_t i);
/* The stream has been given the reduction. */
fsdp_status fsdp__in_flight_depart(fsdp__in_flight *flight);
/* The host waits for what the stream is at. `waited_ns` counts for how long it did, here and below. */
fsdp_status fsdp__in_flight_synchronize(const fsdp__in_flight *flight, int64_t *waited_ns);
/* The device's own stream waits for what the stream is at; what was held is let go, what hooks wait for arrives,
 * and `landed` is told. */
fsdp_status fsdp__in_flight_land(fsdp__in_flight *flight, fsdp_context *context, int64_t *waited_ns);
/* The same when the result is not wanted. */
void fsdp__in_flight_drop(fsdp__in_flight *flight);
void fsdp__in_flight_close(fsdp__in_flight *flight);

#endif
