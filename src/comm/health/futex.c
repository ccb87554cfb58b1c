#include "comm/health/futex.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool fsdp__futex_wait(_Atomic uint32_t *word, uint32_t value, int timeout_ms)
{
    struct timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};

    return syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0) != 0 && errno == ETIMEDOUT;
}

void fsdp__futex_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
