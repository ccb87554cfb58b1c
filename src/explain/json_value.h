/* json_value.h - what explanations and comparisons are made of as JSON. Whatever there is no memory for makes all of it
 * NULL, up to the outermost value. */
#ifndef EXPLAIN_JSON_VALUE_H
#define EXPLAIN_JSON_VALUE_H

#include <jansson.h>
#include <stdio.h>

#include "fsdp/comm.h"
#include "fsdp/device.h"

/* Take `value` over; a failure leaves NULL behind, and what comes after it does nothing. */
void fsdp__json_put(json_t **object, const char *key, json_t *value);
void fsdp__json_append(json_t **array, json_t *value);

/* NULL is null; bytes that are no UTF-8, which JSON cannot have, are shown as \xff. */
json_t *fsdp__json_text(const char *text);
/* null where it is not finite. */
json_t *fsdp__json_real(double value);
json_t *fsdp__json_by_kind(const size_t bytes[FSDP_MEMORY_KINDS]);
/* Of the first `count` kinds of collectives. */
json_t *fsdp__json_by_collective(const int64_t *numbers, int count);

/* Prints it as a whole, and takes it over. */
fsdp_status fsdp__json_print(json_t *value, FILE *out);

#endif
