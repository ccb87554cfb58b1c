/* gate.h - a place where a stream with a thread stands until the test lets it go on. */
#ifndef TESTS_SHARD_GATE_H
#define TESTS_SHARD_GATE_H

#include <pthread.h>
#include <stdbool.h>

#include "fsdp/device.h"

typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    bool open;
    bool forced; /* nobody opened it: it fails the test instead of hanging it */
} gate;

#define GATE                                                                  \
    (gate)                                                                    \
    {                                                                         \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER \
    }

/* What the stream is given from now on waits for gate_open. */
fsdp_status gate_put(gate *g, fsdp_stream *stream);
void gate_open(gate *g);

#endif
