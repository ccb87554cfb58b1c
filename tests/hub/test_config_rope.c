/* The rotary positions of a config.json: the kinds, what they have if it is left out, and every fault. */
#include "base/compiler.h"
#include "hub/config_keep.h"
#include "hub/hub.h"
#include "support/test.h"

#define LLAMA_SIZES                                                                           \
    "\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":32,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"intermediate_size\":48"
#define PHI3_SIZES                                                                           \
    "\"model_type\":\"phi3\",\"vocab_size\":100,\"hidden_size\":32,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"intermediate_size\":48"
#define LLAMA3                                                                          \
    "{\"rope_type\":\"llama3\",\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1," \
    "\"high_freq_factor\":4,\"original_max_position_embeddings\":512}"
#define LISTS "\"short_factor\":[1,1.5,2,2.5],\"long_factor\":[2,4,8,16.25]"
#define CLASS "\"architectures\": [\"LlamaForCausalLM\"]"

static fsdp_status parse(const char *text, fsdp_model_config *out)
{
    return fsdp__config_parse("config.json", text, strlen(text), out);
}

TEST(yarn_has_defaults)
{
    fsdp_model_config config;

    CHECK_OK(parse("{" LLAMA_SIZES
                   ",\"max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"yarn\",\"original_max_"
                   "position_embeddings\":128}}",
                   &config));
    CHECK(config.rope_type == FSDP_ROPE_YARN && config.rope_factor == 4 && config.rope_original_max_seq_len == 128);
    CHECK(config.rope_beta_fast == 32 && config.rope_beta_slow == 1 && !config.rope_keep_ramp);
    CHECK_OK(parse("{" LLAMA_SIZES ",\"max_position_embeddings\":512,\"rope_parameters\":{\"rope_type\":\"yarn\","
                   "\"factor\":3,\"attention_factor\":1.5,"
                   "\"beta_fast\":8,\"beta_slow\":2,\"truncate\":false,\"mscale\":1,\"mscale_all_dim\":0.5}}",
                   &config));
    CHECK(config.rope_factor == 3 && config.rope_attention_factor == 1.5f && config.rope_original_max_seq_len == 512);
    CHECK(config.rope_beta_fast == 8 && config.rope_beta_slow == 2 && config.rope_keep_ramp);
    CHECK(config.rope_mscale == 1 && config.rope_mscale_all_dim == 0.5f);
}

/* Phi-3 for 128k tokens in the older and the newer style, and Phi-4-mini, of whose heads a part rotates. */
TEST(longrope_of_a_phi3)
{
    static const struct {
        const char *rest;
        int64_t original;
        float factor, attention, fraction, third;
    } cases[] = {
        {",\"max_position_embeddings\":8192,\"original_max_position_embeddings\":512,\"rope_scaling\":"
         "{\"type\":\"su\"," LISTS "}",
         512, 16, 0, 0, 8},
        {",\"max_position_embeddings\":131072,\"rope_scaling\":{\"type\":\"longrope\"," LISTS "}", 4096, 32, 0, 0, 8},
        {",\"original_max_position_embeddings\":1024,\"rope_parameters\":{\"rope_type\":\"longrope\",\"factor\":2,"
         "\"attention_factor\":1.5,\"original_max_position_embeddings\":1024,\"rope_theta\":5e3," LISTS "}",
         1024, 2, 1.5f, 0, 8},
        {",\"partial_rotary_factor\":0.75,\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1],"
         "\"long_factor\":[1,2,3]}",
         4096, 1, 0, 0.75f, 3},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        bool part = cases[i].fraction > 0;
        fsdp_model_config config;
        char text[1000];

        snprintf(text, sizeof text, "{" PHI3_SIZES "%s%s}", part ? ",\"head_dim\":8" : "", cases[i].rest);
        CHECK_OK(parse(text, &config));
        CHECK_EQ(config.rope_type, FSDP_ROPE_LONGROPE);
        CHECK_EQ(config.rope_original_max_seq_len, cases[i].original);
        CHECK(config.rope_factor == cases[i].factor && config.rope_attention_factor == cases[i].attention);
        CHECK(config.rotary_fraction == cases[i].fraction);
        CHECK(config.rope_short_factors[0] == 1 && config.rope_long_factors[2] == cases[i].third);
    }
}

/* A list that the model does not change is not written again. */
TEST(lists_of_factors_stay_as_they_were_written)
{
    static const char text[] = "{\"architectures\": [\"Phi3ForCausalLM\"], " PHI3_SIZES
                               ", \"original_max_position_embeddings\": 64, \"rope_scaling\": {" LISTS
                               ", \"type\": \"su\"}, \"dtype\": \"float16\"}";
    fsdp_model_config config, read;
    char *changed = NULL;

    CHECK_OK(parse(text, &config));
    CHECK_OK(fsdp__config_change("config.json", text, strlen(text), &config, FSDP_F16, &changed));
    CHECK_STRING(changed, text);
    free(changed);
    config.rope_long_factors[1] = 4.5f;
    CHECK_OK(fsdp__config_change("config.json", text, strlen(text), &config, FSDP_F16, &changed));
    CHECK_OK(parse(changed, &read));
    CHECK(read.rope_long_factors[1] == 4.5f && read.rope_original_max_seq_len == 64);
    free(changed);
}

typedef struct fault {
    const char *text;
    fsdp_status status;
    const char *part;
} fault;

static void check_faults(const fault *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fsdp_model_config config = {.dim = 99};

        CHECK_ERROR(parse(cases[i].text, &config), cases[i].status, cases[i].part);
        CHECK_EQ(config.dim, 99);
    }
}

TEST(every_fault_of_rotary_positions_is_named)
{
    static const fault cases[] = {
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"proportional\",\"factor\":2}}", FSDP_UNSUPPORTED,
         "rope type 'proportional' is not supported: default, linear, llama3, dynamic, yarn and longrope are"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"dynamic\"}}", FSDP_FORMAT, "key 'factor' is missing"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2,\"beta_fast\":2}}", FSDP_UNSUPPORTED,
         "'beta_fast' does not belong to rope type dynamic"},
        {"{" LLAMA_SIZES ",\"head_dim\":2,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", FSDP_INVALID,
         "the part of head_dim that rotates is 2"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":0.5}}", FSDP_INVALID,
         "rope_beta_fast 0.5 must be above rope_beta_slow 1"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\"}}", FSDP_FORMAT, "key 'factor' is missing"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"low_freq_factor\":1}}",
         FSDP_UNSUPPORTED, "'low_freq_factor' does not belong to rope type linear"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", FSDP_INVALID, "rope_factor is 0"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"llama3\"}}", FSDP_FORMAT, "key 'factor' is missing"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":[]}", FSDP_FORMAT, "key 'rope_parameters' is an array, not an object"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", FSDP_UNSUPPORTED,
         "partial_rotary_factor"},
        {"{" LLAMA_SIZES ",\"partial_rotary_factor\":0.5}", FSDP_UNSUPPORTED, "partial_rotary_factor"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_scaling\":" LLAMA3 "}",
         FSDP_UNSUPPORTED,
         "its rope_parameters and rope_scaling differ: one kind is supported, default, linear, llama3"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":" LLAMA3 ",\"rope_scaling\":{}}", FSDP_UNSUPPORTED, "differ"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":" LLAMA3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
         FSDP_UNSUPPORTED, "its rope_parameters and rope_scaling differ"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"default\",\"type\":\"llama3\"}}", FSDP_UNSUPPORTED,
         "a 'type' and another 'rope_type'"},
        {"{" LLAMA_SIZES ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e5}}", FSDP_UNSUPPORTED,
         "two values of rope_theta"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"factor\":2}}", FSDP_UNSUPPORTED,
         "'factor' does not belong to rope type default"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", FSDP_UNSUPPORTED,
         "'full_attention' does not belong to rope type default"},
        {"{" LLAMA_SIZES ",\"rope_theta\":-1}", FSDP_INVALID, "rope_theta is -1"},
        {"{" LLAMA_SIZES ",\"rope_theta\":NaN}", FSDP_FORMAT, "key 'rope_theta' is a string, not a number"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":" LLAMA3 ",\"original_max_position_embeddings\":9}", FSDP_UNSUPPORTED,
         "two values of original_max_position_embeddings"},
    };

    check_faults(cases, FSDP__COUNT_OF(cases));
}

#define PHI3_ROPE(keys) "{" PHI3_SIZES ",\"rope_scaling\":{\"type\":\"longrope\"," keys "}}"

TEST(every_fault_of_a_list_of_factors_is_named)
{
    static const fault cases[] = {
        {PHI3_ROPE("\"long_factor\":[1,2,3,4]"), FSDP_FORMAT,
         "key 'short_factor' of rope type longrope must be a list of numbers"},
        {PHI3_ROPE("\"short_factor\":[1,2,3,4],\"long_factor\":[1,2,3]"), FSDP_FORMAT,
         "key 'long_factor' has 3 numbers: 4 pairs of each head rotate"},
        {PHI3_ROPE("\"short_factor\":[1,2,3,4,5],\"long_factor\":[1,2,3]"), FSDP_FORMAT,
         "'short_factor' has 5 numbers"},
        {PHI3_ROPE("\"short_factor\":[1,2,3,0],\"long_factor\":[1,2,3,4]"), FSDP_FORMAT,
         "number 4 of key 'short_factor' must be above 0"},
        {PHI3_ROPE("\"short_factor\":[1,2,3,4],\"long_factor\":[1,\"2\",3,4]"), FSDP_FORMAT,
         "number 2 of key 'long_factor' must be above 0"},
        {PHI3_ROPE(LISTS ",\"beta_fast\":32"), FSDP_UNSUPPORTED, "'beta_fast' does not belong to rope type longrope"},
        {PHI3_ROPE(LISTS ",\"original_max_position_embeddings\":512"), FSDP_UNSUPPORTED,
         "two values of original_max_position_embeddings"}, /* 4096 where a Phi-3 has it */
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"longrope\"," LISTS "},\"rope_scaling\":{\"type\":"
         "\"longrope\",\"short_factor\":[1,1.5,2,2.5],\"long_factor\":[2,4,8,16]}}",
         FSDP_UNSUPPORTED, "its rope_parameters and rope_scaling differ"},
    };

    check_faults(cases, FSDP__COUNT_OF(cases));
}

TEST(keys_of_rotary_positions_change_together)
{
    static const char text[] = "{" CLASS ", " LLAMA_SIZES ", \"rope_scaling\": " LLAMA3 ", \"dtype\": \"auto\"}";
    fsdp_model_config config, read;
    char *changed = NULL;

    CHECK_OK(parse(text, &config));
    config.rope_type = FSDP_ROPE_DEFAULT;
    config.rope_theta = 5e5f;
    CHECK_OK(fsdp__config_change("config.json", text, strlen(text), &config, FSDP_F16, &changed));
    CHECK_CONTAINS(changed, ", \"rope_scaling\": null, ");
    CHECK_OK(parse(changed, &read));
    CHECK(read.rope_type == FSDP_ROPE_DEFAULT && read.rope_theta == 5e5f);
    free(changed);
}
