/* What a run tells whoever listens (base/probe.h). */
#include "base/probe.h"
#include "fsdp/shard.h"
#include "train/story.h"

static _Atomic int told[FSDP__POINTS];
static _Atomic int changes[FSDP_EVENT_REDUCE + 1];

static fsdp_status count(void *arg, fsdp__probe_event *event)
{
    (void)arg;
    CHECK(event->ns > 0);
    atomic_fetch_add(&told[event->point], 1);
    if (event->point == FSDP__POINT_SHARD_CHANGED)
        atomic_fetch_add(&changes[event->kind], 1);
    return FSDP_OK;
}

static void listen(void)
{
    static fsdp__subscriber all = {
        .points = FSDP__POINT_BIT(FSDP__POINT_SHARD_CHANGED) | FSDP__POINT_BIT(FSDP__POINT_STEP_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_STEP_DONE) | FSDP__POINT_BIT(FSDP__POINT_BATCH_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_BATCH_DONE) | FSDP__POINT_BIT(FSDP__POINT_PART_BEGUN) |
                  FSDP__POINT_BIT(FSDP__POINT_PART_DONE),
        .see = count};
    static bool listens;

    if (!listens)
        fsdp__subscribe(&all);
    listens = true;
    memset(told, 0, sizeof told);
    memset(changes, 0, sizeof changes);
}

STORY_TEST(whoever_listens_hears_each_part_of_a_run_begin_and_end)
{
    story *s = *state;

    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "checkpoint.interval", "4");
    listen();
    story_go(s, 2);
    CHECK_EQ(told[FSDP__POINT_STEP_BEGUN], 2 * STORY_STEPS); /* each rank's */
    CHECK_EQ(told[FSDP__POINT_STEP_DONE], 2 * STORY_STEPS);
    CHECK(told[FSDP__POINT_BATCH_BEGUN] >= 2 * STORY_STEPS);
    CHECK_EQ(told[FSDP__POINT_BATCH_DONE], told[FSDP__POINT_BATCH_BEGUN]);
    CHECK_EQ(told[FSDP__POINT_PART_BEGUN], 2 * 2); /* after steps 4 and 6 */
    CHECK_EQ(told[FSDP__POINT_PART_DONE], 2 * 2);
    CHECK(changes[FSDP_EVENT_UNSHARD] > 0 && changes[FSDP_EVENT_RESHARD] > 0);
    CHECK_EQ(changes[FSDP_EVENT_POST_FORWARD], changes[FSDP_EVENT_PRE_FORWARD]);
    CHECK_EQ(changes[FSDP_EVENT_POST_BACKWARD], changes[FSDP_EVENT_PRE_BACKWARD]);
    CHECK(changes[FSDP_EVENT_REDUCE] > 0);
}
