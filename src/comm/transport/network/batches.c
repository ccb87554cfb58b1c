/* batches.c - decides where a batch ends. */
#include "comm/transport/network/batches.h"

#include "base/compiler.h"
#include "comm/transport/network/shape.h"
#include "comm/transport/sharded_buffer.h"

enum {
    MOST_BYTES = 16 << 20 /* of all areas together; but each area has room for a piece */
};

int64_t fsdp__batches_room(int columns, int locals)
{
    int64_t room = FSDP__MIN(MOST_BYTES / (4 * (int64_t)columns + locals), FSDP__BATCH_BYTES);

    return FSDP__MAX(room / FSDP__PIECE_BYTES, 1) * FSDP__PIECE_BYTES;
}

static int64_t element_of(const fsdp_sharded_buffer *b)
{
    return (int64_t)fsdp_dtype_size(fsdp__reduce_dtype(b));
}

int fsdp__batches_next(fsdp__batches *b, fsdp__batch_piece *out)
{
    int64_t used = 0;
    int count = 0;

    while (b->next_buffer < b->call->buffer_count && count < FSDP__BATCH_PIECES && used < b->room) {
        const fsdp_sharded_buffer *buffer = &b->call->buffers[b->next_buffer];
        int64_t element = element_of(buffer), left = fsdp__chunk_numel(buffer) - b->next_at;
        int64_t numel = FSDP__MIN(left, (b->room - used) / element);

        if (left <= 0 || !b->used[b->next_buffer]) {
            b->next_buffer++;
            b->next_at = 0;
            continue;
        }
        out[count++] = (fsdp__batch_piece){b->next_buffer, b->next_at, numel, used};
        b->next_at += numel;
        used += FSDP__ROUND_UP(numel * element, FSDP__BATCH_ALIGN);
    }
    return count;
}

int64_t fsdp__batch_rows(const fsdp__call *call, const fsdp__batch_piece *piece, int member)
{
    int64_t left = fsdp__part_numel(&call->buffers[piece->buffer], member) - piece->at;

    return FSDP__MAX(FSDP__MIN(left, piece->numel), 0);
}
