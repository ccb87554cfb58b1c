/* gate.c - a stream stands until it is told to go on. */
#include "shard/gate.h"

#include <stdlib.h>
#include <time.h>

#include "device/device.h"

enum {
    GIVE_UP_S = 1200,
    PAGE = 4096
};

static fsdp_status stand(fsdp_stream *stream, const void *argument)
{
    gate *g = *(gate *const *)argument;
    struct timespec end;

    (void)stream;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += GIVE_UP_S;
    pthread_mutex_lock(&g->mutex);
    while (!g->open && !g->forced)
        g->forced = pthread_cond_timedwait(&g->moved, &g->mutex, &end) != 0;
    pthread_mutex_unlock(&g->mutex);
    return FSDP_OK;
}

fsdp_status gate_put(gate *g, fsdp_stream *stream)
{
    return fsdp__stream_enqueue(stream, stand, &g, sizeof g);
}

fsdp_status gate_put_on_device(gate *g, fsdp_stream *stream)
{
    g->device = fsdp__stream_device(stream);
    g->word = calloc(1, PAGE);
    FSDP_TRY(fsdp__device_register_host(g->device, g->word, PAGE));
    return fsdp__stream_await_word(stream, g->word, 1);
}

void gate_open(gate *g)
{
    if (g->word)
        __atomic_store_n(g->word, 1, __ATOMIC_RELEASE);
    pthread_mutex_lock(&g->mutex);
    g->open = true;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->mutex);
}

void gate_free(gate *g)
{
    if (g->word)
        fsdp__device_unregister_host(g->device, g->word, PAGE);
    free(g->word);
}
