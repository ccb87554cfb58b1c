/* The table of known cards: who is found, and that its rates are dense, by what the cards are made of. */
#include "device/known_cards.h"

#include <math.h>

#include "support/test.h"

TEST(a_card_is_found_by_the_name_that_it_reports_or_people_write)
{
    static const char *const names[][2] = {{"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"},
                                           {"H100", "NVIDIA H100 80GB HBM3"},
                                           {"h100 pcie", "NVIDIA H100 PCIe"},
                                           {"NVIDIA H100 PCIe", "NVIDIA H100 PCIe"},
                                           {"l40s", "NVIDIA L40S"},
                                           {"L40", "NVIDIA L40"},
                                           {"L4", "NVIDIA L4"},
                                           {"NVIDIA H200", "NVIDIA H200"},
                                           {"nvidia geforce rtx 4090", "NVIDIA GeForce RTX 4090"}};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_STRING(((const fsdp__known_card *)CHECK_PTR(fsdp__known_card_find(names[i][0])))->name, names[i][1]);
}

TEST(a_part_of_a_card_and_any_other_card_are_not_known)
{
    static const char *const names[] = {"",
                                        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                                        "NVIDIA H100 80GB HBM3 ",
                                        "NVIDIA ",
                                        "H10",
                                        "NVIDIA GeForce RTX 4090 Laptop GPU",
                                        "NVIDIA",
                                        "cpu",
                                        "H1000"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_NULL(fsdp__known_card_find(names[i]));
}

TEST(no_two_cards_have_one_name)
{
    int count = 0;

    for (const fsdp__known_card *card; (card = fsdp__known_card_at(count)) != NULL; count++) {
        CHECK(fsdp__known_card_find(card->name) == card);
        CHECK(!card->short_name || fsdp__known_card_find(card->short_name) == card);
        CHECK(card->memory_gib > 20 && card->memory_gbs >= 300 && card->link_gbs > 30 && card->link[0]);
    }
    CHECK(count >= 20);
    CHECK_NULL(fsdp__known_card_at(-1));
}

/* Multiprocessors x FLOP a clock of each x GHz, with sums in f32: a sparse rate would be twice that. */
TEST(rates_are_dense)
{
    static const struct {
        const char *name;
        double units, flop, ghz;
    } parts[] = {{"A100", 108, 2048, 1.41},    {"A30", 56, 2048, 1.44},
                 {"A40", 84, 1024, 1.74},      {"A10", 72, 1024, 1.695},
                 {"A6000", 84, 1024, 1.8},     {"L4", 58, 1024, 2.04},
                 {"L40S", 142, 1024, 2.49},    {"RTX 6000 Ada", 142, 1024, 2.505},
                 {"H100", 132, 4096, 1.83},    {"H100 PCIe", 114, 4096, 1.62},
                 {"H200", 132, 4096, 1.83},    {"RTX 3090", 82, 512, 1.695},
                 {"RTX 4090", 128, 512, 2.52}, {"RTX 5090", 170, 512, 2.407}};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const fsdp__known_card *card = CHECK_PTR(fsdp__known_card_find(parts[i].name));
        double counted = parts[i].units * parts[i].flop * parts[i].ghz * 1e-3;

        CHECK_NEAR(card->tflops_16, counted, counted * 0.01);
    }
    for (int i = 0; fsdp__known_card_at(i); i++)
        CHECK(fsdp__known_card_at(i)->tflops_32 <= fsdp__known_card_at(i)->tflops_16 / 2 * 1.01);
}

TEST(products_of_f32_are_not_those_of_tf32)
{
    const fsdp__known_card *card = CHECK_PTR(fsdp__known_card_find("H100"));

    CHECK_EQ((int64_t)fsdp__known_card_flops(card, FSDP_F32), 67000000000000);
    CHECK_EQ((int64_t)fsdp__known_card_flops(card, FSDP_BF16), 989000000000000);
    CHECK_EQ((int64_t)fsdp__known_card_flops(card, FSDP_F16), 989000000000000);
    CHECK_EQ((int64_t)fsdp__known_card_flops(card, FSDP_I32), 0);
}

/* What a data sheet says of a card follows from what it is made of, within the clocks that both count with. */
TEST(a_card_in_no_table_is_estimated_by_what_it_is_made_of)
{
    static const struct {
        fsdp__device_facts gpu;
        double tflops_16, tflops_32;
    } parts[] = {{{"NVIDIA A100-SXM4-80GB", .capability = 80, .multiprocessors = 108, .clock_mhz = 1410}, 312, 19.5},
                 {{"NVIDIA A40", .capability = 86, .multiprocessors = 84, .clock_mhz = 1740}, 149.7, 37.4},
                 {{"NVIDIA GeForce RTX 3090", .capability = 86, .multiprocessors = 82, .clock_mhz = 1695}, 71, 35.6},
                 {{"NVIDIA GeForce RTX 4090", .capability = 89, .multiprocessors = 128, .clock_mhz = 2520}, 165, 82.6},
                 {{"NVIDIA H200", .capability = 90, .multiprocessors = 132, .clock_mhz = 1980}, 989, 67},
                 {{"NVIDIA B200", .capability = 100, .multiprocessors = 148, .clock_mhz = 1965}, 2250, 75},
                 {{"NVIDIA GeForce RTX 5090", .capability = 120, .multiprocessors = 170, .clock_mhz = 2407}, 210, 105}};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const fsdp__device_facts *gpu = &parts[i].gpu;
        double clocks = gpu->multiprocessors * gpu->clock_mhz * 1e-6;

        CHECK_NEAR(fsdp__flops_a_clock(gpu, FSDP_BF16) * clocks, parts[i].tflops_16, parts[i].tflops_16 * 0.09);
        CHECK_NEAR(fsdp__flops_a_clock(gpu, FSDP_F32) * clocks, parts[i].tflops_32, parts[i].tflops_32 * 0.02);
        CHECK_EQ(fsdp__flops_a_clock(gpu, FSDP_F16), fsdp__flops_a_clock(gpu, FSDP_BF16));
        CHECK_EQ(fsdp__flops_a_clock(gpu, FSDP_I32), 0);
    }
    CHECK_EQ(fsdp__flops_a_clock(&(fsdp__device_facts){.card = "NVIDIA T4", .capability = 75}, FSDP_BF16), 0);
}
