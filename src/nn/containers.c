/* containers.c - modules that hold modules. */
#include "nn/layers.h"

static fsdp_tensor *sequential_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *x = inputs[0];

    for (int64_t i = 0; i < self->parts->child_count; i++)
        x = i == 0 ? fsdp_module_call(self->parts->children[0].module, inputs, count)
                   : fsdp_call(self->parts->children[i].module, x);
    return x;
}

static const fsdp_module_type sequential_type = {.name = "Sequential", .forward = sequential_forward};
const fsdp_module_type fsdp__module_list_type = {.name = "ModuleList"};
static const fsdp_module_type module_dict_type = {.name = "ModuleDict"};

fsdp_status fsdp_module_list_append(fsdp_module *list, fsdp_module *child)
{
    char name[32];

    snprintf(name, sizeof name, "%lld", (long long)fsdp_module_child_count(list));
    return fsdp_module_add_child(list, name, child);
}

fsdp_module *fsdp_sequential_create(fsdp_context *context, fsdp_module *const *modules, int count)
{
    fsdp_module *m = NULL;
    fsdp_status status = fsdp_module_create(context, &sequential_type, sizeof *m, &m);

    /* Every module is taken over, even those behind one that fails. */
    for (int i = 0; i < count; i++) {
        if (status == FSDP_OK)
            status = fsdp_module_list_append(m, modules ? modules[i] : NULL);
        else if (modules)
            fsdp_module_unref(modules[i]);
    }
    return fsdp__module_built(m, status);
}

static fsdp_module *create(fsdp_context *context, const fsdp_module_type *type)
{
    fsdp_module *m = NULL;

    return fsdp_module_create(context, type, sizeof *m, &m) == FSDP_OK ? m : NULL;
}

fsdp_module *fsdp_module_list_create(fsdp_context *context)
{
    return create(context, &fsdp__module_list_type);
}

fsdp_module *fsdp_module_dict_create(fsdp_context *context)
{
    return create(context, &module_dict_type);
}
