/* cuda_error.h - failures of CUDA's functions as statuses with a message, and the loss of a device. */
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "fsdp/device.h"

enum {
    FSDP__CUDA_TEXT = 512
};

/* The first failure of a device after which it cannot be used. */
typedef struct fsdp__cuda_lost {
    _Atomic bool is; /* set last */
    pthread_mutex_t mutex;
    /* Guarded by the mutex until `is` is set, and never changed after. */
    fsdp_status status;
    char text[FSDP__CUDA_TEXT];
    fsdp_status (*_Atomic judge)(void *world); /* NULL: nobody. Set after `world`, once */
    void *world;
} fsdp__cuda_lost;

/* Returns FSDP_OK while the device has not failed, and its judge finds nothing, else a failure with the text of the
 * first one. */
fsdp_status fsdp__cuda_alive(const fsdp_device *device);
/* Loses the device for a reason that is not CUDA's. [thread-safe] */
void fsdp__cuda_condemn(fsdp_device *device, fsdp_status status, const char *text);
/* Lets the device be lost when `judge` fails. The first one stays. */
void fsdp__cuda_judge(fsdp_device *device, fsdp_status (*judge)(void *world), void *world);
/* Turns what a call of CUDA has returned into a status. Memory that is not there can be survived: FSDP_NO_MEMORY.
 * Anything else loses the device. `call` is the call's text. */
fsdp_status fsdp__cuda_check(const fsdp_device *device, cudaError_t error, const char *call, const char *file,
                             int line);

/* Does the same for a call that pins memory of the host. Neither the lack of such memory, FSDP_NO_MEMORY, nor a system
 * that does not allow it, FSDP_UNSUPPORTED, loses the device. */
fsdp_status fsdp__cuda_check_host(const fsdp_device *device, cudaError_t error, const char *call, const char *file,
                                  int line);

/* Returns the failure of a call of CUDA for this device to the caller, if it failed, or if the device is lost. */
#define FSDP__CUDA_TRY(device, call)                                \
    do {                                                            \
        fsdp_status cuda_status_ = FSDP__CUDA_CALL(device, call);   \
        if (cuda_status_ != FSDP_OK)                                \
            return fsdp_fail_hop(cuda_status_, __FILE__, __LINE__); \
    } while (0)
/* Calls CUDA, unless the device is lost. A status. */
#define FSDP__CUDA_CALL(device, call)                                                                    \
    (fsdp__cuda_alive(device) == FSDP_OK ? fsdp__cuda_check((device), (call), #call, __FILE__, __LINE__) \
                                         : fsdp_last_status())
/* The same for a call that pins memory of the host. */
#define FSDP__CUDA_HOST_CALL(device, call)                                                                    \
    (fsdp__cuda_alive(device) == FSDP_OK ? fsdp__cuda_check_host((device), (call), #call, __FILE__, __LINE__) \
                                         : fsdp_last_status())

/* Gives something back, on a lost device, too. A failure does not replace the last error. */
#define FSDP__CUDA_GIVE_BACK(device, call) fsdp__cuda_given_back((device), (call), #call, __FILE__, __LINE__)
void fsdp__cuda_given_back(const fsdp_device *device, cudaError_t error, const char *call, const char *file, int line);
