/* damage.h - one way or another of spoiling a file, the same for the same seed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* From 0 to below - 1; changes *seed. */
uint64_t damage_random(uint64_t *seed, uint64_t below);
/* Replaces the file `path` (a symbolic link is not followed when it is replaced) by a damaged one. What was done goes
 * into `what`. Returns whether no program can take the file for a good one any more. */
bool damage_file(const char *path, uint64_t seed, char what[200]);
/* Puts what is no regular file where `path` is: kinds from 0 to DAMAGE_KINDS - 1. */
enum {
    DAMAGE_KINDS = 8
};
void damage_kind(const char *path, int kind, char what[200]);
