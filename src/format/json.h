/* json.h - JSON text with errors that name file and key. */
#ifndef FORMAT_JSON_H
#define FORMAT_JSON_H

#include <jansson.h>

#include "base/directory.h"

/* `path` is for messages. Refused: keys given twice, anything but one object, and what is nested deeper or has more
 * values than any model's files, before memory is taken for it. The caller json_decref's `*out`. */
fsdp_status fsdp__json_parse(const char *path, const void *text, size_t bytes, json_t **out);
/* The same of a file that may have four times as many values: a tokenizer has half a million tokens and merges. */
fsdp_status fsdp__json_parse_large(const char *path, const void *text, size_t bytes, json_t **out);
/* The same of a file that Python has written or reads, with what its json takes beside the standard: see
 * fsdp__json_to_strict (json_scan.h), which says what becomes of it; of a key given twice the last counts. */
fsdp_status fsdp__json_parse_foreign(const char *path, const void *text, size_t bytes, json_t **out);
/* As large and foreign, and all integers are reals, as a tokenizer's model_max_length of 1e30 in all digits is. */
fsdp_status fsdp__json_parse_as_reals(const char *path, const void *text, size_t bytes, json_t **out);

/* Reads a file that fsdp wrote, of at most `limit_bytes`; refused is another "version", and one that another user may
 * have put there (fsdp__directory_trusts): what it says is done to the user's files. The caller json_decref's `*out`.
 */
fsdp_status fsdp__json_load(const fsdp__directory *in, const char *name, size_t limit_bytes, int version, json_t **out);
/* Writes a value as a file, whole or not at all. Takes the value over, also on failure; NULL: it was out of memory. */
fsdp_status fsdp__json_save(const fsdp__directory *in, const char *name, json_t *value);

/* An object of a file: what the readers below need for their messages. */
typedef struct fsdp__json_object {
    const char *path;
    const json_t *object;
} fsdp__json_object;

/* An absent key, or null, leaves `*out` as it is, or is an error where `required`. */
fsdp_status fsdp__json_integer(const fsdp__json_object *from, const char *key, bool required, int64_t *out);
fsdp_status fsdp__json_float(const fsdp__json_object *from, const char *key, bool required, float *out);
fsdp_status fsdp__json_bool(const fsdp__json_object *from, const char *key, bool *out);
/* Borrowed from the object. */
fsdp_status fsdp__json_string(const fsdp__json_object *from, const char *key, bool required, const char **out);
/* A nested object; out->object stays NULL when absent. */
fsdp_status fsdp__json_child(const fsdp__json_object *from, const char *key, fsdp__json_object *out);

/* The shortest decimal that reads back as this float, as a double: prints as people write it (1e-05, 0.02). */
double fsdp__json_shortest(float value);

#endif
