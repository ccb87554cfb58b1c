/* rank_file.h - the file of one rank: a header, then the parts, in blocks that each have a checksum. */
#ifndef CHECKPOINT_RANK_FILE_H
#define CHECKPOINT_RANK_FILE_H

#include <stdatomic.h>

#include "checkpoint/rank_data.h"

/* Writes and syncs the file. The bytes are those of `copy`, or, if that is NULL, of the tensors. `*out` gets sizes and
 * checksums; the caller owns its blocks. Fails with FSDP_INTERRUPTED, between two blocks, when `stop` has become
 * true. */
fsdp_status fsdp__rank_file_write(const fsdp_context *context, const fsdp__directory *in, const char *name,
                                  const fsdp__rank_data *data, const unsigned char *copy, const _Atomic bool *stop,
                                  fsdp__rank_file *out);

#endif
