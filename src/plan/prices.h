/* prices.h - what a device and its links take for what a step does: rates of kernels, of links, and what a launch costs
 * the host. They are measured, read from a file, or taken from a card's data sheet.
 *
 * [Note: work and size]
 * The work of a kernel that makes products is its floating point operations (fsdp__kernel_flops); that of any other
 * kernel is the bytes that it reads and writes (device/kernel_buffers.h). A rate is work a second. It depends on the
 * size of the call, so a kernel may have a rate for each of several sizes, between which it is interpolated. The size
 * of a product is the cube root of its multiplications; that of other kernels is their work. */
#pragma once

#include <stdio.h>

#include "device/kernels.h"
#include "device/links.h"
#include "fsdp/comm.h"

enum {
    FSDP__PRICE_RATES = 512,
    FSDP__PRICE_WORLDS = 4,
    FSDP__PRICE_NAME = 64
};

typedef struct fsdp__price_rate {
    fsdp__kernel kernel;
    fsdp_dtype dtype; /* of the operands; NONE where the kernel makes no products */
    double size, per_second;
} fsdp__price_rate;

typedef struct fsdp__price_link {
    double latency;    /* seconds, of a call */
    double per_second; /* bytes */
} fsdp__price_link;

/* Rates that were measured on a processor which was busier than this may be wrong by a factor. */
#define FSDP__PRICES_BUSY 0.1

/* A call of so many ranks of one machine. */
typedef struct fsdp__price_world {
    int ranks;
    fsdp__price_link link;
} fsdp__price_world;

typedef struct fsdp__prices {
    char device[FSDP__PRICE_NAME]; /* "cpu", "H100 SXM" */
    char source[FSDP__PRICE_NAME]; /* "measured", "data sheet" */
    bool gpu;                      /* each rank has one; otherwise the ranks of a machine share what is priced */
    int cores;                     /* that a CPU's rates are of; 0 for a GPU */
    double busy;                   /* part of the time of measuring in which other work had the processor */
    double memory_bytes;           /* 0: not known */
    double launch;                 /* seconds of the host for a kernel */
    double per_second;             /* bytes, of kernels without products that have no rate of their own */
    int rate_count;
    fsdp__price_rate rates[FSDP__PRICE_RATES]; /* sorted by kernel, dtype and size */
    fsdp__price_link host;                     /* between a GPU and the host's memory, each way */
    fsdp__price_link peers;   /* of a GPU to those of its machine, each way; 0 bytes: they exchange through the host */
    fsdp__price_link machine; /* a call of the ranks of one machine; bytes of its memory */
    int world_count;
    fsdp__price_world worlds[FSDP__PRICE_WORLDS]; /* the same by number of ranks, rising; 0: not known */
    fsdp__price_link network;                     /* out of a machine, and into it */
} fsdp__prices;

/* Returns the work of a call: [Note: work and size]. */
double fsdp__price_work(fsdp__kernel kernel, const void *args);
/* Returns the size of a call with this work, and sets the dtype that its rate is for. */
double fsdp__price_size(fsdp__kernel kernel, const void *args, double work, fsdp_dtype *dtype);
/* Returns the seconds that a kernel takes on the whole device, without its launch. */
double fsdp__price_kernel(const fsdp__prices *prices, fsdp__kernel kernel, const void *args);
/* Sorts the rates after some were added. */
void fsdp__prices_sort(fsdp__prices *prices);

/* A collective, as its group and the counters know it. */
typedef struct fsdp__price_call {
    fsdp_collective kind;
    double bytes;        /* of the larger side */
    int ranks, machines; /* of the group */
    int machine_ranks;   /* of the world on one machine: they share its memory and its network */
    double network;      /* bytes that this rank sends to other machines, or receives, whichever are more */
} fsdp__price_call;

double fsdp__price_collective(const fsdp__prices *prices, const fsdp__price_call *call);

/* ---- prices_file.c ---- */

/* Reads such a file, which may come from anybody. */
fsdp_status fsdp__prices_read(const char *path, fsdp__prices *out);
fsdp_status fsdp__prices_print(const fsdp__prices *prices, FILE *out);

/* ---- cards.c ---- */

/* Gets the prices of a card by its name (device/known_cards.h). FSDP_NOT_FOUND, with the names that are near, when it
 * is not known. */
fsdp_status fsdp__prices_of_card(const char *name, fsdp__prices *out);
/* Returns the link of a card to those of its machine: that of its data sheet, unless `way` says that they have another
 * one there. Without bytes: it is not known, or they do not reach each other. */
fsdp__price_link fsdp__price_of_link(const char *name, fsdp__link way);
