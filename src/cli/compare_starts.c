/* compare_starts.c - starts the variants of `fsdp compare`. */
#include "cli/compare_starts.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/own_process.h"
#include "launch/launch.h"
#include "plan/schedule.h"

/* ---- starts ---- */

typedef struct session {
    fsdp__comparison *comparison;
    bool draws;
    char *seen[FSDP__VARIANTS]; /* warnings that have been printed */
    int seen_count;
} session;

static fsdp_status make_records(int *out)
{
    *out = memfd_create("fsdp-figures", 0);
    return *out >= 0 ? FSDP_OK
                     : FSDP_FAIL(FSDP_IO, "cannot make room for figures: %s%s", strerrordesc_np(errno),
                                 fsdp__limit_behind(errno));
}

/* Prints each warning of rank 0 once, for the variant that had it first. */
static void warn(session *s, const char *label, char *text)
{
    for (char *line = text, *next; *line; line = next) {
        bool said = s->seen_count == FSDP__VARIANTS;

        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        for (int i = 0; i < s->seen_count && !said; i++)
            said = strcmp(s->seen[i], line) == 0;
        if (said)
            continue;
        s->seen[s->seen_count] = fsdp__strdup(line);
        s->seen_count += s->seen[s->seen_count] != NULL;
        fsdp__failure("%s: warning: %s", label, strncmp(line, "[rank 0] ", 9) == 0 ? line + 9 : line);
    }
}

static fsdp_status read_records(session *s, int variant, int fd)
{
    int ranks = s->comparison->ranks;
    FSDP__FREED fsdp__start_record *records = fsdp__calloc((size_t)ranks, sizeof *records);

    FSDP__TRY_NEW(records);
    FSDP_TRY(fsdp__records_read(fd, ranks, records));
    FSDP_TRY(fsdp__figures_add(&s->comparison->figures[variant], records, ranks));
    warn(s, s->comparison->variants.items[variant].label, records[0].warnings);
    return FSDP_OK;
}

/* Launches the ranks of one variant once. An interruption ends this process. */
static fsdp_status launch(const session *s, const fsdp_train_config *config, int records)
{
    char as_rank[40], figures[40], steps[40];
    const char *const argv[] = {"/proc/self/exe", "compare", as_rank, figures, steps, NULL};
    fsdp_launch_options options = {.ranks = s->comparison->ranks, .argv = argv};
    fsdp_launch_report report = {0};
    FSDP__CLOSED int fd = -1;
    fsdp_status status;

    FSDP_TRY(fsdp__hand_over(config, &fd));
    snprintf(as_rank, sizeof as_rank, "--" FSDP__AS_RANK_OPTION "=%d", fd);
    snprintf(figures, sizeof figures, "--" FSDP__RECORDS_OPTION "=%d", records);
    snprintf(steps, sizeof steps, "--steps=%d", s->comparison->steps);
    fflush(NULL);
    status = fsdp_launch(&options, &report);
    if (report.interrupted_by) { /* also after a failure: nobody wants the other variants */
        if (s->draws)
            fputs("\r\033[K", stderr);
        fsdp__failure("%s", fsdp_last_error());
        fsdp__die_of(report.interrupted_by);
    }
    return status;
}

static fsdp_status start(session *s, int variant)
{
    FSDP__CLOSED int records = -1;

    FSDP_TRY(make_records(&records));
    FSDP_TRY(launch(s, s->comparison->variants.items[variant].config, records));
    return read_records(s, variant, records);
}

static void draw(const session *s, int round, int variant)
{
    const fsdp__comparison *c = s->comparison;

    if (s->draws)
        fprintf(stderr, "\r%d/%d  %s\033[K", round * c->variants.count + variant + 1, c->rounds * c->variants.count,
                c->variants.items[variant].label);
}

/* Starts the variants in turns. One that has failed is not started again. */
static void take_turns(session *s)
{
    fsdp__comparison *c = s->comparison;

    for (int round = 0; round < c->rounds; round++)
        for (int v = 0; v < c->variants.count; v++) {
            if (c->variants.items[v].refused[0] || c->figures[v].failure[0])
                continue;
            draw(s, round, v);
            if (start(s, v) != FSDP_OK)
                snprintf(c->figures[v].failure, sizeof c->figures[v].failure, "%s", fsdp_last_error());
        }
    if (s->draws)
        fputs("\r\033[K", stderr);
}

fsdp_status fsdp__compare_starts(fsdp__comparison *c, bool draws)
{
    session s = {.comparison = c, .draws = draws};

    take_turns(&s);
    for (int i = 0; i < s.seen_count; i++)
        fsdp__free(s.seen[i]);
    for (int v = 0; v < c->variants.count; v++)
        FSDP_TRY(fsdp__figures_finish(&c->figures[v]));
    return FSDP_OK;
}

/* ---- a rank ---- */

typedef struct planner {
    fsdp_context *context;
    const fsdp_train_config *config;
} planner;

static fsdp_status plan(void *arg, FILE *out)
{
    const planner *p = arg;

    return fsdp__schedule_plan_run(p->context, p->config, out);
}

int fsdp__compare_rank(const char *config_text, const char *records_text, int steps)
{
    fsdp__start_record *record = fsdp__calloc(1, sizeof *record);
    fsdp_train_config *config = NULL;
    fsdp_context *context = NULL;
    int64_t config_fd = 0, records_fd = 0;
    planner planning;
    fsdp_train_listener listener = {.arg = &planning, .plan = plan};
    fsdp_status status = record ? FSDP_OK : FSDP_NO_MEMORY;

    FSDP_TRY_GOTO(status, status, out);
    FSDP_TRY_GOTO(status, fsdp__args_integer("--" FSDP__AS_RANK_OPTION, config_text, 3, INT_MAX, &config_fd), out);
    FSDP_TRY_GOTO(status, fsdp__args_integer("--" FSDP__RECORDS_OPTION, records_text, 3, INT_MAX, &records_fd), out);
    FSDP_TRY_GOTO(status, fsdp_train_config_create(&config), out);
    FSDP_TRY_GOTO(status, fsdp__take_over((int)config_fd, config), out);
    FSDP_TRY_GOTO(status, fsdp__default_cache(config), out);
    FSDP_TRY_GOTO(status,
                  config->training.threads > 0 ? fsdp__context_from_env((int)config->training.threads, &context)
                                               : fsdp_context_from_env(&context),
                  out);
    fsdp__ranks_title(context, "compare");
    planning = (planner){context, config};
    FSDP_TRY_GOTO(status, fsdp__measure_start(context, config, &listener, steps, record), out);
    status = fsdp__record_write((int)records_fd, fsdp_context_rank(context), record);
    if (status != FSDP_OK)
        fsdp_abort(context, fsdp_last_error());
out:
    fsdp_context_free(context);
    fsdp_train_config_free(config);
    fsdp__free(record);
    return status == FSDP_OK ? 0 : FSDP__FAILED; /* the launcher prints what went wrong */
}
