/* checksum.h - the checksum of bytes: XXH3, 64 bits. It detects damage, and does not protect against attackers. */
#ifndef CHECKPOINT_CHECKSUM_H
#define CHECKPOINT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t fsdp__checksum(const void *data, size_t bytes);

#endif
