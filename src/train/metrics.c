/* metrics.c - the file with one JSON object per step: what it must not be, the header line of a run, a line per
 * step. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/probe.h"
#include "base/text.h"
#include "train/metrics.h"
#include "train/run_config.h"

static fsdp_status cannot_write(const char *path)
{
    return FSDP_FAIL(FSDP_IO, "metrics.jsonl: cannot write '%s': %s", path, strerrordesc_np(errno));
}

/* ---- before a run ---- */

/* Checks what the file contains: an earlier run may have left its lines there, which stay. */
static fsdp_status check_contents(const char *path)
{
    static const char *const firsts[] = {"{\"run\": \"", "{\"step\": "};
    char text[16] = "";
    ssize_t got;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return FSDP_FAIL(FSDP_IO, "metrics.jsonl: cannot read '%s', which exists: %s", path, strerrordesc_np(errno));
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++)
        if (got == 0 || strncmp(text, firsts[i], strlen(firsts[i])) == 0)
            return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "metrics.jsonl: '%s' exists and does not hold metrics: name another file, or remove it", path);
}

/* Checks the folder in which the file is to be made. */
static fsdp_status check_folder(const char *path)
{
    char *folder = fsdp__path_parent(path);
    fsdp_status status = FSDP_OK;

    if (!folder)
        return FSDP_NO_MEMORY;
    if (access(folder, W_OK | X_OK) != 0)
        status = cannot_write(path);
    fsdp__free(folder);
    return status;
}

fsdp_status fsdp__metrics_check(const fsdp_train_config *config)
{
    const char *path = config->metrics.jsonl;
    struct stat info;

    if (!path)
        return FSDP_OK;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? check_folder(path) : cannot_write(path);
    errno = EISDIR;
    if (S_ISDIR(info.st_mode) || access(path, W_OK) != 0)
        return cannot_write(path);
    return S_ISREG(info.st_mode) ? check_contents(path) : FSDP_OK;
}

/* ---- writing ---- */

struct fsdp__metrics {
    FILE *file;
    const char *path; /* borrowed */
    int machines;
};

/* Checks for errors after every line: the stream is line-buffered, so that readers who follow the file see whole
 * lines. */
static fsdp_status written(const fsdp__metrics *metrics)
{
    if (fsdp__file_is_refused(FSDP__POINT_WRITE, NULL) || ferror(metrics->file))
        return cannot_write(metrics->path);
    return FSDP_OK;
}

/* Writes a number; JSON has no word for infinity and NaN. */
static void write_number(FILE *file, const char *name, double value)
{
    if (isfinite(value))
        fprintf(file, ", \"%s\": %.9g", name, value);
    else
        fprintf(file, ", \"%s\": null", name);
}

static void write_text(FILE *file, const char *name, const char *text)
{
    fprintf(file, ", \"%s\": ", name);
    fsdp__print_json_string(text, file);
}

/* Returns whether the file ends within a line: what an earlier run left unfinished, on a full disk, must not swallow
 * this one's header. */
static bool ends_within_a_line(int fd)
{
    struct stat info;
    char link[40], last = '\n';
    int reader = -1;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        reader = open(link, O_RDONLY | O_CLOEXEC);
    if (reader >= 0) {
        (void)!pread(reader, &last, 1, info.st_size - 1);
        close(reader);
    }
    return last != '\n';
}

static fsdp_status write_header(const fsdp__metrics *metrics, const fsdp_train_config *config,
                                const fsdp_train_summary *summary)
{
    char id[2 * 8 + 1], hash_text[2 * 8 + 1], started[40];
    time_t now = time(NULL);
    uint64_t random = 0, hash;
    struct tm utc;

    FSDP_TRY(fsdp__train_config_hash(config, &hash));
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return FSDP_FAIL(FSDP_IO, "metrics.jsonl: no random number for the run's id: %s", strerrordesc_np(errno));
    snprintf(id, sizeof id, "%016llx", (unsigned long long)random);
    snprintf(hash_text, sizeof hash_text, "%016llx", (unsigned long long)hash);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    fprintf(metrics->file, "{\"run\": \"%s\"", id);
    write_text(metrics->file, "started", started);
    write_text(metrics->file, "version", FSDP_VERSION);
    write_text(metrics->file, "config", hash_text);
    write_text(metrics->file, "model", summary->model);
    if (summary->resumed_from)
        fprintf(metrics->file, ", \"resumed_from\": %lld", (long long)summary->resumed_step);
    if (summary->machines > 1)
        fprintf(metrics->file, ", \"machines\": %d", summary->machines);
    fprintf(metrics->file,
            ", \"parameters\": %lld, \"world_size\": %d, \"steps\": %lld, \"tokens_per_step\": %lld, "
            "\"settings\": ",
            (long long)summary->parameters, summary->world_size, (long long)config->training.steps,
            (long long)summary->tokens_per_step);
    FSDP_TRY(fsdp__train_write_settings(config, metrics->file));
    fputs("}\n", metrics->file);
    return written(metrics);
}

fsdp_status fsdp__metrics_begin(const fsdp_train_config *config, const fsdp_train_summary *summary, fsdp__metrics **out)
{
    const char *path = config->metrics.jsonl;
    fsdp__metrics *metrics = fsdp__calloc(1, sizeof *metrics);
    fsdp_status status;
    int fd = -1;

    *out = NULL;
    if (!metrics)
        return FSDP_NO_MEMORY;
    metrics->path = path;
    metrics->machines = summary->machines;
    status = fsdp__file_append(path, &fd);
    if (status != FSDP_OK) {
        fsdp_fail_prefix(status, "metrics.jsonl");
        goto out;
    }
    metrics->file = fdopen(fd, "a");
    if (!metrics->file) {
        status = cannot_write(path);
        close(fd);
        goto out;
    }
    setvbuf(metrics->file, NULL, _IOLBF, 0);
    if (ends_within_a_line(fd))
        fputc('\n', metrics->file);
    FSDP_TRY_GOTO(status, write_header(metrics, config, summary), out);
    *out = metrics;
    metrics = NULL;
out:
    if (metrics)
        FSDP_KEEP_FIRST(status, fsdp__metrics_end(metrics));
    return status;
}

/* Writes what went between machines, and how long the step waited for it. */
static void write_network(FILE *file, const fsdp_train_report *report)
{
    fprintf(file, ", \"network_sent\": %lld, \"network_received\": %lld", (long long)report->network_sent,
            (long long)report->network_received);
    write_number(file, "gather_ms", report->gather_ms);
    write_number(file, "reduce_ms", report->reduce_ms);
}

fsdp_status fsdp__metrics_write(fsdp__metrics *metrics, const fsdp_train_report *report)
{
    FILE *file = metrics->file;

    fprintf(file, "{\"step\": %lld", (long long)report->step);
    write_number(file, "loss", report->loss);
    write_number(file, "grad_norm", report->grad_norm);
    write_number(file, "lr", report->lr);
    fprintf(file, ", \"epoch\": %lld, \"tokens\": %lld, \"skipped\": %lld", (long long)report->epoch,
            (long long)report->tokens, (long long)report->skipped);
    if (report->loss_scale > 0)
        write_number(file, "loss_scale", report->loss_scale);
    write_number(file, "tokens_per_second", report->tokens_per_second);
    write_number(file, "step_ms", report->step_ms);
    fprintf(file,
            ", \"memory_live_bytes\": %zu, \"memory_peak_bytes\": %zu, \"all_gather\": %lld, \"reduce_scatter\": %lld, "
            "\"all_reduce\": %lld, \"bytes_sent\": %lld",
            report->memory_live_bytes, report->memory_peak_bytes, (long long)report->all_gather,
            (long long)report->reduce_scatter, (long long)report->all_reduce, (long long)report->bytes_sent);
    if (metrics->machines > 1)
        write_network(file, report);
    fputs("}\n", file);
    return written(metrics);
}

fsdp_status fsdp__metrics_write_validation(fsdp__metrics *metrics, const fsdp_train_validation *validation)
{
    FILE *file = metrics->file;

    fprintf(file, "{\"validation\": %lld", (long long)validation->step);
    write_number(file, "loss", validation->loss);
    write_number(file, "perplexity", validation->perplexity);
    fprintf(file, ", \"tokens\": %lld, \"best\": %s", (long long)validation->tokens,
            validation->best ? "true" : "false");
    write_number(file, "best_loss", validation->best_loss);
    fprintf(file, ", \"best_step\": %lld, \"without_improvement\": %lld", (long long)validation->best_step,
            (long long)validation->without_improvement);
    write_number(file, "tokens_per_second", validation->tokens_per_second);
    write_number(file, "ms", validation->ms);
    fputs("}\n", file);
    return written(metrics);
}

fsdp_status fsdp__metrics_end(fsdp__metrics *metrics)
{
    fsdp_status status = FSDP_OK;

    if (metrics && metrics->file && fclose(metrics->file) != 0)
        status = cannot_write(metrics->path);
    fsdp__free(metrics);
    return status;
}
