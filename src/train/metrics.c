/* metrics.c - hands what a run reports to every place that its config names, and keeps what fails there from the run.
 */
#include "train/metrics.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "train/metrics_places.h"

static const fsdp__metrics_place *const places[] = {&fsdp__metrics_jsonl, &fsdp__metrics_csv, &fsdp__metrics_prometheus,
                                                    &fsdp__metrics_tensorboard};

/* Returns what the place's key says; NULL: nothing. */
static const char *path_of(const fsdp__metrics_place *place, const fsdp_train_config *config)
{
    return *(char *const *)((const char *)config + place->path);
}

fsdp_status fsdp__metrics_check(const fsdp_train_config *config)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(places); i++)
        if (path_of(places[i], config))
            FSDP_TRY(places[i]->check(path_of(places[i], config)));
    return FSDP_OK;
}

bool fsdp__metrics_any(const fsdp_train_config *config)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(places); i++)
        if (path_of(places[i], config))
            return true;
    return false;
}

bool fsdp__metrics_every_step(const fsdp_train_config *config)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(places); i++)
        if (places[i]->every_step && path_of(places[i], config))
            return true;
    return false;
}

/* ---- a run ---- */

struct fsdp__metrics {
    fsdp_context *context;
    struct open_place {
        void *place; /* NULL: the config does not name it */
        bool failed;
    } open[FSDP__COUNT_OF(places)];
    fsdp_status failure; /* of the first line that could not be written */
    char message[512];
};

fsdp_status fsdp__metrics_begin(fsdp_context *context, const fsdp_train_config *config,
                                const fsdp_train_summary *summary, fsdp__metrics **out)
{
    const fsdp__metrics_run run = {.context = context, .config = config, .summary = summary};
    fsdp__metrics *metrics = fsdp__calloc(1, sizeof *metrics);
    fsdp_status status = metrics ? FSDP_OK : FSDP_NO_MEMORY;

    *out = NULL;
    if (metrics)
        metrics->context = context;
    for (size_t i = 0; status == FSDP_OK && i < FSDP__COUNT_OF(places); i++)
        if (path_of(places[i], config)) {
            metrics->open[i].place = fsdp__calloc(1, places[i]->bytes);
            status = metrics->open[i].place ? places[i]->begin(&run, path_of(places[i], config), metrics->open[i].place)
                                            : FSDP_NO_MEMORY;
        }
    if (status == FSDP_OK)
        *out = metrics;
    else
        FSDP_KEEP_FIRST(status, fsdp__metrics_end(metrics));
    return status;
}

/* Notes how a place has done. */
static void note(fsdp__metrics *metrics, size_t i, fsdp_status status)
{
    char message[sizeof metrics->message];

    if (status == FSDP_OK)
        return;
    metrics->open[i].failed = true;
    fsdp__shown(fsdp_last_error(), message, sizeof message);
    fsdp_log(metrics->context, FSDP_LOG_WARNING, "%s; the run goes on without %s", message, places[i]->what);
    if (metrics->failure != FSDP_OK)
        return;
    metrics->failure = status;
    memcpy(metrics->message, message, sizeof message);
}

/* Calls a function of every place that is written to and has it, and returns the first failure. */
#define TELL(metrics, function, ...)                                       \
    do {                                                                   \
        fsdp_status first_ = FSDP_OK;                                      \
                                                                           \
        for (size_t i = 0; (metrics) && i < FSDP__COUNT_OF(places); i++) { \
            struct open_place *open_ = &(metrics)->open[i];                \
            fsdp_status status_;                                           \
                                                                           \
            if (!open_->place || open_->failed || !places[i]->function)    \
                continue;                                                  \
            status_ = places[i]->function(open_->place, __VA_ARGS__);      \
            note(metrics, i, status_);                                     \
            first_ = first_ == FSDP_OK ? status_ : first_;                 \
        }                                                                  \
        return first_;                                                     \
    } while (0)

fsdp_status fsdp__metrics_write(fsdp__metrics *metrics, const fsdp_train_report *report)
{
    TELL(metrics, step, report);
}

fsdp_status fsdp__metrics_write_validation(fsdp__metrics *metrics, const fsdp_train_validation *validation)
{
    TELL(metrics, validation, validation);
}

fsdp_status fsdp__metrics_write_histograms(fsdp__metrics *metrics, int64_t at, const fsdp__histograms *d)
{
    TELL(metrics, histograms, at, d);
}

fsdp_status fsdp__metrics_write_text(fsdp__metrics *metrics, int64_t at, const char *tag, const char *text)
{
    TELL(metrics, text, at, tag, text);
}

fsdp_status fsdp__metrics_end(fsdp__metrics *metrics)
{
    fsdp_status status = FSDP_OK;

    if (!metrics)
        return FSDP_OK;
    for (size_t i = 0; i < FSDP__COUNT_OF(places); i++) {
        if (metrics->open[i].place)
            FSDP_KEEP_FIRST(status, places[i]->end(metrics->open[i].place));
        fsdp__free(metrics->open[i].place);
    }
    if (metrics->failure != FSDP_OK)
        status = FSDP_FAIL(metrics->failure, "%s; the lines from there on are missing", metrics->message);
    fsdp__free(metrics);
    return status;
}
