/* worlds.c - computes a variant on other numbers of ranks. */
#include "compare/worlds.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "config/args.h"
#include "explain/explain.h"
#include "train/run_config.h"

fsdp_status fsdp__worlds_read(const char *list, fsdp__worlds *out)
{
    for (out->count = 0; *list; out->count++) {
        size_t length = strcspn(list, ",");
        int64_t ranks = 0;
        char word[16];

        if (out->count == FSDP__WORLDS)
            return FSDP_FAIL(FSDP_INVALID, "--worlds has more than %d numbers", FSDP__WORLDS);
        snprintf(word, sizeof word, "%.*s", (int)length, list);
        FSDP_TRY(fsdp__args_integer("--worlds", word, 1, 4096, &ranks));
        out->ranks[out->count] = (int)ranks;
        snprintf(out->labels[out->count], sizeof out->labels[0], "%d rank%s", (int)ranks, fsdp__plural(ranks));
        list += length;
        list += *list == ',';
    }
    return FSDP_OK;
}

static fsdp_status explain(const fsdp_train_config *config, int world, fsdp__elsewhere *out)
{
    FSDP__SCOPED(fsdp_explanation_free_at) fsdp_explanation *explanation = NULL;

    FSDP_TRY(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = world}, &explanation));
    out->step = explanation->step;
    out->peak_bytes = (int64_t)out->step.peak_total_bytes;
    out->sent_bytes = 0;
    for (int kind = 0; kind < FSDP_BARRIER; kind++)
        out->sent_bytes += out->step.bytes_sent[kind];
    return FSDP_OK;
}

fsdp_status fsdp__elsewhere_find(const fsdp_train_config *config, int ranks, int world, fsdp__elsewhere *out)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *other = NULL;
    fsdp_status status;

    *out = (fsdp__elsewhere){.peak_bytes = -1, .sent_bytes = -1};
    if (fsdp__train_plans_schedule(config))
        return FSDP_OK; /* what would be planned there is not known */
    FSDP_TRY(fsdp__train_config_copy(config, &other));
    if (other->training.global_batch_size != -1) /* keep the number of microbatches */
        other->training.global_batch_size = other->training.global_batch_size / ranks * world;
    status = fsdp_train_config_check(other, world);
    if (status == FSDP_OK)
        status = explain(other, world, out);
    return status == FSDP_INVALID ? FSDP_OK : status;
}
