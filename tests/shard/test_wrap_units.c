/* Which modules a wrap policy makes units, with which parameters: as PyTorch's FSDP1, case by case, and the rest of the
 * rule. */
#include <jansson.h>

#include "base/compiler.h"
#include "fsdp/wrap.h"
#include "shard/group/param_group.h"
#include "shard/wrap_trees.h"
#include "support/program.h"

enum {
    LISTED = 512
};

/* The units' names, from the root inwards, in one line. */
static const char *listed(const fsdp_wrap_units *units, char text[LISTED])
{
    size_t used = 0;

    *text = '\0';
    for (int64_t i = 0; i < units->count && used < LISTED; i++)
        used += (size_t)snprintf(text + used, LISTED - used, "%s'%s'", i ? " " : "", units->items[i].name);
    return text;
}

static void check_units(fsdp_module *module, const fsdp_wrap_policy *policy, const char *expected)
{
    char text[LISTED];
    fsdp_wrap_units units;

    CHECK_OK(fsdp_module_wrap_units(module, policy, NULL, 0, &units));
    CHECK_STRING(listed(&units, text), expected);
    fsdp_wrap_units_release(&units);
}

/* ---- PyTorch's ---- */

static bool is_sub_module(void *arg, const fsdp_module *module, const char *name)
{
    (void)arg;
    (void)name;
    return strcmp(module->type->name, "MySubModule") == 0;
}

/* PyTorch's out_proj is a Linear by inheritance. */
static bool is_linear(void *arg, const fsdp_module *module, const char *name)
{
    (void)arg;
    (void)name;
    return strcmp(module->type->name, "Linear") == 0 ||
           strcmp(module->type->name, "NonDynamicallyQuantizableLinear") == 0;
}

static fsdp_wrap_policy policy_of(const json_t *one)
{
    static const char *const layers[] = {"TransformerEncoderLayer"};
    const char *name = json_string_value(json_object_get(one, "policy"));

    if (strcmp(name, "size_based") == 0)
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE,
                                  .min_num_params = json_integer_value(json_object_get(one, "min_num_params"))};
    if (strcmp(name, "lambda_MySubModule") == 0)
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_LAMBDA, .wraps = is_sub_module};
    if (strcmp(name, "lambda_Linear") == 0)
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_LAMBDA, .wraps = is_linear};
    if (strcmp(name, "transformer_EncoderLayer") == 0)
        return (fsdp_wrap_policy){.kind = FSDP_WRAP_CLASSES, .classes = layers, .class_count = 1};
    CHECK_STRING(name, "none");
    return (fsdp_wrap_policy){0};
}

/* Length of every rank's shard of the flat vector, and what of it is padding at the right. */
static void check_shards(const fsdp_wrap_unit *unit, const json_t *expected, int ranks)
{
    const json_t *lengths = json_object_get(expected, "shard_numel"), *pads = json_object_get(expected, "shard_pad");
    fsdp__param params[64] = {{.orig_dtype = FSDP_F32, .param_dtype = FSDP_F32}}; /* a unit may have none */
    fsdp__param_group group = {
        .cut = &fsdp__cut_flat, .params = params, .param_count = unit->parameters.count, .residence.mesh.ranks = ranks};

    CHECK(unit->parameters.count <= (int64_t)FSDP__COUNT_OF(params));
    for (int64_t i = 0; i < unit->parameters.count; i++)
        params[i] = (fsdp__param){.extent = {1, fsdp_tensor_numel(unit->parameters.items[i].tensor), 1},
                                  .orig_dtype = FSDP_F32,
                                  .param_dtype = FSDP_F32};
    for (int rank = 0; rank < ranks; rank++) {
        int64_t numel = 0;

        group.residence.mesh.rank = rank;
        fsdp__param_group_lay_out(&group);
        for (int64_t i = 0; i < group.param_count; i++)
            numel += fsdp__param_shard_numel(&params[i]);
        CHECK_EQ(group.vector.chunk_numel, json_integer_value(json_array_get(lengths, (size_t)rank)));
        CHECK_EQ(group.vector.chunk_numel - numel, json_integer_value(json_array_get(pads, (size_t)rank)));
    }
}

static void check_unit(const fsdp_wrap_unit *unit, const json_t *expected, int ranks)
{
    const json_t *params = json_object_get(expected, "params");

    CHECK_STRING(unit->name, json_string_value(json_object_get(expected, "unit")));
    CHECK_STRING(unit->module->type->name, json_string_value(json_object_get(expected, "module")));
    CHECK_EQ(unit->numel, json_integer_value(json_object_get(expected, "numel")));
    CHECK_EQ(unit->parameters.count, json_array_size(params));
    for (int64_t i = 0; i < unit->parameters.count; i++)
        CHECK_STRING(unit->parameters.items[i].name, json_string_value(json_array_get(params, (size_t)i)));
    check_shards(unit, expected, ranks);
}

/* From FSDP_REFERENCE, if that is set and has it; tests/reference has a part of the cases. */
static json_t *load(int ranks)
{
    const char *folder = getenv("FSDP_REFERENCE");
    char name[64], *path;
    json_t *file = NULL;

    snprintf(name, sizeof name, "fsdp1_wrap_ws%d.json", ranks);
    if (folder) {
        path = test_path(folder, name);
        file = json_load_file(path, 0, NULL);
    }
    if (!file) {
        path = test_path(REFERENCE, name);
        file = CHECK_PTR(json_load_file(path, 0, NULL));
    }
    return file;
}

CONTEXT_TEST(as_pytorch)
{
    fsdp_module *const models[] = {my_model_create(context), enc_create(context)};

    for (int ranks = 2; ranks <= 4; ranks++) {
        json_t *file = load(ranks);
        const json_t *one, *unit;
        size_t c, u;

        CHECK(json_array_size(json_object_get(file, "cases")) >= 7);
        json_array_foreach(json_object_get(file, "cases"), c, one)
        {
            const json_t *expected = json_object_get(one, "units");
            fsdp_wrap_policy policy = policy_of(one);
            fsdp_wrap_units units;
            bool is_enc = strcmp(json_string_value(json_object_get(one, "model")), "Enc") == 0;

            CHECK_OK(fsdp_module_wrap_units(models[is_enc], &policy, NULL, 0, &units));
            CHECK_EQ(units.count, json_array_size(expected));
            json_array_foreach(expected, u, unit) check_unit(&units.items[u], unit, ranks);
            fsdp_wrap_units_release(&units);
        }
        json_decref(file);
    }
    fsdp_module_unref(models[0]);
    fsdp_module_unref(models[1]);
}

/* ---- sizes ---- */

CONTEXT_TEST(sizes_have_leaves_and_what_is_never_a_unit)
{
    static const char *const layers[] = {"TransformerEncoderLayer"}, *const none[] = {NULL};
    fsdp_module *enc = enc_create(context);
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_SIZE, .min_num_params = 272};

    /* not looked into, and so not asked itself: what it has is left to the list, which is large, and is excluded */
    policy.force_leaf = layers;
    policy.force_leaf_count = 1;
    check_units(enc, &policy, "'' 'emb' 'experts.a' 'experts.b' 'head'");
    /* none: attention is looked into, too */
    policy.force_leaf = none;
    policy.force_leaf_count = 0;
    policy.min_num_params = 1088;
    check_units(enc, &policy,
                "'' 'layers.0' 'layers.0.self_attn' 'layers.1' 'layers.1.self_attn' 'layers.2' "
                "'layers.2.self_attn' 'experts.a' 'experts.b'");
    policy.exclude = layers;
    policy.exclude_count = 1;
    check_units(enc, &policy,
                "'' 'layers' 'layers.0.self_attn' 'layers.1.self_attn' 'layers.2.self_attn' "
                "'experts.a' 'experts.b'");
    check_units(enc, &(fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE}, "''"); /* of 100,000,000 */
    fsdp_module_unref(enc);
}

/* ---- the other kinds ---- */

CONTEXT_TEST(always_takes_all_that_can_be_called)
{
    fsdp_module *model = my_model_create(context), *enc = enc_create(context);
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_ALWAYS};
    fsdp_wrap_units units;

    check_units(model, &policy,
                "'' 'block1' 'block1.linear' 'block1.relu' 'block2' 'block2.0' 'block2.1' 'block2.2' "
                "'block2.2.linear' 'block2.2.relu' 'output_layer'");
    CHECK_OK(fsdp_module_wrap_units(enc, &policy, NULL, 0, &units));
    for (int64_t i = 0; i < units.count; i++)
        CHECK(units.items[i].module->type->forward);
    fsdp_wrap_units_release(&units);
    fsdp_module_unref(model);
    fsdp_module_unref(enc);
}

typedef struct questions {
    char text[LISTED];
    const char *leaf, *unit; /* not looked into; to be a unit */
} questions;

static bool decide(void *arg, const fsdp_module *module, const char *name, bool recurse, int64_t numel)
{
    questions *q = arg;
    size_t used = strlen(q->text);

    (void)module;
    snprintf(q->text + used, LISTED - used, "%s%s:%lld ", recurse ? "+" : "-", name, (long long)numel);
    return recurse ? strcmp(name, q->leaf) != 0 : strcmp(name, q->unit) == 0;
}

CONTEXT_TEST(a_function_is_asked_in_the_order_of_the_rule)
{
    fsdp_module *model = my_model_create(context);
    questions q = {.leaf = "block1", .unit = "block2.2"};
    fsdp_wrap_policy function = {.kind = FSDP_WRAP_FUNCTION, .decide = decide, .arg = &q};

    check_units(model, &function, "'' 'block2.2'");
    CHECK_STRING(q.text, "+:2295 +block1:220 +block2:1870 +block2.0:630 -block2.0:630 +block2.1:0 -block2.1:0 "
                         "+block2.2:1240 +block2.2.linear:1240 -block2.2.linear:1240 +block2.2.relu:0 "
                         "-block2.2.relu:0 -block2.2:1240 -block2:630 +output_layer:205 -output_layer:205 ");
    fsdp_module_unref(model);
}

CONTEXT_TEST(any_asks_one_after_the_other)
{
    static const char *const layers[] = {"TransformerEncoderLayer"};
    fsdp_module *enc = enc_create(context);
    const fsdp_wrap_policy parts[] = {{.kind = FSDP_WRAP_CLASSES, .classes = layers, .class_count = 1},
                                      {.kind = FSDP_WRAP_SIZE, .min_num_params = 850},
                                      {.kind = FSDP_WRAP_LAMBDA, .wraps = is_linear}};

    /* the class recurses everywhere, so that the leaf of the size is none */
    check_units(enc, &(fsdp_wrap_policy){.kind = FSDP_WRAP_ANY, .policies = parts, .policy_count = 2},
                "'' 'layers.0' 'layers.0.self_attn' 'layers.1' 'layers.1.self_attn' 'layers.2' 'layers.2.self_attn' "
                "'experts.a' 'experts.b' 'head'");
    check_units(enc, &(fsdp_wrap_policy){.kind = FSDP_WRAP_ANY, .policies = parts + 1, .policy_count = 1},
                "'' 'layers.0' 'layers.1' 'layers.2' 'experts.a' 'experts.b' 'head'");
    fsdp_module_unref(enc);
}

/* Blocks in one way, the head in another, attention not at all. */
static fsdp_status choose(void *arg, const fsdp_module *module, const char *name, void *options, bool *wrap)
{
    fsdp_shard_options *o = options;

    ++*(int *)arg;
    CHECK(*name && !*wrap);
    *wrap = strcmp(module->type->name, "TransformerEncoderLayer") == 0 || strcmp(name, "head") == 0;
    if (o && strcmp(name, "head") == 0)
        o->reshard_after_forward = FSDP_RESHARD_NEVER;
    return strcmp(name, "refused") == 0 ? FSDP_FAIL(FSDP_INVALID, "it is refused") : FSDP_OK;
}

CONTEXT_TEST(each_unit_has_options_of_its_own)
{
    const fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS, .no_shared_memory = true};
    fsdp_module *enc = enc_create(context);
    int asked = 0;
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CUSTOM, .choose = choose, .arg = &asked};
    fsdp_wrap_units units;
    char text[LISTED];

    CHECK_OK(fsdp_module_wrap_units(enc, &policy, &options, sizeof options, &units));
    CHECK_EQ(asked, 3 * 10 + 7);
    CHECK_STRING(listed(&units, text), "'' 'layers.0' 'layers.1' 'layers.2' 'head'");
    for (int64_t i = 0; i < units.count; i++) {
        const fsdp_shard_options *own = units.items[i].options;

        CHECK(own != &options && own->no_shared_memory);
        CHECK_EQ(own->reshard_after_forward, i == 4 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS);
    }
    fsdp_wrap_units_release(&units);
    check_units(enc, &policy, "'' 'layers.0' 'layers.1' 'layers.2' 'head'"); /* without options */
    wrap_tree_add(enc, "refused", fsdp_relu_create(context));
    CHECK_ERROR(fsdp_module_wrap_units(enc, &policy, NULL, 0, &units), FSDP_INVALID, "it is refused");
    fsdp_module_unref(enc);
}

CONTEXT_TEST(full_precision_is_apart)
{
    static const char *const norms[] = {"LayerNorm"};
    fsdp_module *enc = enc_create(context);
    int asked = 0;
    fsdp_wrap_policy policies[] = {{.kind = FSDP_WRAP_SIZE, .min_num_params = 1240},
                                   {.kind = FSDP_WRAP_CUSTOM, .choose = choose, .arg = &asked}};
    const char *const expected[] = {
        "'' 'layers.0' 'layers.0.norm1' 'layers.0.norm2' 'layers.1' 'layers.1.norm1' 'layers.1.norm2' 'layers.2' "
        "'layers.2.norm1' 'layers.2.norm2' 'norm'",
        "'' 'layers.0' 'layers.0.norm1' 'layers.0.norm2' 'layers.1' 'layers.1.norm1' 'layers.1.norm2' 'layers.2' "
        "'layers.2.norm1' 'layers.2.norm2' 'norm' 'head'"};

    for (int i = 0; i < 2; i++) {
        fsdp_wrap_units units;

        policies[i].full_precision_classes = norms;
        policies[i].full_precision_class_count = 1;
        check_units(enc, &policies[i], expected[i]);
        CHECK_OK(fsdp_module_wrap_units(enc, &policies[i], NULL, 0, &units));
        for (int64_t u = 0; u < units.count; u++)
            CHECK_EQ(units.items[u].full_precision, strcmp(units.items[u].module->type->name, "LayerNorm") == 0);
        fsdp_wrap_units_release(&units);
    }
    fsdp_module_unref(enc);
}

/* ---- trees ---- */

CONTEXT_TEST(units_are_made_from_the_bottom_up)
{
    static const char *const parts[] = {"MySubModule", "Sequential"};
    fsdp_module *model = my_model_create(context);
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CLASSES, .classes = parts, .class_count = 2};
    fsdp_module *ignored[] = {fsdp_module_child(model, "block1")};
    char text[LISTED];
    fsdp_wrap_units units;

    CHECK_OK(fsdp_module_wrap_units(model, &policy, NULL, 0, &units));
    CHECK_STRING(listed(&units, text), "'' 'block1' 'block2' 'block2.2'");
    CHECK_BYTES(units.bottom_up, ((const int64_t[]){1, 3, 2, 0}), 4 * sizeof(int64_t));
    fsdp_wrap_units_release(&units);

    policy.ignored_modules = ignored;
    policy.ignored_module_count = 1;
    CHECK_OK(fsdp_module_wrap_units(model, &policy, NULL, 0, &units));
    CHECK_STRING(listed(&units, text), "'' 'block2' 'block2.2'");
    CHECK_EQ(units.items[0].numel, 205);
    CHECK_EQ(units.ignored_count, 2);
    CHECK(units.ignored[0] == fsdp_module_parameter(model, "block1.linear.weight"));
    fsdp_wrap_units_release(&units);
    fsdp_module_unref(model);
}

CONTEXT_TEST(what_is_ignored_counts_nowhere)
{
    fsdp_module *model = my_model_create(context);
    fsdp_tensor *weight = fsdp_module_parameter(model, "block2.2.linear.weight");
    fsdp_wrap_policy policy = {
        .kind = FSDP_WRAP_SIZE, .min_num_params = 630, .ignored_params = &weight, .ignored_param_count = 1};
    fsdp_wrap_units units;

    check_units(model, &policy, "'' 'block2.0'");
    policy.kind = FSDP_WRAP_NONE;
    CHECK_OK(fsdp_module_wrap_units(model, &policy, NULL, 0, &units));
    CHECK_EQ(units.items[0].numel, 2295 - 1200);
    CHECK_EQ(units.ignored_count, 1);
    fsdp_wrap_units_release(&units);
    policy.ignored_modules = &model;
    policy.ignored_module_count = 1;
    CHECK_ERROR(fsdp_module_wrap_units(model, &policy, NULL, 0, &units), FSDP_INVALID, "the root itself");
    fsdp_module_unref(model);
}

/* Two more parents of the module "block1". */
CONTEXT_TEST(a_shared_module_is_one_unit_and_a_tied_parameter_has_one)
{
    static const char *const parts[] = {"MySubModule", "Linear"};
    fsdp_module *model = my_model_create(context), *shared = fsdp_module_child(model, "block1");
    const fsdp_module *linear = fsdp_module_child(model, "block2.0");
    fsdp_module *const again[] = {fsdp_module_ref(shared), fsdp_module_ref(shared)};
    struct {
        fsdp_module base;
        fsdp_tensor *weight;
    } * tied;
    fsdp_wrap_policy policy = {.kind = FSDP_WRAP_CLASSES, .classes = parts, .class_count = 1};
    char text[LISTED];
    fsdp_wrap_units units;

    wrap_tree_add(model, "again", fsdp_sequential_create(context, again, 2));
    check_units(model, &policy, "'' 'block1' 'block2.2'");
    /* 220 elements of the sequence of two are those of a unit that is there already */
    policy = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .min_num_params = 220};
    check_units(model, &policy, "'' 'block1.linear' 'block2.0' 'block2.2.linear'");

    CHECK_OK(fsdp_module_create(context, linear->type, sizeof *tied, &tied));
    CHECK_OK(fsdp_module_tie_parameter(&tied->base, "weight", &tied->weight,
                                       fsdp_module_parameter(model, "block2.0.weight")));
    wrap_tree_add(model, "tied", &tied->base);
    policy = (fsdp_wrap_policy){.kind = FSDP_WRAP_CLASSES, .classes = parts + 1, .class_count = 1};
    CHECK_OK(fsdp_module_wrap_units(model, &policy, NULL, 0, &units));
    CHECK_STRING(listed(&units, text), "'' 'block1.linear' 'block2.0' 'block2.2.linear' 'output_layer' 'tied'");
    CHECK_EQ(units.items[2].numel, 630);
    CHECK_EQ(units.items[5].numel, 0);
    fsdp_wrap_units_release(&units);
    fsdp_module_unref(model);
}

/* ---- failures ---- */

CONTEXT_TEST(no_memory_is_an_error_without_a_leak)
{
    const fsdp_shard_options options = {0};
    fsdp_module *model = my_model_create(context);
    fsdp_tensor *weight = fsdp_module_parameter(model, "output_layer.weight");
    fsdp_wrap_policy policy = {
        .kind = FSDP_WRAP_SIZE, .min_num_params = 150, .ignored_params = &weight, .ignored_param_count = 1};

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_wrap_units units = {0};

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_module_wrap_units(model, &policy, &options, sizeof options, &units));
        fsdp_wrap_units_release(&units);
    }
    fsdp_module_unref(model);
}
