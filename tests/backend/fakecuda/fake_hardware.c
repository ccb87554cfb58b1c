/* fake_hardware.c - queues of the hardware, which several streams of a device may share: what was queued later waits
 * for all that was queued before, on whatever stream. */
#include <pthread.h>
#include <stdlib.h>

#include "backend/fakecuda/fake.h"

enum {
    MOST = 64
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the queues */
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct {
    uint64_t queued, done;
} queues[MOST];

int fake_hardware_of(int device, uint32_t stream)
{
    const char *text = getenv("FSDP_FAKECUDA_QUEUES");
    long count = text ? strtol(text, NULL, 10) : 0;

    return count > 0 ? (int)((device * count + (long)stream % count) % MOST) : -1;
}

uint64_t fake_hardware_queue(int queue)
{
    uint64_t turn = 0;

    if (queue < 0)
        return turn;
    pthread_mutex_lock(&mutex);
    turn = queues[queue].queued++;
    pthread_mutex_unlock(&mutex);
    return turn;
}

void fake_hardware_wait(int queue, uint64_t turn)
{
    if (queue < 0)
        return;
    pthread_mutex_lock(&mutex);
    while (queues[queue].done < turn)
        pthread_cond_wait(&moved, &mutex);
    pthread_mutex_unlock(&mutex);
}

void fake_hardware_pass(int queue)
{
    if (queue < 0)
        return;
    pthread_mutex_lock(&mutex);
    queues[queue].done++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mutex);
}
