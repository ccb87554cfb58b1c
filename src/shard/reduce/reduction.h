/* reduction.h - the working state of one reduction. */
#pragma once

#include "shard/group/comm_context.h"
#include "shard/reduce/gradients.h"

/* Holds settings of the caller's. */
typedef struct fsdp__reduce_settings {
    bool all_reduce;           /* over the replicas, too, if there are any */
    bool force_sum;            /* collectives sum, and never average */
    float divide_factor;       /* 0: the number of ranks of the mesh */
    fsdp_all_reduce_hook hook; /* NULL: none */
    void *hook_arg;
    fsdp__landed_hook *landed; /* NULL: none */
} fsdp__reduce_settings;

/* The sum of all ranks is divided by `before` before it is sent, and by `after` afterwards. */
typedef struct fsdp__division {
    float before, after;
} fsdp__division;

typedef struct fsdp__reduction {
    fsdp__param_group *group;
    fsdp__comm_context *comm;
    fsdp_stream *stream; /* that the reduction runs on */
    const fsdp__reduce_settings *settings;
    /* The first `scattered` are due, the same on all ranks; the rest have only a partial gradient. */
    fsdp__param **params;
    fsdp_sharded_buffer *buffers;
    int64_t count, scattered, buffer_count;
    fsdp__division division;
    bool together;     /* all parameters are one buffer: the group is flat */
    bool present;      /* this rank has a gradient to reduce, or a partial one to complete */
    bool complete;     /* shards get their gradients */
    bool partial;      /* the reduction goes by way of the group's partial gradients */
    bool accumulated;  /* some gradients come from backwards without reduction */
    bool hooked;       /* some shard has gradient hooks: results arrive when all is done */
    bool add;          /* the result is added to gradients that shards have */
    int64_t *places;   /* offloaded: byte offsets of the results in the flight's `results`; else NULL */
    fsdp_dtype dtype;  /* of those results; NONE: the dtype of the shards */
    bool adds_partial; /* what is reduced inside the replica is added to partial gradients */
} fsdp__reduction;
