/* prices.c - the price of one kernel and of one collective. */
#include "plan/prices.h"

#include <math.h>
#include <stdlib.h>

#include "base/sort.h"

/* ---- the work of a call ---- */

double fsdp__price_work(fsdp__kernel kernel, const void *args)
{
    int64_t flops = fsdp__kernel_flops(kernel, args);

    return flops > 0 ? (double)flops : fsdp__kernel_bytes(kernel, args);
}

double fsdp__price_size(fsdp__kernel kernel, const void *args, double work, fsdp_dtype *dtype)
{
    const fsdp__matmul_args *product = args;
    const fsdp__attention_forward_args *forward = args;
    const fsdp__attention_backward_args *backward = args;

    *dtype = FSDP_DTYPE_NONE;
    switch (kernel) {
    case FSDP__KERNEL_MATMUL: /* an operand of 16 bits decides */
        *dtype = product->a_dtype == FSDP_F32 ? product->b_dtype : product->a_dtype;
        return cbrt((double)product->m * (double)product->n * (double)product->k);
    case FSDP__KERNEL_ATTENTION_FORWARD:
        *dtype = forward->dtype;
        return work;
    case FSDP__KERNEL_ATTENTION_BACKWARD:
        *dtype = backward->forward.dtype;
        return work;
    default:
        return work;
    }
}

/* ---- rates ---- */

FSDP__ORDER_BY_THREE(by_kernel, fsdp__price_rate, kernel, dtype, size)

void fsdp__prices_sort(fsdp__prices *prices)
{
    qsort(prices->rates, (size_t)prices->rate_count, sizeof *prices->rates, by_kernel);
}

/* Returns the rate between two sizes, by their logarithms. */
static double between(const fsdp__price_rate *below, const fsdp__price_rate *above, double size)
{
    double part = log(size / below->size) / log(above->size / below->size);

    return exp(log(below->per_second) + part * log(above->per_second / below->per_second));
}

/* Returns the kernel's rate for operands of this dtype; 0: it has none. */
static double rate_of(const fsdp__prices *prices, fsdp__kernel kernel, fsdp_dtype dtype, double size)
{
    const fsdp__price_rate *below = NULL;

    for (int i = 0; i < prices->rate_count; i++) {
        const fsdp__price_rate *rate = &prices->rates[i];

        if (rate->kernel != kernel || rate->dtype != dtype)
            continue;
        if (rate->size >= size)
            return below ? between(below, rate, size) : rate->per_second;
        below = rate;
    }
    return below ? below->per_second : 0;
}

double fsdp__price_kernel(const fsdp__prices *prices, fsdp__kernel kernel, const void *args)
{
    double work = fsdp__price_work(kernel, args), size, rate;
    fsdp_dtype dtype;

    if (work <= 0)
        return 0;
    size = fsdp__price_size(kernel, args, work, &dtype);
    rate = rate_of(prices, kernel, dtype, size);
    if (rate == 0 && dtype != FSDP_DTYPE_NONE) /* a dtype that was not measured */
        rate = rate_of(prices, kernel, FSDP_F32, size);
    if (rate == 0 && fsdp__kernel_flops(kernel, args) > 0) { /* a product of another kind */
        rate = rate_of(prices, FSDP__KERNEL_MATMUL, FSDP_F32, cbrt(work / 2));
        return rate > 0 ? work / rate : 0;
    }
    return work / (rate > 0 ? rate : prices->per_second);
}

/* ---- collectives ---- */

/* Returns the seconds for what stays inside a machine. CPUs of a machine share its memory: a gather finds its
 * parameters in place, and a reduction reads what each rank has for it. A GPU gets from the others, by their links,
 * what it does not have; without links they exchange through the host's memory: up and down. */
static double inside(const fsdp__prices *p, const fsdp__price_link *link, const fsdp__price_call *c)
{
    double part = c->bytes / c->ranks, moved = 0;

    if (p->gpu && p->peers.per_second > 0)
        return (c->kind == FSDP_ALL_REDUCE ? 2 : 1) * (c->bytes - part) / p->peers.per_second;
    if (p->gpu)
        return (c->kind == FSDP_ALL_REDUCE ? 2 * c->bytes : c->bytes + part) / p->host.per_second;
    if (c->kind == FSDP_REDUCE_SCATTER)
        moved = c->bytes + part;
    else if (c->kind == FSDP_ALL_REDUCE)
        moved = 2 * c->bytes + part;
    return moved * c->machine_ranks / link->per_second;
}

/* Returns the link for so many ranks of a machine: the nearest below, or the first. */
static const fsdp__price_link *link_of(const fsdp__prices *p, int ranks)
{
    const fsdp__price_link *found = &p->machine;

    for (int i = 0; i < p->world_count; i++)
        if (i == 0 || p->worlds[i].ranks <= ranks)
            found = &p->worlds[i].link;
    return found;
}

double fsdp__price_collective(const fsdp__prices *prices, const fsdp__price_call *call)
{
    const fsdp__price_link *link = link_of(prices, call->machine_ranks);
    double seconds = 0;

    if (call->ranks <= 1) /* a processor's reduction copies what it has */
        return !prices->gpu && call->kind == FSDP_REDUCE_SCATTER ? 2 * call->bytes / prices->per_second : 0;
    if (call->ranks > call->machines || (prices->gpu && prices->peers.per_second == 0))
        seconds += link->latency + inside(prices, link, call);
    if (call->machines > 1)
        seconds += prices->network.latency + call->network * call->machine_ranks / prices->network.per_second;
    return seconds;
}
