/* What the system refuses, and by which limit: memory of the host for segments, and threads that compute; and threads
 * that others have prepared. */
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/cpu_device.h"
#include "fsdp/ops.h"
#include "support/limits.h"
#include "support/test.h"

/* Asks for a terabyte under a limit of half as much. */
static fsdp_status ask_under(int resource)
{
    struct rlimit before, half;
    fsdp_status status;
    void *segment;

    CHECK_EQ(getrlimit((__rlimit_resource_t)resource, &before), 0);
    half = (struct rlimit){.rlim_cur = (rlim_t)1 << 39, .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit((__rlimit_resource_t)resource, &half), 0);
    status = fsdp__cpu_memory_alloc((size_t)1 << 40, &segment);
    CHECK_EQ(setrlimit((__rlimit_resource_t)resource, &before), 0);
    return status;
}

TEST(a_segment_that_a_limit_forbids_names_the_limit)
{
    if (TEST_SANITIZED)
        skip(); /* it has reserved terabytes */
    CHECK_ERROR(ask_under(RLIMIT_DATA), FSDP_NO_MEMORY, "the system has no segment of 1099511627776 bytes: ");
    CHECK_CONTAINS(fsdp_last_error(), "; 'ulimit -d' says how much memory of its own a process may have: raise it");
    CHECK_ERROR(ask_under(RLIMIT_AS), FSDP_NO_MEMORY, "; 'ulimit -v' says how much address space a process may have");
}

/* ---- threads ---- */

static fsdp_context *context_of(int threads)
{
    fsdp_context *context = NULL;

    CHECK_OK(fsdp_context_create(&(fsdp_context_options){.threads = threads}, &context));
    return context;
}

/* Half of a number whose half is a denormal, for each thread. */
static fsdp_status halve(fsdp_context *context, float out[2])
{
    fsdp_tensor *halves = fsdp_scale(fsdp_full(fsdp_cpu(context), FSDP_F32, FSDP_SHAPE(1 << 16), 2e-38), 0.5);
    float all[1 << 16];

    if (!halves)
        return fsdp_last_status();
    FSDP_TRY(fsdp_tensor_read(halves, FSDP_F32, all));
    out[0] = all[0], out[1] = all[(1 << 16) - 1];
    return FSDP_OK;
}

static void *open_and_halve(void *context)
{
    float halves[2];

    return halve(context, halves) == FSDP_OK ? context : NULL;
}

TEST(a_context_computes_the_same_on_a_thread_that_it_is_handed_to)
{
    for (int threads = 1; threads <= 2; threads++) {
        fsdp_context *context = context_of(threads);
        float halves[2] = {1, 1};
        pthread_t opener;
        void *opened;

        CHECK_EQ(pthread_create(&opener, NULL, open_and_halve, context), 0);
        CHECK_EQ(pthread_join(opener, &opened), 0);
        CHECK(opened == context);
        CHECK_OK(halve(context, halves));
        CHECK(halves[0] == 0.0f && halves[1] == 0.0f);
        fsdp_context_free(context);
    }
}

#ifdef _OPENMP
/* On a thread of its own, for which OpenMP keeps none yet. */
static void *open_with_many(void *result)
{
    fsdp_context *context = context_of(8);
    struct rlimit before = test_leave_address_space((size_t)32 << 20);

    CHECK_NULL(fsdp_cpu(context));
    test_set_address_space(before);
    *(bool *)result = fsdp_last_status() == FSDP_NO_MEMORY &&
                      strstr(fsdp_last_error(), "this rank computes with 8 threads, and the system starts ") != NULL;
    CHECK_PTR(fsdp_cpu(context));
    fsdp_context_free(context);
    return NULL;
}

/* OpenMP would end the process. */
TEST(threads_that_the_system_does_not_start_are_an_error)
{
    bool told = false;
    pthread_t thread;

    if (TEST_SANITIZED)
        skip();
    CHECK_EQ(pthread_create(&thread, NULL, open_with_many, &told), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(told);
}

/* Returns whether a context of so many threads computes; otherwise whether it fails as promised. */
static int compute_in_child(fsdp_context *inherited, int threads)
{
    fsdp_context *context = inherited ? inherited : context_of(threads);
    float halves[2];

    if (halve(context, halves) == FSDP_OK)
        return 1;
    return strstr(fsdp_last_error(), "this process was forked from one that had") ? 2 : 3;
}

static int in_child(fsdp_context *inherited, int threads)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0)
        _exit(compute_in_child(inherited, threads));
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* OpenMP would wait for threads that only the parent has. */
TEST(a_child_of_fork_does_not_wait_for_its_parents_threads)
{
    fsdp_context *one = context_of(1), *two = context_of(2);
    float halves[2];

    CHECK_OK(halve(two, halves));
    CHECK_EQ(in_child(two, 0), 2);
    CHECK_EQ(in_child(NULL, 2), 2);
    CHECK_EQ(in_child(one, 0), 1);
    CHECK_EQ(in_child(NULL, 1), 1);
    CHECK_OK(halve(two, halves)); /* the parent has its threads */
    fsdp_context_free(two);
    fsdp_context_free(one);
}
#endif
