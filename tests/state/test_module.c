/* The state of a module tree: dotted names, tied parameters once, buffers, gathered parameters refused. */
#include "fsdp/state.h"
#include "nn/module.h"
#include "support/test.h"

typedef struct part {
    fsdp_module base;
    fsdp_tensor *weight, *other, *buffer, *scratch;
} part;

static const fsdp_module_type part_type = {.name = "Part"};

static fsdp_module *make_part(fsdp_context *context)
{
    part *p = NULL;

    CHECK_OK(fsdp_module_create(context, &part_type, sizeof(*p), &p));
    return &p->base;
}

static void add_weight(fsdp_module *module, const char *name, fsdp_tensor **slot, int64_t rows)
{
    CHECK_OK(fsdp_module_add_parameter(module, name, slot, test_device(module->context), FSDP_F32, 2,
                                       (const int64_t[]){rows, 3}, (fsdp_init){.kind = FSDP_INIT_ONES}));
}

static void add_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot, bool persistent)
{
    CHECK_OK(fsdp_tensor_create(test_device(module->context), FSDP_F32, 1, (const int64_t[]){4}, FSDP_MEMORY_ACTIVATION,
                                slot));
    CHECK_OK(fsdp_module_add_buffer(module, name, slot, persistent));
}

/* root(weight, buffer, scratch) - blocks - 0(weight), 1(weight) and head(weight tied to root's) */
static fsdp_module *make_tree(fsdp_context *context)
{
    part *root = (part *)make_part(context), *head = (part *)make_part(context);
    fsdp_module *blocks = make_part(context);

    add_weight(&root->base, "weight", &root->weight, 2);
    add_buffer(&root->base, "mean", &root->buffer, true);
    add_buffer(&root->base, "scratch", &root->scratch, false);
    for (int i = 0; i < 2; i++) {
        part *block = (part *)make_part(context);

        add_weight(&block->base, "weight", &block->weight, 4 + i);
        add_weight(&block->base, "other", &block->other, 1);
        CHECK_OK(fsdp_module_add_child(blocks, i == 0 ? "0" : "1", &block->base));
    }
    CHECK_OK(fsdp_module_add_child(&root->base, "blocks", blocks));
    CHECK_OK(fsdp_module_tie_parameter(&head->base, "weight", &head->weight, root->weight));
    CHECK_OK(fsdp_module_add_child(&root->base, "head", &head->base));
    return &root->base;
}

static void names_are_dotted_and_tied_parameters_come_once(void **state)
{
    static const char *const names[] = {"weight",          "mean",          "blocks.0.weight", "blocks.0.other",
                                        "blocks.1.weight", "blocks.1.other"};
    fsdp_context *context = test_context();
    fsdp_module *tree = make_tree(context);
    fsdp_state *list = NULL;

    (void)state;
    CHECK_OK(fsdp_state_from_module(tree, &list));
    CHECK_EQ(list->count, 6);
    for (int i = 0; i < 6; i++) {
        CHECK_STRING(list->entries[i].name, names[i]);
        CHECK(list->entries[i].writer && list->entries[i].replicated);
    }
    CHECK(list->entries[0].tensor == fsdp_module_parameter(tree, "head.weight"));
    CHECK(list->entries[4].tensor == fsdp_module_parameter(tree, "blocks.1.weight"));
    fsdp_state_free(list);
    /* Asked for the head alone, the tied parameter has its own name there. */
    CHECK_OK(fsdp_state_from_module(fsdp_module_child(tree, "head"), &list));
    CHECK_EQ(list->count, 1);
    CHECK_STRING(list->entries[0].name, "weight");
    fsdp_state_free(list);
    fsdp_module_unref(tree);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

/* What the sharding engine leaves behind: a mark on the module it was given, distributions on its parameters. */
static void gathered_parameters_are_refused(void **state)
{
    static int mark;
    fsdp_context *context = test_context();
    fsdp_module *tree = make_tree(context), *blocks = fsdp_module_child(tree, "blocks");
    fsdp_module *first = fsdp_module_child(tree, "blocks.0");
    const char *const managed[] = {"blocks.0.weight", "blocks.0.other"};
    fsdp_distribution d = {.placement_count = 1, .ndim = 2};
    fsdp_state *list = NULL;
    fsdp_mesh *mesh = NULL;

    (void)state;
    CHECK_OK(fsdp_mesh_create(context, 1, (const int64_t[]){1}, NULL, &mesh));
    d.mesh = mesh;
    d.placements[0] = (fsdp_placement){.kind = FSDP_SHARD};
    first->parts->shard_state = &mark;
    CHECK_ERROR(fsdp_state_from_module(tree, &list), FSDP_STATE, "parameter 'blocks.0.weight' is gathered");
    CHECK_NULL(list);
    for (int i = 0; i < 2; i++) {
        fsdp_tensor *tensor = fsdp_module_parameter(tree, managed[i]);

        memcpy(d.global_shape, fsdp_tensor_shape(tensor), 2 * sizeof(int64_t));
        CHECK_OK(fsdp_tensor_set_distribution(tensor, &d));
    }
    CHECK_OK(fsdp_state_from_module(tree, &list)); /* its siblings are no concern of it */
    CHECK_EQ(list->count, 6);
    fsdp_state_free(list);
    /* A sharded parent has the parameters of its children. */
    blocks->parts->shard_state = &mark;
    CHECK_ERROR(fsdp_state_from_module(tree, &list), FSDP_STATE, "'blocks.1.weight' is gathered");
    first->parts->shard_state = blocks->parts->shard_state = NULL;
    fsdp_module_unref(tree);
    fsdp_mesh_unref(mesh);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

static void it_survives_every_failed_allocation(void **state)
{
    static int mark;
    fsdp_context *context = test_context();
    fsdp_module *tree = make_tree(context), *last = make_part(context);

    (void)state;
    CHECK_OK(fsdp_module_add_child(tree, "last", last)); /* sharded, without parameters */
    last->parts->shard_state = &mark;
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_state *list = (fsdp_state *)1;
        fsdp_status status = fsdp_state_from_module(tree, &list);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK((list != NULL) == (status == FSDP_OK));
        fsdp_state_free(list);
    }
    CHECK_STATUS(fsdp_state_from_module(NULL, &(fsdp_state *){NULL}), FSDP_INVALID);
    last->parts->shard_state = NULL;
    fsdp_module_unref(tree);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST_MAIN(cmocka_unit_test(names_are_dotted_and_tied_parameters_come_once),
          cmocka_unit_test(gathered_parameters_are_refused), cmocka_unit_test(it_survives_every_failed_allocation))
