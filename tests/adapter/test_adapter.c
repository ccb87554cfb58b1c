/* Adapters of small trees: which layers get one, what they compute and train, what is refused, and the merged weights.
 */
#include <math.h>

#include "adapter/adapter.h"
#include "fsdp/adapter.h"
#include "support/test.h"

/* Sequential(Linear(6,4), GELU, Linear(4,5), Conv1D(5,3)), named 0, 1, 2, 3. */
static fsdp_module *tree(fsdp_context *context, fsdp_device *device)
{
    fsdp_module *const parts[] = {fsdp_linear_create(context, device, 6, 4, NULL), fsdp_gelu_create(context, false),
                                  fsdp_linear_create(context, device, 4, 5, NULL),
                                  fsdp_conv1d_create(context, device, 5, 3, NULL)};

    return fsdp_sequential_create(context, parts, 4);
}

static fsdp_tensor *input(fsdp_context *context)
{
    float values[12];

    for (int i = 0; i < 12; i++)
        values[i] = sinf((float)i);
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(2, 6), values));
}

static fsdp_lora_options targets(const char *const *names, int64_t count)
{
    return (fsdp_lora_options){.rank = 2, .alpha = 6, .targets = names, .target_count = count};
}

static fsdp_adapter *add(fsdp_module *model, const fsdp_lora_options *options)
{
    fsdp_adapter *adapter = NULL;

    CHECK_OK(fsdp_adapter_add(model, options, &adapter));
    CHECK_OK(fsdp_adapter_initialize(adapter, 1));
    return adapter;
}

/* Gives every B values, so that the adapter does something. */
static void fill_b(fsdp_module *model)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        float values[64];

        if (!strstr(parameters.items[i].name, "lora_B"))
            continue;
        for (int e = 0; e < 64; e++)
            values[e] = cosf((float)(e + i)) / 3;
        CHECK_OK(fsdp_tensor_write(parameters.items[i].tensor, FSDP_F32, values));
    }
    fsdp_parameters_release(&parameters);
}

static void read_output(fsdp_context *context, fsdp_module *model, float out[6])
{
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, input(context))), FSDP_F32, out));
    fsdp_scope_end(context, NULL);
}

/* ---- which layers ---- */

CONTEXT_TEST(layers_are_chosen_by_name_pattern_and_kind)
{
    static const char *const all[] = {"all-linear"}, *const two[] = {"2", "0"}, *const three[] = {"3"};
    const fsdp_lora_pattern rank = {"2", 3}, alpha = {"[0-2]", 9};
    struct {
        fsdp_lora_options options;
        int64_t count;
        const char *first;
    } cases[] = {
        {targets(all, 1), 3, "0"},
        {targets(two, 2), 2, "0"},
        {{.target_regex = "[23]"}, 2, "2"},
        {{.target_regex = ".*", .exclude_regex = "1|2", .exclude = three, .exclude_count = 1}, 1, "0"},
        {{.targets = all, .target_count = 1, .saved = two, .saved_count = 2}, 1, "3"}, /* trained whole */
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_module *model = tree(context, fsdp_meta(context));
        fsdp_adapter *adapter = NULL;

        CHECK_OK(fsdp_adapter_add(model, &cases[i].options, &adapter));
        CHECK_EQ(fsdp_adapter_count(adapter), cases[i].count);
        CHECK_STRING(fsdp_adapter_layer_at(adapter, 0).name, cases[i].first);
        fsdp_adapter_free(adapter);
        fsdp_module_unref(model);
    }
    {
        fsdp_module *model = tree(context, fsdp_meta(context));
        fsdp_lora_options o = targets(all, 1);
        fsdp_adapter *adapter = NULL;

        o.rank_patterns = &rank;
        o.alpha_patterns = &alpha;
        o.rank_pattern_count = o.alpha_pattern_count = 1;
        CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
        CHECK_EQ(fsdp_adapter_layer_at(adapter, 1).rank, 3);
        CHECK_EQ(fsdp_adapter_layer_at(adapter, 0).rank, 2);
        CHECK_EQ(fsdp_adapter_layer_at(adapter, 0).alpha, 9);
        CHECK_EQ(fsdp_adapter_layer_at(adapter, 2).alpha, 6);
        CHECK_EQ(fsdp_adapter_layer_at(adapter, 2).in, 5);
        CHECK_EQ(fsdp_adapter_layer_at(adapter, 2).out, 3);
        fsdp_adapter_free(adapter);
        fsdp_module_unref(model);
    }
}

static void check_unchanged(fsdp_module *model)
{
    fsdp_parameters all = {0};

    CHECK_OK(fsdp_module_parameters(model, &all));
    for (int64_t i = 0; i < all.count; i++)
        CHECK(fsdp_tensor_requires_grad(all.items[i].tensor) && !strstr(all.items[i].name, "lora"));
    fsdp_parameters_release(&all);
}

CONTEXT_TEST(what_cannot_be_adapted_is_refused_by_name)
{
    static const char *const one[] = {"1"}, *const none[] = {"q_proj"}, *const some[] = {"0", "q_proj"};
    static const char *const all[] = {"all-linear"};
    const fsdp_lora_pattern bad = {"0", 1.5};
    fsdp_lora_options o[] = {targets(one, 1),        targets(none, 1), targets(some, 2), {.rank = 2},
                             {.target_regex = "(0"}, targets(all, 1),  targets(all, 1),  targets(all, 1)};
    static const struct {
        fsdp_status status;
        const char *part;
    } expected[] = {{FSDP_UNSUPPORTED, "cannot adapt '1', of type GELU"},
                    {FSDP_NOT_FOUND, "no layer for the adapter's target 'q_proj': it has 0, 2"},
                    {FSDP_NOT_FOUND, "no layer for the adapter's target 'q_proj'"},
                    {FSDP_INVALID, "needs targets"},
                    {FSDP_INVALID, "'(0' is not a regular expression"},
                    {FSDP_INVALID, "dropout is 1"},
                    {FSDP_INVALID, "rank of '0' is 1.5"},
                    {FSDP_NOT_FOUND, "has no module 'head'"}};
    static const char *const head[] = {"head"};

    o[5].dropout = 1;
    o[6].rank_patterns = &bad;
    o[6].rank_pattern_count = 1;
    o[7].saved = head;
    o[7].saved_count = 1;
    for (size_t i = 0; i < FSDP__COUNT_OF(o); i++) {
        fsdp_module *model = tree(context, fsdp_meta(context));
        fsdp_adapter *adapter = NULL;

        CHECK_ERROR(fsdp_adapter_add(model, &o[i], &adapter), expected[i].status, expected[i].part);
        CHECK_NULL(adapter);
        check_unchanged(model);
        fsdp_module_unref(model);
    }
    o[1].some_targets = o[2].some_targets = true; /* as of a folder */
    {
        fsdp_module *model = tree(context, fsdp_meta(context));
        fsdp_adapter *adapter = add(CHECK_PTR(tree(context, test_device(context))), &o[2]), *again = NULL;
        fsdp_module *same = fsdp_module_ref(adapter->model);

        CHECK_EQ(fsdp_adapter_count(adapter), 1);
        CHECK_ERROR(fsdp_adapter_add(same, &o[2], &again), FSDP_STATE, "'0' has an adapter already");
        fsdp_adapter_free(adapter);
        fsdp_module_unref(same);
        fsdp_module_unref(same); /* the tree's own */
        fsdp_module_unref(model);
    }
}

/* ---- what they compute ---- */

static void check_numbers(bool dora, double dropout)
{
    fsdp_context *context = test_context();
    fsdp_module *model = tree(context, test_device(context));
    static const char *const all[] = {"all-linear"};
    fsdp_lora_options o = targets(all, 1);
    fsdp_adapter *adapter;
    fsdp_state_dict *merged = NULL, *base = NULL;
    float before[6], first[6], with[6], off[6], after[6];

    o.dora = dora;
    o.dropout = dropout;
    CHECK_OK(fsdp_module_initialize(model, 3));
    read_output(context, model, before);
    adapter = add(model, &o);
    fsdp_module_train(model, false);
    read_output(context, model, first);
    CHECK_CLOSE(first, before, 6, 1e-6, 1e-6); /* B is zero */
    fill_b(model);
    read_output(context, model, with);
    CHECK(fabsf(with[0] - before[0]) > 1e-3f);
    CHECK_OK(fsdp_adapter_set_enabled(adapter, false));
    read_output(context, model, off);
    CHECK_BYTES(off, before, sizeof off);
    /* The merged weights, in the base alone. */
    CHECK_OK(fsdp_adapter_merge(adapter, NULL, &merged));
    CHECK_OK(fsdp_adapter_base_state_dict(adapter, &base));
    CHECK_EQ(merged->count, base->count);
    CHECK_OK(fsdp_state_dict_load_full(base, merged, NULL));
    read_output(context, model, after);
    CHECK_CLOSE(after, with, 6, 1e-5, 1e-6);
    if (dropout > 0) {
        fsdp_module_train(model, true);
        CHECK_OK(fsdp_adapter_set_enabled(adapter, true));
        read_output(context, model, first);
        read_output(context, model, off);
        CHECK(memcmp(first, off, sizeof off) != 0); /* another mask at each call */
    }
    fsdp_state_dict_free(merged);
    fsdp_state_dict_free(base);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(the_merged_model_computes_what_base_and_adapter_do)
{
    check_numbers(false, 0);
    check_numbers(true, 0);
    check_numbers(false, 0.5);
    check_numbers(true, 0.5);
}

/* The gradients of A, B, m and x by differences. The norms of DoRA are constants in the backward, which differences do
 * not know: there m alone is held. */

static fsdp_tensor *loss_of(fsdp_context *context, fsdp_module *model)
{
    return fsdp_sum(fsdp_square(fsdp_call(model, input(context))));
}

static void check_difference(fsdp_context *context, fsdp_module *model, fsdp_tensor *parameter)
{
    float values[64], gradient[64];
    int64_t numel = fsdp_tensor_numel(parameter);

    CHECK_OK(fsdp_tensor_read(parameter, FSDP_F32, values));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(parameter)), FSDP_F32, gradient));
    for (int64_t e = 0; e < numel; e++) {
        double loss[2], step = 1e-2;
        float kept = values[e];

        for (int side = 0; side < 2; side++) {
            values[e] = kept + (float)(side ? step : -step);
            CHECK_OK(fsdp_tensor_write(parameter, FSDP_F32, values));
            CHECK_OK(fsdp_scope_begin(context));
            CHECK_OK(fsdp_tensor_item(CHECK_PTR(loss_of(context, model)), &loss[side]));
            fsdp_scope_end(context, NULL);
        }
        values[e] = kept;
        CHECK_NEAR((loss[1] - loss[0]) / (2 * step), gradient[e], 2e-3 + 2e-2 * fabs((double)gradient[e]));
    }
    CHECK_OK(fsdp_tensor_write(parameter, FSDP_F32, values));
}

static void check_gradients(bool dora)
{
    fsdp_context *context = test_context();
    fsdp_module *model = tree(context, test_device(context));
    static const char *const all[] = {"all-linear"};
    fsdp_lora_options o = targets(all, 1);
    fsdp_parameters parameters;
    fsdp_adapter *adapter;
    int64_t trained = 0;

    o.dora = dora;
    CHECK_OK(fsdp_module_initialize(model, 3));
    adapter = add(model, &o);
    fill_b(model);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_backward(CHECK_PTR(loss_of(context, model))));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *t = parameters.items[i].tensor;
        bool own = fsdp__adapter_owns(adapter, parameters.items[i].name);

        CHECK_EQ(fsdp_tensor_requires_grad(t), own);
        CHECK_EQ(fsdp_tensor_grad(t) != NULL, own);
        trained += own;
        if (own && (!dora || strstr(parameters.items[i].name, "magnitude")))
            check_difference(context, model, t);
    }
    CHECK_EQ(trained, dora ? 9 : 6);
    fsdp_parameters_release(&parameters);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

TEST(gradients_reach_the_adapter_alone)
{
    check_gradients(false);
    check_gradients(true);
}

/* Over a base in bf16 the sum is taken in float32 and rounded once. */
CONTEXT_TEST(an_adapter_over_a_bf16_base_stays_in_float32)
{
    fsdp_module *model = CHECK_PTR(fsdp_linear_create(context, test_device(context), 6, 4, NULL));
    fsdp_module *root = CHECK_PTR(fsdp_sequential_create(context, &model, 1));
    static const char *const names[] = {"0"};
    fsdp_lora_options o = targets(names, 1);
    fsdp_adapter *adapter;
    fsdp_tensor *y;

    CHECK_OK(fsdp_module_initialize(root, 3));
    CHECK_OK(fsdp_module_to(root, FSDP_BF16));
    adapter = add(root, &o);
    fill_b(root);
    CHECK_EQ(fsdp_tensor_dtype(fsdp_module_parameter(root, "0.lora_A.weight")), FSDP_F32);
    CHECK_EQ(fsdp_tensor_dtype(fsdp_module_parameter(root, "0.weight")), FSDP_BF16);
    CHECK_OK(fsdp_scope_begin(context));
    y = CHECK_PTR(fsdp_call(root, fsdp_cast(input(context), FSDP_BF16)));
    CHECK_EQ(fsdp_tensor_dtype(y), FSDP_BF16);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(y))));
    CHECK_EQ(fsdp_tensor_dtype(CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(root, "0.lora_B.weight")))), FSDP_F32);
    fsdp_scope_end(context, NULL);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(root);
}

CONTEXT_TEST(a_failing_allocation_adds_nothing_that_leaks)
{
    static const char *const all[] = {"all-linear"};
    fsdp_lora_options o = targets(all, 1);

    o.dora = true;
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_module *model = tree(context, fsdp_meta(context));
        fsdp_adapter *adapter = NULL;
        fsdp_status status = model ? fsdp_adapter_add(model, &o, &adapter) : fsdp_last_status();

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_adapter_free(adapter);
        fsdp_module_unref(model);
    }
}
