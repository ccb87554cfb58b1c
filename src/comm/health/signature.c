/* signature.c - what a rank says about a call, and how a message shows it. */
#include "comm/health/signature.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "comm/transport/sharded_buffer.h"

/* Returns the dtype of the unsharded buffers, or NONE if they have several. */
static fsdp_dtype common_dtype(const fsdp__call *call)
{
    fsdp_dtype dtype = call->buffer_count > 0 ? call->buffers[0].unsharded_dtype : FSDP_DTYPE_NONE;

    for (int64_t i = 1; i < call->buffer_count; i++)
        if (call->buffers[i].unsharded_dtype != dtype)
            return FSDP_DTYPE_NONE;
    return dtype;
}

static uint64_t hash_buffer(uint64_t hash, const fsdp_sharded_buffer *b)
{
    uint64_t dtypes = (uint64_t)b->unsharded_dtype << 16 | (uint64_t)b->shard_dtype << 8 | (uint64_t)b->reduce_dtype;

    hash = fsdp__mix(fsdp__mix(hash, (uint64_t)b->numel), (uint64_t)b->chunk);
    return fsdp__mix(fsdp__mix(hash, (uint64_t)FSDP__MAX(b->outer, 1)), dtypes);
}

void fsdp__signature_fill(const fsdp__call *made, fsdp__signature *out)
{
    const fsdp__call *call = made->plain ? made->plain : made;
    bool coalesced = call->name == FSDP__CALL_ALL_GATHER_COALESCED || call->name == FSDP__CALL_REDUCE_SCATTER_COALESCED;

    memset(out, 0, sizeof *out); /* including padding: signatures are compared as bytes */
    out->sequence = call->sequence;
    out->name = (uint8_t)call->name;
    out->op = (uint8_t)call->op;
    out->root = call->root;
    memcpy(out->label, call->label, sizeof out->label);
    if (!coalesced) {
        out->dtype = (uint8_t)call->dtype;
        out->bytes = call->count * (int64_t)fsdp_dtype_size(call->dtype) + (int64_t)call->bytes;
        out->hash = (uint64_t)call->flag_count;
        return;
    }
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];

        out->hash = hash_buffer(out->hash, b);
        out->bytes += fsdp__chunk_numel(b) * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
    }
    out->dtype = (uint8_t)common_dtype(call);
    out->buffers = call->buffer_count;
    out->predivide = call->predivide;
    out->divisor = call->divisor;
    out->places = call->places;
    out->force_copy = call->force_copy;
}

static const char *op_text(const fsdp__signature *s)
{
    static const char *const texts[] = {" sum", " average", " max", " min"};
    bool reduces = s->name == FSDP__CALL_REDUCE_SCATTER || s->name == FSDP__CALL_ALL_REDUCE ||
                   s->name == FSDP__CALL_REDUCE_SCATTER_COALESCED;

    return reduces && s->op <= FSDP_MIN ? texts[s->op] : "";
}

static void call_text(const fsdp__signature *s, char *text, size_t bytes)
{
    const char *name = fsdp__call_text((fsdp__call_name)s->name);
    const char *dtype = s->dtype ? fsdp_dtype_name((fsdp_dtype)s->dtype) : s->buffers ? "of several dtypes" : "";

    if (s->buffers)
        snprintf(text, bytes, "%s%s of %lld buffers with %lld bytes %s", name, op_text(s), (long long)s->buffers,
                 (long long)s->bytes, dtype);
    else if (s->name == FSDP__CALL_BROADCAST)
        snprintf(text, bytes, "%s of %lld bytes %s from group rank %d", name, (long long)s->bytes, dtype, s->root);
    else if (s->dtype)
        snprintf(text, bytes, "%s%s of %lld bytes %s", name, op_text(s), (long long)s->bytes, dtype);
    else if (s->bytes)
        snprintf(text, bytes, "%s of %lld bytes", name, (long long)s->bytes);
    else
        snprintf(text, bytes, "%s", name);
}

/* Writes "all_gather of 4096 bytes float32", and " for 'label'" if there is a label. */
static void signature_text(const fsdp__signature *s, char *text, size_t bytes)
{
    size_t length;

    call_text(s, text, bytes);
    length = strlen(text);
    if (s->label[0])
        snprintf(text + length, bytes - length, " for '%s'", s->label);
}

/* Returns what differs between two signatures whose texts are the same. */
static const char *difference_text(const fsdp__signature *a, const fsdp__signature *b)
{
    if (a->hash != b->hash)
        return a->buffers ? " with other sizes or dtypes of the buffers" : " with another number of flags";
    if (a->places != b->places)
        return a->places == 0   ? " into shared memory"
               : b->places == 0 ? " into memory that is not shared"
                                : " elsewhere in shared memory";
    if (a->force_copy != b->force_copy)
        return a->force_copy ? " without force_copy" : " with force_copy";
    return " with another predivide or divisor";
}

int fsdp__signatures_compare(const void *group, const fsdp__signature *(*said_by)(const void *group, int rank),
                             int count)
{
    const fsdp__signature *first = said_by(group, 0);

    for (int r = 1; r < count; r++)
        if (memcmp(first, said_by(group, r), sizeof *first) != 0)
            return r;
    return 0;
}

void fsdp__signature_mismatch(const char *group, const fsdp__signature *first, int first_rank,
                              const fsdp__signature *other, int other_rank, char *text, size_t bytes)
{
    char of_first[224], of_other[224], number[48] = "";

    signature_text(first, of_first, sizeof of_first);
    signature_text(other, of_other, sizeof of_other);
    if (first->sequence != other->sequence)
        snprintf(number, sizeof number, "call %llu, ", (unsigned long long)other->sequence);
    snprintf(text, bytes, "ranks disagree in group '%.64s': call %llu is %s on rank %d but %s%s on rank %d%s", group,
             (unsigned long long)first->sequence, of_first, first_rank, number, of_other, other_rank,
             !number[0] && strcmp(of_first, of_other) == 0 ? difference_text(first, other) : "");
}
