/* clique_memory.c - takes memory that NCCL sees, and lets calls use it one after the other. */
#include "comm/clique/clique_memory.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/probe.h"
#include "device/device.h"

struct fsdp__clique_memory {
    const fsdp_context *context;
    char *at; /* NULL: NCCL has given none */
    size_t bytes;
    uint64_t uses; /* calls that were issued */
};

typedef struct fsdp__clique_memory memory;

/* ---- life ---- */

/* Takes memory for one clique: of a gather a piece lies in one place, of a sum in one for what a rank sends and in one
 * for what it gets. */
static fsdp_status take(fsdp__clique_group *g, fsdp__clique_way way, const fsdp_context *context)
{
    memory *m;

    FSDP__TRY_NEW(m = g->shown[way] = fsdp__calloc(1, sizeof *m));
    m->context = context;
    m->bytes = (way == FSDP__CLIQUE_FOR_GATHERS ? 1 : 2) * (size_t)FSDP__CLIQUE_PIECE_BYTES;
    FSDP_TRY(g->ops->alloc(g->device, m->bytes, (void **)&m->at));
    fsdp__device_account(g->device, NULL, FSDP_MEMORY_WORKSPACE, (int64_t)m->bytes, false);
    FSDP__TELL(MEMORY_MAPPED, .context = context, .memory = m->at, .bytes = m->bytes);
    return FSDP_OK;
}

static void give_back(fsdp__clique_group *g, fsdp__clique_way way)
{
    memory *m = g->shown[way];

    if (m && m->at) {
        FSDP__TELL(MEMORY_UNMAPPED, .context = m->context, .memory = m->at);
        fsdp__device_account(g->device, NULL, FSDP_MEMORY_WORKSPACE, -(int64_t)m->bytes, false);
        g->ops->give_back(g->device, m->at);
    }
    fsdp__free(m);
    g->shown[way] = NULL;
}

fsdp_status fsdp__clique_memory_show(fsdp__clique_group *g, const fsdp_context *context, bool gathers)
{
    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++) {
        if (way == FSDP__CLIQUE_FOR_GATHERS && !gathers)
            continue;
        FSDP_TRY(take(g, (fsdp__clique_way)way, context));
        FSDP_TRY(g->ops->show(g->cliques[way], g->shown[way]->at, g->shown[way]->bytes));
    }
    return FSDP_OK;
}

fsdp__clique_sight fsdp__clique_memory_seen(fsdp__clique_group *g, fsdp__clique_sight seen[FSDP__CLIQUE_WAYS])
{
    fsdp__clique_sight least = FSDP__CLIQUE_SIGHTS;

    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++) {
        seen[way] = g->shown[way] ? g->ops->sight(g->cliques[way]) : FSDP__CLIQUE_UNSEEN;
        if (seen[way] == FSDP__CLIQUE_UNSEEN)
            give_back(g, (fsdp__clique_way)way);
        else
            least = FSDP__MIN(least, seen[way]);
    }
    return least == FSDP__CLIQUE_SIGHTS ? FSDP__CLIQUE_UNSEEN : least;
}

void fsdp__clique_memory_free(fsdp__clique_group *g)
{
    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++)
        give_back(g, (fsdp__clique_way)way);
}

size_t fsdp__clique_memory_bytes(const fsdp__clique_group *g)
{
    size_t bytes = 0;

    for (int way = 0; way < FSDP__CLIQUE_WAYS; way++)
        bytes += g->shown[way] ? g->shown[way]->bytes : 0;
    return bytes;
}

/* ---- use ---- */

fsdp_status fsdp__clique_packed(const fsdp__clique_group *g, fsdp__clique_way way, fsdp__plain_way *plain,
                                const fsdp__call *call, fsdp__traffic *traffic)
{
    memory *m = g->shown[way];

    if (!m)
        return fsdp__coalesced_by(plain, call, traffic);
    plain->memory = m->at;
    plain->memory_bytes = (int64_t)m->bytes;
    FSDP_TRY(g->ops->follow(g->cliques[way], traffic->stream));
    if (m->uses > 0)
        FSDP__TELL(ORDER_ACQUIRED, .context = m->context, .stream = traffic->stream, .object = m, .number = m->uses);
    FSDP_TRY(fsdp__coalesced_by(plain, call, traffic));
    m->uses++;
    FSDP__TELL(ORDER_PUBLISHED, .context = m->context, .stream = traffic->stream, .object = m, .number = m->uses);
    return g->ops->belongs(g->cliques[way], traffic->stream);
}
