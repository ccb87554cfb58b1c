/* known_cards.c - the table of known GPUs, and of what their multiprocessors do. Its figures are those of NVIDIA's data
 * sheets and, for GeForce and RTX cards, white papers; those that are given with sparsity only are halved. The memory
 * is what CUDA reports. */
#include "device/known_cards.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "base/compiler.h"

/* clang-format off */
static const fsdp__known_card cards[] = {
    /*                               short name       16 bit   f32  GiB   GB/s   link */
    {"NVIDIA A100-SXM4-40GB",         "A100 40GB",       312, 19.5,  39,  1555,  300, "NVLink"},
    {"NVIDIA A100-SXM4-80GB",         "A100",            312, 19.5,  79,  2039,  300, "NVLink"},
    {"NVIDIA A100-PCIE-40GB",         "A100 PCIe 40GB",  312, 19.5,  39,  1555, 31.5, "PCIe 4"},
    {"NVIDIA A100 80GB PCIe",         "A100 PCIe",       312, 19.5,  79,  1935, 31.5, "PCIe 4"},
    {"NVIDIA A800-SXM4-80GB",         "A800",            312, 19.5,  79,  2039,  200, "NVLink"},
    {"NVIDIA A30",                    "A30",             165, 10.3,  23,   933, 31.5, "PCIe 4"},
    {"NVIDIA A40",                    "A40",           149.7, 37.4,  44,   696, 31.5, "PCIe 4"},
    {"NVIDIA A10",                    "A10",             125, 31.2,  22,   600, 31.5, "PCIe 4"},
    {"NVIDIA L4",                     "L4",              121, 30.3,  21,   300, 31.5, "PCIe 4"},
    {"NVIDIA L40",                    "L40",             181, 90.5,  44,   864, 31.5, "PCIe 4"},
    {"NVIDIA L40S",                   "L40S",            362, 91.6,  44,   864, 31.5, "PCIe 4"},
    {"NVIDIA H100 80GB HBM3",         "H100",            989,   67,  79,  3350,  450, "NVLink"},
    {"NVIDIA H100 PCIe",              NULL,              756,   51,  79,  2000,   63, "PCIe 5"},
    {"NVIDIA H100 NVL",               NULL,              835,   60,  93,  3900,   63, "PCIe 5"},
    {"NVIDIA H800",                   "H800",            989,   67,  79,  3350,  200, "NVLink"},
    {"NVIDIA H20",                    "H20",             148,   44,  95,  4000,  450, "NVLink"},
    {"NVIDIA H200",                   "H200",            989,   67, 139,  4800,  450, "NVLink"},
    {"NVIDIA H200 NVL",               NULL,              835,   60, 139,  4800,   63, "PCIe 5"},
    {"NVIDIA B200",                   "B200",           2250,   75, 178,  8000,  900, "NVLink"},
    {"NVIDIA RTX A6000",              "A6000",         154.8, 38.7,  47,   768, 31.5, "PCIe 4"},
    {"NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada",   364, 91.1,  47,   960, 31.5, "PCIe 4"},
    {"NVIDIA GeForce RTX 3090",       "RTX 3090",         71, 35.6,  23,   936, 31.5, "PCIe 4"},
    {"NVIDIA GeForce RTX 4090",       "RTX 4090",        165, 82.6,  23,  1008, 31.5, "PCIe 4"},
    {"NVIDIA GeForce RTX 5090",       "RTX 5090",        210,  105,  31,  1792,   63, "PCIe 5"},
};
/* clang-format on */

const fsdp__known_card *fsdp__known_card_at(int i)
{
    return i >= 0 && (size_t)i < FSDP__COUNT_OF(cards) ? &cards[i] : NULL;
}

const fsdp__known_card *fsdp__known_card_find(const char *name)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(cards); i++) {
        const fsdp__known_card *card = &cards[i];
        const char *maker = "NVIDIA ";

        if (strcasecmp(name, card->name) == 0 || strcasecmp(name, card->name + strlen(maker)) == 0 ||
            (card->short_name && strcasecmp(name, card->short_name) == 0))
            return card;
    }
    return NULL;
}

double fsdp__known_card_flops(const fsdp__known_card *card, fsdp_dtype dtype)
{
    if (dtype == FSDP_F32)
        return card->tflops_32 * 1e12;
    return dtype == FSDP_BF16 || dtype == FSDP_F16 ? card->tflops_16 * 1e12 : 0;
}

/* Lists GPUs by compute capability. */
static const struct {
    int capability, flops_16, flops_32;
} generations[] = {{80, 2048, 128},  {86, 1024, 256},  {89, 1024, 256},  {90, 4096, 256},
                   {100, 8192, 256}, {103, 8192, 256}, {120, 1024, 256}, {121, 1024, 256}};

int fsdp__flops_a_clock(const fsdp__device_facts *gpu, fsdp_dtype dtype)
{
    bool half = strstr(gpu->card, "GeForce"); /* their matrix units take twice as long if sums are f32 */

    for (size_t i = 0; i < FSDP__COUNT_OF(generations); i++) {
        if (generations[i].capability != gpu->capability)
            continue;
        if (dtype == FSDP_F32)
            return generations[i].flops_32;
        return dtype != FSDP_BF16 && dtype != FSDP_F16 ? 0 : generations[i].flops_16 / (half ? 2 : 1);
    }
    return 0;
}
