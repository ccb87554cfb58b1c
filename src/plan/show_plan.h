/* show_plan.h - prints a plan. */
#pragma once

#include "draw/svg.h"
#include "plan/planned.h"

/* Holds what a plan is compared with, and what a device costs. */
typedef struct fsdp__plan_question {
    const fsdp__prices *prices; /* NULL: none */
    double room;                /* bytes for a rank; 0: not known */
    const char *room_name;      /* "the memory of an H100" */
    double price;               /* of a device for an hour; 0: not asked */
} fsdp__plan_question;

/* ---- plan_words.c: what text and JSON have in common ---- */

const char *fsdp__plan_part_name(fsdp__plan_part part);
/* Returns how much of a part is hidden behind others, in seconds. */
double fsdp__plan_hidden(const fsdp__plan_time *time, fsdp__plan_part part);
/* Returns what all steps cost: GPUs are paid one by one, CPUs by the machine. */
double fsdp__plan_price(const fsdp__plan *plan, const fsdp__plan_question *question);
/* Returns whether a rank has what the step needs (fsdp__needed_bytes), and writes what is left or missing: "a rank has
 * 79.00GiB (all memory of the card), 78.11GiB are left"; "" where the room is not known. */
bool fsdp__plan_fits(const fsdp_explained_step *step, const fsdp__plan_question *question, char *text, size_t bytes);
/* Writes seconds as people read them: "1.03 s", "12.4 ms", "2.1 hours". Returns `text`. */
const char *fsdp__plan_seconds(double seconds, char *text, size_t bytes);
#define FSDP__SECONDS(seconds) fsdp__plan_seconds((seconds), FSDP__ROOM(40))

/* ---- plan_svg.c ---- */

/* Draws the plan's moments as a picture: what is live, by kind, over the step. `fills` are those of the kinds.
 * `measured`: the same of a real step, drawn below on the same scale; NULL: there is none. `limit`: bytes of a rank,
 * which have a line; 0: not known. */
fsdp_status fsdp__plan_memory_svg(const fsdp__plan *plan, const int fills[FSDP_MEMORY_KINDS],
                                  const fsdp__stack *measured, double limit, FILE *out);

/* ---- plan_text.c, plan_json.c ---- */

/* Prints by whose rates times are estimated, and, for several ranks, what GPUs and machines exchange. */
void fsdp__plan_put_source(const fsdp__prices *prices, int64_t ranks, FILE *out);
fsdp_status fsdp__plan_print(const fsdp__plan *plan, const fsdp__plan_question *question, FILE *out);
fsdp_status fsdp__plan_json(const fsdp__plan *plan, const fsdp__plan_question *question, FILE *out);
