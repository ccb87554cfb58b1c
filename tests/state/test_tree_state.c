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

    CHECK_OK(fsdp_module_create(context, &part_type, sizeof *p, &p));
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

CONTEXT_TEST(names_are_dotted_and_tied_parameters_come_once)
{
    static const char *const names[] = {"weight",          "mean",          "blocks.0.weight", "blocks.0.other",
                                        "blocks.1.weight", "blocks.1.other"};
    fsdp_module *tree = make_tree(context);
    fsdp_state_dict *list = NULL;

    CHECK_OK(fsdp_state_dict_from_module(tree, &list));
    CHECK_EQ(list->count, 6);
    for (int i = 0; i < 6; i++) {
        CHECK_STRING(list->entries[i].name, names[i]);
        CHECK(list->entries[i].writer && list->entries[i].replicated);
    }
    CHECK(list->entries[0].tensor == fsdp_module_parameter(tree, "head.weight"));
    CHECK(list->entries[4].tensor == fsdp_module_parameter(tree, "blocks.1.weight"));
    fsdp_state_dict_free(list);
    /* Asked for the head alone, the tied parameter has its own name there. */
    CHECK_OK(fsdp_state_dict_from_module(fsdp_module_child(tree, "head"), &list));
    CHECK_EQ(list->count, 1);
    CHECK_STRING(list->entries[0].name, "weight");
    fsdp_state_dict_free(list);
    fsdp_module_unref(tree);
}

/* While a sharded module is kept whole, its fields name tensors of this kind of memory. */
CONTEXT_TEST(gathered_parameters_are_refused)
{
    fsdp_module *tree = make_tree(context);
    fsdp__parameter_slot *slot = &fsdp_module_child(tree, "blocks.0")->parts->parameters[0];
    fsdp_tensor *shard = *slot->slot, *whole = NULL;
    fsdp_state_dict *list = NULL;

    CHECK_OK(fsdp_tensor_create(fsdp_cpu(context), FSDP_F32, fsdp_tensor_ndim(shard), fsdp_tensor_shape(shard),
                                FSDP_MEMORY_UNSHARDED_PARAMETER, &whole));
    *slot->slot = whole;
    CHECK_ERROR(fsdp_state_dict_from_module(tree, &list), FSDP_STATE, "'blocks.0.weight': it is gathered");
    CHECK_NULL(list);
    CHECK_ERROR(fsdp_state_dict_from_module(tree, NULL), FSDP_INVALID, "no place for it");
    *slot->slot = shard;
    CHECK_OK(fsdp_state_dict_from_module(tree, &list));
    CHECK_EQ(list->count, 6);
    fsdp_state_dict_free(list);
    fsdp_tensor_unref(whole);
    fsdp_module_unref(tree);
}

CONTEXT_TEST(it_survives_every_failed_allocation)
{
    fsdp_module *tree = make_tree(context);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_state_dict *list = (fsdp_state_dict *)1;
        fsdp_status status = fsdp_state_dict_from_module(tree, &list);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK((list != NULL) == (status == FSDP_OK));
        fsdp_state_dict_free(list);
    }
    CHECK_STATUS(fsdp_state_dict_from_module(NULL, &(fsdp_state_dict *){NULL}), FSDP_INVALID);
    fsdp_module_unref(tree);
}
