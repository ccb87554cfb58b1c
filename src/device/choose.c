/* choose.c - the device that a run computes on, by the name that a user gives it. */
#include "device/impl.h"

#include <stdio.h>
#include <string.h>

/* Returns whether it is the name followed by nothing, or by ":" and digits. */
static bool is_device(const char *text, const char *name)
{
    size_t length = strlen(name);

    if (strncmp(text, name, length) != 0)
        return false;
    text += length;
    return *text == '\0' || (*text == ':' && text[1] != '\0' && strspn(text + 1, "0123456789") == strlen(text + 1));
}

fsdp_status fsdp__device_name_check(const char *option, const char *name)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0 || is_device(name, "cuda"))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected cpu, cuda, cuda:N or auto", option, name);
}

/* Opens a GPU, or the CPU where there is none, and says why. */
static fsdp_device *open_best(fsdp_context *context)
{
    fsdp_device *device = fsdp_device_open(context, "cuda");

    if (device)
        return device;
    fsdp_log(context, FSDP_LOG_INFO, "no GPU is used: %s", fsdp_last_error());
    fsdp_clear_error();
    return fsdp_cpu(context);
}

fsdp_status fsdp__front_device_choose(fsdp_context *context, const char *name)
{
    fsdp_device *device;

    if (!name)
        return FSDP_OK;
    device = strcmp(name, "auto") == 0 ? open_best(context) : fsdp_device_open(context, name);
    if (!device)
        return fsdp_last_status();
    fsdp__set_front_device(device);
    return FSDP_OK;
}

void fsdp__device_describe(fsdp_device *device, char *text, size_t bytes)
{
    if (device->backend->describe)
        device->backend->describe(device, text, bytes);
    else
        snprintf(text, bytes, "%s", device->name);
}
