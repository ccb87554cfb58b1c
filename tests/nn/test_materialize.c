/* Built without bytes, given bytes later. */
#include "nn/module.h"

#include "autograd/tools.h"

typedef struct net {
    fsdp_module base;
    fsdp_module *up, *down;
    fsdp_tensor *tied, *filled, *zeroed;
} net;

static const fsdp_module_type net_type = {.name = "Net"};

static fsdp_status fill(fsdp_module *module, fsdp_tensor *buffer)
{
    (void)module;
    return fsdp_tensor_fill_(buffer, 9);
}

static net *create(fsdp_context *context, fsdp_device *device)
{
    net *n;

    CHECK_OK(fsdp_module_create(context, &net_type, sizeof *n, &n));
    n->up = fsdp_linear_create(context, device, 3, 5, NULL);
    CHECK_OK(fsdp_module_add_child(&n->base, "up", n->up));
    n->down = fsdp_linear_create(context, device, 5, 3, NULL);
    CHECK_OK(fsdp_module_add_child(&n->base, "down", n->down));
    CHECK_OK(fsdp_module_tie_parameter(&n->base, "tied", &n->tied, ((fsdp_layer *)n->up)->weight));
    CHECK_OK(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_WORKSPACE, &n->filled));
    CHECK_OK(fsdp__module_add_filled_buffer(&n->base, "filled", &n->filled, fill));
    CHECK_OK(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_WORKSPACE, &n->zeroed));
    CHECK_OK(fsdp_module_add_buffer(&n->base, "zeroed", &n->zeroed, true));
    return n;
}

static void read_all(const fsdp_tensor *tensor, float *values)
{
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(tensor), FSDP_F32, values));
}

CONTEXT_TEST(a_meta_model_becomes_the_model_that_was_built_with_bytes)
{
    net *late = create(context, fsdp_meta(context)), *early = create(context, test_device(context));
    fsdp_tensor *weight = ((fsdp_layer *)late->up)->weight;
    float left[15], right[15];

    CHECK_OK(fsdp_module_materialize(&late->base, test_device(context)));
    CHECK_NEAR(first_of(late->filled), 9, 0);
    CHECK_NEAR(first_of(early->filled), 9, 0);
    CHECK_NEAR(first_of(late->zeroed), 0, 0);
    CHECK_OK(fsdp_module_initialize(&late->base, 11));
    CHECK_OK(fsdp_module_initialize(&early->base, 11));
    CHECK(((fsdp_layer *)late->up)->weight == weight && late->tied == weight); /* ties hold */
    CHECK(fsdp_tensor_requires_grad(weight));
    read_all(weight, left);
    read_all(early->tied, right);
    CHECK_BYTES(left, right, sizeof left);
    read_all(((fsdp_layer *)late->down)->weight, right);
    CHECK(memcmp(left, right, sizeof left) != 0);
    CHECK_OK(fsdp_module_materialize(&late->base, test_device(context))); /* nothing left to do */
    read_all(weight, right);
    CHECK_BYTES(left, right, sizeof left);
    CHECK_OK(fsdp_module_initialize(&late->base, 12));
    read_all(weight, right);
    CHECK(memcmp(left, right, sizeof left) != 0);
    CHECK_ERROR(fsdp_module_materialize(&late->base, fsdp_meta(context)), FSDP_INVALID, "a device that has bytes");
    fsdp_module_unref(&late->base);
    fsdp_module_unref(&early->base);
}

/* ---- a hook that manages one parameter ---- */

typedef struct manager {
    const fsdp_tensor *mine;
    char log[64];
} manager;

static fsdp_status materialize(void *arg, fsdp_module *module, fsdp_device *device)
{
    manager *m = arg;

    (void)device;
    strcat(m->log, "m");
    CHECK(
        fsdp_device_is_meta(fsdp_tensor_device(((fsdp_layer *)((net *)module)->down)->weight))); /* hooks come first */
    return FSDP_OK;
}

static fsdp_status initialize(void *arg, fsdp_module *module, uint64_t seed, const char *name)
{
    manager *m = arg;

    (void)module;
    CHECK_EQ(seed, 4);
    strcat(strcat(m->log, "i:"), name);
    return FSDP_OK;
}

static bool manages(void *arg, const fsdp_tensor *parameter)
{
    return ((manager *)arg)->mine == parameter;
}

CONTEXT_TEST(a_module_or_device_that_could_not_be_made_gives_its_error)
{
    fsdp_module *module = CHECK_PTR(fsdp_linear_create(context, fsdp_meta(context), 2, 2, NULL)), *none;
    fsdp_parameters parameters;

    fsdp_clear_error();
    CHECK_ERROR(fsdp_module_initialize(NULL, 1), FSDP_INVALID, "the module is NULL");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_module_materialize(module, NULL), FSDP_INVALID, "materialize needs a module and a device");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_module_parameters(NULL, &parameters), FSDP_INVALID, "the module is NULL");
    CHECK_EQ(parameters.count, 0);
    fsdp_clear_error();
    CHECK_NULL(fsdp_device_open(context, "abacus"));
    CHECK_STATUS(fsdp_module_materialize(module, NULL), fsdp_last_status());
    CHECK_CONTAINS(fsdp_last_error(), "abacus");
    none = fsdp_linear_create(context, NULL, 2, 2, NULL);
    CHECK_NULL(none);
    CHECK_STATUS(fsdp_module_initialize(none, 1), fsdp_last_status());
    CHECK_STATUS(fsdp_module_materialize(none, test_device(context)), fsdp_last_status());
    CHECK_CONTAINS(fsdp_last_error(), "abacus");
    fsdp_module_unref(module);
}

CONTEXT_TEST(managed_parameters_are_left_to_their_hook)
{
    fsdp_module *list = fsdp_module_list_create(context);
    net *n = create(context, fsdp_meta(context));
    manager m = {.mine = n->tied};
    const fsdp__module_hooks hooks = {
        .arg = &m, .materialize = materialize, .initialize = initialize, .manages = manages};

    CHECK_OK(fsdp_module_list_append(list, &n->base));
    CHECK_OK(fsdp__module_add_hooks(&n->base, &hooks));
    CHECK_OK(fsdp_module_materialize(list, test_device(context)));
    CHECK_OK(fsdp_module_initialize(list, 4));
    CHECK_STRING(m.log, "mi:0");
    CHECK(fsdp_device_is_meta(fsdp_tensor_device(n->tied)));
    CHECK(!fsdp_device_is_meta(fsdp_tensor_device(((fsdp_layer *)n->down)->weight)));
    fsdp_module_unref(list);
}

CONTEXT_TEST(every_failing_allocation_is_survived)
{
    net *n = create(context, fsdp_meta(context));

    for (long i = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &i);) {
        fsdp_device *device = test_device(context);
        fsdp_status status = device ? fsdp_module_materialize(&n->base, device) : fsdp_last_status();

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        if (status == FSDP_OK)
            break;
        fsdp_module_unref(&n->base);
        n = create(context, fsdp_meta(context));
    }
    fsdp_module_unref(&n->base);
}
