/* Prices: of cards, in files, and what is refused of files that somebody else has made. */
#include "plan/measure.h"
#include "plan/prices.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

static fsdp__matmul_args product(int64_t size, fsdp_dtype dtype)
{
    return (fsdp__matmul_args){.m = size, .n = size, .k = size, .batch = 1, .a_dtype = dtype, .b_dtype = dtype};
}

static double seconds_of(const fsdp__prices *prices, int64_t size, fsdp_dtype dtype)
{
    fsdp__matmul_args args = product(size, dtype);

    return fsdp__price_kernel(prices, FSDP__KERNEL_MATMUL, &args);
}

TEST(a_rate_is_interpolated_between_sizes)
{
    fsdp__prices prices = {
        .per_second = 1,
        .rate_count = 2,
        .rates = {{FSDP__KERNEL_MATMUL, FSDP_F32, 400, 4e9}, {FSDP__KERNEL_MATMUL, FSDP_F32, 100, 1e9}}};

    fsdp__prices_sort(&prices);
    CHECK_NEAR(seconds_of(&prices, 100, FSDP_F32), 2e6 / 1e9, 1e-12);
    CHECK_NEAR(seconds_of(&prices, 200, FSDP_F32), 16e6 / 2e9, 1e-12);
    CHECK_NEAR(seconds_of(&prices, 400, FSDP_F32), 128e6 / 4e9, 1e-12);
    CHECK_NEAR(seconds_of(&prices, 800, FSDP_F32), 1024e6 / 4e9, 1e-12); /* beyond: that of the nearest */
    CHECK_NEAR(seconds_of(&prices, 50, FSDP_F32), 250e3 / 1e9, 1e-12);
    CHECK_NEAR(seconds_of(&prices, 100, FSDP_BF16), 2e6 / 1e9, 1e-12); /* not measured: that of float32 */
}

TEST(a_kernel_without_products_costs_its_bytes)
{
    fsdp__prices prices = {.per_second = 1e6};
    float values[1000];
    fsdp__fill_args args = {.dst = values, .dtype = FSDP_F32, .numel = 1000};

    CHECK_NEAR(fsdp__price_kernel(&prices, FSDP__KERNEL_FILL, &args), 4e-3, 1e-12);
}

TEST(what_lies_between_the_parts_of_a_tensor_costs_nothing)
{
    fsdp__prices prices = {.per_second = 1e6};
    float x[8 * 30];
    fsdp__swiglu_forward_args s = {.gate = x, .up = x, .y = x, .rows = 8, .cols = 10, .dtype = FSDP_F32};
    fsdp__rope_args r = {
        .x = x, .y = x, .frequency = x, .batch = 2, .time = 4, .heads = 1, .head_dim = 10, .dtype = FSDP_F32};

    s.gate_row = s.up_row = s.y_row = 30;
    r.x_head = r.y_head = 10, r.x_time = r.y_time = 30, r.x_batch = r.y_batch = 120;
    CHECK_NEAR(fsdp__price_kernel(&prices, FSDP__KERNEL_SWIGLU_FORWARD, &s), 3 * 320e-6, 1e-12);
    CHECK_NEAR(fsdp__price_kernel(&prices, FSDP__KERNEL_ROPE, &r), (2 * 320 + 20) * 1e-6, 1e-12);
}

TEST(a_reduction_costs_by_how_many_ranks_share_the_machine)
{
    const fsdp__prices prices = {.per_second = 1e9, .world_count = 2, .worlds = {{2, {1e-6, 4e9}}, {4, {5e-6, 2e9}}}};
    fsdp__price_call c = {.kind = FSDP_REDUCE_SCATTER, .bytes = 4e6, .ranks = 1, .machines = 1, .machine_ranks = 1};

    CHECK_NEAR(fsdp__price_collective(&prices, &c), 8e6 / 1e9, 1e-12); /* one rank copies */
    c.ranks = c.machine_ranks = 2;
    CHECK_NEAR(fsdp__price_collective(&prices, &c), 1e-6 + 2 * 6e6 / 4e9, 1e-12);
    c.ranks = c.machine_ranks = 8; /* as with the most that are known */
    CHECK_NEAR(fsdp__price_collective(&prices, &c), 5e-6 + 8 * 4.5e6 / 2e9, 1e-12);
    c.kind = FSDP_ALL_GATHER; /* finds its parameters in place */
    CHECK_NEAR(fsdp__price_collective(&prices, &c), 5e-6, 1e-12);
}

TEST(gpus_exchange_by_their_links_or_through_the_host)
{
    fsdp__prices prices = {.gpu = true, .host = {1e-5, 5e10}, .machine = {5e-5, 0}, .network = {1e-4, 1e10}};
    fsdp__price_call c = {
        .kind = FSDP_ALL_GATHER, .bytes = 8e6, .ranks = 8, .machines = 1, .machine_ranks = 8, .network = 1e6};

    CHECK_NEAR(fsdp__price_collective(&prices, &c), 5e-5 + 9e6 / 5e10, 1e-12);
    prices.peers.per_second = 3e11;
    CHECK_NEAR(fsdp__price_collective(&prices, &c), 5e-5 + 7e6 / 3e11, 1e-12);
    c.kind = FSDP_ALL_REDUCE;
    CHECK_NEAR(fsdp__price_collective(&prices, &c), 5e-5 + 14e6 / 3e11, 1e-12);
    c.machines = 2;
    CHECK_NEAR(fsdp__price_collective(&prices, &c), 5e-5 + 14e6 / 3e11 + 1e-4 + 8e6 / 1e10, 1e-12);
    c.machines = 8; /* one rank of each machine: nothing stays inside */
    CHECK_NEAR(fsdp__price_collective(&prices, &c), 1e-4 + 8e6 / 1e10, 1e-12);
}

TEST(a_link_is_the_data_sheets_unless_the_machine_has_another)
{
    static const struct {
        const char *card;
        fsdp__link way;
        double gbs;
    } cases[] = {{"H100", FSDP__LINK_UNKNOWN, 450},   {"H100", FSDP__LINK_NVLINK, 450},
                 {"H100", FSDP__LINK_PCIE, 63},       {"H100", FSDP__LINK_HOST, 0},
                 {"A100", FSDP__LINK_PCIE, 31.5},     {"L40S", FSDP__LINK_PCIE, 31.5},
                 {"RTX 4090", FSDP__LINK_UNKNOWN, 0}, {"RTX 4090", FSDP__LINK_PCIE, 0},
                 {"abacus", FSDP__LINK_UNKNOWN, 0},   {"abacus", FSDP__LINK_PCIE, 0}};

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++)
        CHECK_NEAR(fsdp__price_of_link(cases[i].card, cases[i].way).per_second, 0.75e9 * cases[i].gbs, 1);
}

TEST(a_card_is_known_by_its_data_sheet)
{
    fsdp__prices h100, a100;

    CHECK_OK(fsdp__prices_of_card("H100", &h100));
    CHECK_OK(fsdp__prices_of_card("a100", &a100));
    CHECK(h100.gpu && h100.memory_bytes > 70e9 && h100.memory_bytes < 90e9);
    CHECK_STRING(h100.source, "its data sheet");
    CHECK(seconds_of(&h100, 4096, FSDP_BF16) < seconds_of(&a100, 4096, FSDP_BF16));
    CHECK(seconds_of(&h100, 4096, FSDP_BF16) > 2 * 4096.0 * 4096 * 4096 / 989e12);
    CHECK(seconds_of(&h100, 4096, FSDP_BF16) < seconds_of(&h100, 4096, FSDP_F32));
    CHECK_ERROR(fsdp__prices_of_card("H1OO", &h100), FSDP_NOT_FOUND, "did you mean 'H100'?");
    CHECK_ERROR(fsdp__prices_of_card("abacus", &h100), FSDP_NOT_FOUND, "fsdp plan --measure FILE");
}

/* ---- files ---- */

static fsdp_status read_text(const char *text, fsdp__prices *out)
{
    char *directory = test_directory(), *path = test_path(directory, "prices.json");
    fsdp_status status;

    test_write_file(path, text, strlen(text));
    status = fsdp__prices_read(path, out);
    test_directory_free(directory);
    return status;
}

#define HEAD "{\"fsdp_prices\": 1, \"device\": \"a\", \"source\": \"b\", \"memory_bytes\": 1, "
#define RATES "\"launch_seconds\": 0, \"bytes_per_second\": 1e9, \"rates\": "
#define WORLD "{\"ranks\": 2, \"latency_seconds\": 0, \"bytes_per_second\": 1e9}"
#define RATE "{\"kernel\": \"matmul\", \"dtype\": \"float32\", \"size\": 64, \"per_second\": 1e9}"

TEST(a_file_that_is_damaged_is_refused_with_its_place)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "prices.json"},
        {"[]", "prices.json"},
        {"{}", "\"fsdp_prices\" is missing"},
        {"{\"fsdp_prices\": 2}", "its version is 2"},
        {HEAD "\"cores\": 0, " RATES "[]}", "\"cores\" is 0"},
        {HEAD "\"cores\": 1, \"busy\": 2, " RATES "[]}", "\"busy\" is 2"},
        {HEAD "\"cores\": -1, " RATES "[]}", "\"cores\" is -1"},
        {HEAD "\"cores\": 1, " RATES "{}}", "must be a list"},
        {HEAD "\"cores\": 1, " RATES "[7]}", "a rate is no object"},
        {HEAD "\"cores\": 1, " RATES "[{\"kernel\": \"x\\u001b\"}]}", "there is no kernel 'x\\x1b'"},
        {HEAD "\"cores\": 1, " RATES "[" RATE ", " RATE "]}", "two rates of matmul for the size 64"},
        {HEAD "\"cores\": 1, " RATES "[{\"kernel\": \"matmul\", \"dtype\": \"int32\"}]}", "has the dtype 'int32'"},
        {HEAD "\"cores\": 1, " RATES "[{\"kernel\": \"adam\", \"size\": 0}]}", "\"size\" is 0"},
        {HEAD "\"cores\": 1, \"launch_seconds\": 0, \"bytes_per_second\": 0, \"rates\": []}",
         "\"bytes_per_second\" is 0"},
        {HEAD "\"cores\": 1, \"machine\": {\"latency_seconds\": -1}, " RATES "[]}", "\"latency_seconds\" is -1"},
        {HEAD "\"cores\": 1, \"machine_by_ranks\": {}, " RATES "[]}", "\"machine_by_ranks\" must be a list"},
        {HEAD "\"cores\": 1, \"machine_by_ranks\": [7], " RATES "[]}", "\"ranks\" is missing"},
        {HEAD "\"cores\": 1, \"machine_by_ranks\": [" WORLD ", " WORLD "], " RATES "[]}", "\"ranks\" is 2"},
    };
    fsdp__prices prices;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(read_text(bad[i].text, &prices) != FSDP_OK);
        CHECK_CONTAINS(fsdp_last_error(), bad[i].message);
    }
    CHECK_OK(read_text(HEAD "\"cores\": 2, " RATES "[" RATE "]}", &prices));
    CHECK_NEAR(prices.busy, 0, 0);
    CHECK_OK(read_text(HEAD "\"cores\": 2, \"busy\": 0.25, " RATES "[" RATE "]}", &prices));
    CHECK_NEAR(prices.busy, 0.25, 0);
    CHECK_EQ(prices.cores, 2);
    CHECK_EQ(prices.rate_count, 1);
}

TEST(what_is_measured_can_be_printed_and_read_again)
{
    fsdp__prices measured, read;
    FILE *out = test_begin_text();

    CHECK_OK(fsdp__prices_measure("cpu", 0, &measured));
    CHECK(measured.rate_count > 20 && measured.cores >= 1 && measured.per_second > 0);
    CHECK_OK(fsdp__prices_print(&measured, out));
    CHECK_OK(read_text(test_end_text(out), &read));
    CHECK_EQ(read.rate_count, measured.rate_count);
    CHECK(measured.busy >= 0 && measured.busy < 1);
    CHECK_NEAR(read.busy, measured.busy, 1e-9);
    CHECK_NEAR(seconds_of(&read, 512, FSDP_F32) / seconds_of(&measured, 512, FSDP_F32), 1, 1e-9);
    CHECK(read.rates[0].kernel == measured.rates[0].kernel);
    CHECK(measured.world_count >= 1 && measured.worlds[0].ranks == 2 && measured.worlds[0].link.per_second > 0);
    CHECK_EQ(read.world_count, measured.world_count);
    CHECK_NEAR(read.worlds[0].link.latency, measured.worlds[0].link.latency, 1e-12);
}

/* Its ranks' calls take time, and their bytes go by other links. */
TEST(what_a_call_of_gpus_takes_is_read_again)
{
    fsdp__prices gpu = {.gpu = true, .per_second = 1e12, .machine = {5e-5, 0}, .peers = {0, 3e11}}, read;
    FILE *out = test_begin_text();

    snprintf(gpu.device, sizeof gpu.device, "a");
    snprintf(gpu.source, sizeof gpu.source, "b");
    CHECK_OK(fsdp__prices_print(&gpu, out));
    CHECK_OK(read_text(test_end_text(out), &read));
    CHECK_NEAR(read.machine.latency, 5e-5, 1e-15);
    CHECK_NEAR(read.peers.per_second, 3e11, 1);
    CHECK_STATUS(read_text(HEAD "\"cores\": 1, \"machine\": {\"latency_seconds\": 1e-5}, " RATES "[]}", &read),
                 FSDP_INVALID);
}
