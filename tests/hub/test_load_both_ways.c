/* examples/load_both_ways.c on the device of the test: bytes of each rank on the host and on the device, in both ways
 * of loading. On the CPU host and device are one, and only what rests there is known; peaks are checked on sim.
 *
 * Links: shard launch */
#include "support/ranks.h"

int example_main(int argc, char **argv);
#define main example_main
#include "../../examples/load_both_ways.c"
#undef main

enum {
    WORLDS = 3
};

/* Bytes of so many floats in memory of their own. */
static size_t bytes(int64_t count)
{
    return ((size_t)count * sizeof(float) + 63) / 64 * 64;
}

static size_t embedding_bytes(void)
{
    return bytes(WORDS * DIM);
}

static size_t parameters_of_block(void)
{
    return 2 * bytes(DIM * INNER) + bytes(INNER) + bytes(DIM);
}

static size_t block_bytes(void) /* the largest file */
{
    return parameters_of_block() + bytes(DIM);
}

static void check_note(const job *j, int at, size_t host, size_t host_peak, size_t device, size_t device_peak)
{
    const note *n = &j->notes[at];

    if (j->device == fsdp_cpu(j->c)) {
        CHECK_EQ(n->host, host + device);
        return;
    }
    CHECK_EQ(n->host, host);
    CHECK_EQ(n->host_peak, host_peak);
    CHECK_EQ(n->device, device);
    CHECK_EQ(n->device_peak, device_peak);
}

/* A flat vector in which parameters begin at multiples of four elements; the shard of each unit, buffers whole. */
static void check_leader(const job *j, int world)
{
    bool leader = fsdp_context_rank(j->c) == 0;
    size_t model = embedding_bytes() + BLOCKS * block_bytes(), own = leader ? model : 0;
    int64_t flat = 2 * DIM * INNER + (INNER + 3) / 4 * 4 + DIM;
    size_t block = bytes((flat + world - 1) / world), root = bytes((WORDS * DIM + world - 1) / world);
    size_t shards = BLOCKS * (block + bytes(DIM)) + root;
    /* A unit that is being wrapped is there whole, and its shard besides. */
    size_t last_block = (BLOCKS - 1) * (block + bytes(DIM)) + block_bytes() + block, peak = shards + embedding_bytes();

    peak = last_block > peak ? last_block : peak;
    check_note(j, 0, own, own, 0, 0);
    check_note(j, 1, own, own + (leader ? block_bytes() : 0), 0, 0); /* and one file */
    check_note(j, 2, own, own, shards, peak);
    check_note(j, 3, 0, own, shards, shards);
}

/* What rests there is rows, or columns, of each parameter by itself, and a bf16 copy of the third block's. */
static void check_shards(const job *j, int world)
{
    static const size_t shards[WORLDS] = {31424, 16320, 11328};
    size_t file = fsdp_context_rank(j->c) == 0 ? block_bytes() : 0, rest = shards[world - 1];

    check_note(j, 4, 0, 0, 0, 0);
    check_note(j, 5, 0, 0, rest, rest);
    /* One tensor of the file at a time is on its way, whole, on every device. */
    check_note(j, 6, 0, file, rest, rest + embedding_bytes());
}

static void load(fsdp_context *context, void *arg)
{
    int world = fsdp_context_world_size(context);
    char folder[4096];
    job j = {0};

    snprintf(folder, sizeof folder, "%s/%d", (const char *)arg, world);
    CHECK_OK(fsdp_context_set_carrier(context, FSDP_CARRIER_STAGED)); /* others have memory of their own */
    CHECK_OK(run(context, test_device(context), folder, &j));
    CHECK_EQ(j.note_count, 7);
    check_leader(&j, world);
    check_shards(&j, world);
}

TEST(one_file_at_a_time_is_in_memory)
{
    char *folder = test_directory();

    test_run_worlds(1, WORLDS, load, folder);
}
