/* suite_mixed.h - coalesced calls whose buffers have each their own shape, sharded dimension, dtypes and contributors.
 */
#pragma once

#include "comm/suite_coalesced.h"

/* Cases [first, first + count) of a fixed sequence, in the stream's memory or, on the host, any that the case draws. */
void suite_mixed(const suite *s, uint64_t first, int count);
