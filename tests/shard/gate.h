/* gate.h - a place where a stream stands until the test lets it go on. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "fsdp/device.h"

typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    bool open;
    bool forced; /* nobody opened it: it fails the test instead of hanging it */
    fsdp_device *device;
    uint32_t *word; /* where the device stands, and not its stream's thread: 0 until it is open */
} gate;

#define GATE                                                                  \
    (gate)                                                                    \
    {                                                                         \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER \
    }

/* What the stream, which has a thread, is given from now on waits for gate_open. */
fsdp_status gate_put(gate *g, fsdp_stream *stream);
/* The same where a GPU waits, and its stream is given what comes later without the host. Ends with gate_free. */
fsdp_status gate_put_on_device(gate *g, fsdp_stream *stream);
void gate_open(gate *g);
void gate_free(gate *g);
