/* loader.h - a loader of windows of any kind, and of a mixture of them. */
#pragma once

#include "data/windows.h"

/* Describes a source of what a loader gives. Each has an order and epochs of its own: a window comes again once all
 * others of its source have come. */
typedef struct fsdp__loader_source {
    fsdp__windows windows;
    double weight; /* its share of all windows, among those of the other sources; one source alone needs none */
} fsdp__loader_source;

/* Creates a loader that gives windows of all sources, in the order of mixture.h. options->token_count is not used. */
fsdp_status fsdp__loader_create_of(const fsdp__loader_source *sources, int count, const fsdp_loader_options *options,
                                   fsdp_loader **out);
/* Counts what some windows hold. */
typedef struct fsdp__load {
    int64_t answers; /* targets that are learned */
    int64_t tokens;  /* that are no padding */
} fsdp__load;

/* Finds what the next `windows` windows of the order hold, which are those of all ranks: any rank can tell, because
 * which windows they are does not depend on the ranks. */
fsdp_status fsdp__loader_look_ahead(fsdp_loader *loader, int64_t windows, fsdp__load *out);
/* Returns which window is at a position of the order: its number among those of all sources, one source after the
 * other.
 */
int64_t fsdp__loader_window(const fsdp_loader *loader, int64_t position);
