/* fake_nvml.c - libnvidia-ml.so.1 beside the tests: what NVML says of links between GPUs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *card, void **out);
int nvmlDeviceGetP2PStatus(void *one, void *other, int index, int *status);
int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *active);

enum {
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    DRIVER_NOT_LOADED = 9,
    LINKS = 18
};

int nvmlInit_v2(void)
{
    return getenv("FSDP_FAKENVML_LINKS") ? 0 : DRIVER_NOT_LOADED;
}

int nvmlShutdown(void)
{
    return 0;
}

static int links(void)
{
    return atoi(getenv("FSDP_FAKENVML_LINKS"));
}

/* A handle is the number of the bus, which is one more than that of the device. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *card, void **out)
{
    unsigned bus;

    if (sscanf(card, "0000:%2x:00.0", &bus) != 1)
        return NOT_FOUND;
    *out = (void *)(uintptr_t)bus;
    return 0;
}

int nvmlDeviceGetP2PStatus(void *one, void *other, int index, int *status)
{
    const char *without = getenv("FSDP_FAKENVML_WITHOUT");
    char pair[32];

    if (index != 2 || one == other)
        return INVALID_ARGUMENT;
    snprintf(pair, sizeof pair, "%d-%d", (int)(uintptr_t)one - 1, (int)(uintptr_t)other - 1);
    *status = links() == 0 || (without && strstr(without, pair)) ? 5 : 0;
    return 0;
}

int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *active)
{
    (void)gpu;
    if (links() == 0 || link >= LINKS)
        return links() == 0 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    *active = (int)link < links();
    return 0;
}
