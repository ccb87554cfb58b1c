/* program_ranks.c - a rank process that does what its argument says. Run by test_launch.c under fsdp_launch, and
 * by test_mpi.sh under mpirun. */
#include <signal.h>
#include <unistd.h>

#include "comm/suite_mixed.h"
#include "fsdp/launch.h"

static void all_collectives(fsdp_context *context)
{
    suite s = {.group = fsdp_world(context), .stream = fsdp_device_stream(fsdp_cpu(context))};
    int size = fsdp_process_group_size(s.group), rank = fsdp_process_group_rank(s.group),
        ranks[2] = {size - 2, size - 1};
    fsdp_process_group *world = s.group, *last = NULL;

    suite_plain(&s);
    suite_blocks(&s);
    suite_mixed(&s, 2000, 10);
    suite_objects(s.group);
    s.symmetric = true;
    suite_plain_count(&s, FSDP_F32, 20011);
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &s.stream));
    suite_plain_count(&s, FSDP_BF16, 20011);
    suite_rank_order(&s, 20011);
    CHECK_OK(fsdp_process_group_create(context, ranks, 2, "last two", &last));
    if (rank >= size - 2) {
        s.group = last;
        suite_plain_count(&s, FSDP_F32, 3001);
        suite_gather_blocks(&s, SUITE_SHARED, FSDP_F32, FSDP_F32, true);
    }
    fsdp_process_group_free(last);
    CHECK_OK(fsdp_barrier(world));
    fsdp_stream_free(s.stream);
}

/* The last error goes to the file. */
static int write_down(int rank, const char *path)
{
    char line[1200];
    FILE *file = fopen(path, "a");

    snprintf(line, sizeof line, "%d: %s\n", rank, fsdp_last_error());
    if (!file)
        return 9;
    fputs(line, file);
    fclose(file);
    return 5;
}

static int barriers_until_failure(fsdp_context *context, const char *path)
{
    while (fsdp_barrier(fsdp_world(context)) == FSDP_OK)
        continue;
    return write_down(fsdp_context_rank(context), path);
}

/* Until there is a file "PATH.go". */
static void await_word(const char *path)
{
    char go[1200];

    snprintf(go, sizeof go, "%s.go", path);
    while (access(go, F_OK) != 0)
        usleep(1000);
}

/* Rank 1 ends before it joins, and rank 0 meanwhile waits for it. */
static int end_early(const char *what, const char *path)
{
    fsdp_context *context = NULL;

    if (strcmp(getenv("RANK"), "1") != 0)
        return fsdp_context_from_env(&context) == FSDP_OK ? 1 : write_down(atoi(getenv("RANK")), path);
    if (strcmp(what, "early_when_told") == 0)
        await_word(path);
    return 6;
}

/* Rank 0 in one group, the others in another. */
static int wait_in_a_circle(fsdp_context *context)
{
    int ranks[] = {0, 1}, size = fsdp_context_world_size(context);
    fsdp_process_group *other = NULL;

    CHECK_EQ(size, 2);
    CHECK_OK(fsdp_process_group_create(context, ranks, size, "other", &other));
    CHECK_OK(fsdp_context_set_comm_timeout(context, 2));
    CHECK_STATUS(fsdp_barrier(fsdp_context_rank(context) == 0 ? other : fsdp_world(context)), FSDP_COMM);
    CHECK_CONTAINS(fsdp_last_error(), " has stood still for ");
    CHECK_CONTAINS(fsdp_last_error(), "in call 1 of group 'other' (barrier)");
    CHECK_CONTAINS(fsdp_last_error(), " of group 'world' (barrier)");
    fprintf(stderr, "rank %d was told\n", fsdp_context_rank(context));
    fsdp_process_group_free(other);
    return 0;
}

/* Makes a file "PATH.failed", which tells a test that the rank has run and is about to fail. */
static int fail_with(int code, const char *path)
{
    char failed[1200];
    FILE *file;

    if (*path) {
        snprintf(failed, sizeof failed, "%s.failed", path);
        file = CHECK_PTR(fopen(failed, "w"));
        fclose(file);
    }
    return code;
}

static int act(fsdp_context *context, const char *what, const char *path)
{
    int rank = fsdp_context_rank(context);

    if (strcmp(what, "collectives") == 0) {
        all_collectives(context);
        return 0;
    }
    if (strcmp(what, "variables") == 0) {
        CHECK_EQ(fsdp_context_world_size(context), atoi(getenv("WORLD_SIZE")));
        CHECK_EQ(fsdp_context_local_world_size(context), atoi(getenv("LOCAL_WORLD_SIZE")));
        CHECK_EQ(rank, atoi(getenv("LOCAL_RANK")));
        CHECK_EQ(fsdp_context_threads(context), atoi(getenv("OMP_NUM_THREADS")));
        return 0;
    }
    if (*path) /* who writes down what it is told is not ended before */
        signal(SIGTERM, SIG_IGN);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (strcmp(what, "both_leave") == 0)
        return 0;
    if (strcmp(what, "circle") == 0)
        return wait_in_a_circle(context);
    if (strcmp(what, "kill") == 0 && rank == 1) {
        usleep(20000);
        raise(SIGKILL);
    }
    if (strcmp(what, "abort") == 0 && rank == 1) {
        fsdp_abort(context, "out of luck");
        usleep(200000);
        return 7;
    }
    if (strstr(what, "_when_told") && rank == 1)
        await_word(path);
    if (strcmp(what, "kill_when_told") == 0 && rank == 1)
        raise(SIGKILL);
    if (strncmp(what, "exit", 4) == 0 && rank == 1)
        _exit(3);
    if (strcmp(what, "leave") == 0 && rank == 1)
        return 0;
    if (strcmp(what, "stubborn") == 0 || strcmp(what, "deaf") == 0) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        if (rank == 1 && strcmp(what, "deaf") != 0)
            return fail_with(4, path);
        for (;;)
            pause();
    }
    return barriers_until_failure(context, path);
}

int main(int argc, char **argv)
{
    static test_thread escape;
    static fsdp_context *context;
    volatile int code = 1;

    if (argc > 2 && strncmp(argv[1], "early", 5) == 0)
        return end_early(argv[1], argv[2]);
    test_enter_thread(&escape);
    if (setjmp(escape.escape) == 0) {
        CHECK_OK(fsdp_context_from_env(&context));
        code = act(context, argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    } else {
        fprintf(stderr, "%s\n", escape.message);
        if (context)
            fsdp_abort(context, escape.message);
    }
    return code;
}
