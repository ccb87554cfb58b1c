/* same_config.c - checks that all ranks have the same config. Ranks that one process started got theirs from it; others
 * may have read another file, or have been given another command line, and would train something that nobody asked for,
 * or wait for each other. Each rank writes what must be the same as facts; all ranks compare them all. */
#include <stdio.h>

#include "train/adapter_on_disk.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/same_facts.h"

static void write_first_weights(const fsdp_train_run *run, FILE *out)
{
    const fsdp_train_config *c = run->config;

    if (c->adapter.path)
        fsdp__adapter_on_disk_facts(c->adapter.path, "adapter.path", out);
    if (run->resume.path)
        fsdp__facts_of_weights(run->resume.path, true, "checkpoint.folder", out);
    else if (run->initial.path)
        fsdp__facts_of_weights(run->initial.path, run->initial.is_checkpoint, "checkpoint.initial_load_path", out);
    else if (c->model.path && c->model.pretrained != 0)
        fsdp__facts_of_weights(c->model.path, false, "model.path", out);
}

static void write_model(const fsdp_train_run *run, FILE *out)
{
    const fsdp_model_config *m = &run->model_config;

    fsdp__facts_of_model(m, out);
    fprintf(out, "the model's dropout\t%.9g %.9g\nthe model's init_std\t%.9g\n", (double)m->embd_dropout,
            (double)m->dropout, (double)m->init_std);
    fsdp__train_facts_of_adapter(run, out);
    write_first_weights(run, out);
}

/* Writes a hash of the file that the run follows. */
static void write_schedule(const fsdp_train_run *run, FILE *out)
{
    uint64_t hash = 0;

    if (run->comm_schedule && fsdp__comm_schedule_hash(run->comm_schedule, &hash) == FSDP_OK)
        fprintf(out, "what parallelism.schedule holds\ta schedule (%016llx)\n", (unsigned long long)hash);
    else
        fprintf(out, "what parallelism.schedule holds\t%s\n",
                fsdp__train_plans_schedule(run->config) ? "a word: plan" : "nothing");
}

static void write_facts(const void *arg, FILE *out)
{
    const fsdp_train_run *run = arg;

    for (int i = 0; i < fsdp__train_keys.count; i++)
        fsdp__facts_of_key(run->config, &fsdp__train_keys.keys[i], out);
    write_model(run, out);
    write_schedule(run, out);
    for (int i = 0; i < run->source_count; i++)
        fsdp__facts_of_data(&run->sources[i].data, run->sources[i].key, out);
    if (run->validation.on && run->config->validation.path_count > 0)
        fsdp__facts_of_data(&run->validation.own, "validation.path", out);
    fsdp__train_facts_of_windows(run, out);
    fprintf(out, "the step to go on from\t%lld\n", (long long)run->step);
}

fsdp_status fsdp__same_config(const fsdp_train_run *run)
{
    return fsdp__facts_agree(run->context, "have different configs", write_facts, run);
}
