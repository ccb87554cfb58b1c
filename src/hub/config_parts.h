/* config_parts.h - what the files that read and write config.json share. */
#pragma once

#include "format/json.h"
#include "fsdp/models.h"

/* ---- reading ---- */

/* Fails because the value of `key` is none of the `known` ones. */
fsdp_status fsdp__config_unsupported(const fsdp__json_object *from, const char *key, const char *value,
                                     const char *known);
fsdp_status fsdp__config_unsupported_number(const fsdp__json_object *from, const char *key, double value,
                                            const char *known);
/* Reads an integer. Python writes 4096.0 if a size was computed as a fraction. */
fsdp_status fsdp__config_integer(const fsdp__json_object *from, const char *key, bool required, int64_t *out);
/* Reads the rotary positions. out->rope_theta and out->local_rope_theta are those that hold if none is given. */
fsdp_status fsdp__config_read_rope(const fsdp__json_object *from, fsdp_model_config *out);

/* ---- writing ---- */

/* Holds an object being filled: a failed insertion is remembered and reported once. */
typedef struct fsdp__config_writer {
    json_t *object;
    bool failed;
} fsdp__config_writer;

static inline void fsdp__config_put(fsdp__config_writer *w, const char *key, json_t *value) /* takes `value` over */
{
    w->failed |= json_object_set_new(w->object, key, value) != 0;
}

static inline void fsdp__config_put_integer(fsdp__config_writer *w, const char *key, int64_t value)
{
    fsdp__config_put(w, key, json_integer(value));
}

static inline void fsdp__config_put_float(fsdp__config_writer *w, const char *key, float value)
{
    fsdp__config_put(w, key, json_real(fsdp__json_shortest(value)));
}

static inline void fsdp__config_put_bool(fsdp__config_writer *w, const char *key, bool value)
{
    fsdp__config_put(w, key, json_boolean(value));
}

/* Writes the rotary positions in the older and the newer style. */
void fsdp__config_put_rope(fsdp__config_writer *w, const fsdp_model_config *config);
