/* dropout.c - a layer with another mask at each call. */
#include "autograd/autograd.h"
#include "base/rng.h"
#include "base/text.h"
#include "nn/layers.h"
#include "ops/op.h"

typedef struct dropout {
    fsdp_module base;
    float p;
    uint64_t seed, seed_of_all, calls;
    fsdp__op_chunks chunks; /* of sequences, that an input has */
} dropout;

fsdp_tensor *fsdp__dropout_part(fsdp_module *self, fsdp_tensor *x, fsdp__op_part part)
{
    dropout *m = (dropout *)self;
    bool placed = fsdp__get_rows_of_batch(self->context).count > 0;
    uint32_t words[4];

    if (!self->training || m->p == 0.0f)
        return x;
    fsdp__philox(placed ? m->seed_of_all : m->seed, m->calls,
                 words); /* a recomputation repeats the first draws, whatever this gives */
    m->calls += !fsdp_recomputing(self->context);
    part.chunks = m->chunks;
    return fsdp__op_dropout_part(x, m->p, (uint64_t)words[0] << 32 | words[1], part);
}

static fsdp_tensor *dropout_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp__dropout_part(self, inputs[0], (fsdp__op_part){.whole = -1});
}

static void dropout_describe(const fsdp_module *self, char *text, size_t bytes)
{
    char p[32];

    snprintf(text, bytes, "p=%s, inplace=False", fsdp__float_text(((const dropout *)self)->p, p));
}

static uint64_t *dropout_draws(fsdp_module *self)
{
    return &((dropout *)self)->calls;
}

static const fsdp_module_type dropout_type = {
    .name = "Dropout", .forward = dropout_forward, .describe = dropout_describe, .draws = dropout_draws};

bool fsdp__is_dropout(const fsdp_module *module)
{
    return module->type == &dropout_type;
}

uint64_t *fsdp__dropout_seed(fsdp_module *module)
{
    return fsdp__is_dropout(module) ? &((dropout *)module)->seed : NULL;
}

void fsdp__dropout_set_chunks(fsdp_module *module, fsdp__op_chunks chunks)
{
    if (fsdp__is_dropout(module))
        ((dropout *)module)->chunks = chunks;
}

fsdp_module *fsdp_dropout_create(fsdp_context *context, float p, uint64_t seed)
{
    return fsdp__dropout_create(context, p, seed, seed);
}

fsdp_module *fsdp__dropout_create(fsdp_context *context, float p, uint64_t seed, uint64_t seed_of_all)
{
    dropout *m = NULL;

    if (!(p >= 0.0f && p < 1.0f)) {
        FSDP_FAIL(FSDP_INVALID, "Dropout: probability %g is outside [0, 1)", (double)p);
        return NULL;
    }
    if (fsdp_module_create(context, &dropout_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    m->p = p;
    m->seed = seed;
    m->seed_of_all = seed_of_all;
    return &m->base;
}
