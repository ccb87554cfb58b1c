/* plugin.c - the list of devices that are plug-ins, and what they are given. */
#include "device/plugin.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/find_plugin.h"
#include "base/lock.h"
#include "base/text.h"

static fsdp_status fail(fsdp_status status, const char *file, int line, const char *text)
{
    return fsdp_fail(status, file, line, "%s", text);
}

static fsdp_status fail_prefix(fsdp_status status, const char *text)
{
    return fsdp_fail_prefix(status, "%s", text);
}

static void log_line(fsdp_context *context, fsdp_log_level level, const char *text)
{
    fsdp_log(context, level, "%s", text);
}

static const fsdp__plugin_host functions = {
#define FUNCTION(type, name, parameters, arguments) .name = name,
    FSDP__PLUGIN_FUNCTIONS(FUNCTION)
#undef FUNCTION
        .fail = fail,
    .fail_prefix = fail_prefix,
    .log = log_line,
};

static const fsdp__plugin plugins[] = {
    {.name = "cuda",
     .symbol = FSDP__DEVICE_PLUGIN_SYMBOL,
     .version = FSDP__DEVICE_PLUGIN_VERSION,
     .built = "where CUDA's compiler nvcc is found (and not with -DFSDP_CUDA=OFF)",
     .needs = "it is built for this system where CUDA's compiler nvcc is found"},
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const fsdp__backend *loaded[FSDP__COUNT_OF(plugins)]; /* guarded by the mutex */

static fsdp_status load(const fsdp__plugin *plugin, const fsdp__backend **out)
{
    static const fsdp__plugin_shape shape = FSDP__PLUGIN_SHAPE;
    const fsdp__device_plugin *table;
    const void *found = NULL;
    char versions[60] = "";

    FSDP_TRY(fsdp__plugin_load(plugin, &found));
    table = found;
    if (strncmp(table->shape.version, shape.version, sizeof shape.version) != 0)
        snprintf(versions, sizeof versions, " (version %.15s, here %s)", table->shape.version, FSDP_VERSION);
    if (memcmp(&table->shape, &shape, sizeof shape) != 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "libfsdp-%s.so is of another build than this program%s: install both from one build",
                         plugin->name, versions);
    table->join(&functions);
    *out = table->backend;
    return FSDP_OK;
}

fsdp_status fsdp__device_plugin_backend(const char *name, const fsdp__backend **out)
{
    fsdp_status status = FSDP_OK;

    *out = NULL;
    for (size_t i = 0; i < FSDP__COUNT_OF(plugins); i++) {
        if (strcmp(plugins[i].name, name) != 0)
            continue;
        FSDP__HELD(&mutex);
        if (!loaded[i])
            status = load(&plugins[i], &loaded[i]);
        *out = loaded[i];
    }
    return status;
}
