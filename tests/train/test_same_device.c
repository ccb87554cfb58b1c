/* The device of a run: all ranks compute on GPUs, or none does, whatever each was told and has found. The GPU is a fake
 * one (tests/backend/fakecuda), or a real one. */
#include "train/same_device.h"

#include "backend/fakecuda/control.h"
#include "device/device.h"
#include "support/ranks.h"

enum {
    MOST = 3
};

typedef struct found {
    const char *names[MOST]; /* what the ranks are told */
    fsdp_status statuses[MOST];
    char devices[MOST][24], messages[MOST][1024];
} found;

static void find(fsdp_context *context, void *arg)
{
    found *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_device *device = NULL, *front = CHECK_PTR(test_device(context));

    f->statuses[rank] = fsdp__same_device(context, "the device", f->names[rank], &device);
    CHECK((device != NULL) == (f->statuses[rank] == FSDP_OK));
    CHECK(fsdp__front_device(context) == front);
    snprintf(f->devices[rank], sizeof f->devices[rank], "%s", device ? fsdp_device_name(device) : "");
    snprintf(f->messages[rank], sizeof f->messages[rank], "%s", device ? "" : fsdp_last_error());
}

/* Tells rank `odd` `other`, and all others `name`. */
static found find_on(int world, const char *name, int odd, const char *other)
{
    found f = {.names = {name, name, name}};

    if (odd < world)
        f.names[odd] = other;
    test_run_ranks(world, find, &f);
    return f;
}

static void all_get(const found *f, int world, const char *device)
{
    for (int r = 0; r < world; r++) {
        CHECK_OK(f->statuses[r]);
        CHECK_STRING(f->devices[r], device);
    }
}

static void all_fail(const found *f, int world, const char *message)
{
    for (int r = 0; r < world; r++) {
        CHECK(f->statuses[r] != FSDP_OK);
        CHECK_CONTAINS(f->messages[r], message);
    }
}

TEST(ranks_that_are_told_the_same_get_it)
{
    for (int world = 1; world <= MOST; world++) {
        found f = find_on(world, "cpu", MOST, NULL);

        all_get(&f, world, "cpu");
        f = find_on(world, NULL, MOST, NULL);
        all_get(&f, world, getenv("FSDP_TEST_DEVICE") ? f.devices[0] : "cpu");
        f = find_on(world, "auto", MOST, NULL);
        for (int r = 0; r < world; r++)
            CHECK_EQ(strncmp(f.devices[r], test_has_gpu() ? "cuda:" : "cpu", 3), 0);
        f = find_on(world, "cuda", MOST, NULL);
        if (!test_has_gpu())
            all_fail(&f, world, "");
        for (int r = 0; r < world && test_has_gpu(); r++)
            CHECK_EQ(strncmp(f.devices[r], "cuda:", 5), 0);
    }
}

TEST(ranks_that_are_told_different_kinds_fail_together)
{
    for (int world = 2; world <= MOST; world++)
        for (int odd = 0; odd < world; odd++) {
            found f = find_on(world, "cpu", odd, "cuda:0");

            all_fail(&f, world, "ranks 0 and ");
            all_fail(&f, world,
                     odd ? "were given different devices: the device is cpu and cuda: start all"
                         : "were given different devices: the device is cuda and cpu: start all");
            f = find_on(world, "auto", odd, "cuda");
            all_fail(&f, world, "were given different devices");
            if (!getenv("FSDP_TEST_DEVICE")) {
                f = find_on(world, NULL, odd, "cpu");
                all_get(&f, world, "cpu");
            }
        }
}

/* Only one rank cannot open what it was told to. */
TEST(a_rank_without_its_gpu_ends_all)
{
    char message[64];

    test_need_gpu();
    for (int world = 2; world <= MOST; world++)
        for (int odd = 0; odd < world; odd++) {
            found f = find_on(world, "cuda:0", odd, "cuda:15");

            snprintf(message, sizeof message, "rank %d: cannot open device 'cuda:15': there ", odd);
            all_fail(&f, world, message);
        }
}

#ifdef FSDP_HAVE_FAKECUDA

/* The last rank that opens its GPU cannot; the others have opened theirs, and do not use them. */
TEST(a_gpu_that_only_some_ranks_could_open_is_closed_unused)
{
    char text[128];

    test_need_gpu();
    if (getenv("FSDP_TEST_DEVICE"))
        skip(); /* it is open before */
    for (int world = 2; world <= MOST; world++) {
        found f;

        fakecuda.fail_call("cudaStreamCreateWithPriority", world, 2 /* cudaErrorMemoryAllocation */, false);
        f = find_on(world, "auto", MOST, NULL);
        if (fakecuda.uses("cudaStreamCreateWithPriority") == 0)
            skip(); /* a real one */
        CHECK(fakecuda.failed("cudaStreamCreateWithPriority"));
        all_get(&f, world, "cpu");
        if (fakecuda.live(text, sizeof text) != 0)
            TEST_FAIL("left over: %s", text);
    }
}

#endif
