/* blame.c - ranks that record, one of which others wait for. */
#include "watch/blame.h"

#include <unistd.h>

#include "base/clock.h"
#include "fsdp/watch.h"

fsdp__flight_logs read_logs(const char *folder)
{
    fsdp__flight_logs logs;

    CHECK_OK(fsdp__flight_logs_read(&folder, 1, &logs));
    return logs;
}

char *judge(const fsdp__flight_logs *logs)
{
    fsdp__flight_verdict verdict;
    char *text = calloc(1, 16384);

    CHECK_OK(fsdp__flight_judge(logs, &verdict));
    for (int i = 0; i < verdict.count; i++)
        strcat(strcat(text, verdict.lines[i]), "\n");
    fsdp__flight_verdict_release(&verdict);
    return text;
}

void check_verdict(const char *folder, const char *part)
{
    fsdp__flight_logs logs = read_logs(folder);
    char *text = judge(&logs);

    CHECK_CONTAINS(text, part);
    free(text);
    fsdp__flight_logs_release(&logs);
}

void tell_change(fsdp_context *context, const void *state, const char *word, const char *name)
{
    FSDP__TELL(SHARD_CHANGED, .context = context, .object = state, .word = word, .name = name, .phase = "forward",
               .number = 1, .ns = fsdp__clock_ns());
}

static fsdp_status count_begun(void *arg, fsdp__probe_event *event)
{
    blame *b = arg;

    (void)event;
    b->begun++;
    return FSDP_OK;
}

fsdp__subscriber *count_calls(fsdp_context *context, blame *b)
{
    fsdp__subscriber *counter =
        fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_BEGUN), count_begun, b);

    return CHECK_PTR(counter);
}

void await_begun(const blame *b, int count)
{
    while (b->begun < count)
        usleep(500);
}

fsdp_status add_up(fsdp_process_group *group, int64_t count)
{
    float values[8] = {0};

    return fsdp_all_reduce(group, values, values, count, FSDP_F32, FSDP_SUM,
                           fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(group))));
}

void one_does_not_come(fsdp_context *context, void *arg)
{
    blame *b = arg;
    int world = fsdp_context_world_size(context);
    fsdp__subscriber *counter;

    CHECK_OK(fsdp_flight_start(context, b->folder, false, "late"));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    test_meet();
    counter = count_calls(context, b);
    if (fsdp_context_rank(context) == b->late) {
        tell_change(context, b, "pre_forward", "layers.7");
        await_begun(b, world - 1);
        CHECK_OK(fsdp_flight_write(context));
        fsdp_abort(context, "it was late");
    } else {
        CHECK_STATUS(add_up(fsdp_world(context), 5), FSDP_COMM);
    }
    fsdp__unsubscribe(counter);
}
