/* How much memory steps of real models reserve where it is mapped as it is needed, as on a GPU: what planned steps ask
 * for, from an allocator with memory of that kind. */
#include <string.h>

#include "base/probe.h"
#include "plan/plan.h"
#include "support/growing.h"
#include "train/config.h"

enum {
    MOST = 20000,
    STEPS = 3
};

typedef struct pair {
    const void *planned;
    void *taken;
} pair;

typedef struct replay {
    growing system;
    pair live[MOST];
    int count, steps;
    bool told;           /* the allocator is told of steps */
    size_t most;         /* reserved at any time */
    size_t peak, rested; /* live at any time, and reserved when the last step has ended */
} replay;

static void take(replay *r, const fsdp__probe_event *e)
{
    fsdp_memory_stats stats;

    CHECK(r->count < MOST);
    r->live[r->count].planned = e->memory;
    CHECK_OK(fsdp__allocator_take(r->system.allocator, e->bytes, (fsdp_memory_kind)e->kind, &r->live[r->count].taken));
    r->count++;
    fsdp__allocator_stats(r->system.allocator, &stats);
    CHECK_EQ(stats.reserved_bytes, r->system.used);
    r->most = FSDP__MAX(r->most, stats.reserved_bytes);
}

static void give(replay *r, const fsdp__probe_event *e)
{
    int i = r->count - 1;

    while (i >= 0 && r->live[i].planned != e->memory)
        i--;
    CHECK(i >= 0);
    CHECK(fsdp__allocator_give(r->system.allocator, r->live[i].taken));
    r->live[i] = r->live[--r->count];
}

static void end_step(replay *r)
{
    fsdp_memory_stats stats;

    if (r->told)
        CHECK_OK(fsdp__allocator_end_step(r->system.allocator));
    if (++r->steps < STEPS)
        return;
    fsdp__allocator_stats(r->system.allocator, &stats);
    r->peak = stats.peak_total_bytes;
    r->rested = stats.reserved_bytes;
}

static fsdp_status see(void *arg, fsdp__probe_event *e)
{
    replay *r = arg;
    bool on_gpu = e->stream && strncmp(fsdp_device_name(fsdp__stream_device(e->stream)), "dry-gpu", 7) == 0;

    if (e->point == FSDP__POINT_MEMORY_TAKEN && on_gpu)
        take(r, e);
    else if (e->point == FSDP__POINT_MEMORY_GIVEN_BACK && on_gpu)
        give(r, e);
    else if (e->point == FSDP__POINT_STAGE_BEGUN && r->told && strcmp(e->name, "step") == 0)
        fsdp__allocator_begin_step(r->system.allocator);
    else if (e->point == FSDP__POINT_STAGE_DONE && strcmp(e->name, "step") == 0)
        end_step(r);
    return FSDP_OK;
}

/* Plays what the steps of a plan ask for. The subscriber stays as long as the process, and then hears of nothing. */
static replay play(const char *keys, int world, bool told)
{
    static replay r;
    static fsdp__subscriber subscriber = {.see = see, .arg = &r};
    static bool subscribed;
    fsdp__plan *plan = NULL;

    r = (replay){.system = {.limit = 60000 * MIB, .dry = true}, .told = told};
    CHECK_PTR(growing_allocator(&r.system));
    if (!subscribed)
        fsdp__subscribe(&subscriber);
    subscribed = true;
    fsdp__listen(&subscriber, FSDP__POINT_BIT(FSDP__POINT_MEMORY_TAKEN) |
                                  FSDP__POINT_BIT(FSDP__POINT_MEMORY_GIVEN_BACK) |
                                  FSDP__POINT_BIT(FSDP__POINT_STAGE_BEGUN) | FSDP__POINT_BIT(FSDP__POINT_STAGE_DONE));
    CHECK_OK(fsdp__plan_make(test_config("%s training.device=cuda", keys),
                             &(fsdp__plan_options){.world_size = world, .machines = 1}, &plan));
    fsdp__listen(&subscriber, 0);
    CHECK_EQ(r.steps, STEPS);
    fsdp__plan_free(plan);
    fsdp__allocator_free(r.system.allocator);
    return r;
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
        {8, LLAMA "4" HALVES, 0.1, 0.1},
        {8, GPT2 "16 parallelism.strategy=zero1" HALVES, 0.1, 2},
        {8, GPT2 "16 parallelism.strategy=ddp", 0.1, 4.5}, /* buckets are made anew in the second step */
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++) {
        replay r = play(ways[i].keys, ways[i].world, true);

        print_message("%s: %.2f %%, at most %.2f %%\n", ways[i].keys, percent_above(r.rested, r.peak),
                      percent_above(r.most, r.peak));
        CHECK(percent_above(r.rested, r.peak) < ways[i].rest);
        CHECK(percent_above(r.most, r.peak) < ways[i].most);
    }
}

TEST(without_places_they_reserve_more)
{
    replay r = play(GPT2 "32" HALVES, 1, false);

    CHECK(percent_above(r.rested, r.peak) > 1);
}
