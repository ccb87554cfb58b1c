/* Trees: names, ties, lookups, switches, life and death. */
#include "nn/module.h"

#include "autograd/tools.h"
#include "base/alloc.h"

typedef struct net {
    fsdp_module base;
    fsdp_tensor *scale, *tied, *table;
    int *destroyed;
} net;

static void destroy_net(fsdp_module *self)
{
    if (((net *)self)->destroyed)
        ++*((net *)self)->destroyed;
}

static const fsdp_module_type net_type = {.name = "Net", .destroy = destroy_net};

static const fsdp_init ones = {FSDP_INIT_ONES, 0, 0};

/* scale; up and down (Linear 3 to 5, 5 to 3); tied is up.weight; table is a buffer. */
static fsdp_status build(net *n, fsdp_device *device)
{
    fsdp_context *context = n->base.context;

    FSDP_TRY(fsdp_module_add_parameter(&n->base, "scale", &n->scale, device, FSDP_F32, FSDP_SHAPE(3), ones));
    FSDP_TRY(fsdp_module_add_child(&n->base, "up", fsdp_linear_create(context, device, 3, 5, NULL)));
    FSDP_TRY(fsdp_module_add_child(&n->base, "down", fsdp_linear_create(context, device, 5, 3, NULL)));
    FSDP_TRY(fsdp_module_tie_parameter(&n->base, "tied", &n->tied, fsdp_module_parameter(&n->base, "up.weight")));
    FSDP_TRY(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_WORKSPACE, &n->table));
    return fsdp_module_add_buffer(&n->base, "table", &n->table, true);
}

static fsdp_status create(fsdp_context *context, fsdp_device *device, net **out)
{
    net *n;
    fsdp_status status;

    FSDP_TRY(fsdp_module_create(context, &net_type, sizeof *n, &n));
    status = build(n, device);
    if (status != FSDP_OK) {
        fsdp_module_unref(&n->base);
        return status;
    }
    *out = n;
    return FSDP_OK;
}

CONTEXT_TEST(parameters_come_in_order_and_once)
{
    static const char *const names[] = {"scale", "tied", "up.bias", "down.weight", "down.bias"};
    fsdp_parameters parameters;
    net *n = NULL;

    CHECK_OK(create(context, test_device(context), &n));
    CHECK_OK(fsdp_module_parameters(&n->base, &parameters));
    CHECK_EQ(parameters.count, 5);
    for (int i = 0; i < 5; i++)
        CHECK_STRING(parameters.items[i].name, names[i]);
    CHECK(parameters.items[1].tensor == fsdp_module_parameter(&n->base, "up.weight"));
    fsdp_module_unref(&n->base);
    CHECK_NEAR(first_of(parameters.items[0].tensor), 1, 0); /* the list holds them */
    fsdp_parameters_release(&parameters);
}

CONTEXT_TEST(parts_are_found_by_name)
{
    const char *name = NULL;
    net *n = NULL;

    CHECK_OK(create(context, test_device(context), &n));
    CHECK_EQ(fsdp_module_child_count(&n->base), 2);
    CHECK(fsdp_module_child_at(&n->base, 1, &name) == fsdp_module_child(&n->base, "down"));
    CHECK_STRING(name, "down");
    CHECK(fsdp_module_child(&n->base, "") == &n->base);
    CHECK(fsdp_module_parameter(&n->base, "scale") == n->scale);
    CHECK_NULL(fsdp_module_child(&n->base, "down.weight"));
    CHECK_CONTAINS(fsdp_last_error(), "Net has no module 'down.weight'");
    CHECK_NULL(fsdp_module_parameter(&n->base, "sideways.weight"));
    CHECK_EQ(fsdp_last_status(), FSDP_NOT_FOUND);
    CHECK_NULL(fsdp_module_parameter(&n->base, "table"));
    CHECK_NULL(fsdp_module_child_at(&n->base, 2, NULL));
    CHECK_NULL(fsdp_module_child(&n->base, NULL));
    CHECK_CONTAINS(fsdp_last_error(), "cannot look into a Net: the name is NULL");
    CHECK_NULL(fsdp_module_parameter(&n->base, NULL));
    CHECK_EQ(fsdp_last_status(), FSDP_INVALID);
    CHECK_NULL(fsdp_module_child(NULL, "x"));
    CHECK_CONTAINS(fsdp_last_error(), "cannot look into a module: it is NULL");
    CHECK_NULL(fsdp_module_parameter(NULL, "x"));
    CHECK_ERROR(fsdp_module_parameters(&n->base, NULL), FSDP_INVALID, "no place for the list");
    CHECK_ERROR(fsdp_module_buffers(&n->base, NULL), FSDP_INVALID, "no place for the list");
    fsdp_module_unref(&n->base);
}

CONTEXT_TEST(names_are_checked)
{
    fsdp_tensor *slot = NULL, *again = NULL;
    net *n = NULL;

    CHECK_OK(create(context, test_device(context), &n));
    CHECK_ERROR(fsdp_module_add_parameter(&n->base, "a.b", &slot, test_device(context), FSDP_F32, FSDP_SHAPE(2), ones),
                FSDP_INVALID, "'a.b' cannot name a part of Net");
    CHECK_ERROR(fsdp_module_add_parameter(&n->base, "up", &slot, test_device(context), FSDP_F32, FSDP_SHAPE(2), ones),
                FSDP_INVALID, "Net has a part called 'up' already");
    CHECK_ERROR(fsdp_module_add_parameter(&n->base, "more", &slot, test_device(context), FSDP_F32, FSDP_SHAPE(2),
                                          (fsdp_init){.kind = FSDP_INIT_UNIFORM + 1}),
                FSDP_INVALID, "there is no kind 4 of initial values");
    CHECK_NULL(slot);
    CHECK_STATUS(fsdp_module_add_child(&n->base, "", fsdp_relu_create(context)), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_tie_parameter(&n->base, "scale", &again, n->scale), FSDP_INVALID);
    CHECK_NULL(again);
    CHECK_ERROR(fsdp_module_add_parameter(&n->base, "ids", &slot, test_device(context), FSDP_I32, FSDP_SHAPE(2), ones),
                FSDP_INVALID, "int32");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_module_add_child(&n->base, "none", NULL), FSDP_INVALID, "child 'none' of Net is missing");
    fsdp_module_unref(&n->base);
}

CONTEXT_TEST(switches_reach_the_whole_tree)
{
    net *n = NULL;

    CHECK_OK(create(context, test_device(context), &n));
    CHECK(n->base.training);
    fsdp_module_train(&n->base, false);
    CHECK(!fsdp_module_child(&n->base, "down")->training);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_backward(fsdp_sum(n->tied)));
    CHECK_PTR(fsdp_tensor_grad(n->tied));
    fsdp_module_zero_grad(&n->base);
    CHECK_NULL(fsdp_tensor_grad(n->tied));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_module_set_requires_grad(&n->base, false));
    CHECK(!fsdp_tensor_requires_grad(fsdp_module_parameter(&n->base, "down.bias")));
    fsdp_clear_error();
    fsdp_module_train(NULL, true);
    fsdp_module_zero_grad(NULL);
    CHECK_EQ(fsdp_last_status(), FSDP_OK);
    CHECK_ERROR(fsdp_module_set_requires_grad(NULL, true), FSDP_INVALID, "freeze or thaw a module: it is NULL");
    fsdp_module_unref(&n->base);
}

typedef struct log {
    char text[256];
} log;

static fsdp_status write_down(void *arg, fsdp_module *module, const char *name)
{
    log *l = arg;
    size_t used = strlen(l->text);

    snprintf(l->text + used, sizeof l->text - used, "%s=%s ", name, module->type->name);
    return strcmp(name, "stop") == 0 ? FSDP_FAIL(FSDP_INTERRUPTED, "stopped") : FSDP_OK;
}

CONTEXT_TEST(a_walk_visits_each_module_once_under_its_first_name)
{
    fsdp_module *root, *list = fsdp_module_list_create(context), *shared = fsdp_relu_create(context);
    log down = {""}, up = {""};

    CHECK_OK(fsdp_module_create(context, &net_type, sizeof(net), &root));
    CHECK_OK(fsdp_module_list_append(list, fsdp_module_ref(shared)));
    CHECK_OK(fsdp_module_list_append(list, fsdp_silu_create(context)));
    CHECK_OK(fsdp_module_add_child(root, "list", list));
    CHECK_OK(fsdp_module_add_child(root, "again", shared));
    CHECK_OK(fsdp__module_walk(root, write_down, &down));
    CHECK_STRING(down.text, "=Net list=ModuleList list.0=ReLU list.1=SiLU ");
    CHECK_OK(fsdp__module_walk_up(root, write_down, &up));
    CHECK_STRING(up.text, "list.0=ReLU list.1=SiLU list=ModuleList =Net ");
    CHECK_OK(fsdp_module_add_child(root, "stop", fsdp_relu_create(context)));
    CHECK_ERROR(fsdp__module_walk(root, write_down, &down), FSDP_INTERRUPTED, "stopped");
    fsdp_module_unref(root);
}

CONTEXT_TEST(a_field_holds_one_tensor)
{
    fsdp_device *device = test_device(context);
    net *n = NULL;

    CHECK_OK(create(context, device, &n));
    CHECK_ERROR(fsdp_module_add_parameter(&n->base, "more", &n->scale, device, FSDP_F32, FSDP_SHAPE(2), ones),
                FSDP_INVALID, "'more' of Net: its slot holds 'scale' already: give each tensor its own field");
    CHECK_ERROR(fsdp_module_tie_parameter(&n->base, "more", &n->table, n->scale), FSDP_INVALID, "holds 'table'");
    fsdp_tensor_unref(n->table); /* the caller sets the slot of a buffer, and so loses what was in it */
    CHECK_OK(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_WORKSPACE, &n->table));
    CHECK_ERROR(fsdp_module_add_buffer(&n->base, "more", &n->table, true), FSDP_INVALID, "holds 'table'");
    CHECK_NULL(n->table);
    CHECK_STATUS(fsdp_module_add_parameter(NULL, "more", &n->table, device, FSDP_F32, FSDP_SHAPE(2), ones),
                 FSDP_INVALID);
    CHECK_STATUS(fsdp_module_add_parameter(&n->base, NULL, &n->table, device, FSDP_F32, FSDP_SHAPE(2), ones),
                 FSDP_INVALID);
    fsdp_module_unref(&n->base);
}

TEST(a_child_of_another_context_is_refused)
{
    fsdp_context *context = test_context(), *other = test_context();
    fsdp_module *list = CHECK_PTR(fsdp_module_list_create(context));

    CHECK_ERROR(fsdp_module_list_append(list, fsdp_linear_create(other, test_device(other), 3, 2, NULL)), FSDP_INVALID,
                "cannot add a Linear as child '0' of a ModuleList: it belongs to another context");
    fsdp_module_unref(list);
    CHECK_EQ(test_live_bytes(other), 0);
    fsdp_context_free(other);
    fsdp_context_free(context);
}

static fsdp_status drop(void *arg, fsdp_module *module, const char *name)
{
    fsdp_module **held = arg;

    (void)module, (void)name;
    fsdp_module_unref(fsdp__take(held));
    return FSDP_OK;
}

CONTEXT_TEST(a_visit_may_drop_the_callers_reference)
{
    static fsdp_status (*const walks[])(fsdp_module *, fsdp_module_visit, void *) = {fsdp_module_walk,
                                                                                     fsdp_module_apply};

    for (int i = 0; i < 2; i++) {
        int destroyed = 0;
        net *n = NULL;
        fsdp_module *held;

        CHECK_OK(create(context, test_device(context), &n));
        n->destroyed = &destroyed;
        held = &n->base;
        CHECK_OK(walks[i](held, drop, &held));
        CHECK_EQ(destroyed, 1);
    }
}

CONTEXT_TEST(modules_in_a_circle_are_refused)
{
    fsdp_module *root = NULL, *list = fsdp_module_list_create(context), *deep = fsdp_module_list_create(context);

    CHECK_OK(fsdp_module_create(context, &net_type, sizeof(net), &root));
    CHECK_ERROR(fsdp_module_add_child(root, "me", fsdp_module_ref(root)), FSDP_INVALID,
                "cannot add a Net as child 'me' of a Net: it is that Net itself, and modules must not lie in a circle: "
                "keep a plain pointer");
    CHECK_OK(fsdp_module_list_append(list, deep));
    CHECK_OK(fsdp_module_add_child(root, "list", list));
    CHECK_ERROR(fsdp_module_add_child(deep, "up", fsdp_module_ref(root)), FSDP_INVALID,
                "cannot add a Net as child 'up' of a ModuleList: it holds that ModuleList itself, as 'list.0'");
    CHECK_OK(fsdp_module_add_child(root, "again", fsdp_module_ref(deep))); /* shared, and no circle */
    fsdp_module_train(root, false);
    CHECK(!deep->training);
    fsdp_module_unref(root);
}

CONTEXT_TEST(a_module_lives_as_long_as_its_references)
{
    fsdp_module *list = fsdp_module_list_create(context);
    net *n = NULL;
    int destroyed = 0;

    CHECK_OK(create(context, test_device(context), &n));
    n->destroyed = &destroyed;
    CHECK_OK(fsdp_module_list_append(list, fsdp_module_ref(&n->base)));
    fsdp_module_unref(list);
    CHECK_EQ(destroyed, 0);
    fsdp_module_unref(&n->base);
    CHECK_EQ(destroyed, 1);
    fsdp_module_unref(NULL);
}

CONTEXT_TEST(every_failing_allocation_is_survived)
{
    for (long i = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &i);) {
        fsdp_device *device = test_device(context);
        fsdp_parameters parameters = {0, NULL};
        net *n = NULL;
        fsdp_status status = device ? create(context, device, &n) : fsdp_last_status();

        if (status == FSDP_OK)
            status = fsdp_module_parameters(&n->base, &parameters);
        if (status == FSDP_OK)
            status = fsdp_module_initialize(&n->base, 3);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_parameters_release(&parameters);
        if (n)
            fsdp_module_unref(&n->base);
        CHECK_EQ(test_live_bytes(context), 0);
    }
}

/* ---- for the caller ---- */

typedef struct visits {
    char names[64];
    const char *stop; /* fails there; NULL: nowhere */
} visits;

static fsdp_status enter(void *arg, fsdp_module *module, const char *name)
{
    visits *v = arg;

    CHECK_PTR(module);
    strcat(strcat(v->names, name), "/");
    return v->stop && strcmp(v->stop, name) == 0 ? FSDP_FAIL(FSDP_COMM, "enough") : FSDP_OK;
}

CONTEXT_TEST(modules_and_buffers_are_listed_for_the_caller)
{
    visits down = {.names = ""}, up = {.names = ""}, part = {.stop = "up"};
    fsdp_named_modules modules;
    fsdp_parameters buffers;
    net *n = NULL;

    CHECK_OK(create(context, test_device(context), &n));
    CHECK_OK(fsdp_module_walk(&n->base, enter, &down));
    CHECK_STRING(down.names, "/up/down/");
    CHECK_OK(fsdp_module_apply(&n->base, enter, &up));
    CHECK_STRING(up.names, "up/down//");
    CHECK_ERROR(fsdp_module_walk(&n->base, enter, &part), FSDP_COMM, "enough");
    CHECK_STRING(part.names, "/up/");
    CHECK_STATUS(fsdp_module_walk(NULL, enter, &part), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_apply(&n->base, NULL, NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_modules(NULL, NULL, &modules), FSDP_INVALID);
    CHECK_OK(fsdp_module_modules(&n->base, "Linear", &modules));
    CHECK_EQ(modules.count, 2);
    CHECK_STRING(modules.items[1].name, "down");
    CHECK(modules.items[1].module == fsdp_module_child(&n->base, "down"));
    fsdp_named_modules_release(&modules);
    CHECK_OK(fsdp_module_modules(&n->base, NULL, &modules));
    CHECK_EQ(modules.count, 3);
    fsdp_named_modules_release(&modules);
    fsdp_named_modules_release(NULL);
    CHECK_OK(fsdp_module_buffers(&n->base, &buffers));
    CHECK_EQ(buffers.count, 1);
    CHECK_STRING(buffers.items[0].name, "table");
    CHECK(buffers.items[0].tensor == n->table);
    fsdp_parameters_release(&buffers);
    fsdp_module_unref(&n->base);
}
