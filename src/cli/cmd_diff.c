/* cmd_diff.c - fsdp diff A B: which tensors of two models are the same, and how far apart the others are. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/listing.h"
#include "cli/own_process.h"
#include "cli/tensor_source.h"

/* ---- how far apart two tensors are ---- */

typedef struct difference {
    int64_t count;   /* elements that are not the same number; NaNs with the same bits are the same */
    double most;     /* largest |a - b|; infinite if one of them is not a number */
    double a, b;     /* at `element` */
    int64_t element; /* where `most` is */
} difference;

/* Gets the bytes of every window, of both tensors together. */
typedef void (*difference_progress)(void *arg, uint64_t bytes);

enum {
    WINDOW = 1 << 19 /* elements */
};

/* A window of one of the two, as it is in the file and as numbers. */
typedef struct window {
    fsdp_dtype dtype;
    void *raw;
    double *numbers;
} window;

static double integer_at(fsdp_dtype dtype, const void *raw, int64_t i)
{
    if (dtype == FSDP_I32)
        return (double)((const int32_t *)raw)[i];
    return dtype == FSDP_I64 ? (double)((const int64_t *)raw)[i] : (double)((const uint8_t *)raw)[i];
}

static fsdp_status widen(fsdp_context *context, window *w, int64_t n)
{
    float *floats = (float *)w->numbers + n; /* the upper half, which is read before it is written */
    fsdp_tensor *tensor;
    fsdp_status status;

    for (int64_t i = 0; i < n && !fsdp_dtype_is_floating(w->dtype); i++)
        w->numbers[i] = integer_at(w->dtype, w->raw, i);
    if (!fsdp_dtype_is_floating(w->dtype))
        return FSDP_OK;
    FSDP_TRY(fsdp_scope_begin(context));
    tensor = fsdp_from_data(fsdp_cpu(context), w->dtype, FSDP_SHAPE(n), w->raw);
    status = tensor ? fsdp_tensor_read(tensor, FSDP_F32, floats) : fsdp_last_status();
    fsdp_scope_end(context, NULL);
    for (int64_t i = 0; i < n && status == FSDP_OK; i++)
        w->numbers[i] = (double)floats[i];
    return status;
}

static void note(difference *d, double a, double b, int64_t element)
{
    double apart = a == b ? 0 : fabs(a - b); /* integers beyond 2^53 can be equal here */

    if (isnan(apart))
        apart = INFINITY;
    if (d->count++ > 0 && apart <= d->most)
        return;
    d->most = apart;
    d->a = a;
    d->b = b;
    d->element = element;
}

static bool are_same(const window w[2], int64_t i)
{
    double a = w[0].numbers[i], b = w[1].numbers[i];
    size_t size = fsdp_dtype_size(w[0].dtype), at = (size_t)i * size;

    if (w[0].dtype != w[1].dtype)
        return a == b || (isnan(a) && isnan(b));
    if (fsdp_dtype_is_floating(w[0].dtype) && !isnan(a))
        return a == b; /* 0 and -0 are equal */
    return memcmp((const char *)w[0].raw + at, (const char *)w[1].raw + at, size) == 0;
}

static void note_differences(const window w[2], int64_t first, int64_t n, difference *out)
{
    for (int64_t i = 0; i < n; i++)
        if (!are_same(w, i))
            note(out, w[0].numbers[i], w[1].numbers[i], first + i);
}

static fsdp_status compare_window(fsdp_context *context, window w[2], int64_t first, int64_t n, difference *out)
{
    if (w[0].dtype == w[1].dtype && memcmp(w[0].raw, w[1].raw, (size_t)n * fsdp_dtype_size(w[0].dtype)) == 0)
        return FSDP_OK;
    FSDP_TRY(widen(context, &w[0], n));
    FSDP_TRY(widen(context, &w[1], n));
    note_differences(w, first, n, out);
    return FSDP_OK;
}

static fsdp_status allocate(window *w, fsdp_dtype dtype, int64_t numel)
{
    size_t n = (size_t)FSDP__MAX(FSDP__MIN(numel, WINDOW), 1);

    w->dtype = dtype;
    w->raw = fsdp__malloc(n * fsdp_dtype_size(dtype));
    w->numbers = fsdp__malloc(n * sizeof *w->numbers);
    return w->raw && w->numbers ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot compare tensors");
}

/* Compares two tensors, with a window of each in memory at a time. Elements of different dtypes are compared by their
 * numeric values. Runs on the context's CPU. */
static fsdp_status find_difference(fsdp_context *context, fsdp__tensor_source *const sources[2],
                                   const fsdp__source_tensor *const tensors[2], difference_progress progress, void *arg,
                                   difference *out)
{
    int64_t numel = tensors[0]->numel;
    window w[2] = {{.raw = NULL}};
    fsdp_status status = FSDP_OK;

    memset(out, 0, sizeof *out);
    for (int side = 0; side < 2 && status == FSDP_OK; side++)
        status = allocate(&w[side], tensors[side]->dtype, numel);
    for (int64_t first = 0; first < numel && status == FSDP_OK; first += WINDOW) {
        int64_t n = FSDP__MIN(numel - first, WINDOW);

        for (int side = 0; side < 2 && status == FSDP_OK; side++)
            status = fsdp__tensor_source_read(sources[side], tensors[side], first, n, w[side].raw);
        if (status == FSDP_OK)
            status = compare_window(context, w, first, n, out);
        progress(arg, (uint64_t)n * (fsdp_dtype_size(w[0].dtype) + fsdp_dtype_size(w[1].dtype)));
    }
    for (int side = 0; side < 2; side++)
        FSDP__FREE_ALL(w[side].raw, w[side].numbers);
    return status;
}

/* ---- the command ---- */

enum {
    DIFFERENT = 1,
    TROUBLE = 2 /* the same as diff(1)'s */
};

static void usage(void)
{
    puts("fsdp diff A B [--brief]\n"
         "\n"
         "Compares tensors by name. A and B are Hugging Face folders, files of weights, or\n"
         "checkpoints: step-N, step-best (the best validation), or a folder of\n"
         "checkpoints, whose newest is used. Of two checkpoints, all tensors are compared;\n"
         "if only one of A and B is a checkpoint, only its model is. There is a line for\n"
         "each tensor:\n"
         "\n"
         "  equal      the same elements in the same dtype and shape\n"
         "  dtype      the same numbers in another dtype\n"
         "  differs    some elements differ: how many, and the largest difference with its\n"
         "             place\n"
         "  shape      the shapes differ; elements are not compared\n"
         "  unread     the dtype cannot be read, so nothing is compared; this counts as\n"
         "             trouble\n"
         "  only in A, only in B\n"
         "\n"
         "  --brief    print no lines for equal tensors\n"
         "\n"
         "The exit status is 0 if all are equal, 1 if they are not, and 2 if there is\n"
         "trouble.");
}

typedef struct comparison {
    const char *paths[2];
    fsdp__tensor_source sources[2];
    fsdp_context *context;
    bool brief;
    fsdp__bar bar;
    uint64_t done, total; /* in bytes */
    int64_t equal, different, unread, only[2];
} comparison;

/* ---- what is printed ---- */

static void begin_line(comparison *c, const char *what, const fsdp__source_tensor *t)
{
    fsdp__bar_clear(&c->bar);
    printf("%-9s  %s", what, FSDP__SHOWN_NAME(t->name));
}

static void print_alone(comparison *c, int side, const fsdp__source_tensor *t)
{
    c->only[side]++;
    begin_line(c, side == 0 ? "only in A" : "only in B", t);
    printf("  %s %s\n", t->dtype_name, FSDP__SHAPE(t->shape, t->ndim));
}

static void print_shapes(comparison *c, const fsdp__source_tensor *const t[2])
{
    c->different++;
    begin_line(c, "shape", t[0]);
    printf("  %s and %s\n", FSDP__SHAPE(t[0]->shape, t[0]->ndim), FSDP__SHAPE(t[1]->shape, t[1]->ndim));
}

static void print_unread(comparison *c, const fsdp__source_tensor *const t[2])
{
    c->unread++;
    begin_line(c, "unread", t[0]);
    printf("  %s and %s\n", t[0]->dtype_name, t[1]->dtype_name);
}

/* Writes where element `element` is: "[3, 7]". */
static const char *place_text(const fsdp__source_tensor *t, int64_t element, char text[FSDP__LISTED_SHAPE])
{
    int64_t at[FSDP_MAX_DIMS] = {0};

    for (int d = t->ndim - 1; d >= 0; d--) {
        at[d] = element % t->shape[d];
        element /= t->shape[d];
    }
    return fsdp__listed_shape(at, t->ndim, text);
}

static void print_difference(comparison *c, const fsdp__source_tensor *const t[2], const difference *d)
{
    bool same_dtype = t[0]->dtype == t[1]->dtype;
    char place[FSDP__LISTED_SHAPE];

    c->equal += d->count == 0 && same_dtype;
    c->different += d->count > 0 || !same_dtype;
    if (d->count == 0 && same_dtype && c->brief)
        return;
    begin_line(c, d->count > 0 ? "differs" : same_dtype ? "equal" : "dtype", t[0]);
    if (!same_dtype)
        printf("  %s and %s", t[0]->dtype_name, t[1]->dtype_name);
    if (d->count > 0)
        printf("  by %.9g at most, at %s: %.9g and %.9g; %s of %s elements", d->most,
               place_text(t[0], d->element, place), d->a, d->b, FSDP__THOUSANDS(d->count),
               FSDP__THOUSANDS(t[0]->numel));
    putchar('\n');
}

static void print_sum(comparison *c)
{
    fsdp__bar_clear(&c->bar);
    printf("%s equal, %s different, %s only in A, %s only in B\n", FSDP__THOUSANDS(c->equal),
           FSDP__THOUSANDS(c->different), FSDP__THOUSANDS(c->only[0]), FSDP__THOUSANDS(c->only[1]));
}

/* ---- the comparison ---- */

static void advance(void *arg, uint64_t bytes)
{
    comparison *c = arg;

    c->done += bytes;
    fsdp__bar_draw_bytes(&c->bar, c->done, c->total);
}

static bool same_shape(const fsdp__source_tensor *a, const fsdp__source_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

static fsdp_status compare_pair(comparison *c, const fsdp__source_tensor *a, const fsdp__source_tensor *b)
{
    const fsdp__source_tensor *const tensors[] = {a, b};
    fsdp__tensor_source *const sources[] = {&c->sources[0], &c->sources[1]};
    difference found;

    if (!same_shape(a, b)) {
        print_shapes(c, tensors);
        advance(c, a->bytes + b->bytes);
        return FSDP_OK;
    }
    if (a->dtype == FSDP_DTYPE_NONE || b->dtype == FSDP_DTYPE_NONE) {
        print_unread(c, tensors);
        advance(c, a->bytes + b->bytes);
        return FSDP_OK;
    }
    FSDP_TRY(find_difference(c->context, sources, tensors, advance, c, &found));
    print_difference(c, tensors, &found);
    return FSDP_OK;
}

/* Compares the two lists, both of which are sorted by name. */
static fsdp_status compare_lists(comparison *c)
{
    const fsdp__tensor_source *a = &c->sources[0], *b = &c->sources[1];

    for (int64_t i = 0, j = 0; i < a->count || j < b->count;) {
        int order = i == a->count ? 1 : j == b->count ? -1 : strcmp(a->tensors[i].name, b->tensors[j].name);

        if (order < 0) {
            print_alone(c, 0, &a->tensors[i]);
            advance(c, a->tensors[i++].bytes);
        } else if (order > 0) {
            print_alone(c, 1, &b->tensors[j]);
            advance(c, b->tensors[j++].bytes);
        } else {
            FSDP_TRY(compare_pair(c, &a->tensors[i++], &b->tensors[j++]));
        }
        if (ferror(stdout))
            return FSDP_OK; /* main prints why */
    }
    return FSDP_OK;
}

static fsdp_status compare(comparison *c)
{
    for (int side = 0; side < 2; side++)
        FSDP_TRY(fsdp__tensor_source_open_any(c->paths[side], &c->sources[side]));
    for (int side = 0; side < 2; side++) {
        fsdp__tensor_source *source = &c->sources[side];

        FSDP_TRY(fsdp__tensor_source_list(source, !c->sources[1 - side].reader));
        for (int64_t i = 0; i < source->count; i++)
            c->total += source->tensors[i].bytes;
    }
    FSDP_TRY(fsdp_context_create(&(fsdp_context_options){.threads = 1}, &c->context));
    fsdp__bar_begin(&c->bar);
    FSDP_TRY(compare_lists(c));
    print_sum(c);
    if (c->unread > 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%lld tensor%s not compared, because the dtype is not supported",
                         (long long)c->unread, c->unread == 1 ? " was" : "s were");
    return FSDP_OK;
}

static int run(comparison *c)
{
    fsdp_status status = compare(c);
    int result = c->different + c->only[0] + c->only[1] > 0 ? DIFFERENT : 0;
    char text[256];

    fsdp__bar_clear(&c->bar);
    if (status != FSDP_OK || fsdp__output_failed(text, sizeof text)) {
        (void)fsdp__failure("%s", status != FSDP_OK ? fsdp_last_error() : text);
        result = TROUBLE;
    }
    for (int side = 0; side < 2; side++)
        fsdp__tensor_source_release(&c->sources[side]);
    fsdp_context_free(c->context);
    return result;
}

int fsdp__cmd_diff(int argc, char **argv)
{
    comparison c = {.brief = false};
    const fsdp__option options[] = {{"brief", 'q', NULL, &c.brief}, {0}};
    fsdp__args args = {.options = options, .positional_most = 2};
    int status;

    if (!fsdp__take_line(&args, "diff", usage, argc, argv, &status))
        return status;
    if (args.positional_count < 2)
        return fsdp__usage_error("diff: give two models: fsdp diff A B");
    fsdp__explain_bus_errors();
    c.paths[0] = args.positional[0];
    c.paths[1] = args.positional[1];
    return run(&c);
}
