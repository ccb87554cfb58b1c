/* cmd_diff.c - fsdp diff A B: which tensors of two models are the same, and how far apart the others are. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/difference.h"
#include "cli/listing.h"
#include "cli/own_process.h"

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
    printf("  %s %s\n", t->dtype_name, fsdp__listed_shape(t->shape, t->ndim, FSDP__ROOM(FSDP__LISTED_SHAPE)));
}

static void print_shapes(comparison *c, const fsdp__source_tensor *const t[2])
{
    c->different++;
    begin_line(c, "shape", t[0]);
    printf("  %s and %s\n", fsdp__listed_shape(t[0]->shape, t[0]->ndim, FSDP__ROOM(FSDP__LISTED_SHAPE)),
           fsdp__listed_shape(t[1]->shape, t[1]->ndim, FSDP__ROOM(FSDP__LISTED_SHAPE)));
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
    return fsdp__listed_shape(at, t->ndim, text, FSDP__LISTED_SHAPE);
}

static void print_difference(comparison *c, const fsdp__source_tensor *const t[2], const fsdp__difference *d)
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
               place_text(t[0], d->element, place), d->a, d->b, fsdp__thousands(d->count, FSDP__ROOM(40)),
               fsdp__thousands(t[0]->numel, FSDP__ROOM(40)));
    putchar('\n');
}

static void print_sum(comparison *c)
{
    fsdp__bar_clear(&c->bar);
    printf("%s equal, %s different, %s only in A, %s only in B\n", fsdp__thousands(c->equal, FSDP__ROOM(40)),
           fsdp__thousands(c->different, FSDP__ROOM(40)), fsdp__thousands(c->only[0], FSDP__ROOM(40)),
           fsdp__thousands(c->only[1], FSDP__ROOM(40)));
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
    fsdp__difference difference;

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
    FSDP_TRY(fsdp__difference_find(c->context, sources, tensors, advance, c, &difference));
    print_difference(c, tensors, &difference);
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
