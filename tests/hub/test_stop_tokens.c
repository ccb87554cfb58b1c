/* Which tokens end a text, by generation_config.json and config.json. */
#include "hub/hub.h"
#include "support/test.h"

static fsdp_hub_stop_tokens parse(const char *text)
{
    fsdp_hub_stop_tokens stops;

    CHECK_OK(fsdp__stop_tokens_parse("there.json", text, strlen(text), &stops));
    return stops;
}

TEST(one_or_several_or_none)
{
    fsdp_hub_stop_tokens stops = parse("{\"eos_token_id\": 7}");

    CHECK_EQ(stops.count, 1);
    CHECK_EQ(stops.ids[0], 7);
    stops = parse("{\"a\": 1, \"eos_token_id\": [128001, 128008, 0]}");
    CHECK_EQ(stops.count, 3);
    CHECK_EQ(stops.ids[0], 128001);
    CHECK_EQ(stops.ids[2], 0);
    CHECK_EQ(parse("{\"eos_token_id\": null}").count, 0);
    CHECK_EQ(parse("{\"eos_token_id\": []}").count, 0);
    CHECK_EQ(parse("{}").count, 0);
    CHECK_EQ(parse("{\"eos_token_id\": -1}").count, 0); /* as none is written, too */
    CHECK_EQ(parse("{\"eos_token_id\": [-1, 3], \"x\": NaN}").ids[0], 3);
}

TEST(what_is_none_is_refused)
{
    static const char *const wrong[] = {"{\"eos_token_id\": \"x\"}", "{\"eos_token_id\": 2147483648}",
                                        "{\"eos_token_id\": [1, null]}", "{\"eos_token_id\": 1.5}"};
    fsdp_hub_stop_tokens stops;
    char many[1024] = "{\"eos_token_id\": [0";

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_ERROR(fsdp__stop_tokens_parse("there.json", wrong[i], strlen(wrong[i]), &stops), FSDP_FORMAT,
                    "'there.json': key 'eos_token_id' is neither a token id nor a list");
    for (int i = 0; i < FSDP_HUB_MAX_STOP_TOKENS; i++)
        strcat(many, ", 1");
    strcat(many, "]}");
    CHECK_ERROR(fsdp__stop_tokens_parse("there.json", many, strlen(many), &stops), FSDP_UNSUPPORTED,
                "more than 64 token ids");
}

static void write_json(const char *folder, const char *name, const char *text)
{
    char *path = test_path(folder, name);

    test_write_file(path, text, strlen(text));
}

TEST(generation_config_comes_first)
{
    char *folder = test_directory();
    fsdp_hub_stop_tokens stops;

    CHECK_OK(fsdp_hub_read_stop_tokens(folder, &stops));
    CHECK_EQ(stops.count, 0);
    write_json(folder, "config.json", "{\"eos_token_id\": 5}");
    CHECK_OK(fsdp_hub_read_stop_tokens(folder, &stops));
    CHECK_EQ(stops.count, 1);
    CHECK_EQ(stops.ids[0], 5);
    write_json(folder, "generation_config.json", "{\"eos_token_id\": [8, 9]}");
    CHECK_OK(fsdp_hub_read_stop_tokens(folder, &stops));
    CHECK_EQ(stops.count, 2);
    CHECK_EQ(stops.ids[1], 9);
    write_json(folder, "generation_config.json", "{\"temperature\": 1}");
    CHECK_OK(fsdp_hub_read_stop_tokens(folder, &stops));
    CHECK_EQ(stops.ids[0], 5);
    write_json(folder, "generation_config.json", "[");
    CHECK_ERROR(fsdp_hub_read_stop_tokens(folder, &stops), FSDP_FORMAT, "generation_config.json");
}

TEST(no_memory_is_an_error)
{
    char *folder = test_directory();

    write_json(folder, "generation_config.json", "{\"eos_token_id\": [8, 9]}");
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_hub_stop_tokens stops;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_hub_read_stop_tokens(folder, &stops));
    }
}
