/* pool.h - a table of keys that is not a training run's. */
#ifndef TESTS_CONFIG_POOL_H
#define TESTS_CONFIG_POOL_H

#include "config/config.h"

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
} pool;

extern const fsdp__key_table pool_table;

#endif
