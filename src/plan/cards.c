/* cards.c - makes prices of what a data sheet says.
 *
 * No card reaches the figures of its data sheet. What an H100 and an H200 reach of them was measured (docs/gpu.md), and
 * other cards are taken to reach the same parts. */
#include "plan/prices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "config/nearest.h"
#include "device/known_cards.h"

/* List parts of the data sheet's figures. */
#define PRODUCTS 0.68       /* of 16 bits, under load, where the limit of power counts: 676 to 683 of 989 TFLOP/s */
#define PRODUCTS_F32 0.76   /* 51 of 67 */
#define SMALL_PRODUCTS 0.25 /* of products of 256, which do not fill the card: a guess */
#define ATTENTION 0.2       /* forward and backward, heads of 64: 193 of 989 */
#define MEMORY 0.89         /* 4.27 of 4.8, 3.03 of 3.35 TB/s */
#define HOST_GB 25.0        /* a second to the host and back, PCIe 4; PCIe 5: twice as much, 55 measured */
#define PCIE4_GB 31.5       /* a second to the cards of its machine by PCIe, each way, as data sheets have it */
#define PCIE5_GB 63.0
#define LINK 0.75       /* of the link between the cards of a machine: a guess */
#define LAUNCH 5e-6     /* seconds of the host for a kernel: a guess */
#define NETWORK_GB 45.0 /* a second into and out of a machine: 400 Gbit/s, 0.9 of it; a guess */

static void add(fsdp__prices *p, fsdp__kernel kernel, fsdp_dtype dtype, double size, double per_second)
{
    if (per_second > 0)
        p->rates[p->rate_count++] = (fsdp__price_rate){kernel, dtype, size, per_second};
}

static void add_products(fsdp__prices *p, const fsdp__known_card *card)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    for (size_t i = 0; i < FSDP__COUNT_OF(dtypes); i++) {
        double peak = fsdp__known_card_flops(card, dtypes[i]), part = dtypes[i] == FSDP_F32 ? PRODUCTS_F32 : PRODUCTS;

        add(p, FSDP__KERNEL_MATMUL, dtypes[i], 256, peak * SMALL_PRODUCTS);
        add(p, FSDP__KERNEL_MATMUL, dtypes[i], 2048, peak * part);
        add(p, FSDP__KERNEL_ATTENTION_FORWARD, dtypes[i], 1, peak * ATTENTION);
        add(p, FSDP__KERNEL_ATTENTION_BACKWARD, dtypes[i], 1, peak * ATTENTION);
    }
    fsdp__prices_sort(p);
}

static fsdp_status fail_unknown(const char *name)
{
    const char *names[64];
    const fsdp__known_card *card;
    const char *near;
    int count = 0;

    for (int i = 0; (card = fsdp__known_card_at(i)) && count < 63; i++)
        names[count++] = card->short_name ? card->short_name : card->name + strlen("NVIDIA ");
    names[count] = NULL;
    near = fsdp__nearest(name, names);
    if (near)
        return FSDP_FAIL(FSDP_NOT_FOUND, "no data sheet of a card '%s' is known; did you mean '%s'?", name, near);
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "no data sheet of a card '%s' is known, only those of A100, L40S, H100, H200, B200 and others: "
                     "measure the card with 'fsdp plan --measure FILE', and name the file",
                     name);
}

static bool has_pcie5(const fsdp__known_card *card)
{
    return card->link_gbs >= 450 || (card->link && strstr(card->link, "5"));
}

fsdp__price_link fsdp__price_of_link(const char *name, fsdp__link way)
{
    const fsdp__known_card *card = fsdp__known_card_find(name);
    bool reaches = card && way != FSDP__LINK_HOST && !strstr(card->name, "GeForce"); /* its driver lets none */
    double gbs = reaches ? card->link_gbs : 0;

    if (reaches && way == FSDP__LINK_PCIE)
        gbs = fmin(gbs, has_pcie5(card) ? PCIE5_GB : PCIE4_GB);
    return (fsdp__price_link){0, gbs * 1e9 * LINK};
}

fsdp_status fsdp__prices_of_card(const char *name, fsdp__prices *out)
{
    const fsdp__known_card *card = fsdp__known_card_find(name);

    if (!card)
        return fail_unknown(name);
    *out = (fsdp__prices){.source = "its data sheet",
                          .gpu = true,
                          .memory_bytes = card->memory_gib * 1073741824.0,
                          .launch = LAUNCH,
                          .per_second = card->memory_gbs * 1e9 * MEMORY,
                          .host = {1e-5, HOST_GB * 1e9 * (has_pcie5(card) ? 2.2 : 1)},
                          .peers = fsdp__price_of_link(name, FSDP__LINK_UNKNOWN),
                          .machine = {5e-5, 0},
                          .network = {5e-5, NETWORK_GB * 1e9}};
    snprintf(out->device, sizeof out->device, "%s", card->name);
    add_products(out, card);
    return FSDP_OK;
}
