/* Calls of adapters that make no sense: NULL, counts without lists, absurd sizes, models that are sharded, replicated,
 * adapted already or without values, state of other models. Each is an error that says what is wrong. */
#include <math.h>

#include "adapter/adapter.h"
#include "fsdp/adapter.h"
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "fsdp/shard.h"
#include "support/ranks.h"

static const char *const all[] = {"all-linear"};

static fsdp_lora_options usual(void)
{
    return (fsdp_lora_options){.rank = 2, .alpha = 6, .targets = all, .target_count = 1};
}

/* Sequential(Linear(in,4), Linear(4,3)). */
static fsdp_module *tree(fsdp_context *context, fsdp_device *device, int64_t in)
{
    fsdp_module *const parts[] = {fsdp_linear_create(context, device, in, 4, NULL),
                                  fsdp_linear_create(context, device, 4, 3, NULL)};

    return CHECK_PTR(fsdp_sequential_create(context, parts, 2));
}

CONTEXT_TEST(null_is_refused_by_every_call)
{
    fsdp_module *model = tree(context, fsdp_meta(context), 6);
    fsdp_lora_options o = usual();
    fsdp_state_dict *dict = NULL;
    fsdp_adapter *adapter = NULL;

    CHECK_ERROR(fsdp_adapter_add(NULL, &o, &adapter), FSDP_INVALID, "needs a model");
    CHECK_ERROR(fsdp_adapter_add(model, NULL, &adapter), FSDP_INVALID, "needs options");
    CHECK_ERROR(fsdp_adapter_add(model, &o, NULL), FSDP_INVALID, "needs a place");
    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    fsdp_clear_error();
    CHECK_ERROR(fsdp_adapter_set_enabled(NULL, true), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_state_dict(NULL, &dict), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_state_dict(adapter, NULL), FSDP_INVALID, "needs a place");
    CHECK_ERROR(fsdp_adapter_base_state_dict(NULL, &dict), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_base_state_dict(adapter, NULL), FSDP_INVALID, "needs a place");
    CHECK_ERROR(fsdp_adapter_initialize(NULL, 1), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_merge(NULL, NULL, &dict), FSDP_INVALID, "the adapter is NULL");
    CHECK_ERROR(fsdp_adapter_merge(adapter, NULL, NULL), FSDP_INVALID, "needs a place");
    CHECK_ERROR(fsdp_adapter_load(NULL, "x"), FSDP_INVALID, "are required");
    CHECK_ERROR(fsdp_adapter_load(adapter, NULL), FSDP_INVALID, "are required");
    CHECK_ERROR(fsdp_adapter_save(adapter, "x", NULL, NULL), FSDP_INVALID, "are required");
    CHECK_ERROR(fsdp_adapter_read_options(NULL, NULL), FSDP_INVALID, "are required");
    CHECK_EQ(fsdp_adapter_count(NULL), 0);
    CHECK_NULL(fsdp_adapter_layer_at(NULL, 0).name);
    CHECK_NULL(fsdp_adapter_layer_at(adapter, -1).name);
    CHECK_NULL(fsdp_adapter_layer_at(adapter, 2).name);
    CHECK_CONTAINS(fsdp_last_error(), "there is no adapted layer 2: the adapter has 2");
    fsdp_adapter_free(NULL);
    fsdp_lora_options_free(NULL);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

CONTEXT_TEST(options_that_make_no_sense_are_refused)
{
    static const char *const hole[] = {"0", NULL};
    const fsdp_lora_pattern keyless = {NULL, 1}, nan = {"0", NAN}, huge = {"0", 1e300}, endless = {"0", INFINITY};
    struct {
        fsdp_lora_options options;
        const char *part;
    } cases[] = {
        {{.target_count = 1}, "targets: their number is 1, but no list"},
        {{.targets = all, .target_count = -1}, "targets: their number is -1"},
        {{.targets = hole, .target_count = 2}, "targets: number 1 of 2 is empty"},
        {{.targets = all, .target_count = 1, .exclude_count = 3}, "excluded layers: their number is 3"},
        {{.targets = all, .target_count = 1, .saved = hole, .saved_count = 2}, "modules_to_save: number 1 of 2"},
        {{.targets = all, .target_count = 1, .rank_pattern_count = 1}, "rank patterns: their number is 1"},
        {{.targets = all, .target_count = 1, .alpha_patterns = &keyless, .alpha_pattern_count = 1}, "has no key"},
        {{.targets = all, .target_count = 1, .rank_patterns = &nan, .rank_pattern_count = 1}, "rank of '0' is nan"},
        {{.targets = all, .target_count = 1, .rank_patterns = &huge, .rank_pattern_count = 1}, "rank of '0' is 1e+300"},
        {{.targets = all, .target_count = 1, .alpha_patterns = &endless, .alpha_pattern_count = 1}, "is inf"},
        {{.targets = all, .target_count = 1, .rank = -1}, "rank is -1"},
        {{.targets = all, .target_count = 1, .rank = INT64_MAX}, "rank is 9223372036854775807"},
        {{.targets = all, .target_count = 1, .alpha = NAN}, "alpha is nan"},
        {{.targets = all, .target_count = 1, .alpha = INFINITY}, "alpha is inf"},
        {{.targets = all, .target_count = 1, .dropout = NAN}, "dropout is nan"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_module *model = tree(context, fsdp_meta(context), 6);
        fsdp_adapter *adapter = NULL;

        CHECK_ERROR(fsdp_adapter_add(model, &cases[i].options, &adapter), FSDP_INVALID, cases[i].part);
        CHECK_NULL(adapter);
        fsdp_module_unref(model);
    }
}

CONTEXT_TEST(a_model_has_one_adapter)
{
    fsdp_module *model = tree(context, test_device(context), 6);
    static const char *const first[] = {"0"}, *const second[] = {"1"};
    fsdp_lora_options o = usual();
    fsdp_adapter *adapter = NULL, *other = NULL;

    o.targets = first;
    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    o.targets = second; /* would freeze the first one's A and B */
    CHECK_ERROR(fsdp_adapter_add(model, &o, &other), FSDP_STATE, "'0' has an adapter already");
    CHECK(fsdp_tensor_requires_grad(fsdp_module_parameter(model, "0.lora_A.weight")));
    fsdp_adapter_free(adapter);
    CHECK_ERROR(fsdp_adapter_add(model, &o, &other), FSDP_STATE, "'0' has an adapter already");
    fsdp_module_unref(model);
}

CONTEXT_TEST(a_model_without_values_is_refused)
{
    fsdp_module *model = tree(context, fsdp_meta(context), 6);
    fsdp_lora_options o = usual();
    fsdp_state_dict *merged = NULL;
    fsdp_adapter *adapter = NULL;

    o.dora = true;
    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    CHECK_ERROR(fsdp_adapter_initialize(adapter, 1), FSDP_STATE, "'0.lora_A.weight' is on the meta device");
    CHECK_ERROR(fsdp_adapter_merge(adapter, NULL, &merged), FSDP_STATE, "is on the meta device");
    CHECK_NULL(merged);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

CONTEXT_TEST(a_state_of_another_model_is_not_merged)
{
    fsdp_module *model = tree(context, test_device(context), 6), *wide = tree(context, test_device(context), 60);
    fsdp_module *plain = tree(context, test_device(context), 6);
    fsdp_lora_options o = usual();
    fsdp_state_dict *dict = NULL, *merged = NULL;
    fsdp_adapter *adapter = NULL, *of_wide = NULL;

    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    CHECK_OK(fsdp_adapter_add(wide, &o, &of_wide));
    CHECK_OK(fsdp_state_dict_from_module(wide, &dict));
    CHECK_ERROR(fsdp_adapter_merge(adapter, dict, &merged), FSDP_INVALID, "'0.weight': its shape is (4, 60)");
    fsdp_state_dict_free(dict);
    CHECK_OK(fsdp_state_dict_from_module(plain, &dict));
    CHECK_ERROR(fsdp_adapter_merge(adapter, dict, &merged), FSDP_NOT_FOUND, "no '0.lora_A.weight'");
    fsdp_state_dict_free(dict);
    CHECK_NULL(merged);
    fsdp_adapter_free(adapter);
    fsdp_adapter_free(of_wide);
    fsdp_module_unref(model);
    fsdp_module_unref(wide);
    fsdp_module_unref(plain);
}

/* ---- models that communicate ---- */

typedef enum way {
    FULLY_SHARD,
    FSDP1,
    FSDP1_ORIGINALS,
    REPLICATE
} way;

static void add_late(fsdp_context *context, void *arg)
{
    way w = *(way *)arg;
    fsdp_module *model = tree(context, test_device(context), 6);
    fsdp_fsdp1_options flat = {.use_orig_params = w == FSDP1_ORIGINALS};
    fsdp_lora_options o = usual();
    fsdp_adapter *adapter = NULL;

    CHECK_OK(w == FULLY_SHARD ? fsdp_fully_shard(model, NULL)
             : w == REPLICATE ? fsdp_replicate(model, NULL)
                              : fsdp_fsdp1_wrap(model, &flat));
    CHECK_ERROR(fsdp_adapter_add(model, &o, &adapter), FSDP_STATE,
                w == REPLICATE ? "is replicated already; add the adapter before"
                               : "is sharded already; add the adapter before");
    CHECK_NULL(adapter);
    fsdp_module_unref(model);
}

TEST(models_that_are_sharded_or_replicated_are_refused)
{
    for (way w = FULLY_SHARD; w <= REPLICATE; w++)
        test_run_worlds(1, 3, add_late, &w);
}

/* ---- folders ---- */

static void load_elsewhere(fsdp_context *context, void *arg)
{
    fsdp_module *model = tree(context, test_device(context), 6), *wide = tree(context, test_device(context), 60);
    fsdp_lora_options o = usual();
    fsdp_adapter *adapter = NULL, *of_wide = NULL;
    fsdp_state_dict *merged = NULL;

    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    CHECK_OK(fsdp_adapter_initialize(adapter, 1));
    CHECK_OK(fsdp_adapter_save(adapter, arg, NULL, fsdp_world(context)));
    CHECK_OK(fsdp_adapter_add(wide, &o, &of_wide));
    CHECK(fsdp_adapter_load(of_wide, arg) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), "0.lora_A.weight");
    /* Merging does not ask whether the adapter is on. */
    CHECK_OK(fsdp_adapter_set_enabled(adapter, false));
    CHECK_OK(fsdp_adapter_set_enabled(adapter, false));
    CHECK_OK(fsdp_adapter_merge(adapter, NULL, &merged));
    fsdp_state_dict_free(merged);
    fsdp_adapter_free(adapter);
    fsdp_adapter_free(of_wide);
    fsdp_module_unref(model);
    fsdp_module_unref(wide);
}

TEST(an_adapter_of_another_model_is_not_loaded)
{
    char *folder = test_directory();

    test_run_ranks(1, load_elsewhere, folder);
}

/* ---- allocations that fail ---- */

/* Adds, initializes, saves, loads and merges an adapter with norms, for as long as nothing fails. */
static fsdp_status use(fsdp_context *context, const char *folder, fsdp_module *model)
{
    fsdp_adapter *adapter = NULL;
    fsdp_state_dict *merged = NULL, *base = NULL, *own = NULL;
    fsdp_lora_options *read = NULL, o = usual();
    fsdp_status status;

    o.dora = true;
    o.saved = (const char *const[]){"0"};
    o.saved_count = 1;
    o.targets = (const char *const[]){"1"};
    FSDP_TRY_GOTO(status, fsdp_adapter_add(model, &o, &adapter), out);
    FSDP_TRY_GOTO(status, fsdp_adapter_initialize(adapter, 1), out);
    FSDP_TRY_GOTO(status, fsdp_adapter_state_dict(adapter, &own), out);
    FSDP_TRY_GOTO(status, fsdp_adapter_base_state_dict(adapter, &base), out);
    FSDP_TRY_GOTO(status, fsdp_adapter_save(adapter, folder, "base", fsdp_world(context)), out);
    FSDP_TRY_GOTO(status, fsdp_adapter_read_options(folder, &read), out);
    FSDP_TRY_GOTO(status, fsdp_adapter_load(adapter, folder), out);
    FSDP_TRY_GOTO(status, fsdp_adapter_merge(adapter, NULL, &merged), out);
out:
    fsdp_lora_options_free(read);
    fsdp_state_dict_free(merged);
    fsdp_state_dict_free(base);
    fsdp_state_dict_free(own);
    fsdp_adapter_free(adapter);
    return status;
}

/* A failed collective breaks its group, so each try has a context of its own. */
TEST(whatever_allocation_fails_nothing_leaks)
{
    char *folder = test_directory();

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context;
        fsdp_module *model;
        fsdp_status status;

        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        context = test_context();
        model = tree(context, test_device(context), 6);
        CHECK_PTR(fsdp_world(context));
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = use(context, folder, model);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_module_unref(model);
        test_drop_workspace(context);
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}
