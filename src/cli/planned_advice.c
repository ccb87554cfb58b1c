/* planned_advice.c - makes a config of what a run has recorded, and tries changes of it by dry runs. */
#include "cli/planned_advice.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "plan/changes.h"
#include "train/metrics.h"
#include "train/run_config.h"

/* Writes where a run was, as fsdp plan's --device has it: a GPU by its data sheet, a CPU as the one that is here. */
static void device_of(const fsdp__recorded_run *run, char *text, size_t bytes)
{
    const char *name = fsdp__header_text(run, "device"), *card = name ? strchr(name, '(') : NULL;

    if (card)
        snprintf(text, bytes, "cuda:%.*s", (int)strcspn(card + 1, ",)"), card + 1);
    else
        snprintf(text, bytes, "cpu");
}

/* Gets the device's prices, unless they are those of the run before. */
static fsdp_status open_device(fsdp__planned_advice *where, const fsdp__recorded_run *run, fsdp_train_config *config)
{
    char name[sizeof where->opened];

    if (where->device.name)
        snprintf(name, sizeof name, "%s", where->device.name);
    else
        device_of(run, name, sizeof name);
    if (strcmp(name, where->opened) == 0)
        return fsdp_train_config_set(config, "training.device", where->device.prices.gpu ? "cuda" : "cpu");
    where->opened[0] = '\0';
    FSDP_TRY(fsdp__on_device_open(&where->device, name, true, config));
    snprintf(where->opened, sizeof where->opened, "%s", name);
    return FSDP_OK;
}

/* Makes the config that the run had, without what only a run that starts needs. */
static fsdp_status config_of(const fsdp__recorded_run *run, fsdp_train_config **out)
{
    const json_t *settings = json_object_get(run->header, "settings"), *value;
    const char *key;

    FSDP_TRY(fsdp_train_config_create(out));
    json_object_foreach((json_t *)settings, key, value)
    {
        if (strncmp(key, "metrics.", 8) != 0 && strncmp(key, "data.", 5) != 0 && json_is_string(value))
            FSDP_TRY(fsdp__train_read_setting(*out, key, json_string_value(value)));
    }
    if (!(*out)->model.path && !(*out)->model.preset)
        return FSDP_FAIL(FSDP_INVALID, "its settings name no model");
    return FSDP_OK;
}

/* What is planned: one setting, or, where `key` is NULL, what shortens waits. */
typedef struct question {
    const char *key, *value;
    fsdp__change_wait wait;
} question;

static fsdp_status find(fsdp__planned_advice *where, const fsdp__recorded_run *run, const question *q,
                        fsdp__changes *out)
{
    double ranks = fsdp__header_number(run, "world_size"), machines = fsdp__header_number(run, "machines");
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;
    fsdp__plan_options options = {.prices = &where->device.prices};

    if (!(ranks >= 1 && ranks <= 1e6))
        return FSDP_FAIL(FSDP_INVALID, "its header has no number of ranks");
    options.world_size = (int)ranks;
    options.machines = machines >= 1 && machines <= ranks ? (int)machines : 1;
    FSDP_TRY(config_of(run, &config));
    FSDP_TRY(open_device(where, run, config));
    FSDP_TRY(fsdp__on_device_schedule(&options, 0, config));
    if (q->key)
        return fsdp__changes_of_setting(config, &options, q->key, q->value, out);
    return fsdp__changes_of_wait(config, &options, q->wait, out);
}

static fsdp_status answer(fsdp__planned_advice *where, const fsdp__recorded_run *run, const question *q, char *text)
{
    fsdp__changes changes;
    fsdp_status status = find(where, run, q, &changes);
    const fsdp__prices *prices = &where->device.prices;
    size_t used;

    if (status == FSDP_NO_MEMORY)
        return status;
    if (status != FSDP_OK) {
        snprintf(text, FSDP__PLANNED_TEXT, "what would change it cannot be planned: %s.", fsdp_last_error());
        return FSDP_OK;
    }
    if (changes.count > 0)
        fsdp__change_text(&changes, text, FSDP__PLANNED_TEXT - 200);
    else
        snprintf(text, FSDP__PLANNED_TEXT, "%s",
                 q->key ? "the run cannot have that." : "no setting that was tried makes a step shorter.");
    used = strlen(text);
    snprintf(text + used, FSDP__PLANNED_TEXT - used, " Planned by %d dry run%s at rates of %s (%s).", changes.tried + 1,
             changes.tried == 0 ? "" : "s", prices->device, prices->source);
    return FSDP_OK;
}

static fsdp_status shorten(void *arg, const fsdp__recorded_run *run, bool gathers, char *text)
{
    const question q = {.wait = gathers ? FSDP__CHANGE_GATHERS : FSDP__CHANGE_REDUCTIONS};

    return answer(arg, run, &q, text);
}

static fsdp_status price(void *arg, const fsdp__recorded_run *run, const char *key, const char *value, char *text)
{
    const question q = {.key = key, .value = value};

    return answer(arg, run, &q, text);
}

fsdp__advice_planner fsdp__planned_advice_of(fsdp__planned_advice *where)
{
    return (fsdp__advice_planner){.shorten = shorten, .price = price, .arg = where};
}
