/* lock.h - a mutex that is held until the scope ends. */
#pragma once

#include <pthread.h>

#include "base/compiler.h"

/* Takes the mutex, and gives it back where the scope is left: FSDP__HELD(&line->mutex); */
#define FSDP__HELD(mutex) \
    FSDP__SCOPED(fsdp__unlock_at) pthread_mutex_t *const fsdp_held_ FSDP__UNUSED = fsdp__lock(mutex)

static inline pthread_mutex_t *fsdp__lock(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void fsdp__unlock_at(pthread_mutex_t *const *mutex)
{
    pthread_mutex_unlock(*mutex);
}
