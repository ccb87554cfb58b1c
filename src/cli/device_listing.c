/* device_listing.c - lists the devices of this machine. Each GPU is opened, because only then is it known whether it
 * can be used, and how much of its memory is free. */
#include "base/compiler.h"
#include "base/limits.h"
#include "base/text.h"
#include "cli/listing.h"
#include "device/device.h"

/* Holds what this process may have on the CPU. */
typedef struct cpu {
    int cores;
    fsdp__memory_limit memory;
    uint64_t free_bytes;
} cpu;

static cpu look_at_cpu(void)
{
    cpu found = {
        .cores = fsdp__allowed_cores(), .memory = fsdp__memory_limit_of_all(), .free_bytes = fsdp__memory_available()};

    found.free_bytes = FSDP__MIN(found.free_bytes, found.memory.bytes);
    return found;
}

/* Calls `print` for each GPU; one without facts cannot be used, as the last error says. */
static void visit_gpus(fsdp_context *context, void (*print)(const char *name, const fsdp__device_facts *f))
{
    fsdp__device_facts facts;
    fsdp_device *device;
    char name[24];
    int count = 0;

    if (fsdp__device_count("cuda", &count) != FSDP_OK)
        print("cuda", NULL);
    for (int i = 0; i < FSDP__MIN(count, FSDP__MOST_GPUS); i++) {
        snprintf(name, sizeof name, "cuda:%d", i);
        device = fsdp_cuda(context, i);
        if (device)
            facts = fsdp__device_look(device);
        print(name, device && fsdp__device_alive(device) == FSDP_OK ? &facts : NULL);
    }
}

/* ---- as text ---- */

static void print_gpu(const char *name, const fsdp__device_facts *f)
{
    if (!f) {
        printf("%-8scannot be used: %s\n", name, fsdp_last_error());
        return;
    }
    printf("%-8s%s, compute capability %d.%d, %s of memory, %s of it free; its driver is for CUDA %d.%d\n", name,
           f->card, f->capability / 10, f->capability % 10, FSDP__SIZE(f->memory_bytes), FSDP__SIZE(f->free_bytes),
           f->driver / 1000, f->driver % 1000 / 10);
}

void fsdp__list_devices(fsdp_context *context)
{
    cpu c = look_at_cpu();

    printf("%-8s%d core%s", "cpu", c.cores, fsdp__plural(c.cores));
    if (c.memory.bytes != FSDP__NO_LIMIT)
        printf(", %s of %s", FSDP__SIZE(c.memory.bytes), c.memory.name);
    if (c.free_bytes != FSDP__NO_LIMIT)
        printf(", %s free", FSDP__SIZE(c.free_bytes));
    printf("\n");
    visit_gpus(context, print_gpu);
}

/* ---- as JSON ---- */

static void print_bytes_as_json(const char *name, uint64_t bytes)
{
    if (bytes != FSDP__NO_LIMIT)
        printf(", \"%s\": %llu", name, (unsigned long long)bytes);
}

static void print_gpu_as_json(const char *name, const fsdp__device_facts *f)
{
    printf(",\n{\"name\": \"%s\"", name);
    if (f) {
        printf(", \"card\": ");
        fsdp__print_json_string(f->card, stdout);
        printf(", \"compute_capability\": \"%d.%d\", \"driver_cuda\": \"%d.%d\"", f->capability / 10,
               f->capability % 10, f->driver / 1000, f->driver % 1000 / 10);
        print_bytes_as_json("memory_bytes", f->memory_bytes);
        print_bytes_as_json("free_bytes", f->free_bytes);
    } else {
        printf(", \"error\": ");
        fsdp__print_json_string(fsdp_last_error(), stdout);
    }
    printf("}");
}

void fsdp__list_devices_as_json(fsdp_context *context)
{
    cpu c = look_at_cpu();

    printf("{\"kind\": \"devices\", \"devices\": [\n{\"name\": \"cpu\", \"cores\": %d", c.cores);
    print_bytes_as_json("memory_bytes", c.memory.bytes);
    print_bytes_as_json("free_bytes", c.free_bytes);
    printf("}");
    visit_gpus(context, print_gpu_as_json);
    printf("]}\n");
}
