/* 03_who_holds_what.c - shows which rows of which parameter this rank holds before, during and after a forward, with a
 * wrapped child and with the root only, and what that does to the peak of memory.
 *
 *     fsdp run -n 3 -- ./03_who_holds_what */
#include <fsdp/fsdp.h>

/* ---- MyModel: modules within modules ---- */

typedef struct sub_module { /* Linear, then ReLU */
    fsdp_module base;
    fsdp_module *linear, *relu;
} sub_module;

static fsdp_tensor *sub_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    sub_module *m = (sub_module *)self;

    (void)count;
    return fsdp_call(m->relu, fsdp_call(m->linear, inputs[0]));
}

static const fsdp_module_type sub_type = {.name = "MySubModule", .forward = sub_forward};

/* Returns NULL on failure, as the library's own constructors do, so that calls can be nested. */
static fsdp_module *sub_create(fsdp_context *c, int64_t in, int64_t out)
{
    sub_module *m = NULL;

    if (fsdp_module_create(c, &sub_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->linear = fsdp_linear_create(c, fsdp_meta(c), in, out, NULL);
    m->relu = fsdp_relu_create(c);
    if (fsdp_module_add_child(&m->base, "linear", m->linear) == FSDP_OK &&
        fsdp_module_add_child(&m->base, "relu", m->relu) == FSDP_OK)
        return &m->base;
    fsdp_module_unref(&m->base);
    return NULL;
}

typedef struct my_model {
    fsdp_module base;
    fsdp_module *block1, *block2, *output_layer;
} my_model;

static void print_held(my_model *m, const char *when);

static fsdp_tensor *model_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    my_model *m = (my_model *)self;
    fsdp_tensor *h = fsdp_call(m->block1, inputs[0]);

    (void)count;
    print_held(m, "in the forward, after block1");
    return fsdp_call(m->output_layer, fsdp_call(m->block2, h));
}

static const fsdp_module_type model_type = {.name = "MyModel", .forward = model_forward};

static fsdp_status model_create(fsdp_context *c, my_model **out)
{
    fsdp_module *layers[3];

    FSDP_TRY(fsdp_module_create(c, &model_type, sizeof **out, out));
    FSDP_TRY(fsdp_module_add_child(&(*out)->base, "block1", (*out)->block1 = sub_create(c, 10, 20)));
    layers[0] = fsdp_linear_create(c, fsdp_meta(c), 20, 30, NULL);
    layers[1] = fsdp_relu_create(c);
    layers[2] = sub_create(c, 30, 40);
    FSDP_TRY(fsdp_module_add_child(&(*out)->base, "block2", (*out)->block2 = fsdp_sequential_create(c, layers, 3)));
    (*out)->output_layer = fsdp_linear_create(c, fsdp_meta(c), 40, 5, NULL);
    return fsdp_module_add_child(&(*out)->base, "output_layer", (*out)->output_layer);
}

/* ---- printing ---- */

/* Outside its forward a parameter is a distributed tensor with a box of rows; inside it is whole and plain. */
static void print_held(my_model *m, const char *when)
{
    fsdp_context *c = m->base.context;
    fsdp_parameters p = {0};
    char text[2048];
    int used = snprintf(text, sizeof text, "rank %d, %s:\n", fsdp_context_rank(c), when);

    if (fsdp_module_parameters(&m->base, &p) != FSDP_OK)
        return;
    for (int64_t i = 0; i < p.count && used < (int)sizeof text; i++) {
        const fsdp_distribution *d = fsdp_tensor_distribution(p.items[i].tensor);
        int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
        char rows[64] = "nothing";

        fsdp_tensor_box(p.items[i].tensor, offset, size);
        if (size[0])
            snprintf(rows, sizeof rows, "rows %lld-%lld of %lld", (long long)offset[0],
                     (long long)(offset[0] + size[0] - 1), (long long)(d ? d->global_shape[0] : size[0]));
        used += snprintf(text + used, sizeof text - (size_t)used, "  %-22s %s%s\n", p.items[i].name,
                         d ? "" : "whole: ", rows);
    }
    fsdp_parameters_release(&p);
    for (int rank = 0; rank < fsdp_context_world_size(c); rank++, fsdp_barrier(fsdp_world(c))) /* one after the other */
        if (rank == fsdp_context_rank(c) && fputs(text, stdout) >= 0)
            fflush(stdout);
}

static fsdp_status show(fsdp_context *c, int wrapped, size_t *peak)
{
    fsdp_shard_options always = {.reshard_after_forward = FSDP_RESHARD_ALWAYS};
    static const char *const titles[] = {"root only", "block2 wrapped", "block1 and block2 wrapped"};
    fsdp_memory_stats memory;
    my_model *m = NULL;

    if (fsdp_context_rank(c) == 0)
        printf("---- %s ----\n", titles[wrapped]);
    FSDP_TRY(model_create(c, &m));
    if (wrapped >= 1)
        FSDP_TRY(fsdp_fully_shard(m->block2, &always));
    if (wrapped >= 2)
        FSDP_TRY(fsdp_fully_shard(m->block1, &always));
    FSDP_TRY(fsdp_fully_shard(&m->base, &always));
    FSDP_TRY(fsdp_module_materialize(&m->base, fsdp_cpu(c)));
    FSDP_TRY(fsdp_module_initialize(&m->base, 1));
    print_held(m, "before the forward");
    fsdp_device_reset_peak(fsdp_cpu(c));
    FSDP_TRY(fsdp_scope_begin(c));
    if (!fsdp_call(&m->base, fsdp_full(fsdp_cpu(c), FSDP_F32, FSDP_SHAPE(2, 10), 0.5)))
        return fsdp_last_status();
    fsdp_scope_end(c, NULL);
    print_held(m, "after the forward");
    fsdp_device_memory(fsdp_cpu(c), &memory);
    *peak = memory.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
    fsdp_module_unref(&m->base);
    return FSDP_OK;
}

int main(void)
{
    fsdp_context *c = NULL;
    size_t peak[3] = {0};
    fsdp_status status = fsdp_context_from_env(&c);

    for (int wrapped = 0; wrapped < 3 && status == FSDP_OK; wrapped++)
        status = show(c, wrapped, &peak[wrapped]);
    if (status != FSDP_OK) {
        fprintf(stderr, "03_who_holds_what: %s\n", fsdp_last_error());
        return 1;
    }
    if (fsdp_context_rank(c) == 0)
        printf("whole at most: %zu bytes with the root only, %zu with block2 wrapped, %zu with both blocks\n", peak[0],
               peak[1], peak[2]);
    fsdp_context_free(c);
    return 0;
}
