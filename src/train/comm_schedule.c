/* comm_schedule.c - reads, prints and hashes communication schedules. */
#include "train/comm_schedule.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "format/json.h"

enum {
    VERSION = 1,
    MOST_BYTES = 16 << 20,
    MOST_UNITS = 1 << 17,
    MOST_AHEAD = 1 << 20,
    MOST_REDUCTIONS = 1 << 10
};

/* ---- life ---- */

void fsdp__comm_schedule_free(fsdp__comm_schedule *s)
{
    if (!s)
        return;
    for (int64_t i = 0; i < s->unit_count; i++) {
        for (int64_t m = 0; m < s->units[i].module_count; m++)
            fsdp__free(s->units[i].modules[m]);
        fsdp__free(s->units[i].modules);
    }
    FSDP__FREE_ALL(s->units, s->model, s->strategy, s->prices, s);
}

/* ---- reading ---- */

static fsdp_status read_integer(const fsdp__json_object *from, const char *key, int64_t least, int64_t most,
                                int64_t *out)
{
    FSDP_TRY(fsdp__json_integer(from, key, false, out));
    if (*out < least || *out > most)
        return FSDP_FAIL(FSDP_INVALID, "%s: \"%s\" is %lld: expected an integer from %lld to %lld", from->path, key,
                         (long long)*out, (long long)least, (long long)most);
    return FSDP_OK;
}

static fsdp_status read_text(const fsdp__json_object *from, const char *key, bool required, char **out)
{
    const char *text = NULL;

    FSDP_TRY(fsdp__json_string(from, key, required, &text));
    *out = text ? fsdp__strdup(text) : NULL;
    return text && !*out ? FSDP_NO_MEMORY : FSDP_OK;
}

static fsdp_status read_seconds(const fsdp__json_object *from, const char *key, double *out)
{
    const json_t *value = json_object_get(from->object, key);

    *out = json_number_value(value); /* 0 where it is no number */
    if (value && !json_is_null(value) && !(json_is_number(value) && *out >= 0))
        return FSDP_FAIL(FSDP_INVALID, "%s: \"%s\" is no number of seconds", from->path, key);
    return FSDP_OK;
}

/* Refuses keys that nobody reads, which may be others misspelt. The list ends with NULL. */
static fsdp_status refuse_others(const fsdp__json_object *from, const char *const *keys)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)from->object, key, value)
    {
        const char *const *known = keys;

        (void)value;
        while (*known && strcmp(*known, key) != 0)
            known++;
        if (!*known)
            return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is no key of a schedule: correct it, or leave it out", from->path,
                             FSDP__SHOWN_NAME(key));
    }
    return FSDP_OK;
}

static fsdp_status read_modules(const fsdp__json_object *from, fsdp__comm_unit *unit)
{
    const json_t *list = json_object_get(from->object, "modules");
    size_t count = json_array_size(list);

    if (!json_is_array(list) || count == 0 || count > MOST_UNITS)
        return FSDP_FAIL(FSDP_INVALID, "%s: \"modules\" of a unit must be a list of names", from->path);
    unit->modules = fsdp__calloc(count, sizeof *unit->modules);
    FSDP__TRY_NEW(unit->modules);
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (!name || !*name)
            return FSDP_FAIL(FSDP_INVALID, "%s: \"modules\" of a unit has something that is no name", from->path);
        unit->modules[i] = fsdp__strdup(name);
        FSDP__TRY_NEW(unit->modules[i]);
        unit->module_count++;
    }
    return FSDP_OK;
}

static fsdp_status read_unit(const fsdp__json_object *from, fsdp__comm_unit *unit)
{
    static const char *const keys[] = {"modules", "stays", "forward_ahead", "backward_ahead", NULL};

    if (!json_is_object(from->object))
        return FSDP_FAIL(FSDP_INVALID, "%s: a unit is no object", from->path);
    FSDP_TRY(refuse_others(from, keys));
    FSDP_TRY(fsdp__json_bool(from, "stays", &unit->stays));
    FSDP_TRY(read_integer(from, "forward_ahead", 0, MOST_AHEAD, &unit->forward_ahead));
    FSDP_TRY(read_integer(from, "backward_ahead", 0, MOST_AHEAD, &unit->backward_ahead));
    return read_modules(from, unit);
}

static fsdp_status read_units(const fsdp__json_object *from, fsdp__comm_schedule *s)
{
    const json_t *list = json_object_get(from->object, "units");
    size_t count = json_array_size(list);

    if (!json_is_array(list) || count > MOST_UNITS)
        return FSDP_FAIL(FSDP_INVALID, "%s: \"units\" must be a list of at most %d units", from->path, MOST_UNITS);
    s->units = fsdp__calloc(count + 1, sizeof *s->units);
    FSDP__TRY_NEW(s->units);
    s->unit_count = (int64_t)count;
    for (size_t i = 0; i < count; i++) {
        FSDP__FREED char *name = fsdp__sprintf("%s: units[%zu]", from->path, i);

        FSDP__TRY_NEW(name);
        FSDP_TRY(read_unit(&(fsdp__json_object){name, json_array_get(list, i)}, &s->units[i]));
    }
    return FSDP_OK;
}

static fsdp_status read_parameters(const fsdp__json_object *from, uint64_t *out)
{
    const char *text = NULL;
    char *end = NULL;

    FSDP_TRY(fsdp__json_string(from, "parameters", true, &text));
    *out = strtoull(text, &end, 16);
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16
               ? FSDP_OK
               : FSDP_FAIL(FSDP_INVALID, "%s: \"parameters\" is '%s': expected 16 hexadecimal digits", from->path,
                           FSDP__SHOWN_NAME(text));
}

static fsdp_status read_all(const fsdp__json_object *from, fsdp__comm_schedule *s)
{
    static const char *const keys[] = {
        "fsdp_schedule", "model",        "parameters",      "strategy",   "ranks",      "machines", "copies",
        "prices",        "step_seconds", "exposed_seconds", "peak_bytes", "reductions", "units",    NULL};
    int64_t version = 0, ranks = 0, machines = 1, copies = 1;

    FSDP_TRY(fsdp__json_integer(from, "fsdp_schedule", true, &version));
    if (version != VERSION)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s: its version is %lld, and this program reads %d: plan again", from->path,
                         (long long)version, VERSION);
    FSDP_TRY(refuse_others(from, keys));
    FSDP_TRY(read_text(from, "model", true, &s->model));
    FSDP_TRY(read_parameters(from, &s->parameters));
    FSDP_TRY(read_text(from, "strategy", true, &s->strategy));
    FSDP_TRY(read_integer(from, "ranks", 1, INT32_MAX, &ranks));
    FSDP_TRY(read_integer(from, "machines", 1, INT32_MAX, &machines));
    FSDP_TRY(read_integer(from, "copies", 1, INT32_MAX, &copies));
    s->world_size = (int)ranks;
    s->machines = (int)machines;
    s->copies = (int)copies;
    FSDP_TRY(read_text(from, "prices", false, &s->prices));
    FSDP_TRY(read_seconds(from, "step_seconds", &s->step));
    FSDP_TRY(read_seconds(from, "exposed_seconds", &s->exposed));
    FSDP_TRY(read_integer(from, "peak_bytes", 0, INT64_MAX, &s->peak_bytes));
    s->reductions = 1;
    FSDP_TRY(read_integer(from, "reductions", 1, MOST_REDUCTIONS, &s->reductions));
    return read_units(from, s);
}

fsdp_status fsdp__comm_schedule_parse(const char *name, const char *text, size_t bytes, fsdp__comm_schedule **out)
{
    FSDP__SCOPED(fsdp__comm_schedule_free_at) fsdp__comm_schedule *s = fsdp__calloc(1, sizeof *s);
    json_auto_t *root = NULL;

    *out = NULL;
    FSDP__TRY_NEW(s);
    FSDP_TRY(fsdp__json_parse(name, text, bytes, &root));
    FSDP_TRY(read_all(&(fsdp__json_object){name, root}, s));
    *out = fsdp__take(&s);
    return FSDP_OK;
}

fsdp_status fsdp__comm_schedule_read(const char *path, fsdp__comm_schedule **out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    *out = NULL;
    FSDP_TRY(fsdp__file_read(path, MOST_BYTES, &text, &bytes));
    return fsdp__comm_schedule_parse(path, text, bytes, out);
}

/* ---- printing ---- */

static json_t *unit_of(const fsdp__comm_unit *unit)
{
    json_t *modules = json_array();
    bool complete = modules != NULL;

    for (int64_t i = 0; complete && i < unit->module_count; i++)
        complete = json_array_append_new(modules, json_string(unit->modules[i])) == 0;
    if (!complete) {
        json_decref(modules);
        return NULL;
    }
    return json_pack("{s:o, s:b, s:I, s:I}", "modules", modules, "stays", unit->stays, "forward_ahead",
                     (json_int_t)unit->forward_ahead, "backward_ahead", (json_int_t)unit->backward_ahead);
}

json_t *fsdp__comm_schedule_value(const fsdp__comm_schedule *s)
{
    char parameters[17];
    json_t *units = json_array();
    bool complete = units != NULL;

    snprintf(parameters, sizeof parameters, "%016llx", (unsigned long long)s->parameters);
    for (int64_t i = 0; complete && i < s->unit_count; i++)
        complete = json_array_append_new(units, unit_of(&s->units[i])) == 0;
    if (!complete) {
        json_decref(units);
        return NULL;
    }
    return json_pack("{s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:s?, s:f, s:f, s:I, s:I, s:o}", "fsdp_schedule", VERSION,
                     "model", s->model, "parameters", parameters, "strategy", s->strategy, "ranks", s->world_size,
                     "machines", s->machines, "copies", s->copies, "prices", s->prices, "step_seconds", s->step,
                     "exposed_seconds", s->exposed, "peak_bytes", (json_int_t)s->peak_bytes, "reductions",
                     (json_int_t)s->reductions, "units", units);
}

fsdp_status fsdp__comm_schedule_print(const fsdp__comm_schedule *s, FILE *out)
{
    json_auto_t *object = fsdp__comm_schedule_value(s);

    if (!object)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot write a schedule: out of memory");
    return json_dumpf(object, out, JSON_INDENT(1)) == 0 && fputc('\n', out) != EOF
               ? FSDP_OK
               : FSDP_FAIL(FSDP_IO, "cannot write a schedule");
}

/* ---- hashes ---- */

fsdp_status fsdp__comm_schedule_hash(const fsdp__comm_schedule *s, uint64_t *out)
{
    json_auto_t *object = fsdp__comm_schedule_value(s);
    FSDP__FREED char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;

    if (!text)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot hash a schedule: out of memory");
    *out = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, text, strlen(text));
    return FSDP_OK;
}

fsdp_status fsdp__comm_schedule_parameters(fsdp_module *model, uint64_t *out)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;
    fsdp_parameters parameters;

    FSDP_TRY(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_parameter *p = &parameters.items[i];
        int64_t shape[FSDP_MAX_DIMS] = {fsdp_tensor_dtype(p->tensor), fsdp_tensor_ndim(p->tensor)};

        hash = fsdp__hash_bytes(hash, p->name, strlen(p->name) + 1);
        hash = fsdp__hash_bytes(hash, shape, 2 * sizeof *shape);
        for (int d = 0; d < fsdp_tensor_ndim(p->tensor); d++)
            shape[d] = fsdp_tensor_size(p->tensor, d);
        hash = fsdp__hash_bytes(hash, shape, (size_t)fsdp_tensor_ndim(p->tensor) * sizeof *shape);
    }
    fsdp_parameters_release(&parameters);
    *out = hash;
    return FSDP_OK;
}
