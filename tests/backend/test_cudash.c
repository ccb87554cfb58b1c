/* cudash, which runs CUDA kernels on the host: what it computes, and what it finds. */
#include "cudash/test_kernels.h"
#include "oracle/oracle.h"
#include "support/dice.h"
#include "support/program.h"
#include "support/test.h"

static uint64_t dice;

/* Small integers, whose products and sums are exact. */
static void fill(fsdp_dtype dtype, void *p, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        oracle_put(dtype, p, i, dice_below(&dice, 201) - 100);
}

static void check_product(fsdp_dtype dtype, int64_t rows, int64_t columns, int64_t depth, bool transposed)
{
    uint16_t *a = aligned_alloc(16, (size_t)(rows * depth * 2)), *b = aligned_alloc(16, (size_t)(columns * depth * 2));
    float *c = malloc((size_t)(rows * columns) * sizeof *c);
    const cudash_product args = {dtype, rows, columns, depth, transposed, a, b, c};

    fill(dtype, a, rows * depth);
    fill(dtype, b, columns * depth);
    CHECK_OK(cudash_test_product(NULL, &args));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum += oracle_get(dtype, a, i * depth + k) *
                       oracle_get(dtype, b, transposed ? j * depth + k : k * columns + j);
            CHECK((double)c[i * columns + j] == sum);
        }
    free(a);
    free(b);
    free(c);
}

TEST(tensor_cores_multiply_what_asynchronous_copies_and_matrix_loads_bring)
{
    for (int round = 0; round < 20; round++) {
        int64_t rows = 1 + dice_below(&dice, 40), columns = 8 * (1 + dice_below(&dice, 4));
        int64_t depth = 8 * (1 + dice_below(&dice, 12));

        check_product(round % 2 ? FSDP_BF16 : FSDP_F16, rows, columns, depth, round / 2 % 2);
    }
}

/* ---- planted faults ---- */

/* What finds a fault. */
typedef enum finder {
    ALWAYS,
    THREAD_SANITIZER,
    ADDRESS_SANITIZER,
    WRITTEN, /* ThreadSanitizer; other builds give -1 */
    VALUES,  /* -1 in what it gives */
    CRASH
} finder;

typedef struct planted {
    const char *kernel;
    finder finder;
    const char *says;
} planted;

static const planted faults[] = {
    {"barrier_not_reached", ALWAYS, "a barrier that not all threads reach"},
    {"barriers_apart", ALWAYS, "a barrier that not all threads reach"},
    {"lane_missing", ALWAYS, "a warp is not together"},
    {"vote_apart", ALWAYS, "a warp is not together"},
    {"mask_of_others", ALWAYS, "a lane is not of the mask that it gives"},
    {"misaligned_copy", ALWAYS, "where a copy goes is not aligned to 16 bytes"},
    {"not_written", WRITTEN, "shared memory is read that no thread has written"},
    {"dynamic_not_written", WRITTEN, "shared memory is read that no thread has written"},
    {"barrier_missing", THREAD_SANITIZER, "data race"},
    {"second_barrier_missing", THREAD_SANITIZER, "data race"},
    {"warp_not_synchronised", THREAD_SANITIZER, "data race"},
    {"blocks_race", THREAD_SANITIZER, "data race"},
    {"out_of_bounds", ADDRESS_SANITIZER, "heap-buffer-overflow"},
    {"shared_out_of_bounds", ADDRESS_SANITIZER, "heap-buffer-overflow"},
    {"stack_overflow", CRASH, ""},
    {"wait_missing", VALUES, "harmed"},
};

/* Returns the line of test_planted.cu that a kernel's fault is at, "test_planted.cu:<line>". */
static void find_line(const char *kernel, char out[64])
{
    char mark[64], *source = test_read_file(TEST_SOURCE_DIR "/tests/backend/cudash/test_planted.cu", NULL);
    int line = 1;
    const char *at;

    snprintf(mark, sizeof mark, "/* LINE %s */", kernel);
    at = CHECK_PTR(strstr(source, mark));
    for (const char *p = source; p < at; p++)
        line += *p == '\n';
    snprintf(out, 64, "test_planted.cu:%d", line);
}

static program run_planted(const char *directory, const char *kernel, const char *how)
{
    const char *argv[] = {TEST_BINARY_DIR "/tests/program_planted", kernel, how, NULL};
    program p = program_start(directory, argv);

    program_wait(&p);
    return p;
}

TEST(kernels_without_a_fault_are_not_reported)
{
    char *directory = test_directory();

    for (size_t i = 0; i < FSDP__COUNT_OF(faults); i++) {
        program p = run_planted(directory, faults[i].kernel, "right");
        if (p.status != 0 || strcmp(p.output, "unharmed\n") != 0)
            TEST_FAIL("%s without its fault: exit status %d:\n%s", faults[i].kernel, p.status, p.output);
    }
}

static bool is_in_this_build(finder by)
{
#if FSDP__TSAN
    return by != ADDRESS_SANITIZER;
#elif FSDP__ASAN
    return by != THREAD_SANITIZER;
#else
    return by != ADDRESS_SANITIZER && by != THREAD_SANITIZER;
#endif
}

TEST(planted_faults_are_reported_with_their_line)
{
    char *directory = test_directory();

    for (size_t i = 0; i < FSDP__COUNT_OF(faults); i++) {
        program p;
        char line[64];
        bool silent;

        if (!is_in_this_build(faults[i].finder))
            continue;
        silent = faults[i].finder == VALUES || (faults[i].finder == WRITTEN && !is_in_this_build(THREAD_SANITIZER));
        p = run_planted(directory, faults[i].kernel, "wrong");
        if ((p.status == 0) != silent)
            TEST_FAIL("%s is not found:\n%s", faults[i].kernel, p.output);
        CHECK_CONTAINS(p.output, silent ? "harmed" : faults[i].says);
        CHECK(!silent || !strstr(p.output, "unharmed"));
        if (faults[i].finder < VALUES && !silent) {
            find_line(faults[i].kernel, line);
            CHECK_CONTAINS(p.output, line);
        }
    }
}

TEST(launches_that_cuda_refuses_are_refused)
{
    const cudash_shape fits = {{1, 1, 1}, 1024, 163 << 10};
    cudash_shape x = fits;

    CHECK_OK(cudash_test_launch(&fits));
    CHECK_ERROR((x = fits, x.threads = 1025, cudash_test_launch(&x)), FSDP_INVALID, "1025 threads");
    CHECK_ERROR((x = fits, x.threads = 0, cudash_test_launch(&x)), FSDP_INVALID, "0 threads");
    CHECK_ERROR((x = fits, x.shared_bytes++, cudash_test_launch(&x)), FSDP_INVALID, "bytes of shared memory");
    CHECK_ERROR((x = fits, x.grid[1] = 65536, cudash_test_launch(&x)), FSDP_INVALID, "1 x 65536 x 1");
    CHECK_ERROR((x = fits, x.grid[2] = 65536, cudash_test_launch(&x)), FSDP_INVALID, "1 x 1 x 65536");
    CHECK_ERROR((x = fits, x.grid[0] = 1u << 31, cudash_test_launch(&x)), FSDP_INVALID, "2147483648 x 1 x 1");
}
