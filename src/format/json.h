/* json.h - reads JSON text, with errors that name file and key. */
#pragma once

#include <jansson.h>

#include "base/directory.h"

/* Parses a text; `path` is for messages. Refuses keys given twice, anything but one object, and text that is nested
 * deeper or has more values than any model's files, before memory is allocated for it. The caller json_decref's
 * `*out`. */
fsdp_status fsdp__json_parse(const char *path, const void *text, size_t bytes, json_t **out);
/* Does the same for a file that may have four times as many values: a tokenizer has half a million tokens and
 * merges. */
fsdp_status fsdp__json_parse_large(const char *path, const void *text, size_t bytes, json_t **out);
/* Does the same for a file that Python has written or reads, with what its json module takes beyond the standard:
 * fsdp__json_to_strict (json_scan.h) says what becomes of that. Of a key given twice the last one counts. */
fsdp_status fsdp__json_parse_foreign(const char *path, const void *text, size_t bytes, json_t **out);
/* Parses a large and foreign file, and makes all integers reals, as for a tokenizer's model_max_length of 1e30 written
 * with all its digits. */
fsdp_status fsdp__json_parse_as_reals(const char *path, const void *text, size_t bytes, json_t **out);

/* Parses a row of data, as fsdp__json_parse_foreign does, but numbers that jansson cannot hold stay numbers, which
 * fsdp__json_number_text knows; texts in it may have up to FSDP__JSON_ROW_TEXT bytes (json_scan.h). Messages have no
 * path. */
fsdp_status fsdp__json_parse_row(const void *text, size_t bytes, json_t **out);
/* Parses any value that is the text of a string of a row, in the same way. `*out` is NULL, without an error, if the
 * text is no JSON. The caller json_decref's it. */
fsdp_status fsdp__json_parse_text(const json_t *text, json_t **out);
/* Returns the digits of an integer beyond 64 bits, or "1e400", "NaN", "Infinity" or "-Infinity", as written, if a value
 * of a row is such a number; NULL: it is something else. jansson takes it for an object, {"": "\0DIGITS"}, which no row
 * can have, since \u0000 in it becomes U+FFFD. */
const char *fsdp__json_number_text(const json_t *value);

enum {
    FSDP__JSON_VERSION = 1 /* the "version" of such files */
};
/* Reads a file that fsdp wrote. Refuses another "version", and a file that another user may
 * have put there (fsdp__directory_trusts), since what it says is done to the user's files. The caller json_decref's
 * `*out`. */
fsdp_status fsdp__json_load(const fsdp__directory *in, const char *name, json_t **out);
/* Writes a value as a file, whole or not at all. Takes the value over, also on failure; NULL: making it ran out of
 * memory. */
fsdp_status fsdp__json_save(const fsdp__directory *in, const char *name, json_t *value);

/* An object of a file, with what the readers below need for their messages. */
typedef struct fsdp__json_object {
    const char *path;
    const json_t *object;
} fsdp__json_object;

/* Read a value. An absent key, or null, leaves `*out` as it is, or is an error where `required`. */
fsdp_status fsdp__json_integer(const fsdp__json_object *from, const char *key, bool required, int64_t *out);
fsdp_status fsdp__json_float(const fsdp__json_object *from, const char *key, bool required, float *out);
fsdp_status fsdp__json_bool(const fsdp__json_object *from, const char *key, bool *out);
/* Reads a string, which is borrowed from the object. */
fsdp_status fsdp__json_string(const fsdp__json_object *from, const char *key, bool required, const char **out);
/* Gets a nested object; out->object stays NULL when it is absent. */
fsdp_status fsdp__json_child(const fsdp__json_object *from, const char *key, fsdp__json_object *out);

/* Returns the shortest decimal that reads back as this float, as a double: it prints as people write it (1e-05,
 * 0.02). */
double fsdp__json_shortest(float value);
