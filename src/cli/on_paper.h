/* on_paper.h - the model, the ranks and the step of a run that nobody starts: what 'fsdp explain' and 'fsdp plan' are
 * asked about. */
#pragma once

#include "cli/overrides.h"
#include "config/args.h"

typedef struct fsdp__on_paper {
    fsdp_train_config *config;
    const char *strategy, *policy, *ranks, *machines, *batch, *seq_len, *microbatches; /* as they were given, or NULL */
    bool one_level;
    int64_t world_size, machine_count;
} fsdp__on_paper;

/* Lists the options that set the words. */
#define FSDP__ON_PAPER_OPTIONS(p)                                                                                     \
    {"ranks", 'n', &(p)->ranks, NULL}, {"np", 0, &(p)->ranks, NULL}, {"machines", 0, &(p)->machines, NULL},           \
        {"one-level", 0, NULL, &(p)->one_level}, {"strategy", 0, &(p)->strategy, NULL},                               \
        {"wrap-policy", 0, &(p)->policy, NULL}, {"batch", 0, &(p)->batch, NULL}, {"seq-len", 0, &(p)->seq_len, NULL}, \
    {                                                                                                                 \
        "microbatches", 0, &(p)->microbatches, NULL                                                                   \
    }

#define FSDP__ON_PAPER_NAMES "ranks np machines one-level strategy wrap-policy batch seq-len microbatches"

/* The lines of a command's help that say what these are. */
#define FSDP__ON_PAPER_HELP                                                              \
    "  -n, -np, --ranks RANKS  number of ranks to assume (default: 2)\n"                 \
    "  --machines MACHINES     number of machines to assume, with equal numbers of\n"    \
    "                          ranks; the result says what goes between machines, for\n" \
    "                          this rank and for its machine (default: 1)\n"             \
    "  --one-level             assume that ranks of a machine share nothing:\n"          \
    "                          FSDP_ONE_LEVEL=1 (docs/cluster.md)\n"                     \
    "  --strategy NAME         fsdp2, zero1, zero2, zero3, hsdp (if the config gives\n"  \
    "                          no number: 2 copies, or one on each machine), fsdp1,\n"   \
    "                          fsdp1:STRATEGY (such as fsdp1:shard_grad_op) or ddp;\n"   \
    "                          fsdp2:tpN or hsdp:tpN in teams of N ranks\n"              \
    "                          (default: the config's, or fsdp2)\n"                      \
    "  --wrap-policy POLICY    blocks, root, always, size (100000000 parameters),\n"     \
    "                          size:PARAMETERS or class:NAME+NAME (default: blocks)\n"   \
    "  --batch N               sequences of a microbatch on one rank (default:\n"        \
    "                          training.local_batch_size)\n"                             \
    "  --seq-len N             tokens of a sequence (default: training.seq_len, which\n" \
    "                          is 256 if no config sets it)\n"                           \
    "  --microbatches N        microbatches of a step (default: 1, or what follows\n"    \
    "                          from training.global_batch_size)\n"

/* Reads the numbers of ranks, at most `most`, and of machines. */
fsdp_status fsdp__on_paper_numbers(fsdp__on_paper *p, int64_t most);
/* Reads the model that `args` has, which fsdp__override_skip has gone through: a config if the name is that of one, a
 * folder if it exists or if the name is a path, otherwise a preset. Then sets the keys that the options stand for, and
 * those of the command line. Returns 0, or the exit status, with its message printed. */
int fsdp__on_paper_config(const fsdp__on_paper *p, const fsdp__args *args, const char *command, int argc, char **argv);
