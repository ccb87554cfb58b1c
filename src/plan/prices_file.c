/* prices_file.c - reads and prints a file of prices. */
#include "plan/prices.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "explain/json_value.h"
#include "format/json.h"

enum {
    VERSION = 1,
    MOST_BYTES = 1 << 20
};

/* Bounds what a number of a file may be. Rates of anything that exists lie well inside. */
#define LEAST_RATE 1.0
#define MOST_RATE 1e21
#define MOST_SECONDS 1e3

/* ---- reading ---- */

static fsdp_status read_number(const fsdp__json_object *from, const char *key, double least, double most, double *out)
{
    const json_t *value = json_object_get(from->object, key);

    if (!json_is_number(value))
        return FSDP_FAIL(FSDP_INVALID, "%s: \"%s\" is %s: expected a number", from->path, key,
                         value ? "no number" : "missing");
    *out = json_number_value(value);
    if (!(*out >= least && *out <= most))
        return FSDP_FAIL(FSDP_INVALID, "%s: \"%s\" is %g: expected a number from %g to %g", from->path, key, *out,
                         least, most);
    return FSDP_OK;
}

static fsdp_status read_name(const fsdp__json_object *from, const char *key, char out[FSDP__PRICE_NAME])
{
    const char *text = NULL;

    FSDP_TRY(fsdp__json_string(from, key, true, &text));
    fsdp__shown(text, out, FSDP__PRICE_NAME);
    return FSDP_OK;
}

static fsdp_status read_link_of(const fsdp__json_object *link, fsdp__price_link *out)
{
    FSDP_TRY(read_number(link, "latency_seconds", 0, MOST_SECONDS, &out->latency));
    return read_number(link, "bytes_per_second", LEAST_RATE, MOST_RATE, &out->per_second);
}

static fsdp_status read_link(const fsdp__json_object *from, const char *key, fsdp__price_link *out)
{
    fsdp__json_object link = {from->path, NULL};

    FSDP_TRY(fsdp__json_child(from, key, &link));
    return link.object ? read_link_of(&link, out) : FSDP_OK;
}

/* Reads what a call of a machine's ranks takes; the bytes of GPUs go by their own links. */
static fsdp_status read_machine(const fsdp__json_object *from, fsdp__prices *out)
{
    fsdp__json_object link = {from->path, NULL};

    FSDP_TRY(fsdp__json_child(from, "machine", &link));
    if (out->gpu && link.object && !json_object_get(link.object, "bytes_per_second"))
        return read_number(&link, "latency_seconds", 0, MOST_SECONDS, &out->machine.latency);
    return link.object ? read_link_of(&link, &out->machine) : FSDP_OK;
}

static fsdp_status read_worlds(const fsdp__json_object *from, fsdp__prices *out)
{
    const json_t *array = json_object_get(from->object, "machine_by_ranks");
    size_t count = json_array_size(array);

    if (array && (!json_is_array(array) || count > FSDP__PRICE_WORLDS))
        return FSDP_FAIL(FSDP_INVALID, "%s: \"machine_by_ranks\" must be a list of at most %d objects", from->path,
                         FSDP__PRICE_WORLDS);
    for (size_t i = 0; i < count; i++) {
        const fsdp__json_object item = {from->path, json_array_get(array, i)};
        double ranks;

        FSDP_TRY(read_number(&item, "ranks", i > 0 ? out->worlds[i - 1].ranks + 1 : 1, 1e6, &ranks));
        FSDP_TRY(read_link_of(&item, &out->worlds[i].link));
        out->worlds[i].ranks = (int)ranks;
    }
    out->world_count = (int)count;
    return FSDP_OK;
}

static fsdp_status find_kernel(const fsdp__json_object *from, fsdp__kernel *out)
{
    const char *name = NULL;

    FSDP_TRY(fsdp__json_string(from, "kernel", true, &name));
    for (int kernel = 0; kernel < FSDP__KERNELS; kernel++)
        if (strcmp(fsdp__kernel_infos[kernel].name, name) == 0) {
            *out = (fsdp__kernel)kernel;
            return FSDP_OK;
        }
    return FSDP_FAIL(FSDP_INVALID, "%s: there is no kernel '%s'", from->path, FSDP__SHOWN_NAME(name));
}

static fsdp_status read_rate(const fsdp__json_object *from, fsdp__price_rate *out)
{
    const char *dtype = NULL;

    if (!json_is_object(from->object))
        return FSDP_FAIL(FSDP_INVALID, "%s: a rate is no object", from->path);
    FSDP_TRY(find_kernel(from, &out->kernel));
    FSDP_TRY(fsdp__json_string(from, "dtype", false, &dtype));
    out->dtype = dtype ? fsdp_dtype_from_name(dtype) : FSDP_DTYPE_NONE;
    if (dtype && !fsdp_dtype_is_floating(out->dtype))
        return FSDP_FAIL(FSDP_INVALID, "%s: the rate of %s has the dtype '%s': expected float32, bfloat16 or float16",
                         from->path, fsdp__kernel_infos[out->kernel].name, FSDP__SHOWN_NAME(dtype));
    FSDP_TRY(read_number(from, "size", 1, MOST_RATE, &out->size));
    return read_number(from, "per_second", LEAST_RATE, MOST_RATE, &out->per_second);
}

static fsdp_status read_rates(const fsdp__json_object *from, fsdp__prices *out)
{
    const json_t *array = json_object_get(from->object, "rates");
    size_t count = json_array_size(array);

    if (!json_is_array(array) || count > FSDP__PRICE_RATES)
        return FSDP_FAIL(FSDP_INVALID, "%s: \"rates\" must be a list of at most %d rates", from->path,
                         FSDP__PRICE_RATES);
    for (size_t i = 0; i < count; i++)
        FSDP_TRY(read_rate(&(fsdp__json_object){from->path, json_array_get(array, i)}, &out->rates[i]));
    out->rate_count = (int)count;
    fsdp__prices_sort(out);
    for (int i = 1; i < out->rate_count; i++) {
        const fsdp__price_rate *a = &out->rates[i - 1], *b = &out->rates[i];

        if (a->kernel == b->kernel && a->dtype == b->dtype && a->size == b->size)
            return FSDP_FAIL(FSDP_INVALID, "%s: two rates of %s for the size %g", from->path,
                             fsdp__kernel_infos[a->kernel].name, a->size);
    }
    return FSDP_OK;
}

static fsdp_status read_all(const fsdp__json_object *from, fsdp__prices *out)
{
    double number;

    FSDP_TRY(read_number(from, "fsdp_prices", 0, 1e9, &number));
    if (number != VERSION)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s: its version is %g, and this program reads %d: measure again",
                         from->path, number, VERSION);
    FSDP_TRY(read_name(from, "device", out->device));
    FSDP_TRY(read_name(from, "source", out->source));
    FSDP_TRY(fsdp__json_bool(from, "gpu", &out->gpu));
    FSDP_TRY(read_number(from, "cores", 0, 1e6, &number));
    out->cores = (int)number;
    if (!out->gpu && out->cores < 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s: \"cores\" is 0: expected the number of cores that these rates of a CPU are of",
                         from->path);
    if (json_object_get(from->object, "busy"))
        FSDP_TRY(read_number(from, "busy", 0, 1, &out->busy));
    FSDP_TRY(read_number(from, "memory_bytes", 0, 1e18, &out->memory_bytes));
    FSDP_TRY(read_number(from, "launch_seconds", 0, MOST_SECONDS, &out->launch));
    FSDP_TRY(read_number(from, "bytes_per_second", LEAST_RATE, MOST_RATE, &out->per_second));
    FSDP_TRY(read_link(from, "host", &out->host));
    FSDP_TRY(read_link(from, "peers", &out->peers));
    FSDP_TRY(read_machine(from, out));
    FSDP_TRY(read_worlds(from, out));
    FSDP_TRY(read_link(from, "network", &out->network));
    return read_rates(from, out);
}

fsdp_status fsdp__prices_read(const char *path, fsdp__prices *out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;
    json_auto_t *root = NULL;

    *out = (fsdp__prices){.rate_count = 0};
    FSDP_TRY(fsdp__file_read(path, MOST_BYTES, &text, &bytes));
    FSDP_TRY(fsdp__json_parse(path, text, bytes, &root));
    return read_all(&(fsdp__json_object){path, root}, out);
}

/* ---- printing ---- */

static json_t *link_of(const fsdp__price_link *link)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "latency_seconds", fsdp__json_real(link->latency));
    if (link->per_second > 0)
        fsdp__json_put(&object, "bytes_per_second", fsdp__json_real(link->per_second));
    return object;
}

static json_t *rate_of(const fsdp__price_rate *rate)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "kernel", fsdp__json_text(fsdp__kernel_infos[rate->kernel].name));
    if (rate->dtype != FSDP_DTYPE_NONE)
        fsdp__json_put(&object, "dtype", fsdp__json_text(fsdp_dtype_name(rate->dtype)));
    fsdp__json_put(&object, "size", fsdp__json_real(rate->size));
    fsdp__json_put(&object, "per_second", fsdp__json_real(rate->per_second));
    return object;
}

static json_t *worlds_of(const fsdp__prices *p)
{
    json_t *array = json_array();

    for (int i = 0; i < p->world_count; i++) {
        json_t *object = link_of(&p->worlds[i].link);

        fsdp__json_put(&object, "ranks", json_integer(p->worlds[i].ranks));
        fsdp__json_append(&array, object);
    }
    return array;
}

fsdp_status fsdp__prices_print(const fsdp__prices *p, FILE *out)
{
    json_t *object = json_object(), *rates = json_array();

    for (int i = 0; i < p->rate_count; i++)
        fsdp__json_append(&rates, rate_of(&p->rates[i]));
    fsdp__json_put(&object, "fsdp_prices", json_integer(VERSION));
    fsdp__json_put(&object, "device", fsdp__json_text(p->device));
    fsdp__json_put(&object, "source", fsdp__json_text(p->source));
    fsdp__json_put(&object, "gpu", json_boolean(p->gpu));
    fsdp__json_put(&object, "cores", json_integer(p->cores));
    if (p->busy > 0)
        fsdp__json_put(&object, "busy", fsdp__json_real(p->busy));
    fsdp__json_put(&object, "memory_bytes", fsdp__json_real(p->memory_bytes));
    fsdp__json_put(&object, "launch_seconds", fsdp__json_real(p->launch));
    fsdp__json_put(&object, "bytes_per_second", fsdp__json_real(p->per_second));
    if (p->host.per_second > 0)
        fsdp__json_put(&object, "host", link_of(&p->host));
    if (p->peers.per_second > 0)
        fsdp__json_put(&object, "peers", link_of(&p->peers));
    if (p->machine.per_second > 0 || p->machine.latency > 0)
        fsdp__json_put(&object, "machine", link_of(&p->machine));
    if (p->world_count > 0)
        fsdp__json_put(&object, "machine_by_ranks", worlds_of(p));
    if (p->network.per_second > 0)
        fsdp__json_put(&object, "network", link_of(&p->network));
    fsdp__json_put(&object, "rates", rates);
    return fsdp__json_print(object, out);
}
