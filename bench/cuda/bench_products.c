/* bench_products - finds out which of cublasLt's algorithms compute the products of a model's step fastest, and prints
 * the rows of src/backend/cuda/product_rows.inc.
 *
 *     bench_products [-s SECONDS] [-n CANDIDATES] [-g GAIN] [MODEL:BATCHxLENGTH...]
 *     bench_products -l [MODEL...]     only lists the products, which needs no GPU
 *
 * Models are presets, trained in bfloat16 on one GPU. The time, 50 seconds, is shared by all products. Of each product
 * up to 16 algorithms are measured, those that cublasLt's heuristic names and whose order of sums is fixed. A row is
 * printed where one gains at least 1 % (GAIN 1.01) over the heuristic's first and gives the same bits twice. If the
 * heuristic's first does not, where it is used, the program ends with 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cuda/products.h"

typedef struct options {
    double seconds, gain;
    int candidates, model_count;
    bool list;
    char **models;
} options;

static const double most_apart = 0.02; /* results of two orders of sums in bfloat16, over the largest number */

_Noreturn void fail(const char *what)
{
    fprintf(stderr, "bench_products: %s: %s\n", what, fsdp_last_error());
    exit(1);
}

static options parse(int argc, char **argv)
{
    static char *const all[] = {"llama-1b:8x2048", "gpt2-124m:32x1024"};
    options o = {.seconds = 50, .gain = 1.01, .candidates = 16};

    for (int option; (option = getopt(argc, argv, "s:n:g:l")) != -1;) {
        if (option == 's')
            o.seconds = atof(optarg);
        else if (option == 'n')
            o.candidates = atoi(optarg);
        else if (option == 'g')
            o.gain = atof(optarg);
        else if (option == 'l')
            o.list = true;
        else
            exit(2);
    }
    o.models = optind < argc ? argv + optind : (char **)(uintptr_t)all;
    o.model_count = optind < argc ? argc - optind : 2;
    if (o.candidates < 1 || o.candidates > CANDIDATES) {
        fprintf(stderr, "bench_products: -n %d: expected 1 to %d algorithms\n", o.candidates, CANDIDATES);
        exit(2);
    }
    return o;
}

typedef struct found {
    int rows, wavering; /* wavering: products whose first algorithm is the best one, and gives other bits each time */
} found;

static void print_product(const options *o, const step_product *p, const fsdp__product_row *row)
{
    printf("%-18s %4lld x %s %4s to %-4s %-14s %6lld x %6lld x %6lld%s", o->models[p->model], (long long)p->times,
           row->layout, fsdp_dtype_name(row->in), fsdp_dtype_name(row->out),
           fsdp__product_epilogue_names[row->epilogue], (long long)row->n, (long long)row->m, (long long)row->k,
           p->added ? " added" : "");
}

static void print_row(const step_product *p, found *out)
{
    fsdp__product_row_print(&p->row, stdout);
    printf(" /* %.3f */\n", p->first_ms / p->best_ms);
    out->rows++;
}

/* Measures a product, and prints what was found, with a row where something is gained; that of one with GELU waits for
 * print_gelu. */
static void measure(const options *o, rounds *r, step_product *p, double seconds, found *out)
{
    fsdp__product_row row;
    bool can = fsdp__product_row_of(&p->call, &row), gained = false;
    int best;

    best = rounds_measure(r, p, o->candidates, seconds);
    print_product(o, p, &row);
    if (best < 0) {
        printf(": cublasLt has none\n");
        return;
    }
    row.card = r->card;
    row.version = r->lt.version;
    row.algorithm = r->candidates[best].numbers;
    p->first_ms = r->candidates[0].median;
    p->best_ms = r->candidates[best].median;
    gained = can && best > 0 && p->first_ms >= o->gain * p->best_ms && r->same_bits && r->apart <= most_apart;
    printf(": first %.4f ms %.0f TFLOP/s, best %.4f ms, %.3f times as fast (%d of %d, %d refused, %d rounds), %s bits, "
           "%.1e apart%s\n",
           p->first_ms, flops_of(&p->call) / p->first_ms * 1e-9, p->best_ms, p->first_ms / p->best_ms, best, r->count,
           r->refused, r->candidates[best].rounds, r->same_bits ? "same" : "OTHER", r->apart,
           r->same_aligned ? "" : ", another first for 256 bytes");
    if (!gained)
        p->best_ms = p->first_ms; /* without a row it is the heuristic's */
    p->row = row;
    p->has_row = gained;
    if (gained && p->call.epilogue < FSDP__EPILOGUE_GELU)
        print_row(p, out);
    fflush(stdout);
    out->wavering += best == 0 && !r->same_bits;
}

/* Returns the product that does the same without GELU, or NULL. */
static const step_product *without_gelu(const step_products *products, const step_product *p)
{
    fsdp__product_call wanted = p->call;

    wanted.aux_alignment = 0;
    wanted.epilogue = wanted.bias_alignment > 0 ? FSDP__EPILOGUE_BIAS : FSDP__EPILOGUE_NONE;
    for (int64_t i = 0; i < products->count; i++)
        if (products->list[i].model == p->model && memcmp(&products->list[i].call, &wanted, sizeof wanted) == 0)
            return &products->list[i];
    return NULL;
}

/* Compares a product that takes GELU along with one that does not and a pass: as much time as a copy of as many bytes
 * at nine tenths of its rate. Prints the row, which may say that the pass is faster. */
static void print_gelu(const options *o, rounds *r, const step_products *products, step_product *p, found *out)
{
    const step_product *plain = without_gelu(products, p);
    double moved = p->call.epilogue == FSDP__EPILOGUE_DGELU ? 1.5 : 1, pass, apart;
    bool faster;

    if (!plain || p->first_ms == 0 || plain->first_ms == 0)
        return;
    pass = rounds_copy_ms(r, (size_t)(moved * (double)(p->call.out.rows * p->call.out.cols) *
                                      (double)fsdp_dtype_size(p->call.out.dtype))) /
           0.9;
    apart = plain->best_ms + pass;
    faster = apart * (o->gain > 1 ? o->gain : 1) < p->best_ms;
    print_product(o, p, &p->row);
    printf(": %.4f ms with GELU; %.4f without and about %.4f for a pass: %s\n", p->best_ms, plain->best_ms, pass,
           faster ? "the pass is faster" : "GELU comes along");
    if (faster) {
        p->row.algorithm = (fsdp__product_algorithm){.id = FSDP__PRODUCT_APART};
        p->best_ms = apart;
        p->has_row = true;
    }
    if (p->has_row)
        print_row(p, out);
}

static void print_sums(const options *o, const step_products *products)
{
    for (int model = 0; model < o->model_count; model++) {
        double first = 0, best = 0;

        for (int64_t i = 0; i < products->count; i++)
            if (products->list[i].model == model) {
                first += products->list[i].first_ms * (double)products->list[i].times;
                best += products->list[i].best_ms * (double)products->list[i].times;
            }
        printf("%s: products %.2f ms a step by the heuristic, %.2f with the rows; ", o->models[model], first, best);
    }
}

static bool measure_all(const options *o, step_products *products)
{
    int64_t end = fsdp__clock_ns() + (int64_t)(o->seconds * 1e9);
    found all = {.rows = 0};
    rounds r;

    rounds_open(&r, products);
    printf("%s, cuBLAS %lld\n", r.card, (long long)r.lt.version);
    for (int64_t i = 0; i < products->count; i++) {
        double left = (double)(end - fsdp__clock_ns()) * 1e-9;

        measure(o, &r, &products->list[i], left / (double)(products->count - i), &all);
    }
    for (int64_t i = 0; i < products->count; i++)
        if (products->list[i].call.epilogue >= FSDP__EPILOGUE_GELU)
            print_gelu(o, &r, products, &products->list[i], &all);
    print_sums(o, products);
    printf("%d rows of %lld products, %d with other bits each time\n", all.rows, (long long)products->count,
           all.wavering);
    rounds_close(&r);
    return all.wavering == 0;
}

int main(int argc, char **argv)
{
    options o = parse(argc, argv);
    step_products products = {.list = NULL};
    fsdp__product_row row;
    bool right = true;

    for (int model = 0; model < o.model_count; model++)
        record_products(&products, o.models[model], model);
    if (!o.list)
        right = measure_all(&o, &products);
    for (int64_t i = 0; o.list && i < products.count; i++) {
        (void)fsdp__product_row_of(&products.list[i].call, &row);
        print_product(&o, &products.list[i], &row);
        printf("\n");
    }
    fsdp__free(products.list);
    return right ? 0 : 1;
}
