/* event_file.h - the event files that TensorBoard reads: records of values, each under a tag and a step. */
#pragma once

#include "base/directory.h"

/* Says how numbers are distributed. Bucket i counts numbers from limits[i - 1], or from the smallest, up to
 * limits[i]. */
typedef struct fsdp__event_histogram {
    double min, max, count, sum, sum_squares;
    const double *limits, *buckets;
    size_t bucket_count;
} fsdp__event_histogram;

/* Holds one value: a text, or a histogram, or, if both are NULL, a number. */
typedef struct fsdp__event_value {
    const char *tag; /* "train/loss"; what stands before the slash is a section of TensorBoard's page */
    double number;
    const fsdp__event_histogram *histogram;
    const char *text; /* Markdown */
} fsdp__event_value;

typedef struct fsdp__event_file fsdp__event_file;

/* Makes a new file in the folder, whose name has the time, this machine and this process, and says in it that a run
 * begins at `first_step`: of earlier files there TensorBoard then shows the steps before it only. `folder` stays open
 * as long as the file and is borrowed. */
fsdp_status fsdp__event_file_create(const fsdp__directory *folder, int64_t first_step, fsdp__event_file **out);
/* Writes values of one step as one record, which readers see at once. After a failure the file must not be written to
 * any more: readers take nothing behind a record that is not whole. */
fsdp_status fsdp__event_file_add(fsdp__event_file *file, int64_t step, const fsdp__event_value *values, size_t count);
/* Closes the file and frees it; NULL is allowed. */
fsdp_status fsdp__event_file_close(fsdp__event_file *file);
