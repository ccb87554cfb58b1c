/* mpi_collectives.c - measures through MPI what bench_collectives measures. Not part of the build:
 *
 *     mpicc -O2 bench/peer/mpi_collectives.c -o mpi_collectives && mpirun -n 2 ./mpi_collectives [MB [KB [threads]]]
 *
 * Times are medians in microseconds, of the slowest rank; n is the whole buffer in bytes, up to so many MB (256) from
 * so many KB (1); f32. "threads": with MPI_THREAD_MULTIPLE, as fsdp's ranks have it, else with the fastest level. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 200
};

static float *plain, *part, *whole;
static int count, part_count;

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void all_gather(void)
{
    MPI_Allgather(part, part_count, MPI_FLOAT, whole, part_count, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(void)
{
    MPI_Reduce_scatter_block(plain, part, part_count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_reduce(void)
{
    MPI_Allreduce(plain, whole, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_us(void (*operation)(void), int rounds)
{
    double times[ROUNDS];

    operation();
    for (int i = 0; i < rounds; i++) {
        double mine;

        MPI_Barrier(MPI_COMM_WORLD);
        mine = MPI_Wtime();
        operation();
        mine = MPI_Wtime() - mine;
        MPI_Allreduce(&mine, &times[i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    qsort(times, (size_t)rounds, sizeof *times, by_value);
    return times[rounds / 2] * 1e6;
}

int main(int argc, char **argv)
{
    int rank, ranks, level;
    size_t largest = (size_t)(argc > 1 ? atol(argv[1]) : 256) << 20;
    size_t smallest = (size_t)(argc > 2 ? atol(argv[2]) : 1) << 10;

    MPI_Init_thread(&argc, &argv, argc > 3 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0)
        printf("%d ranks\n%-11s %9s %9s %9s %9s\n", ranks, "n", "barrier", "AG", "RS", "AR");
    for (size_t bytes = smallest; bytes <= largest; bytes *= 4) {
        int rounds = bytes < 1 << 20 ? ROUNDS : bytes < 32 << 20 ? 40 : 9;
        double times[4];

        count = (int)(bytes / sizeof(float));
        part_count = count / ranks;
        plain = aligned_alloc(64, bytes);
        whole = aligned_alloc(64, bytes);
        part = aligned_alloc(64, bytes);
        for (int i = 0; i < count; i++)
            plain[i] = whole[i] = part[i] = (float)i;
        times[0] = median_us(barrier, rounds);
        times[1] = median_us(all_gather, rounds);
        times[2] = median_us(reduce_scatter, rounds);
        times[3] = median_us(all_reduce, rounds);
        if (rank == 0)
            printf("%-11zu %9.1f %9.1f %9.1f %9.1f\n", bytes, times[0], times[1], times[2], times[3]);
        free(plain);
        free(whole);
        free(part);
    }
    MPI_Finalize();
    return 0;
}
