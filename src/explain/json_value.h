/* json_value.h - JSON values for explanations and comparisons. If memory runs out for any value, the whole becomes
 * NULL, up to the outermost value. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "fsdp/comm.h"
#include "fsdp/device.h"
#include "fsdp/explain.h"

/* Add `value` and take it over. A failure leaves NULL behind, and later calls do nothing. */
void fsdp__json_put(json_t **object, const char *key, json_t *value);
void fsdp__json_append(json_t **array, json_t *value);

/* Returns a string, or null for NULL. Bytes that are not UTF-8, which JSON cannot hold, are shown as \xff. */
json_t *fsdp__json_text(const char *text);
/* Returns a number, or null if it is not finite. */
json_t *fsdp__json_real(double value);
json_t *fsdp__json_by_kind(const size_t bytes[FSDP_MEMORY_KINDS]);
/* Returns an object with one number for each of the first `count` kinds of collectives. */
json_t *fsdp__json_by_collective(const int64_t *numbers, int count);

/* Returns what crosses between machines, by collective. */
json_t *fsdp__json_network(const fsdp_explained_network *network);

/* Returns all of an explanation as an object (explain_json.c). */
json_t *fsdp__explanation_object(const fsdp_explanation *e);

/* Prints the whole value, and takes it over. */
fsdp_status fsdp__json_print(json_t *value, FILE *out);
