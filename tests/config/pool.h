/* pool.h - a table of keys that is not a training run's. */
#pragma once

#include "config/config.h"

typedef struct pool_ticket {
    char *name;
    double price;
    int64_t hours;
} pool_ticket;

typedef struct pool {
    struct {
        int64_t length;
        double depth;
        bool heated;
        int shape, slide;
        char *name;
        char **lanes;
        int64_t lane_count;
    } water;
    int64_t attendants, photos;
    struct {
        int64_t seats;
        char *name;
    } bar;
    pool_ticket *tickets;
    int64_t ticket_count;
} pool;

extern const fsdp__key_table pool_table;
