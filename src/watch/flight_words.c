/* flight_words.c - says in words what a call is, and where a rank is. */
#include "base/text.h"
#include "fsdp/dtype.h"
#include "watch/flight_read.h"

const char *fsdp__flight_time_text(int64_t ns, char *text, size_t bytes)
{
    double seconds = (double)ns / 1e9;

    if (seconds >= 100)
        snprintf(text, bytes, "%.0f s", seconds);
    else if (seconds >= 1)
        snprintf(text, bytes, "%.1f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(text, bytes, "%.1f ms", seconds * 1e3);
    else
        snprintf(text, bytes, "%.1f us", seconds * 1e6);
    return text;
}

const char *fsdp__flight_bytes_text(const fsdp__flight_record *r, char *text, size_t bytes)
{
    text[0] = '\0';
    if (r->bytes > 0 || r->dtype != FSDP_DTYPE_NONE)
        snprintf(text, bytes, "%s %s", FSDP__SIZE(r->bytes),
                 r->dtype == FSDP_DTYPE_NONE ? "" : fsdp_dtype_name((fsdp_dtype)r->dtype));
    return text;
}

void fsdp__flight_call_text(const fsdp__flight_log *log, const fsdp__flight_record *record, char *text, size_t bytes)
{
    char module[2 * FSDP__FLIGHT_NAME + 8] = "", size[64];

    if (record->module[0])
        snprintf(module, sizeof module, " %s '%s'", record->labelled ? "for" : "in",
                 fsdp__shown(record->module, FSDP__ROOM(2 * FSDP__FLIGHT_NAME)));
    fsdp__flight_bytes_text(record, size, sizeof size);
    snprintf(text, bytes, "call %llu of group '%s' (%s%s%s%s)", (unsigned long long)record->number,
             FSDP__SHOWN_NAME(log->groups[record->group].name), FSDP__SHOWN_NAME(record->name), module,
             size[0] ? ", " : "", size);
}

/* Writes "in the forward of 'layers.0'". */
static void doing_text(const fsdp__flight_place *place, char *text, size_t bytes)
{
    static const struct {
        const char *word, *text;
    } words[] = {{"pre_forward", "in the forward of"},
                 {"post_forward", "after the forward of"},
                 {"pre_backward", "in the backward of"},
                 {"post_backward", "after the backward of"},
                 {"unshard", "at the gather of"},
                 {"wait", "after the gather of"},
                 {"reshard", "after the reshard of"},
                 {"reduce", "at the reduction of"},
                 {"optimizer", "in the optimizer's step"},
                 {"after optimizer", "after the optimizer's step"},
                 {"step", "at its beginning"},
                 {"forward", "in its forward"},
                 {"backward", "in its backward"},
                 {"validation", "in the validation"},
                 {"save", "at the save"}};
    const char *does = place->word;

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].word, place->word) == 0)
            does = words[i].text;
    if (!place->module[0])
        snprintf(text, bytes, "%s", FSDP__SHOWN_NAME(does));
    else if (strcmp(place->module, "the root") == 0)
        snprintf(text, bytes, "%s the root", FSDP__SHOWN_NAME(does));
    else
        snprintf(text, bytes, "%s '%s'", FSDP__SHOWN_NAME(does),
                 fsdp__shown(place->module, FSDP__ROOM(2 * FSDP__FLIGHT_NAME)));
}

void fsdp__flight_place_text(const fsdp__flight_log *log, char *text, size_t bytes)
{
    const fsdp__flight_place *place = &log->place;
    char step[64] = "", doing[256];

    if (place->turn == 0) {
        const fsdp__flight_record *last = log->count > 0 ? &log->records[log->count - 1] : NULL;

        if (!last)
            snprintf(text, bytes, "at no known place: it has made no call yet");
        else
            snprintf(text, bytes, "%s call %llu of group '%s' (%s)", last->done ? "after" : "in",
                     (unsigned long long)last->number, FSDP__SHOWN_NAME(log->groups[last->group].name),
                     FSDP__SHOWN_NAME(last->name));
        return;
    }
    if (place->step > 0 && place->microbatch > 0)
        snprintf(step, sizeof step, "in step %llu, microbatch %llu, ", (unsigned long long)place->step,
                 (unsigned long long)place->microbatch);
    else if (place->step > 0)
        snprintf(step, sizeof step, "in step %llu, ", (unsigned long long)place->step);
    doing_text(place, doing, sizeof doing);
    snprintf(text, bytes, "%s%s, for %s", step, doing,
             fsdp__flight_time_text(log->now > place->ns ? log->now - place->ns : 0, FSDP__ROOM(32)));
}
