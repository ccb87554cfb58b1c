/* shard/tree_trial.h - plans, run plain and in residences: do they show the same everywhere? */
#pragma once

#include "shard/tree_plan.h"

/* `which`: residences, as bits. What goes wrong first is said in `text` (at most `bytes`). */
bool tree_passes(const tree_plan *plan, uint32_t which, char *text, size_t bytes);
/* Takes away what a plan does not need to fail alike: calls, modules, parameters, options. `failure` is what
 * tree_passes says of it. */
void tree_reduce(tree_plan *plan, uint32_t which, const char *failure);
/* Whether two texts of tree_passes tell the same, but for numbers, names in quotes and the place. */
bool tree_fails_alike(const char *text, const char *other);

typedef struct tree_trial {
    const char *name;                                              /* of its seeds (support/dice.h) */
    void (*draw)(uint64_t seed, tree_plan plans[TREE_MAX_MODELS]); /* the second where there is one */
    uint32_t (*residences)(uint64_t seed);
    int shorter, brief, longer; /* how many plans: usually, of test_brief(), of test_long() */
} tree_trial;

/* Runs the plans of many seeds. One that fails is reduced, printed with its seed, and ends the program. In the
 * environment:
 *     FSDP_<name>_SEED=n     runs only plan n, in every residence
 *     FSDP_TREE_TRACE=1      prints calls as rank 0 makes them */
void tree_try(const tree_trial *trial);
