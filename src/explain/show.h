/* show.h - what the forms of an explanation have in common. */
#ifndef EXPLAIN_SHOW_H
#define EXPLAIN_SHOW_H

#include "fsdp/explain.h"

/* Units from `first` on that differ in their names alone, neighbours: how many, `first` with them. */
int64_t fsdp__alike_units(const fsdp_explanation *e, int64_t first);
/* "model.layers.0-3", "(root)"; returns `text`. */
const char *fsdp__units_name(const fsdp_explanation *e, int64_t first, int64_t count, char *text, size_t bytes);
/* How many parameters of its unit are like it, itself with them: cut alike, and named alike but for numbers. 0: one
 * before it is, and stands for it. */
int64_t fsdp__alike_parameters(const fsdp_explanation *e, int64_t index);
/* At most `columns` of a dotted name, and a NUL, into `out`: of a long one the end, which says more than its beginning,
 * from a dot on if there is one. */
void fsdp__name_end(const char *name, size_t columns, char *out);
/* The rank that has the element at `place`, from 0 to 1, of a parameter: the first of several; -1: none is known to. */
int fsdp__holder(const fsdp_explanation *e, const fsdp_explained_parameter *p, double place);
/* Every rank has all of it. */
bool fsdp__is_whole(const fsdp_explanation *e, const fsdp_explained_parameter *p);
/* Whole parameters and shards that a rank holds at most. */
size_t fsdp__parameter_bytes(const fsdp_explained_step *step);
/* The events of the step where a phase of a microbatch begins. */
bool fsdp__begins_phase(const fsdp_explanation *e, int64_t event);
const char *fsdp__phase_name(fsdp_explained_phase phase);

/* ---- picture.c ---- */

void fsdp__picture_parts(const fsdp_explanation *e, FILE *out);
void fsdp__picture_lives(const fsdp_explanation *e, FILE *out);

#endif
