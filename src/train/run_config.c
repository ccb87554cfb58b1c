/* run_config.c - the config of a run: the calls that use its table of keys, the checks that need more than one key,
 * and the model that it asks for. */
#include "train/run_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/text.h"
#include "config/config.h"
#include "device/device.h"
#include "fsdp/adapter.h"
#include "parallel/degrees.h"
#include "train/inputs.h"

enum {
    MOST_SOURCES = 64 /* of a mixture */
};

/* ---- the table's calls ---- */

fsdp_status fsdp_train_config_create(fsdp_train_config **out)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot make a config: there is no place for it");
    *out = NULL;
    FSDP__TRY_NEW(config = fsdp__calloc(1, sizeof *config));
    FSDP_TRY(fsdp__config_default(&fsdp__train_keys, config));
    *out = fsdp__take(&config);
    return FSDP_OK;
}

void fsdp_train_config_free(fsdp_train_config *config)
{
    if (config) {
        fsdp__config_release(&fsdp__train_keys, config);
        FSDP__FREE_ALL(config->loaded_from, config->usual_cache);
    }
    fsdp__free(config);
}

fsdp_status fsdp__train_config_copy(const fsdp_train_config *config, fsdp_train_config **out)
{
    fsdp_status status;

    FSDP_TRY(fsdp_train_config_create(out));
    status = fsdp__config_copy(&fsdp__train_keys, config, *out);
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_train_config_free(fsdp__take(out));
    return status;
}

/* Refuses what is named in place of a config, but has a key: a folder of a model, and data. */
static fsdp_status check_is_config(const char *path)
{
    static const char *const data[] = {".jsonl", ".ndjson", ".parquet"};
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s' is a folder and no config: name a model with --model.path=%s, data with "
                         "--data.path=%s",
                         path, FSDP__SHELL_WORD(path), FSDP__SHELL_WORD(path));
    for (size_t i = 0; i < FSDP__COUNT_OF(data); i++)
        if (fsdp__ends_with(path, data[i]))
            return FSDP_FAIL(FSDP_INVALID, "'%s' has the name of data and is no config: name it with --data.path=%s",
                             path, FSDP__SHELL_WORD(path));
    return FSDP_OK;
}

/* Loads a config, and says of one that is called as a model's is that it may be a model's. */
static fsdp_status load(fsdp_train_config *config, const char *path)
{
    fsdp_status status = fsdp__config_load(&fsdp__train_keys, config, path);
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;

    if (status != FSDP_INVALID || strcmp(name, "config.json") != 0)
        return status;
    return FSDP_FAIL(status, "%s; if this is a model's config.json, name its folder in place of it", fsdp_last_error());
}

fsdp_status fsdp_train_config_load(fsdp_train_config *config, const char *path)
{
    char *copy;

    if (!config || !path)
        return FSDP__FAIL_NULL("cannot load a config: the config and a path are required");
    FSDP_TRY(check_is_config(path));
    FSDP__TRY_NEW(copy = fsdp__strdup(path));
    fsdp__free(config->loaded_from);
    config->loaded_from = copy;
    return load(config, path);
}

static fsdp_status check_given(const fsdp_train_config *config, const char *key, const char *value)
{
    return config && key && value
               ? FSDP_OK
               : FSDP__FAIL_NULL("cannot set a key of a config: the config, a key and a value are required");
}

fsdp_status fsdp_train_config_set(fsdp_train_config *config, const char *key, const char *value)
{
    FSDP_TRY(check_given(config, key, value));
    return fsdp__config_set(&fsdp__train_keys, config, key, value);
}

fsdp_status fsdp_train_config_add(fsdp_train_config *config, const char *key, const char *value)
{
    FSDP_TRY(check_given(config, key, value));
    return fsdp__config_add(&fsdp__train_keys, config, key, value);
}

fsdp_status fsdp_train_config_print(const fsdp_train_config *config, FILE *stream)
{
    if (!config || !stream)
        return FSDP__FAIL_NULL("cannot print a config: the config and a stream are required");
    FSDP_TRY(fsdp__config_check(&fsdp__train_keys, config)); /* what it prints is read back */
    return fsdp__config_print(&fsdp__train_keys, config, stream);
}

fsdp_status fsdp_train_config_help(const char *section, FILE *stream)
{
    if (!stream)
        return FSDP_FAIL(FSDP_INVALID, "cannot print the keys of a config: there is no stream");
    return fsdp__config_help(&fsdp__train_keys, section, stream);
}

static ssize_t hash_what_is_printed(void *hash, const char *text, size_t bytes)
{
    *(uint64_t *)hash = fsdp__hash_bytes(*(uint64_t *)hash, text, bytes);
    return (ssize_t)bytes;
}

fsdp_status fsdp__train_config_hash(const fsdp_train_config *config, uint64_t *out)
{
    uint64_t hash = FSDP__HASH_OF_NOTHING;
    FILE *stream = fopencookie(&hash, "w", (cookie_io_functions_t){.write = hash_what_is_printed});
    fsdp_status status;

    if (!stream)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot print the config");
    status = fsdp_train_config_print(config, stream);
    if (fclose(stream) != 0 && status == FSDP_OK)
        status = FSDP_FAIL(FSDP_IO, "cannot print the config");
    FSDP_TRY(status);
    *out = hash;
    return FSDP_OK;
}

/* ---- checks ---- */

/* Returns the first key that changes the sizes of a model; NULL: none is set. */
static const char *changed_size(const fsdp_train_config *config)
{
    const int64_t sizes[] = {config->model.n_layers,   config->model.dim,     config->model.n_heads,
                             config->model.n_kv_heads, config->model.ffn_dim, config->model.vocab_size,
                             config->model.max_seq_len};
    static const char *const names[] = {"n_layers", "dim",        "n_heads",    "n_kv_heads",
                                        "ffn_dim",  "vocab_size", "max_seq_len"};

    for (size_t i = 0; i < FSDP__COUNT_OF(sizes); i++)
        if (sizes[i])
            return names[i];
    return config->model.tie_word_embeddings >= 0 ? "tie_word_embeddings" : NULL;
}

fsdp_status fsdp__train_config_check_model(const fsdp_train_config *config)
{
    const char *changed = changed_size(config);

    if (!config->model.path && !config->model.preset)
        return FSDP_FAIL(FSDP_INVALID, "no model: set model.path (a Hugging Face folder) or model.preset");
    if (config->model.path && config->model.preset)
        return FSDP_FAIL(FSDP_INVALID, "model.path and model.preset exclude each other: '%s' and '%s'",
                         config->model.path, config->model.preset);
    if (!config->model.path && config->model.pretrained == 1)
        return FSDP_FAIL(FSDP_INVALID, "model.init is pretrained, but the preset '%s' has no weights: set model.path",
                         config->model.preset);
    if (config->model.path && config->model.pretrained != 0 && changed)
        return FSDP_FAIL(FSDP_INVALID,
                         "model.%s changes the model, but the weights of '%s' fit its own config.json: set model.init "
                         "to random, or leave it out",
                         changed, config->model.path);
    return FSDP_OK;
}

enum {
    RANKS_TEXT = 60
};
/* Writes "4 ranks", or "2 teams of 4 ranks" where several ranks have the same data. */
static const char *ranks_text(const fsdp_train_config *config, int count, char text[RANKS_TEXT])
{
    int team = fsdp__train_team(config);

    if (team > 1)
        snprintf(text, RANKS_TEXT, "%d team%s of %d ranks", count, fsdp__plural(count), team);
    else
        snprintf(text, RANKS_TEXT, "%d rank%s", count, fsdp__plural(count));
    return text;
}

fsdp_status fsdp__train_check_batch(const fsdp_train_config *config, int data_ranks, int64_t global, const char *what)
{
    int64_t local = config->training.local_batch_size, together = local * data_ranks, below = global / together;
    char nearest[80], ranks[RANKS_TEXT];

    if (global == -1 || global % together == 0)
        return FSDP_OK;
    if (below == 0)
        snprintf(nearest, sizeof nearest, "is: %lld", (long long)together);
    else
        snprintf(nearest, sizeof nearest, "are: %lld and %lld", (long long)(below * together),
                 (long long)((below + 1) * together));
    return FSDP_FAIL(
        FSDP_INVALID, "%s %lld is not a multiple of %lld (training.local_batch_size %lld x %s): the nearest that %s",
        what, (long long)global, (long long)together, (long long)local, ranks_text(config, data_ranks, ranks), nearest);
}

static fsdp_status check_reshard(const fsdp_train_config *config, int64_t ranks)
{
    int kept = config->parallelism.reshard_after_forward;

    if (kept <= 0 || ranks % kept == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "parallelism.fsdp_reshard_after_forward %d does not divide the %lld ranks that shard", kept,
                     (long long)ranks);
}

/* Checks that the copies of the parameters times the ranks of each are all ranks that have data of their own. */
static fsdp_status check_degrees(const fsdp_train_config *config, int data_ranks)
{
    int64_t replicas = config->parallelism.data_parallel_replicate_degree;
    int64_t degree = config->parallelism.data_parallel_shard_degree;
    const char *verb = data_ranks == 1 ? "is" : "are";
    char copies[40] = "", ranks[RANKS_TEXT];

    if (data_ranks % replicas != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "parallelism.data_parallel_replicate_degree is %lld, but there %s %s: expected a number that "
                         "divides them",
                         (long long)replicas, verb, ranks_text(config, data_ranks, ranks));
    if (degree == -1 || degree == data_ranks / replicas)
        return FSDP_OK;
    if (replicas > 1)
        snprintf(copies, sizeof copies, " for %lld copies", (long long)replicas);
    return FSDP_FAIL(
        FSDP_INVALID, "parallelism.data_parallel_shard_degree is %lld, but there %s %s%s: expected -1 or %lld",
        (long long)degree, verb, ranks_text(config, data_ranks, ranks), copies, (long long)(data_ranks / replicas));
}

/* Returns what tensor parallel excludes and the config asks for, with what to do instead; NULL: nothing. */
static const char *excluded_by_tensors(const fsdp_train_config *config)
{
    return config->parallelism.strategy == FSDP_TRAIN_FSDP1 ? "parallelism.strategy fsdp1: set fsdp2"
           : config->parallelism.strategy == FSDP_TRAIN_DDP
               ? "parallelism.strategy ddp: set hsdp, with a copy for each team in "
                 "parallelism.data_parallel_replicate_degree"
           : config->adapter.quantize != FSDP_QUANTIZE_NONE
               ? "adapter.quantize: leave one of them out (adapter.base_dtype=bfloat16 halves the base)"
           : config->parallelism.schedule ? "parallelism.schedule: leave one of them out"
           : config->parallelism.reshard_after_forward > 0
               ? "a number of ranks in parallelism.fsdp_reshard_after_forward: leave one of them out"
           : config->parallelism.gather_dtype != FSDP_TRAIN_GATHER_NONE
               ? "parallelism.gather_dtype: leave one of them out"
               : NULL;
}

fsdp_status fsdp__train_check_team(const fsdp_train_config *config, int world_size)
{
    const fsdp__degree degrees[] = {
        {"parallelism.tensor_parallel_degree", config->parallelism.tensor_parallel_degree},
        {"parallelism.context_parallel_degree", config->parallelism.context_parallel_degree}};
    const char *excluded[] = {excluded_by_tensors(config),
                              config->parallelism.schedule ? "parallelism.schedule: leave one of them out" : NULL};

    FSDP_TRY(fsdp__check_teams(world_size, degrees[0], degrees[1]));
    for (int i = 0; i < 2; i++)
        if (degrees[i].ranks > 1 && excluded[i])
            return FSDP_FAIL(FSDP_UNSUPPORTED, "%s %lld cannot be combined with %s", degrees[i].key,
                             (long long)degrees[i].ranks, excluded[i]);
    return degrees[1].ranks > 1 ? fsdp__check_cut_length("training.seq_len", config->training.seq_len, degrees[1])
                                : FSDP_OK;
}

static fsdp_status check_async(const fsdp_train_config *config)
{
    if (config->parallelism.enable_async_tensor_parallel && fsdp__train_adapts(config))
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "parallelism.enable_async_tensor_parallel cannot be combined with adapter: leave one of them out");
    return FSDP_OK;
}

fsdp_status fsdp__train_config_check_step(const fsdp_train_config *config, int world_size)
{
    int ranks;

    FSDP_TRY(fsdp__train_check_team(config, world_size));
    FSDP_TRY(fsdp__config_check_needs(&fsdp__train_keys, config));
    ranks = fsdp__train_data_ranks(config, world_size);
    FSDP_TRY(fsdp__train_check_batch(config, ranks, config->training.global_batch_size, "training.global_batch_size"));
    if (!fsdp__train_holds_all(config))
        FSDP_TRY(check_degrees(config, ranks));
    FSDP_TRY(fsdp__train_check_strategy(config, world_size));
    FSDP_TRY(check_reshard(config, ranks / config->parallelism.data_parallel_replicate_degree *
                                       config->parallelism.context_parallel_degree));
    FSDP_TRY(fsdp__train_check_units(config));
    FSDP_TRY(fsdp__train_check_adapter(config));
    FSDP_TRY(check_async(config));
    FSDP_TRY(fsdp__train_check_dpo(config));
    if (config->training.device)
        FSDP_TRY(fsdp__device_name_check("training.device", config->training.device));
    return fsdp__train_check_optimizer(config);
}

bool fsdp__train_validates(const fsdp_train_config *config)
{
    bool has_data = config->validation.path_count > 0 || config->validation.share > 0;

    return config->validation.enable >= 0 ? config->validation.enable == 1 : has_data;
}

static fsdp_status check_validation(const fsdp_train_config *config)
{
    if (config->validation.path_count > 0 && config->validation.share > 0)
        return FSDP_FAIL(FSDP_INVALID, "validation.path and validation.share exclude each other: '%s' and %g",
                         config->validation.paths[0], config->validation.share);
    return FSDP_OK;
}

/* Returns whether the best weights are kept: as a checkpoint of the best validation, or as a copy in memory. A run that
 * has checkpoints and does not want the best one to stay has neither. */
static bool keeps_best(const fsdp_train_config *config)
{
    return fsdp__train_validates(config) && (config->validation.keep_best || !fsdp__train_saves(config));
}

bool fsdp__train_exports_best(const fsdp_train_config *config)
{
    if (!config->save.path || !keeps_best(config))
        return false;
    if (config->save.which >= 0)
        return config->save.which == FSDP_TRAIN_BEST;
    return config->training.early_stop > 0 && config->validation.keep_best;
}

/* Checks that there is an average where one is asked for, and that the best weights are those of the best validation.
 */
static fsdp_status check_average(const fsdp_train_config *config)
{
    bool validates = config->validation.which == FSDP_TRAIN_EMA;

    if (config->training.ema_decay <= 0 && (validates || config->save.which == FSDP_TRAIN_EMA))
        return FSDP_FAIL(FSDP_INVALID,
                         "%s.which is ema, but there is no average of the weights: set training.ema_decay (0.999)",
                         validates ? "validation" : "export");
    if (validates && fsdp__train_exports_best(config))
        return FSDP_FAIL(
            FSDP_INVALID,
            "validation.which is ema, but the weights of the best validation are to be exported, which are "
            "not what was validated: set export.which to ema or last");
    return FSDP_OK;
}

static fsdp_status check_export(const fsdp_train_config *config)
{
    FSDP_TRY(check_average(config));
    if (config->save.which != FSDP_TRAIN_BEST || keeps_best(config))
        return FSDP_OK;
    if (!fsdp__train_validates(config))
        return FSDP_FAIL(FSDP_INVALID, "export.which is best, but there is no validation to tell which is: set "
                                       "validation.path or validation.share");
    return FSDP_FAIL(FSDP_INVALID, "export.which is best, but validation.keep_best is false: its checkpoint would be "
                                   "gone by the time of the export");
}

static fsdp_status check_text(const fsdp_train_config *config)
{
    const char *tokenizer = config->data.tokenizer;

    if (!tokenizer)
        return FSDP_OK;
    if (fsdp__inputs_are_bytes(config) && config->data.field)
        return FSDP_FAIL(
            FSDP_INVALID,
            "data.field is '%s', a field of JSON lines, but data.tokenizer is bytes: leave one of them out",
            config->data.field);
    if (config->data.format == FSDP_TRAIN_TOKENS || config->data.token_bytes > 0)
        return FSDP_FAIL(FSDP_INVALID, "data.tokenizer is for text, but %s: leave one of them out",
                         config->data.token_bytes > 0 ? "data.dtype is for tokens" : "data.format is tokens");
    if (strcmp(tokenizer, "model") == 0 && !config->model.path)
        return FSDP_FAIL(FSDP_INVALID, "data.tokenizer is model, but there is no model.path: name a folder");
    return FSDP_OK;
}

static fsdp_status check_trace(const fsdp_train_config *config)
{
    const char *path = config->metrics.trace.path;

    if (path && config->metrics.jsonl && strcmp(path, config->metrics.jsonl) == 0)
        return FSDP_FAIL(FSDP_INVALID, "metrics.trace.path and metrics.jsonl are both '%s': name another file", path);
    return fsdp__inputs_spare(config, "metrics.trace.path", path);
}

/* Checks that no metrics are written into what the run reads, or where it writes something else. */
static fsdp_status check_metrics(const fsdp_train_config *config)
{
    const char *tensorboard = config->metrics.tensorboard, *folder = config->checkpoint.folder;
    const char *model = config->save.path;

    if (config->metrics.peak_tflops > 0 && config->metrics.mfu != FSDP_TRAIN_MFU_AUTO)
        return FSDP_FAIL(
            FSDP_INVALID,
            "metrics.peak_tflops %g gives the peak, but metrics.mfu=%s takes another one: leave one of them out",
            config->metrics.peak_tflops, config->metrics.mfu == FSDP_TRAIN_MFU_MEASURED ? "measured" : "none");
    if (tensorboard && ((folder && strcmp(tensorboard, folder) == 0) || (model && strcmp(tensorboard, model) == 0)))
        return FSDP_FAIL(FSDP_INVALID, "metrics.tensorboard: '%s' is also what %s names: name another", tensorboard,
                         folder && strcmp(tensorboard, folder) == 0 ? "checkpoint.folder" : "export.path");
    FSDP_TRY(fsdp__inputs_spare(config, "metrics.jsonl", config->metrics.jsonl));
    FSDP_TRY(fsdp__inputs_spare(config, "metrics.csv", config->metrics.csv));
    FSDP_TRY(fsdp__inputs_spare(config, "metrics.prometheus", config->metrics.prometheus));
    return fsdp__inputs_spare(config, "metrics.tensorboard", tensorboard);
}

static fsdp_status check_data(const fsdp_train_config *config)
{
    bool mixed = config->data.mixture_count > 0;

    if (!config->data.path_count && !mixed)
        return FSDP_FAIL(FSDP_INVALID, "no data: set data.path (a file or a list of files)");
    if (config->data.path_count && mixed)
        return FSDP_FAIL(FSDP_INVALID,
                         "data.path and data.mixture exclude each other: '%s' and %lld source%s: add the file to the "
                         "mixture, or leave one of them out",
                         config->data.paths[0], (long long)config->data.mixture_count,
                         fsdp__plural(config->data.mixture_count));
    if (config->data.mixture_count > MOST_SOURCES)
        return FSDP_FAIL(FSDP_INVALID, "data.mixture has %lld sources: at most %d are mixed",
                         (long long)config->data.mixture_count, (int)MOST_SOURCES);
    if (mixed && config->validation.share > 0)
        return FSDP_FAIL(FSDP_INVALID, "validation.share is a share of data.path, and there is data.mixture in its "
                                       "place: name files for validation.path");
    if (mixed && !isnan(config->training.epochs))
        return FSDP_FAIL(FSDP_INVALID,
                         "training.epochs is %g, but each source of data.mixture has epochs of its own: "
                         "set training.steps",
                         config->training.epochs);
    return FSDP_OK;
}

fsdp_status fsdp_train_config_check(const fsdp_train_config *config, int world_size)
{
    if (!config)
        return FSDP__FAIL_NULL("cannot check a run's config: it is NULL");
    FSDP_TRY(fsdp__config_check(&fsdp__train_keys, config));
    FSDP_TRY(fsdp__train_config_check_model(config));
    FSDP_TRY(check_data(config));
    if (config->data.format == FSDP_TRAIN_TEXT && config->data.token_bytes > 0)
        return FSDP_FAIL(FSDP_INVALID, "data.dtype is for tokens, but data.format is text: leave one of them out");
    FSDP_TRY(check_text(config));
    FSDP_TRY(fsdp__train_config_check_step(config, world_size));
    FSDP_TRY(check_validation(config));
    FSDP_TRY(fsdp__train_check_checkpoint(config));
    FSDP_TRY(check_export(config));
    FSDP_TRY(check_trace(config));
    return check_metrics(config);
}

/* ---- what follows from the keys ---- */

/* Chooses the number of heads: they must divide the dimension, and rotary positions need an even part for each. */
static fsdp_status fit_heads(fsdp_model_config *m)
{
    int64_t unit = m->n_heads * (m->architecture != FSDP_GPT2 ? 2 : 1), below = m->dim / unit * unit;

    if (m->dim == below) {
        m->head_dim = m->dim / m->n_heads;
        return FSDP_OK;
    }
    if (!below)
        return FSDP_FAIL(FSDP_INVALID, "model.dim %lld is too small for %lld heads: it must be at least %lld",
                         (long long)m->dim, (long long)m->n_heads, (long long)unit);
    return FSDP_FAIL(FSDP_INVALID, "model.dim %lld does not fit %lld heads%s: the nearest that do: %lld and %lld",
                     (long long)m->dim, (long long)m->n_heads,
                     m->architecture != FSDP_GPT2 ? " of an even number each" : "", (long long)below,
                     (long long)(below + unit));
}

static fsdp_status check_kv_heads(const fsdp_model_config *m)
{
    int64_t below = m->n_kv_heads, above = below;

    if (m->n_heads % m->n_kv_heads == 0 && (m->architecture != FSDP_GPT2 || m->n_kv_heads == m->n_heads))
        return FSDP_OK;
    if (m->architecture == FSDP_GPT2)
        return FSDP_FAIL(FSDP_INVALID,
                         "model.n_kv_heads is %lld: in GPT-2 it is the number of heads, %lld: leave it out",
                         (long long)m->n_kv_heads, (long long)m->n_heads);
    if (m->n_kv_heads > m->n_heads)
        return FSDP_FAIL(FSDP_INVALID, "model.n_kv_heads is %lld: expected at most the number of heads, %lld",
                         (long long)m->n_kv_heads, (long long)m->n_heads);
    while (m->n_heads % below)
        below--;
    while (m->n_heads % above)
        above++;
    return FSDP_FAIL(FSDP_INVALID,
                     "model.n_kv_heads %lld does not divide %lld heads: the nearest that do: %lld and %lld",
                     (long long)m->n_kv_heads, (long long)m->n_heads, (long long)below, (long long)above);
}

/* Drops special tokens that a smaller vocabulary does not have. */
static void drop_missing_tokens(fsdp_model_config *m)
{
    int kept = 0;

    m->has_bos_token = m->has_bos_token && m->bos_token < m->vocab_size;
    m->has_pad_token = m->has_pad_token && m->pad_token < m->vocab_size;
    m->has_unk_token = m->has_unk_token && m->unk_token < m->vocab_size;
    for (int i = 0; i < m->eos_token_count; i++)
        if (m->eos_tokens[i] < m->vocab_size)
            m->eos_tokens[kept++] = m->eos_tokens[i];
    m->eos_token_count = kept;
}

/* Changes the sizes of `m`, which is the preset's or the folder's. */
static fsdp_status change_sizes(const fsdp_train_config *c, fsdp_model_config *m)
{
    if (c->model.n_kv_heads)
        m->n_kv_heads = c->model.n_kv_heads;
    else if (c->model.n_heads) /* keep the number of heads per group where that is possible */
        m->n_kv_heads =
            c->model.n_heads % m->n_kv_heads == 0 && m->n_kv_heads != m->n_heads ? m->n_kv_heads : c->model.n_heads;
#define CHANGE(field)   \
    if (c->model.field) \
        m->field = c->model.field;
    CHANGE(n_layers)
    CHANGE(dim)
    CHANGE(n_heads)
    CHANGE(ffn_dim)
    CHANGE(vocab_size)
    CHANGE(max_seq_len)
#undef CHANGE
    if (c->model.tie_word_embeddings >= 0)
        m->tie_word_embeddings = c->model.tie_word_embeddings == 1;
    drop_missing_tokens(m);
    if (c->model.dim || c->model.n_heads)
        FSDP_TRY(fit_heads(m));
    FSDP_TRY(check_kv_heads(m));
    FSDP_TRY(fsdp_fail_prefix(fsdp_model_config_check(m), "model"));
    return FSDP_OK;
}

fsdp_status fsdp__train_model_config(const fsdp_train_config *config, fsdp_model_config *out)
{
    if (config->model.path)
        FSDP_TRY(fsdp_hub_read_config(config->model.path, out));
    else
        FSDP_TRY(fsdp_fail_prefix(fsdp_model_preset(config->model.preset, out), "model.preset"));
    if (changed_size(config))
        FSDP_TRY(change_sizes(config, out));
    if (config->model.dropout > 0 && out->architecture != FSDP_GPT2)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "model.dropout is %g, but only GPT-2 has dropout here: leave it out",
                         config->model.dropout);
    if (!isnan(config->model.dropout)) {
        out->embd_dropout = out->dropout = (float)config->model.dropout;
        out->attention_dropout = 0;
    }
    return FSDP_OK;
}
