/* tuning.c - runs of preference tuning, as the reference has done them. */
#include "train/tuning.h"
#include "train/config.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/chat_folder.h"
#include "support/program.h"

void tuning_find(const char *name, char path[512])
{
    const char *all = getenv("FSDP_REFERENCE");

    snprintf(path, 512, "%s/finetune/%s", REFERENCE, name);
    if (access(path, R_OK) != 0 && all)
        snprintf(path, 512, "%s/finetune/%s", all, name);
    if (access(path, R_OK) != 0)
        skip();
}

static void set(fsdp_train_config *config, const char *key, const char *value)
{
    CHECK_OK(fsdp_train_config_set(config, key, value));
}

static void set_number(fsdp_train_config *config, const char *key, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    set(config, key, text);
}

static void set_path(fsdp_train_config *config, const char *key, const char *name)
{
    char path[512];

    tuning_find(name, path);
    set(config, key, path);
}

fsdp_train_config *tuning_config(const tuning *t)
{
    int cp = t->cp ? t->cp : 1, tp = t->tp ? t->tp : 1, teams = t->world / cp / tp;
    int local = 8 / teams / t->microbatches;
    fsdp_train_config *config = NULL;
    char text[512];

    config = test_empty_config();
    set(config, "model.path", REFERENCE "/models/tiny-llama");
    set_path(config, "data.path", "dpo-train.jsonl");
    set_path(config, "data.tokenizer", "byte-chat");
    snprintf(text, sizeof text, "%s/cache", t->directory);
    set(config, "data.cache", text);
    set_number(config, "training.local_batch_size", local);
    set_number(config, "training.global_batch_size", local * teams * t->microbatches);
    set_number(config, "training.seq_len", 200);
    set_number(config, "training.steps", TUNING_STEPS);
    set_number(config, "parallelism.context_parallel_degree", cp);
    set_number(config, "parallelism.tensor_parallel_degree", tp);
    set(config, "training.max_norm", "1");
    set(config, "training.objective", "dpo");
    set(config, "optimizer.lr", strstr(t->name, "lora") ? "0.01" : "0.001");
    test_set_keys(config, "optimizer.weight_decay=0 lr_scheduler.decay_type=constant metrics.log_freq=1");
    if (strstr(t->name, "-ls"))
        set(config, "dpo.label_smoothing", "0.2");
    if (strstr(t->name, "lora"))
        set_path(config, "adapter.path", "dpo-lora-llama/initial");
    if (t->batch > 0) {
        set_path(config, "validation.path", "dpo-train.jsonl");
        set_number(config, "validation.local_batch_size", t->batch);
    }
    if (t->key)
        set(config, t->key, t->value);
    return config;
}

void tuning_near(const tuning *t, const json_t *file, const char *list, int step, double value, double tolerance)
{
    double expected = json_number_value(json_array_get(json_object_get(file, list), (size_t)step));

    if (!(fabs(value - expected) <= tolerance * fmax(fabs(expected), 0.1)))
        TEST_FAIL("%s, world %d, %s of step %d: %.9g, not %.9g", t->name, t->world, list, step + 1, value, expected);
}

json_t *tuning_reference(const tuning *t)
{
    char path[512], name[80];

    snprintf(name, sizeof name, "%s.json", t->name);
    tuning_find(name, path);
    return CHECK_PTR(json_load_file(path, 0, NULL));
}

static void run_rank(fsdp_context *context, void *arg)
{
    tuning *t = arg;
    bool notes = fsdp_context_rank(context) == t->world - 1;
    fsdp_train_config *config = tuning_config(t);
    fsdp_train_run *run = NULL;
    fsdp_train_report report;
    fsdp_train_validation validation;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, config, &run));
    for (int step = 0; step < TUNING_STEPS; step++) {
        if (t->batch > 0)
            CHECK_OK(fsdp_train_validate(run, &validation));
        if (t->batch > 0 && notes)
            t->validations[step] = validation;
        CHECK_OK(fsdp_train_step(run, &report));
        if (notes)
            t->reports[step] = report;
    }
    fsdp_train_run_free(run);
}

void tuning_run(tuning *t)
{
    test_run_ranks(t->world, run_rank, t);
}

/* ---- pairs of a story's own ---- */

void tuning_write_pairs(const story *s, const char *text)
{
    char *data = test_path(s->directory, "pairs.jsonl"), *folder = test_path(s->directory, "tokenizer");
    FILE *file = CHECK_PTR(fopen(data, "w"));

    CHECK(mkdir(folder, 0700) == 0 || access(folder, R_OK) == 0);
    chat_folder_write(folder, chat_template_plain);
    for (int i = 0; !text && i < 30; i++)
        fprintf(file, "{\"prompt\": \"count %d\", \"chosen\": \" up %d\", \"rejected\": \" down %.*s\"}\n", i, i + 1,
                i % 7, "xxxxxxx");
    fputs(text ? text : "", file);
    fclose(file);
}

void tuning_prefer(story *s)
{
    char *data = test_path(s->directory, "pairs.jsonl"), *folder = test_path(s->directory, "tokenizer");
    char *cache = test_path(s->directory, "cache");

    tuning_write_pairs(s, NULL);
    test_set_keys(s->config,
                  "data.path=%s data.tokenizer=%s data.cache=%s model.vocab_size=259 training.seq_len=64 "
                  "training.objective=dpo",
                  data, folder, cache);
}
