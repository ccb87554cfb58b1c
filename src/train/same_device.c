/* same_device.c - opens the device of a run. Ranks may run on machines of which some have no GPU, and each has been
 * told its device by itself: they compare what they were told, and then what they have found. */
#include "train/same_device.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "device/device.h"
#include "fsdp/comm.h"
#include "train/same_facts.h"

typedef struct request {
    const char *option, *kind;
} request;

static void write_kind(const void *arg, FILE *out)
{
    const request *r = arg;

    fprintf(out, "%s\t%.*s\n", r->option, (int)strcspn(r->kind, ":"), r->kind);
}

/* Takes the CPU, since there is a rank without a GPU; the last error says which, and why. `own` is this rank's GPU.
 * Each line of the log names the rank that writes it, so this one need not say that it means itself. */
static fsdp_device *do_without(fsdp_context *context, const fsdp_device *own)
{
    const char *error = fsdp_last_error(), *why;
    int rank = 0;

    why = fsdp__text_behind_rank(error, &rank);
    if (fsdp_context_rank(context) == 0)
        fsdp_log(context, own ? FSDP_LOG_WARNING : FSDP_LOG_INFO, "no GPU is used: %s", rank == 0 ? why : error);
    fsdp_clear_error();
    return fsdp_cpu(context);
}

fsdp_status fsdp__same_device(fsdp_context *context, const char *option, const char *name, fsdp_device **out)
{
    fsdp_device *usual = fsdp__front_device(context), *device;
    bool any = name && strcmp(name, "auto") == 0;
    request asked = {option, name ? name : usual ? fsdp_device_name(usual) : "cpu"};
    fsdp_status status;

    *out = NULL;
    FSDP_TRY(fsdp__facts_agree(context, "were given different devices", write_kind, &asked));
    device = name ? fsdp_device_open(context, any ? "cuda" : name) : usual;
    status = device ? FSDP_OK : fsdp_last_status();
    if (fsdp_context_world_size(context) > 1)
        status = fsdp_agree(fsdp_world(context), status);
    if (any && status != FSDP_OK && status != FSDP_COMM && status != FSDP_MISMATCH) {
        device = do_without(context, device);
        status = device ? FSDP_OK : fsdp_last_status();
    }
    if (status == FSDP_OK)
        *out = device;
    return status;
}
