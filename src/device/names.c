/* names.c - devices by the names that users give them, and what users are told about them. */
#include "device/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/status.h"
#include "base/text.h"

bool fsdp__device_name_split(const char *name, char kind[FSDP__DEVICE_KIND], int *ordinal)
{
    size_t bytes = strcspn(name, ":");
    const char *number = name[bytes] ? name + bytes + 1 : NULL;
    size_t digits = number ? strspn(number, "0123456789") : 0;

    *ordinal = -1;
    if (bytes == 0 || bytes >= FSDP__DEVICE_KIND)
        return false;
    snprintf(kind, FSDP__DEVICE_KIND, "%.*s", (int)bytes, name);
    if (!number)
        return true;
    if (digits == 0 || digits > 4 || number[digits] || (digits > 1 && *number == '0'))
        return false;
    *ordinal = atoi(number);
    return true;
}

fsdp_status fsdp__device_name_check(const char *option, const char *name)
{
    char kind[FSDP__DEVICE_KIND];
    int ordinal;

    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0 ||
        (fsdp__device_name_split(name, kind, &ordinal) && strcmp(kind, "cuda") == 0 && ordinal < FSDP__MOST_GPUS))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "%s is '%s': expected cpu, cuda, cuda:N (N from 0 to %d) or auto", option,
                     FSDP__SHOWN_NAME(name), FSDP__MOST_GPUS - 1);
}

fsdp_status fsdp__device_count(const char *kind, int *out)
{
    const fsdp__backend *backend;

    *out = 0;
    FSDP_TRY(fsdp__backend_find(kind, &backend));
    if (!backend)
        return FSDP_FAIL(FSDP_INVALID, "there is no device '%s': " FSDP__DEVICE_NAMES, FSDP__SHOWN_NAME(kind));
    if (backend->count)
        return backend->count(out);
    *out = 1;
    return FSDP_OK;
}

fsdp__device_facts fsdp__device_look(fsdp_device *device)
{
    fsdp__device_facts facts = {.card = ""};

    if (device->backend->look)
        device->backend->look(device, &facts);
    return facts;
}

fsdp_status fsdp__device_alive(const fsdp_device *device)
{
    return device->backend->alive ? device->backend->alive(device) : FSDP_OK;
}

void fsdp__device_describe(fsdp_device *device, char *text, size_t bytes)
{
    const fsdp__device_facts facts = fsdp__device_look(device);

    if (!facts.card[0])
        snprintf(text, bytes, "%s", device->name);
    else
        snprintf(text, bytes, "%s (%s, compute capability %d.%d, %s of memory, %s of it free)", device->name,
                 facts.card, facts.capability / 10, facts.capability % 10, FSDP__SIZE(facts.memory_bytes),
                 FSDP__SIZE(facts.free_bytes));
}

static fsdp__link look_at_links(fsdp_device *device, int ranks, char *text, size_t bytes)
{
    const fsdp__backend *backend = device->backend;
    fsdp__link worst = FSDP__LINK_UNKNOWN;
    fsdp__error_aside aside;
    int count = 0;

    text[0] = '\0';
    if (!backend->links || ranks < 2)
        return worst;
    fsdp__put_error_aside(&aside);
    if (backend->count(&count) == FSDP_OK && count > 1)
        worst = backend->links(device, FSDP__MIN(ranks, FSDP__MIN(count, backend->most)), text, bytes);
    fsdp__put_error_back(&aside);
    return worst;
}

void fsdp__device_links(fsdp_device *device, int ranks, char *text, size_t bytes)
{
    (void)look_at_links(device, ranks, text, bytes);
}

fsdp__link fsdp__device_worst_link(fsdp_device *device, int ranks)
{
    char text[512];

    return look_at_links(device, ranks, text, sizeof text);
}
