/* What one rank owns. */
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/context.h"
#include "support/test.h"

static fsdp_context *one_rank(void)
{
    fsdp_context *context = NULL;

    CHECK_OK(fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context));
    return context;
}

TEST(the_default_is_rank_0_of_1)
{
    fsdp_context *context;

    CHECK_OK(fsdp_context_create(NULL, &context));
    CHECK_EQ(fsdp_context_rank(context), 0);
    CHECK_EQ(fsdp_context_world_size(context), 1);
    CHECK_EQ(fsdp_context_local_rank(context), 0);
    CHECK_EQ(fsdp_context_local_world_size(context), 1);
    CHECK(fsdp_context_threads(context) >= 1);
    fsdp_context_free(context);
    fsdp_context_free(NULL);
}

TEST(local_ranks_follow_the_world_unless_given)
{
    fsdp_context *context;

    CHECK_OK(fsdp_context_create(&(fsdp_context_options){.rank = 2, .world_size = 3}, &context));
    CHECK_EQ(fsdp_context_local_rank(context), 2);
    CHECK_EQ(fsdp_context_local_world_size(context), 3);
    fsdp_context_free(context);
    CHECK_OK(fsdp_context_create(
        &(fsdp_context_options){.rank = 5, .world_size = 8, .local_rank = 1, .local_world_size = 4}, &context));
    CHECK_EQ(fsdp_context_local_rank(context), 1);
    CHECK_EQ(fsdp_context_local_world_size(context), 4);
    fsdp_context_free(context);
}

TEST(machines_follow_the_local_ranks_unless_given)
{
    static const struct {
        fsdp_context_options options;
        int machine, machines;
    } cases[] = {
        {{.rank = 0}, 0, 1},
        {{.rank = 2, .world_size = 3}, 0, 1},
        {{.rank = 5, .world_size = 8, .local_rank = 1, .local_world_size = 4}, 1, 2},
        {{.rank = 4, .world_size = 5, .local_rank = 0, .local_world_size = 2}, 2, 3},
        {{.rank = 5, .world_size = 8, .local_world_size = 1, .machines = 1}, 0, 1},
        {{.rank = 0, .world_size = 4, .local_world_size = 2, .machine = 1, .machines = 2}, 1, 2},
        {{.rank = 0, .world_size = INT_MAX}, 0, 1},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fsdp_context *context;

        CHECK_OK(fsdp_context_create(&cases[i].options, &context));
        CHECK_EQ(fsdp_context_machine(context), cases[i].machine);
        CHECK_EQ(fsdp_context_machines(context), cases[i].machines);
        fsdp_context_free(context);
    }
}

TEST(threads_are_the_rank_s_share_of_the_allowed_cores)
{
    fsdp_context *context;
    cpu_set_t cores;

    CHECK_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
    for (int local = 1; local <= 2 * CPU_COUNT(&cores); local++) {
        CHECK_OK(fsdp_context_create(&(fsdp_context_options){.world_size = local}, &context));
        CHECK_EQ(fsdp_context_threads(context), CPU_COUNT(&cores) / local > 0 ? CPU_COUNT(&cores) / local : 1);
        fsdp_context_free(context);
    }
    CHECK_OK(fsdp_context_create(&(fsdp_context_options){.threads = 3}, &context));
    CHECK_EQ(fsdp_context_threads(context), 3);
    fsdp_context_free(context);
}

TEST(ranks_outside_the_world_are_refused)
{
    static const fsdp_context_options wrong[] = {
        {.rank = 1},
        {.rank = -1},
        {.rank = 3, .world_size = 3},
        {.world_size = -2},
        {.world_size = 2, .local_world_size = 3},
        {.world_size = 4, .local_rank = 2, .local_world_size = 2},
        {.world_size = 4, .local_rank = -1, .local_world_size = 2},
        {.threads = -1},
        {.world_size = 2, .machines = 3},
        {.world_size = 2, .machines = -1},
        {.world_size = 4, .machines = 2, .machine = 2},
        {.world_size = 4, .machines = 2, .machine = -1},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        fsdp_context *context = (fsdp_context *)1;

        CHECK_ERROR(fsdp_context_create(&wrong[i], &context), FSDP_INVALID, "cannot create a context");
        CHECK_NULL(context);
    }
}

TEST(a_failed_allocation_leaves_nothing)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp_context_create(NULL, &context));
        fsdp_context_free(context);
    }
}

static char freed[8];

static void note_free(void *slot_state)
{
    freed[strlen(freed)] = *(char *)slot_state;
}

TEST(slots_are_freed_in_reverse_order)
{
    static char cpu[] = "c", scope[] = "s", comm[] = "m";
    fsdp_context *context = one_rank();

    memset(freed, 0, sizeof freed);
    CHECK_NULL(fsdp__context_get(context, FSDP__SLOT_SCOPE));
    fsdp__context_attach(context, FSDP__SLOT_COMM, comm, note_free);
    fsdp__context_attach(context, FSDP__SLOT_DEVICES, cpu, note_free);
    fsdp__context_attach(context, FSDP__SLOT_SCOPE, scope, note_free);
    fsdp__context_attach(context, FSDP__SLOT_SHARD, cpu, NULL);
    CHECK(fsdp__context_get(context, FSDP__SLOT_SCOPE) == scope);
    fsdp_context_free(context);
    CHECK_STRING(freed, "smc");
}

typedef struct log_lines {
    int count;
    fsdp_log_level level;
    char last[8192];
} log_lines;

static void keep_line(void *arg, fsdp_log_level level, const char *line)
{
    log_lines *lines = arg;

    lines->count++;
    lines->level = level;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

TEST(lines_carry_the_rank_and_respect_the_level)
{
    log_lines lines = {0};
    fsdp_context *context;
    char *text = malloc(10000);

    CHECK(text != NULL);
    CHECK_OK(fsdp_context_create(&(fsdp_context_options){.rank = 1, .world_size = 2}, &context));
    fsdp_context_set_log(context, FSDP_LOG_WARNING, keep_line, &lines);
    fsdp_log(context, FSDP_LOG_INFO, "dropped");
    CHECK_EQ(lines.count, 0);
    fsdp_log(context, FSDP_LOG_WARNING, "kept %d", 5);
    CHECK_EQ(lines.count, 1);
    CHECK_EQ(lines.level, FSDP_LOG_WARNING);
    CHECK_STRING(lines.last, "[rank 1] kept 5");
    memset(text, 'y', 9999);
    text[9999] = '\0';
    fsdp_log(context, FSDP_LOG_ERROR, "not saved to '%s': disk full", text);
    CHECK_EQ(strlen(lines.last), 4095);
    CHECK_CONTAINS(lines.last, "[rank 1] not saved to 'yyy");
    CHECK_CONTAINS(lines.last, "yyy...yyy");
    CHECK_STRING(lines.last + 4095 - 15, "yyy': disk full");
    fsdp_context_free(context);

    context = one_rank();
    fsdp_context_set_log(context, FSDP_LOG_INFO, keep_line, &lines);
    fsdp_log(context, FSDP_LOG_INFO, "alone");
    CHECK_STRING(lines.last, "alone");
    fsdp_context_free(context);
    free(text);
}

/* The count is not atomic: two lines at a time would be a race. */
static void count_line(void *arg, fsdp_log_level level, const char *line)
{
    int *lines = arg;

    (void)level;
    (void)line;
    ++*lines;
}

static void *log_often(void *context)
{
    for (int i = 0; i < 1000; i++)
        fsdp_log(context, FSDP_LOG_WARNING, "line %d", i);
    return NULL;
}

TEST(a_sink_gets_one_line_at_a_time)
{
    fsdp_context *context = NULL;
    pthread_t threads[4];
    int lines = 0;

    CHECK_OK(fsdp_context_create(NULL, &context));
    fsdp_context_set_log(context, FSDP_LOG_WARNING, count_line, &lines);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, log_often, context), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(lines, 4000);
    fsdp_context_free(context);
}

TEST(the_default_sink_is_stderr)
{
    fsdp_context *context = one_rank();
    int saved = dup(STDERR_FILENO), ends[2];
    char text[64] = "";

    CHECK(saved >= 0);
    CHECK_EQ(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    fsdp_log(context, FSDP_LOG_ERROR, "to stderr");
    fsdp_log(context, FSDP_LOG_DEBUG, "not shown");
    dup2(saved, STDERR_FILENO);
    close(ends[1]);
    CHECK_EQ(read(ends[0], text, sizeof text - 1), 10);
    CHECK_STRING(text, "to stderr\n");
    close(ends[0]);
    close(saved);
    fsdp_context_free(context);
}

static int times_freed;

static void count_free(void *state)
{
    times_freed++;
    fsdp__free(state);
}

TEST(a_slot_is_made_once)
{
    fsdp_context *context = one_rank();
    int64_t *made;

    times_freed = 0;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    CHECK_NULL(fsdp__context_get_or_make(context, FSDP__SLOT_SHARD, sizeof *made, count_free));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_NULL(fsdp__context_get(context, FSDP__SLOT_SHARD));
    made = CHECK_PTR(fsdp__context_get_or_make(context, FSDP__SLOT_SHARD, sizeof *made, count_free));
    CHECK_EQ(*made, 0);
    CHECK(fsdp__context_get_or_make(context, FSDP__SLOT_SHARD, sizeof *made, count_free) == made);
    CHECK(fsdp__context_get(context, FSDP__SLOT_SHARD) == made);
    fsdp_context_free(context);
    CHECK_EQ(times_freed, 1);
}

TEST(a_heart_beats_where_it_is_told_to)
{
    fsdp_context *context = one_rank();
    static fsdp__heart heart;

    fsdp__context_beat(context); /* one of its own, until there is another */
    fsdp__context_set_heart(context, &heart);
    CHECK_EQ(atomic_load(&heart.beats), 0);
    fsdp__context_beat(context);
    CHECK_EQ(atomic_load(&heart.beats), 1);
    CHECK_EQ(fsdp__context_set_activity(context, FSDP__READING), FSDP__COMPUTING);
    CHECK_EQ(atomic_load(&heart.activity), FSDP__READING);
    CHECK_EQ(fsdp__context_set_activity(context, FSDP__COMPUTING), FSDP__READING);
    fsdp_context_free(context);
}
