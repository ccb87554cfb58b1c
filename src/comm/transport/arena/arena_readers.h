/* arena_readers.h - keeps track of who still reads a shared region. */
#pragma once

#include "comm/health/region.h"
#include "comm/transport/arena/arena_group.h"

size_t fsdp__shared_header_bytes(const fsdp__arena_group *group);
fsdp__shared_header *fsdp__shared_header_of(const fsdp__arena_group *group, void *pointer);

extern const fsdp__reader_ops fsdp__arena_readers;
