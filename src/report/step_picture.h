/* step_picture.h - draws a traced step: for the page, and as a picture of its own. */
#pragma once

#include "draw/svg.h"
#include "report/traced_step.h"

/* Return the fills of what is drawn (draw/svg.h). */
int fsdp__activity_fill(fsdp__activity activity);
int fsdp__unit_fill(fsdp__unit_state state);
const char *fsdp__unit_state_name(fsdp__unit_state state);

/* Draws what a rank does, and thin below it the collectives in progress. */
void fsdp__step_picture_rank(const fsdp__traced_step *step, int rank, const fsdp__svg_range *x, double y, double height,
                             FILE *out);
/* Draws what becomes of a unit, which is that of the step's n-th entry. */
void fsdp__step_picture_unit(const fsdp__traced_step *step, int64_t n, const fsdp__svg_range *x, double y,
                             double height, FILE *out);
/* Draws the memory of a device by kind, which is not empty, and a line at what the device has, if that is known and not
 * far above. `limit`: the line's text, or NULL. */
void fsdp__step_picture_memory(const fsdp__traced_step *step, const fsdp__step_device *device, const fsdp__svg_range *x,
                               double y, double height, const char *limit, FILE *out);

/* Draws units and memory of rank 0 in each step as a file, one below the other. */
fsdp_status fsdp__step_pictures(const fsdp__traced_step *const *steps, const char *const *titles, int count, FILE *out);
