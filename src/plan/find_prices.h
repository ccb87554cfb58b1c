/* find_prices.h - the prices that a user names. */
#pragma once

#include "plan/prices.h"

enum {
    FSDP__PRICES_QUICK = 3 /* seconds of measuring before a plan */
};

/* Gets what `name` names: "cpu" or "cuda", which are measured for some seconds, or if nobody asks for the time (not
 * `timed`) only looked at; "cuda:CARD", or a file of prices. `option` is for messages. [blocks] */
fsdp_status fsdp__prices_find(const char *option, const char *name, bool timed, fsdp__prices *out);

/* Turns prices of a processor that a rank has measured, on the cores that it may use, into those of the whole machine,
 * of which it computes with `threads`. */
void fsdp__prices_of_machine(int threads, int ranks_of_machine, fsdp__prices *prices);

/* Returns how many bytes a rank has for a step, with their name: all of its GPU's by these prices, or its share of a
 * machine's; of this machine's without prices (NULL). 0: it is not known. */
double fsdp__room_of(const fsdp__prices *prices, int ranks_of_machine, const char **name);
