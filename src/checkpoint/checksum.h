/* checksum.h - the checksum of bytes: XXH3, 64 bits. Against damage, not against those who mean harm. */
#ifndef CHECKPOINT_CHECKSUM_H
#define CHECKPOINT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t fsdp__checksum(const void *data, size_t bytes);

#endif
