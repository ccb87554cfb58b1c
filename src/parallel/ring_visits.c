/* ring_visits.c - what travels between ranks that take turns. */
#include "parallel/ring_visits.h"

#include "ops/op.h"
#include "parallel/wire.h"

enum {
    SUMS = FSDP__VISITS_AHEAD /* events of the side stream from there on are of sums */
};

int64_t fsdp__visits_ahead(const fsdp__visitors *visitors)
{
    return visitors->route.side ? FSDP__VISITS_AHEAD : 1;
}

int64_t fsdp__visit_place(const fsdp__visitors *visitors, int64_t of)
{
    return of % fsdp__visits_ahead(visitors);
}

fsdp_tensor *fsdp__side_of(fsdp_tensor *both, int64_t which)
{
    return fsdp_squeeze(fsdp_slice(both, 0, which, 1), 0);
}

static fsdp_tensor *make_both(const fsdp_tensor *k)
{
    return fsdp_empty(k->storage->device, k->dtype, 5,
                      (const int64_t[]){2, k->shape[0], k->shape[1], k->shape[2], k->shape[3]});
}

/* Sends for a rank's keys and values, if there is such a rank. They come where those of a turn lay that has ended. */
static fsdp_status bring(const fsdp__visits *visits, int64_t of)
{
    const fsdp__visitors *visitors = visits->visitors;
    int64_t place = fsdp__visit_place(visitors, of);
    fsdp_tensor *both = visits->both[place];
    fsdp_stream *compute = fsdp__op_stream(both);

    if (of >= visitors->ranks)
        return FSDP_OK;
    for (int i = 0; i < 2 && of == visitors->rank; i++) {
        fsdp_tensor *side = fsdp__side_of(both, i);

        FSDP_TRY(side ? fsdp_tensor_copy_(side, visits->kv[i]) : fsdp_last_status());
    }
    FSDP_TRY(fsdp__side_stream_follow(visitors->route.side, compute));
    FSDP_TRY(fsdp__wire_broadcast(both, (int)of, visitors->route.group,
                                  fsdp__side_stream_or_compute(visitors->route.side, compute)));
    return fsdp__side_stream_mark(visitors->route.side, (int)place);
}

fsdp_status fsdp__visits_begin(const fsdp__visitors *visitors, fsdp_tensor *k, fsdp_tensor *v, fsdp__visits *out)
{
    int64_t ahead = fsdp__visits_ahead(visitors);

    *out = (fsdp__visits){.visitors = visitors, .kv = {k, v}};
    for (int64_t i = 0; i < ahead; i++) {
        FSDP__TRY_MADE(out->both[i] = make_both(k));
    }
    for (int64_t of = 0; of < ahead; of++)
        FSDP_TRY(bring(out, of));
    return FSDP_OK;
}

fsdp_status fsdp__visit_begin(const fsdp__visits *visits, int64_t of, fsdp_tensor *their[2])
{
    int64_t place = fsdp__visit_place(visits->visitors, of);
    fsdp_tensor *both = visits->both[place];

    for (int i = 0; i < 2; i++) {
        FSDP__TRY_MADE(their[i] = fsdp__side_of(both, i));
    }
    return fsdp__side_stream_await(visits->visitors->route.side, (int)place, visits->visitors->route.group,
                                   fsdp__op_stream(both));
}

fsdp_status fsdp__visit_end(const fsdp__visits *visits, int64_t of)
{
    return bring(visits, of + fsdp__visits_ahead(visits->visitors));
}

fsdp_status fsdp__visit_add_up(const fsdp__visitors *visitors, int64_t of, const fsdp_tensor *made, fsdp_tensor *sums)
{
    fsdp_stream *compute = fsdp__op_stream(sums);

    FSDP_TRY(fsdp__side_stream_follow(visitors->route.side, compute));
    FSDP_TRY(fsdp__wire_reduce_part(made, sums, (int)of, visitors->route.group,
                                    fsdp__side_stream_or_compute(visitors->route.side, compute)));
    return fsdp__side_stream_mark(visitors->route.side, SUMS + (int)fsdp__visit_place(visitors, of));
}

fsdp_status fsdp__visit_await_sums(const fsdp__visitors *visitors, int64_t place, const fsdp_tensor *sums)
{
    return fsdp__side_stream_await(visitors->route.side, SUMS + (int)place, visitors->route.group,
                                   fsdp__op_stream(sums));
}
