/* adapter_config.json: what is read, what is refused by name, and that what is written is read back. */
#include <jansson.h>
#include <unistd.h>

#include "adapter/adapter.h"
#include "support/test.h"

static fsdp_status parse(const char *text, fsdp_lora_options **out)
{
    return fsdp__adapter_config_parse("adapter_config.json", text, strlen(text), out);
}

TEST(the_settings_of_peft_are_read)
{
    fsdp_lora_options *o = NULL;

    CHECK_OK(
        parse("{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8.5, \"lora_dropout\": 0.25, \"use_rslora\": "
              "true, \"use_dora\": true, \"target_modules\": [\"q_proj\", \"v_proj\"], \"exclude_modules\": \"x.*\", "
              "\"rank_pattern\": {\"q_proj\": 2}, \"alpha_pattern\": {\"v_proj\": 3.5}, \"modules_to_save\": "
              "[\"lm_head\"], \"bias\": \"none\", \"lora_bias\": false, \"layers_to_transform\": null, "
              "\"loftq_config\": {}, \"init_lora_weights\": true, \"megatron_core\": \"megatron.core\", "
              "\"qalora_group_size\": 16, \"fan_in_fan_out\": true}",
              &o));
    CHECK_EQ(o->rank, 4);
    CHECK_NEAR(o->alpha, 8.5, 0);
    CHECK_NEAR(o->dropout, 0.25, 0);
    CHECK(o->rslora && o->dora && o->some_targets);
    CHECK_EQ(o->target_count, 2);
    CHECK_STRING(o->targets[1], "v_proj");
    CHECK_STRING(o->exclude_regex, "x.*");
    CHECK_STRING(o->rank_patterns[0].key, "q_proj");
    CHECK_NEAR(o->rank_patterns[0].value, 2, 0);
    CHECK_NEAR(o->alpha_patterns[0].value, 3.5, 0);
    CHECK_STRING(o->saved[0], "lm_head");
    fsdp_lora_options_free(o);
    CHECK_OK(parse("{\"peft_type\": \"LORA\", \"target_modules\": \"all-linear\"}", &o));
    CHECK_STRING(o->targets[0], "all-linear");
    fsdp_lora_options_free(o);
    CHECK_OK(parse("{\"peft_type\": \"LORA\", \"target_modules\": \".*proj\"}", &o));
    CHECK_STRING(o->target_regex, ".*proj");
    fsdp_lora_options_free(o);
}

TEST(settings_that_change_numbers_and_are_unknown_are_refused_by_name)
{
    static const char *const set[] = {"\"lora_bias\": true",
                                      "\"layers_to_transform\": [1]",
                                      "\"layer_replication\": [[0, 2]]",
                                      "\"trainable_token_indices\": [3]",
                                      "\"target_parameters\": [\"w\"]",
                                      "\"loftq_config\": {\"loftq_bits\": 4}",
                                      "\"use_qalora\": true",
                                      "\"bias\": \"all\"",
                                      "\"init_lora_weights\": \"pissa\"",
                                      "\"alora_invocation_tokens\": [1]",
                                      "\"something_of_next_year\": 2"};

    for (size_t i = 0; i < FSDP__COUNT_OF(set); i++) {
        char text[200], name[60];
        fsdp_lora_options *o = NULL;

        snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"target_modules\": [\"q\"], %s}", set[i]);
        snprintf(name, sizeof name, "'adapter_config.json': %.*s is", (int)strcspn(set[i] + 1, "\""), set[i] + 1);
        CHECK_ERROR(parse(text, &o), FSDP_UNSUPPORTED, name);
        CHECK_NULL(o);
    }
    {
        fsdp_lora_options *o = NULL;

        CHECK_ERROR(parse("{\"peft_type\": \"LOHA\"}", &o), FSDP_UNSUPPORTED, "peft_type is \"LOHA\"");
        CHECK_STATUS(parse("{}", &o), FSDP_FORMAT);
        CHECK_ERROR(parse("{\"peft_type\": \"LORA\"}", &o), FSDP_FORMAT, "no target_modules");
        CHECK_ERROR(parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"q\"], \"r\": 0}", &o), FSDP_FORMAT,
                    "r is not a rank: it is 0, and must be 1 or more");
        CHECK_ERROR(parse("{\"peft_type\": \"LORA\", \"target_modules\": [\"q\"], \"lora_alpha\": 0}", &o), FSDP_FORMAT,
                    "lora_alpha is not above 0");
        CHECK_ERROR(parse("{\"peft_type\": \"LORA\", \"target_modules\": 3}", &o), FSDP_FORMAT,
                    "target_modules is not a list of strings, or a string");
        CHECK_ERROR(parse("{\"peft_type\": \"LORA\", \"target_modules\": [1]}", &o), FSDP_FORMAT,
                    "target_modules is not a list of strings");
        CHECK_ERROR(parse("{\"peft_type\": \"LORA\", \"target_modules\": \"a\", \"rank_pattern\": {\"a\": \"b\"}}", &o),
                    FSDP_FORMAT, "rank_pattern is not an object of numbers");
        CHECK_ERROR(fsdp_adapter_read_options("/nowhere/at/all", &o), FSDP_NOT_FOUND, "/nowhere/at/all");
    }
}

CONTEXT_TEST(what_is_written_is_read_back)
{
    fsdp_module *parts[] = {fsdp_linear_create(context, fsdp_meta(context), 6, 4, NULL),
                            fsdp_linear_create(context, fsdp_meta(context), 4, 5, NULL)};
    fsdp_module *model = CHECK_PTR(fsdp_sequential_create(context, parts, 2));
    static const char *const all[] = {"all-linear"};
    const fsdp_lora_pattern rank = {"0", 3};
    fsdp_lora_options o = {.targets = all,
                           .target_count = 1,
                           .alpha = 2.5,
                           .dora = true,
                           .rank_patterns = &rank,
                           .rank_pattern_count = 1},
                      *back = NULL;
    fsdp_adapter *adapter = NULL;
    char *text = NULL;

    CHECK_OK(fsdp_adapter_add(model, &o, &adapter));
    CHECK_OK(fsdp__adapter_config_text(adapter, "base", &text));
    CHECK_CONTAINS(text, "\"base_model_name_or_path\": \"base\"");
    CHECK_OK(parse(text, &back));
    CHECK_EQ(back->target_count, 2); /* what all-linear stands for */
    CHECK_STRING(back->targets[0], "0");
    CHECK_EQ(back->rank, 8);
    CHECK_NEAR(back->alpha, 2.5, 0);
    CHECK(back->dora && !back->rslora);
    CHECK_NEAR(back->rank_patterns[0].value, 3, 0);
    free(text);
    fsdp_lora_options_free(back);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}
