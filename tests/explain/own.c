/* own.c - a model of one's own. */
#include "explain/own.h"

#include "support/test.h"

typedef struct own {
    fsdp_module base;
    fsdp_module *table, *up, *down;
    fsdp_tensor *head; /* is table.weight */
} own;

static fsdp_tensor *own_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    own *m = (own *)self;
    fsdp_tensor *h = fsdp_call(m->table, inputs[0]);

    (void)count;
    h = fsdp_add(h, fsdp_call(m->down, fsdp_gelu(fsdp_call(m->up, h))));
    return fsdp_linear_cross_entropy(h, m->head, inputs[1]);
}

static const fsdp_module_type own_type = {.name = "Tied", .forward = own_forward};

static bool add(fsdp_module *to, const char *name, fsdp_module **field, fsdp_module *child)
{
    *field = child;
    return fsdp_module_add_child(to, name, child) == FSDP_OK;
}

fsdp_module *own_build(void *arg, fsdp_context *context, fsdp_device *device)
{
    own *m = NULL;

    (void)arg;
    if (fsdp_module_create(context, &own_type, sizeof *m, &m) != FSDP_OK)
        return NULL;
    if (add(&m->base, "table", &m->table, fsdp_embedding_create(context, device, OWN_VOCABULARY, OWN_DIM, NULL)) &&
        add(&m->base, "up", &m->up, fsdp_linear_create(context, device, OWN_DIM, 13, NULL)) &&
        add(&m->base, "down", &m->down, fsdp_linear_create(context, device, 13, OWN_DIM, NULL)) &&
        fsdp_module_tie_parameter(&m->base, "head", &m->head, fsdp_module_parameter(&m->base, "table.weight")) ==
            FSDP_OK)
        return &m->base;
    fsdp_module_unref(&m->base);
    return NULL;
}

fsdp_tensor *own_loss(void *arg, fsdp_module *module, fsdp_device *device)
{
    (void)arg;
    return fsdp_call(module, fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(3, 5)),
                     fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(3, 5)));
}
