/* clock.h - monotonic time. */
#pragma once

#include <stdint.h>

int64_t fsdp__clock_ns(void);
