/* fake_hardware.c - queues of the hardware, which several streams of a device may share: what was queued later waits
 * for all that was queued before, on whatever stream; and pauses of streams. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "backend/fakecuda/fake.h"

enum {
    MOST = 64,
    PAUSE_MOST_NS = 20000
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

/* Pauses rarely, so that a step of many small kernels does not take much longer. */
void fake_pause(uint64_t seed)
{
    uint64_t draw = seed * UINT64_C(0x9e3779b97f4a7c15);

    draw = (draw ^ draw >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    draw = (draw ^ draw >> 27) * UINT64_C(0x94d049bb133111eb);
    draw ^= draw >> 31;
    if (draw % 32 == 0)
        (void)sched_yield();
    if (draw / 32 % 64 == 0) {
        struct timespec ns = {0, (long)(draw / 2048 % PAUSE_MOST_NS)};

        (void)nanosleep(&ns, NULL);
    }
}
