/* show.h - what the formats of an explanation have in common. */
#ifndef EXPLAIN_SHOW_H
#define EXPLAIN_SHOW_H

#include "fsdp/explain.h"

/* Returns how many neighbouring units from `first` on, which is counted too, differ in their names alone. */
int64_t fsdp__alike_units(const fsdp_explanation *e, int64_t first);
/* Writes the name of a range of units: "model.layers.0-3", "(root)". Returns `text`. */
const char *fsdp__units_name(const fsdp_explanation *e, int64_t first, int64_t count, char *text, size_t bytes);
/* Returns how many parameters of the same unit are like this one, which is counted too: they are cut alike, and their
 * names differ only in numbers. Returns 0 if an earlier one is like it and stands for it. */
int64_t fsdp__alike_parameters(const fsdp_explanation *e, int64_t index);
/* Returns the rank that holds the element at `place`, from 0 to 1, of a parameter: the first one if several do; -1: no
 * rank is known to. */
int fsdp__holder(const fsdp_explanation *e, const fsdp_explained_parameter *p, double place);
/* Returns whether every rank holds the whole parameter. */
bool fsdp__is_whole(const fsdp_explanation *e, const fsdp_explained_parameter *p);
/* Returns the most bytes of unsharded parameters and shards that a rank holds. */
size_t fsdp__parameter_bytes(const fsdp_explained_step *step);
/* Returns whether a phase of a microbatch begins with this event of the step. */
bool fsdp__begins_phase(const fsdp_explanation *e, int64_t event);
const char *fsdp__phase_name(fsdp_explained_phase phase);

/* ---- picture.c ---- */

void fsdp__picture_parts(const fsdp_explanation *e, FILE *out);
void fsdp__picture_lives(const fsdp_explanation *e, FILE *out);

#endif
