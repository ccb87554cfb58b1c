/* jinja_pool.c - the memory of a rendering, and its limits. */
#include "chat/jinja_values.h"

enum {
    MAX_DEPTH = 600,
    MAX_WORK = 20000000,
    MAX_POOL = FSDP__JINJA_POOL,
    BLOCK_BYTES = 16 << 10,
    WORK_BYTES = 64 /* that are made or compared in one step */
};

typedef struct fsdp__pool_block {
    struct fsdp__pool_block *next;
    size_t used, bytes;
    _Alignas(16) char data[];
} fsdp__pool_block;

fsdp_status fsdp__render_work(fsdp__render *r, size_t steps)
{
    r->work += (int64_t)steps + 1;
    if (r->work > MAX_WORK)
        return FSDP__RENDER_FAIL(r, "the template does not come to an end: stopped after %d steps", MAX_WORK);
    return FSDP_OK;
}

fsdp_status fsdp__render_deeper(fsdp__render *r)
{
    if (r->depth >= MAX_DEPTH)
        return FSDP__RENDER_FAIL(r, "nested over %d deep", MAX_DEPTH);
    r->depth++;
    return fsdp__render_work(r, 0);
}

void *fsdp__render_alloc(fsdp__render *r, size_t bytes)
{
    fsdp__pool_block *block = r->pool;
    fsdp_status status;
    void *out;

    if (bytes > MAX_POOL || r->taken + bytes > MAX_POOL) {
        r->failed = FSDP__RENDER_FAIL(r, "the template wants over %d MiB of memory", MAX_POOL >> 20);
        return NULL;
    }
    bytes = (bytes + 15) / 16 * 16;
    status = fsdp__render_work(r, bytes / WORK_BYTES);
    if (status != FSDP_OK) {
        r->failed = status;
        return NULL;
    }
    if (!block || block->bytes - block->used < bytes) {
        size_t size = FSDP__MAX(bytes, BLOCK_BYTES);

        if (!(block = fsdp__malloc(sizeof *block + size))) {
            r->failed = FSDP_NO_MEMORY;
            return NULL;
        }
        *block = (fsdp__pool_block){.next = r->pool, .bytes = size};
        r->pool = block;
    }
    out = block->data + block->used;
    block->used += bytes;
    r->taken += bytes;
    return out;
}

void fsdp__render_release(fsdp__render *r)
{
    while (r->pool) {
        fsdp__pool_block *next = r->pool->next;

        fsdp__free(r->pool);
        r->pool = next;
    }
}
