/* show.h - what the formats of an explanation have in common. */
#pragma once

#include "fsdp/explain.h"

/* Returns how many neighbouring units from `first` on, which is counted too, differ in their names alone. */
int64_t fsdp__alike_units(const fsdp_explanation *e, int64_t first);
/* Writes the name of a range of units: "model.layers.0-3", "(root)". Returns `text`. */
const char *fsdp__units_name(const fsdp_explanation *e, int64_t first, int64_t count, char *text, size_t bytes);
/* Returns how many parameters of the same unit are like this one, which is counted too: they are cut alike, and their
 * names differ only in numbers. Returns 0 if an earlier one is like it and stands for it. */
int64_t fsdp__alike_parameters(const fsdp_explanation *e, int64_t index);
/* Returns one of the boxes that a part is. */
fsdp_explained_box fsdp__part_box(const fsdp_explained_parameter *p, int part, int box);
/* Returns the rank that holds the element at `place`, from 0 to 1, of a parameter, and at index `across` of the other
 * dimension that is cut: the first one if several do; -1: no rank is known to. */
int fsdp__holder(const fsdp_explanation *e, const fsdp_explained_parameter *p, double place, int64_t across);
/* Returns where the next parts of that other dimension begin, after those that begin at `from`; its size, or 1 if there
 * is none, after the last. */
int64_t fsdp__next_across(const fsdp_explanation *e, const fsdp_explained_parameter *p, int64_t from);
/* Returns whether every rank holds the whole parameter. */
bool fsdp__is_whole(const fsdp_explanation *e, const fsdp_explained_parameter *p);
/* Returns the most bytes of unsharded parameters and shards that a rank holds. */
size_t fsdp__parameter_bytes(const fsdp_explained_step *step);
/* Returns whether a phase of a microbatch begins with this event of the step. */
bool fsdp__begins_phase(const fsdp_explanation *e, int64_t event);
const char *fsdp__phase_name(fsdp_explained_phase phase);
/* Writes a number of bytes: "1.50MiB", or "-" if there are none. Returns `text`. */
const char *fsdp__bytes_text(double bytes, char *text, size_t text_bytes);
#define FSDP__BYTES(bytes) fsdp__bytes_text((double)(bytes), FSDP__ROOM(40))

/* ---- picture.c ---- */

void fsdp__picture_parts(const fsdp_explanation *e, FILE *out);
void fsdp__picture_lives(const fsdp_explanation *e, FILE *out);
