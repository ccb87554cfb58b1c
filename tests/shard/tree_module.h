/* shard/tree_module.h - the modules of a plan: one type, that does what its node says. */
#pragma once

#include "shard/tree_plan.h"

/* What the modules of a tree look at when they run. */
typedef struct tree_feed {
    const tree_plan *plan;
    struct tree_player *player; /* whose feed it is */
    bool plain;                 /* do what the engine does to inputs, outputs and parameters: nobody else does */
    int number, rank;           /* of the batch */
    fsdp_process_group *team;   /* that has cut parameters; NULL: none has */
    int failing;                /* node whose forward fails, or whose backward does; -1: none */
    bool fail_backward;
    void (*told)(void *arg); /* called once, in a backward; may be NULL */
    void *told_arg;
    bool trains; /* set when something that requires a gradient is used */
} tree_feed;

typedef struct tree_module {
    fsdp_module base;
    tree_feed *feed;
    int node;
    fsdp_tensor *params[TREE_MAX_OWN];
} tree_module;

/* All reached nodes, by number. The root is modules[0], the caller's; the others belong to their parents. */
void tree_modules_create(fsdp_context *context, fsdp_device *device, tree_feed *feed, fsdp_module **modules);

/* A node of the tree, or a subtree, with the outputs that are taken made one. NULL when it failed. */
fsdp_tensor *tree_run_node(fsdp_module *module, int number, int rank, fsdp_tensor *x);
