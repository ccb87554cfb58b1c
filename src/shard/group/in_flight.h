/* in_flight.h - a reduction that a stream may still be running, and all that it reads and writes.
 *
 * While it runs, the storage of each result carries the reduction's event (`written`), so that whoever uses the result
 * before it has landed waits for it. */
#pragma once

#include "fsdp/shard.h"
#include "shard/group/exposed.h"
#include "shard/group/region.h"

/* Holds a caller's hook, called when shards have their gradients. Reductions in flight share it with the settings that
 * they were issued by, so that one which is replaced or removed meanwhile is not called. */
typedef struct fsdp__landed_hook {
    int refs;
    fsdp_post_accumulate_grad_hook call; /* NULL: it was removed */
    void *arg;
} fsdp__landed_hook;

/* Sets or replaces the hook at `slot`; a `call` of NULL removes it. */
fsdp_status fsdp__landed_hook_set(fsdp__landed_hook **slot, fsdp_post_accumulate_grad_hook call, void *arg);
fsdp__landed_hook *fsdp__landed_hook_ref(fsdp__landed_hook *hook); /* these three take NULL */
void fsdp__landed_hook_unref(fsdp__landed_hook *hook);
fsdp_status fsdp__landed_hook_call(const fsdp__landed_hook *hook, fsdp_tensor *const *shards, int64_t count);

typedef struct fsdp__in_flight {
    fsdp_tensor **unsharded; /* the unsharded gradients that are reduced; NULL where this rank has none */
    fsdp_tensor **gradients; /* this rank's part of the result; NULL where the result is partial */
    fsdp_tensor **arriving;  /* shards that get their result on landing: hooks see it, or it may be none; else NULL */
    int64_t count, capacity;
    fsdp_stream *stream; /* that the reduction runs on */
    /* Whether any rank had a gradient, known when `done`. This is asked where this rank had none; its result then
     * arrives or not. */
    uint8_t *contributed;
    bool asked;
    bool together;          /* the first of `contributed` stands for all: they are one buffer */
    fsdp__storage *results; /* results on the device, of `gradients` on the host; NULL: `gradients` are the results */
    fsdp__storage *partial; /* gradients reduced inside the replica; NULL: none */
    fsdp__region *packed;   /* memory of a function of the caller's; NULL: the library reduces */
    fsdp_event *done;
    fsdp__landed_hook *landed; /* NULL: none */
    fsdp_tensor **shards;      /* the shards to tell it of; NULLs if there is no hook */
} fsdp__in_flight;

/* Makes room for `count` results, on `stream`. Nothing may be in flight. */
fsdp_status fsdp__in_flight_reserve(fsdp__in_flight *flight, int64_t count, fsdp_stream *stream);
/* Returns whether any rank had a gradient for the i-th result, as far as that is known. */
bool fsdp__in_flight_contributed(const fsdp__in_flight *flight, int64_t i);
/* Records that the stream has been given the whole reduction. */
fsdp_status fsdp__in_flight_depart(fsdp__in_flight *flight);
/* Makes the device's own stream wait for the reduction, and the host too if the outcome was `asked`. Here and below the
 * time in which that stream waits is added to `*waited`. */
fsdp_status fsdp__in_flight_await(const fsdp__in_flight *flight, fsdp__exposed *waited);
/* Lands the reduction: the device's own stream waits for it, what it held is released, results that hooks wait for
 * arrive, and `landed` is called. */
fsdp_status fsdp__in_flight_land(fsdp__in_flight *flight, fsdp_context *context, fsdp__exposed *waited);
/* Makes it land without calling the hook. */
void fsdp__in_flight_forget_hook(fsdp__in_flight *flight);
/* Waits for the reduction and drops its results. */
void fsdp__in_flight_drop(fsdp__in_flight *flight);
void fsdp__in_flight_close(fsdp__in_flight *flight);
