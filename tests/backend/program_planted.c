/* Runs a kernel that has a fault, or without its fault, for test_cudash: "program_planted <kernel> right|wrong". Prints
 * "unharmed" where all that the kernel gives is what a right one gives. */
#include "cudash/test_kernels.h"
#include "support/test.h"

int main(int argc, char **argv)
{
    int *out = malloc(CUDASH_PLANTED_INTS * sizeof *out);
    bool unharmed = true;

    if (argc != 3 || !out)
        return 2;
    for (int i = 0; i < CUDASH_PLANTED_INTS; i++)
        out[i] = 1;
    if (cudash_test_planted(argv[1], strcmp(argv[2], "wrong") == 0, out) != FSDP_OK)
        return 3;
    for (int i = 0; i < CUDASH_PLANTED_INTS; i++)
        unharmed = unharmed && out[i] == 1;
    puts(unharmed ? "unharmed" : "harmed");
    free(out);
    return 0;
}
