/* plan_json.c - prints a plan as one JSON object. */
#include "base/text.h"
#include "explain/json_value.h"
#include "explain/show.h"
#include "plan/show_plan.h"

static json_t *peak_of(const fsdp__plan *plan)
{
    const fsdp__plan_peak *peak = &plan->peak;
    json_t *object = json_object(), *ops = json_object();

    for (int op = 0; op <= FSDP__KERNELS; op++)
        if (peak->by_op[op] > 0)
            fsdp__json_put(&ops, op < FSDP__KERNELS ? fsdp__kernel_infos[op].name : "others",
                           json_integer((json_int_t)peak->by_op[op]));
    fsdp__json_put(&object, "bytes", json_integer((json_int_t)peak->total));
    fsdp__json_put(&object, "by_kind", fsdp__json_by_kind(peak->bytes));
    fsdp__json_put(&object, "workspace_bytes", json_integer((json_int_t)peak->workspace));
    fsdp__json_put(&object, "phase", fsdp__json_text(fsdp__phase_name(peak->phase)));
    fsdp__json_put(&object, "microbatch", json_integer(peak->microbatch));
    fsdp__json_put(&object, "module", peak->unit < 0 ? json_null() : fsdp__json_text(plan->e->units[peak->unit].name));
    fsdp__json_put(&object, "before", fsdp__json_text(peak->op));
    fsdp__json_put(&object, "activations", ops);
    return object;
}

static json_t *network_of(const fsdp__plan *plan)
{
    json_t *object = fsdp__json_network(&plan->e->step.network);

    fsdp__json_put(&object, "machine_in", json_integer(plan->crossing.in));
    fsdp__json_put(&object, "machine_out", json_integer(plan->crossing.out));
    fsdp__json_put(&object, "machine_least",
                   plan->crossing.least > 0 ? json_integer(plan->crossing.least) : json_null());
    return object;
}

static json_t *time_of(const fsdp__plan *plan, const fsdp__plan_question *q)
{
    const fsdp__plan_time *t = &plan->time;
    json_t *object = json_object(), *parts = json_object();
    double seconds = t->step * (double)plan->steps;

    for (int part = 0; part < FSDP__PLAN_PARTS; part++)
        fsdp__json_put(&parts,
                       fsdp__json_name(fsdp__plan_part_name((fsdp__plan_part)part), FSDP__ROOM(FSDP__JSON_NAME)),
                       fsdp__json_real(t->parts[part]));
    fsdp__json_put(&object, "rates_of", fsdp__json_text(q->prices->device));
    fsdp__json_put(&object, "source", fsdp__json_text(q->prices->source));
    fsdp__json_put(&object, "busy", fsdp__json_real(q->prices->busy));
    fsdp__json_put(&object, "step_seconds", fsdp__json_real(t->step));
    fsdp__json_put(&object, "parts_seconds", parts);
    fsdp__json_put(&object, "hidden_gathers_seconds", fsdp__json_real(t->hidden_gathers));
    fsdp__json_put(&object, "hidden_reductions_seconds", fsdp__json_real(t->hidden_reductions));
    fsdp__json_put(&object, "hidden_copies_seconds", fsdp__json_real(t->hidden_copies));
    fsdp__json_put(&object, "tokens_per_second", fsdp__json_real(plan->tokens_per_step / t->step));
    fsdp__json_put(&object, "run_seconds", fsdp__json_real(seconds));
    if (q->price > 0)
        fsdp__json_put(&object, "price", fsdp__json_real(fsdp__plan_price(plan, q)));
    return object;
}

fsdp_status fsdp__plan_json(const fsdp__plan *plan, const fsdp__plan_question *q, FILE *out)
{
    const fsdp_explanation *e = plan->e;
    json_t *object = json_object();

    fsdp__json_put(&object, "model", fsdp__json_text(e->model));
    fsdp__json_put(&object, "strategy", fsdp__json_text(e->strategy));
    fsdp__json_put(&object, "policy", fsdp__json_text(e->policy));
    fsdp__json_put(&object, "world_size", json_integer(e->world_size));
    fsdp__json_put(&object, "machines", json_integer(e->machines));
    fsdp__json_put(&object, "rank", json_integer(e->rank));
    fsdp__json_put(&object, "microbatches", json_integer(e->microbatches));
    fsdp__json_put(&object, "local_batch", json_integer(e->local_batch));
    fsdp__json_put(&object, "seq_len", json_integer(e->seq_len));
    fsdp__json_put(&object, "elements", json_integer(e->numel));
    fsdp__json_put(&object, "peak", peak_of(plan));
    fsdp__json_put(&object, "peak_bytes", fsdp__json_by_kind(e->step.peak_bytes));
    fsdp__json_put(&object, "live_bytes", fsdp__json_by_kind(e->step.live_bytes));
    if (e->step.reserved_bytes > 0)
        fsdp__json_put(&object, "reserved_bytes", json_integer((json_int_t)e->step.reserved_bytes));
    fsdp__json_put(&object, "needed_bytes", json_integer((json_int_t)fsdp__needed_bytes(&e->step)));
    fsdp__json_put(&object, "host_bytes", json_integer((json_int_t)plan->host_bytes));
    fsdp__json_put(&object, "calls", fsdp__json_by_collective(e->step.calls, FSDP_COLLECTIVES));
    fsdp__json_put(&object, "bytes_sent", fsdp__json_by_collective(e->step.bytes_sent, FSDP_COLLECTIVES));
    if (e->machines > 1)
        fsdp__json_put(&object, "network", network_of(plan));
    if (q->room > 0) {
        fsdp__json_put(&object, "room_bytes", fsdp__json_real(q->room));
        fsdp__json_put(&object, "fits", json_boolean((double)fsdp__needed_bytes(&e->step) <= q->room));
    }
    if (q->prices && plan->time.step > 0)
        fsdp__json_put(&object, "time", time_of(plan, q));
    return fsdp__json_print(object, out);
}
