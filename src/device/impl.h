/* impl.h - the structs at the start of every device, stream and event; for device/, the backends and src/check only.
 *
 * A backend's own stream starts with this struct, so a pointer to one is a pointer to the other. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "device/allocator.h"
#include "device/backend.h"
#include "device/device.h"

/* Lists for messages the names that a device may have. */
#define FSDP__DEVICE_NAMES "devices are 'cpu', 'meta', 'cuda', or one of several as in 'cuda:1'"

struct fsdp_device {
    const fsdp__backend *backend;
    fsdp_context *context;
    int ordinal;
    char name[24]; /* "cpu", "sim:1" */
    void *state;   /* the backend's own */
    fsdp_attention_kernels attention;
    bool grows;        /* its segments can become longer; set by the backend's `open` */
    fsdp_device *next; /* the context's devices are in the order in which they were opened */
    fsdp__allocator *allocator;
    pthread_mutex_t refusal_mutex; /* guards the two that follow: work of streams asks for memory, too */
    fsdp__owners refusal;          /* who owned what when a request was refused last */
    bool refused;                  /* nobody has asked for that yet */
    fsdp_stream *stream;           /* the default one */
};

struct fsdp_stream {
    fsdp_device *device;
    fsdp_stream_mode mode;
    fsdp__worker *worker; /* what does its work behind the host; NULL: it is done when it is queued */
    void *workspace;      /* for the work that runs now */
    size_t workspace_bytes;
    void *watcher; /* free to a subscriber (base/probe.h) */
    /* Items so far, where it has a thread: those that were announced, and those that have begun. */
    _Atomic uint64_t items_queued, items_begun;
};

struct fsdp_event {
    fsdp_device *device;
    fsdp__mark mark; /* of the last record, on a stream of any device */
    void *watcher;   /* free to a subscriber (base/probe.h) */
};

/* Gets the backend of that name; NULL when none is compiled in, registered or a plug-in. Fails where its plug-in cannot
 * be loaded. */
fsdp_status fsdp__backend_find(const char *name, const fsdp__backend **out);

/* Tells, on the thread that does it, that the next item of a stream begins. */
static inline void fsdp__stream_begin_item(fsdp_stream *stream)
{
    uint64_t number = ++stream->items_begun;

    FSDP__TELL(ITEM_BEGUN, .context = stream->device->context, .stream = stream, .number = number);
}

/* Frees a stream, the device's own too. NULL is allowed. */
void fsdp__stream_close(fsdp_stream *stream);
/* Frees the scratch of a stream that is being freed. */
void fsdp__stream_drop_workspace(fsdp_stream *stream);
