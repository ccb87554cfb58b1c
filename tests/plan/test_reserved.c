/* How much memory steps of real models reserve where it is mapped as it is needed, as on a GPU: what the dry device
 * that stands for one reserves, whose segments grow as a GPU's do. */
#include <string.h>

#include "base/probe.h"
#include "plan/plan.h"
#include "support/test.h"
#include "train/config.h"

/* What is live and reserved on the device, at most. */
typedef struct watched {
    size_t peak, reserved;
} watched;

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    const fsdp_device *device = fsdp__stream_device(e->stream);
    watched *w = arg;
    fsdp_memory_stats stats;

    if (strncmp(fsdp_device_name(device), "dry-gpu", 7) != 0)
        return FSDP_OK;
    fsdp_device_memory(device, &stats);
    w->peak = FSDP__MAX(w->peak, stats.live_total_bytes);
    w->reserved = FSDP__MAX(w->reserved, stats.reserved_bytes);
    return FSDP_OK;
}

/* Plans a run, which takes three steps; gives what is reserved then. The subscriber stays as long as the process, and
 * then hears of nothing. */
static watched plan(const char *keys, int world, size_t *reserved)
{
    static watched w;
    static fsdp__subscriber subscriber = {.see = see, .arg = &w};
    static bool subscribed;
    fsdp__plan *plan = NULL;

    w = (watched){.peak = 0};
    if (!subscribed)
        fsdp__subscribe(&subscriber);
    subscribed = true;
    fsdp__listen(&subscriber, FSDP__POINT_BIT(FSDP__POINT_MEMORY_TAKEN));
    CHECK_OK(fsdp__plan_make(test_config("%s training.device=cuda", keys),
                             &(fsdp__plan_options){.world_size = world, .machines = 1}, &plan));
    fsdp__listen(&subscriber, 0);
    *reserved = plan->e->step.reserved_bytes;
    fsdp__plan_free(plan);
    return w;
}

static double percent_above(size_t bytes, size_t peak)
{
    return 100 * ((double)bytes / (double)peak - 1);
}

#define HALVES " training.mixed_precision_param=bfloat16"
#define GPT2 "model.preset=gpt2-124m training.seq_len=1024 training.local_batch_size="
#define LLAMA "model.preset=llama-1b training.seq_len=2048 training.local_batch_size="

TEST(steps_of_real_models_reserve_their_peak)
{
    static const struct {
        int world;
        const char *keys;
        double rest, most; /* percent above the peak: after three steps, and at any time */
    } ways[] = {
        {1, GPT2 "32" HALVES, 0.1, 0.1},
        {1, LLAMA "8" HALVES, 0.5, 0.5},
        {1, LLAMA "8 activation_checkpoint.mode=full" HALVES, 0.1, 0.1},
        {1, GPT2 "8 training.global_batch_size=32" HALVES, 0.1, 0.1},
        {1, GPT2 "8 training.objective=dpo" HALVES, 0.1, 0.1},
        {8, LLAMA "4" HALVES, 0.1, 0.1},
        {8, GPT2 "16 parallelism.strategy=zero1" HALVES, 0.1, 7}, /* gathers ahead from the second step on */
        {8, GPT2 "16 parallelism.strategy=ddp", 0.1, 0.1},        /* buckets are divided anew in the second step */
        {8, LLAMA "4 parallelism.strategy=ddp", 1.2, 1.2},
        {8, LLAMA "8 parallelism.strategy=ddp", 0.1, 0.1},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++) {
        size_t reserved = 0;
        watched w = plan(ways[i].keys, ways[i].world, &reserved);

        print_message("%s: %.2f %%, at most %.2f %%\n", ways[i].keys, percent_above(reserved, w.peak),
                      percent_above(w.reserved, w.peak));
        CHECK(reserved >= w.peak);
        CHECK(percent_above(reserved, w.peak) < ways[i].rest);
        CHECK(percent_above(w.reserved, w.peak) < ways[i].most);
    }
}

TEST(a_processor_reserves_nothing_that_is_told_of)
{
    fsdp__plan *plan = NULL;

    CHECK_OK(fsdp__plan_make(test_config("model.preset=llama-1m"),
                             &(fsdp__plan_options){.world_size = 2, .machines = 1}, &plan));
    CHECK_EQ(plan->e->step.reserved_bytes, 0);
    fsdp__plan_free(plan);
}
