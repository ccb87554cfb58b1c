/* shard/rank_sum.c - as plainly as possible. */
#include "shard/rank_sum.h"

#include "oracle/oracle.h"
#include "support/test.h"

float *rank_sum_joined(float *total, float *more, int64_t numel)
{
    if (!total || !more)
        return total ? total : more;
    for (int64_t i = 0; i < numel; i++)
        total[i] += more[i];
    free(more);
    return total;
}

float *rank_sum(float **brought, int count, int block, fsdp_dtype dtype, int64_t numel)
{
    float *total = NULL;

    for (int first = 0; first < count; first += block) {
        float *of_machine = NULL;

        for (int i = first; i < first + block; i++)
            of_machine = rank_sum_joined(of_machine, brought[i], numel);
        for (int64_t i = 0; i < numel && block > 1 && of_machine; i++)
            of_machine[i] = (float)oracle_round(dtype, (double)of_machine[i]);
        total = rank_sum_joined(total, of_machine, numel);
    }
    return total;
}
