/* cudash, which runs CUDA kernels on the host: what it computes, and what it finds. */
#include "cudash/test_kernels.h"
#include "oracle/oracle.h"
#include "support/dice.h"
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
