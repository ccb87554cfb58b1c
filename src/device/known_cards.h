/* known_cards.h - what data sheets say of GPUs: rates, memory, links; and what follows from what a GPU is. Nothing here
 * is measured. */
#pragma once

#include "device/device.h"

/* Describes one card. Rates are dense: data sheets print twice as much, for weights of which half are zero. Zero: the
 * card has no such units. */
typedef struct fsdp__known_card {
    const char *name;       /* as the card reports it: "NVIDIA H100 80GB HBM3" */
    const char *short_name; /* what people write: "H100" */
    double tflops_16;       /* products of bf16 and f16, with sums in f32 */
    double tflops_32;       /* products of f32 that are never rounded to TF32 */
    double memory_gib;      /* that programs can have, rounded down; less than the name says */
    double memory_gbs;      /* GB/s of the card's memory, read and written together */
    double link_gbs;        /* GB/s to the cards of its machine, in each direction */
    const char *link;       /* the name of that link; a bridge, which joins two cards, is none */
} fsdp__known_card;

/* Returns the card of this name, whole or short, in upper or lower case; NULL: it is not known, as a part of a card
 * (MIG) is not. */
const fsdp__known_card *fsdp__known_card_find(const char *name);
/* Returns the i-th card, from 0; NULL behind the last. */
const fsdp__known_card *fsdp__known_card_at(int i);
/* Returns the FLOP/s of the project's products of this dtype, which sum in f32 and never round to TF32; 0: the card has
 * none. */
double fsdp__known_card_flops(const fsdp__known_card *card, fsdp_dtype dtype);
/* Returns how many FLOP in a clock each multiprocessor of a GPU does in such products; 0: its capability is not known.
 * That times multiprocessors and clock is an estimate for a card that is in no table: a data sheet counts with a clock
 * that is some percent lower than the highest. */
int fsdp__flops_a_clock(const fsdp__device_facts *gpu, fsdp_dtype dtype);
