/* plugin.h - devices that are libraries of their own (base/find_plugin.h), and what such a library is given.
 *
 * A plug-in is a backend. It is compiled from the same headers as this library and calls what it needs of it through a
 * table, since the symbols of the library and of programs that contain it are not seen from outside. It defines the
 * functions of the table under their usual names (backend/cuda/host_functions.c), so its code reads as if it were
 * linked to them. */
#pragma once

#include "base/probe.h"
#include "device/impl.h"

#define FSDP__DEVICE_PLUGIN_SYMBOL "fsdp_device_plugin"

enum {
    FSDP__DEVICE_PLUGIN_VERSION = 1
};

/* The functions that a plug-in is given, as they are declared: type, name, parameters, arguments. */
#define FSDP__PLUGIN_FUNCTIONS(X)                                                                          \
    X(fsdp_status, fsdp_last_status, (void), ())                                                           \
    X(const char *, fsdp_last_error, (void), ())                                                           \
    X(const char *, fsdp_status_text, (fsdp_status status), (status))                                      \
    X(void, fsdp_clear_error, (void), ())                                                                  \
    X(fsdp_status, fsdp_fail_hop, (fsdp_status status, const char *file, int line), (status, file, line))  \
    X(bool, fsdp_hold_error, (bool hold), (hold))                                                          \
    X(void, fsdp_release_error, (bool held), (held))                                                       \
    X(void *, fsdp__malloc, (size_t bytes), (bytes))                                                       \
    X(void *, fsdp__calloc, (size_t count, size_t bytes), (count, bytes))                                  \
    X(void, fsdp__free, (void *pointer), (pointer))                                                        \
    X(int, fsdp__grow, (void *items, int64_t count, int64_t *capacity, size_t item_bytes),                 \
      (items, count, capacity, item_bytes))                                                                \
    X(const char *, fsdp__size_text, (double bytes, char *out, size_t out_bytes), (bytes, out, out_bytes)) \
    X(bool, fsdp__context_has_ended, (const fsdp_context *context), (context))                             \
    X(int64_t, fsdp__clock_ns, (void), ())                                                                 \
    X(fsdp_status, fsdp__probe, (fsdp__probe_event * event), (event))                                      \
    X(void *, fsdp__stream_workspace, (fsdp_stream * stream, size_t bytes), (stream, bytes))               \
    X(void, fsdp__stream_drop_workspace, (fsdp_stream * stream), (stream))

typedef struct fsdp__plugin_host {
#define FSDP__PLUGIN_FIELD(type, name, parameters, arguments) type(*name) parameters;
    FSDP__PLUGIN_FUNCTIONS(FSDP__PLUGIN_FIELD)
#undef FSDP__PLUGIN_FIELD
    /* Those with a format are given the finished text. */
    fsdp_status (*fail)(fsdp_status status, const char *file, int line, const char *text);
    fsdp_status (*fail_prefix)(fsdp_status status, const char *text);
    void (*log)(fsdp_context *context, fsdp_log_level level, const char *text);
} fsdp__plugin_host;

/* Holds what both sides must agree on beside the version: the sizes of what they share. */
typedef struct fsdp__plugin_shape {
    char version[16];
    uint32_t kernels, args, backend, host, device, stream, mark, event;
} fsdp__plugin_shape;

#define FSDP__PLUGIN_SHAPE                                                                                  \
    {                                                                                                       \
        .version = FSDP_VERSION, .kernels = FSDP__KERNELS, .args = sizeof(fsdp__kernel_args),               \
        .backend = sizeof(fsdp__backend), .host = sizeof(fsdp__plugin_host), .device = sizeof(fsdp_device), \
        .stream = sizeof(fsdp_stream), .mark = sizeof(fsdp__mark), .event = sizeof(fsdp__probe_event)       \
    }

/* Holds what the plug-in's function returns. */
typedef struct fsdp__device_plugin {
    int version; /* FSDP__DEVICE_PLUGIN_VERSION */
    fsdp__plugin_shape shape;
    const fsdp__backend *backend;
    void (*join)(const fsdp__plugin_host *host); /* called once, before the backend is used */
} fsdp__device_plugin;

/* Gets the backend of that name from its plug-in, which is loaded unless it was; NULL and FSDP_OK when no plug-in is
 * known by that name. [thread-safe] */
fsdp_status fsdp__device_plugin_backend(const char *name, const fsdp__backend **out);
