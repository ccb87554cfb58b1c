/* bench_checkpoint.c - measures saving and loading a checkpoint, beside a plain copy of the same bytes.
 *
 *     bench_checkpoint FOLDER [MEGABYTES [RANKS ...]]          default: 512 MB, 1 2
 *
 * It starts itself on that many ranks, and prints one line for each number of ranks, in GB/s of the whole: the best of
 * three rounds, of the slowest rank. "checked" is the share of the time that goes into checksums, by their own rate.
 * The copy (read, write, fsync) and sha256sum run in one process. Files that are loaded are in the system's memory.
 * "asked" is what a run with checkpoints does in each step, whether or not one is due: it gets a byte from every rank,
 * which says what a signal has asked for; in microseconds. */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/file.h"
#include "check.h"
#include "fsdp/checkpoint.h"
#include "fsdp/launch.h"

enum {
    ROUNDS = 3,
    TENSORS = 16,
    COLUMNS = 1024,
    BUFFER_BYTES = 1 << 20,
    ASKED = 200 /* rounds, of as many calls each */
};

typedef struct bench {
    fsdp_context *context;
    fsdp_process_group *world;
    const char *folder;
    double gigabytes;
    fsdp_mesh *mesh;
    fsdp_state_dict *state;
} bench;

static double now(void)
{
    return (double)fsdp__clock_ns() / 1e9;
}

/* Returns the seconds since `start`, of the slowest rank. */
static double seconds(const bench *b, double start)
{
    float mine = (float)(now() - start);

    CHECK(fsdp_all_reduce(b->world, &mine, &mine, 1, FSDP_F32, FSDP_MAX, fsdp_device_stream(fsdp_cpu(b->context))));
    return mine;
}

static void fill(bench *b, int64_t rows)
{
    fsdp_placement by_rows = {.kind = FSDP_SHARD};
    int64_t world = fsdp_process_group_size(b->world), shape[2] = {rows, COLUMNS}, start;
    int64_t mine = fsdp_shard_range(rows, world, fsdp_process_group_rank(b->world), &start);
    char name[20];

    CHECK(fsdp_mesh_create(b->context, 1, &world, NULL, &b->mesh));
    CHECK(fsdp_state_dict_create(&b->state));
    for (int i = 0; i < TENSORS; i++) {
        fsdp_distribution d = {.mesh = b->mesh, .placement_count = 1, .placements = {by_rows}, .ndim = 2};
        fsdp_tensor *local = NULL;

        memcpy(d.global_shape, shape, sizeof shape);
        CHECK(fsdp_tensor_create(fsdp_cpu(b->context), FSDP_F32, FSDP_SHAPE(mine, COLUMNS), FSDP_MEMORY_PARAMETER_SHARD,
                                 &local));
        CHECK(fsdp_tensor_fill_(local, i + 0.1));
        CHECK(fsdp_tensor_set_distribution(local, &d));
        snprintf(name, sizeof name, "weight.%d", i);
        CHECK(fsdp_state_dict_add(b->state, name, local));
        fsdp_tensor_unref(local);
    }
}

/* ---- saving and loading ---- */

static double best_save(const bench *b, bool async, double *out_call)
{
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = 1, .async = async};
    const fsdp_checkpoint_section section = {.name = "model", .state = b->state};
    fsdp_checkpoint_saver *saver = NULL;
    double best = 1e9;

    *out_call = 1e9;
    CHECK(fsdp_checkpoint_saver_create(b->folder, &options, b->world, &saver));
    for (int i = 0; i < ROUNDS; i++) {
        double start, call, whole;

        CHECK(fsdp_barrier(b->world));
        start = now();
        CHECK(fsdp_checkpoint_saver_save(
            saver, &(fsdp_checkpoint_content){.step = i + async * ROUNDS, .sections = &section, .section_count = 1}));
        call = seconds(b, start);
        CHECK(fsdp_checkpoint_saver_wait(saver, NULL));
        whole = seconds(b, start);
        *out_call = call < *out_call ? call : *out_call;
        best = whole < best ? whole : best;
    }
    fsdp_checkpoint_saver_free(saver);
    return best;
}

static double best_load(const bench *b)
{
    double best = 1e9;

    for (int i = 0; i < ROUNDS; i++) {
        fsdp_checkpoint_reader *reader = NULL;
        double start = now(), took;

        CHECK(fsdp_checkpoint_open(b->folder, &reader));
        CHECK(fsdp_checkpoint_load(reader, "model", b->state, NULL));
        took = seconds(b, start);
        best = took < best ? took : best;
        fsdp_checkpoint_close(reader);
    }
    return best;
}

static double best_ask(const bench *b)
{
    double best = 1e9;

    if (fsdp_process_group_size(b->world) == 1)
        return 0;
    for (int i = 0; i < ASKED; i++) {
        double start, took;

        CHECK(fsdp_barrier(b->world));
        start = now();
        for (int k = 0; k < ASKED; k++) {
            void **all = NULL;
            size_t *bytes = NULL;

            CHECK(fsdp_gather_objects(b->world, &(char){0}, 1, &all, &bytes));
            fsdp_objects_free(b->world, all, bytes);
        }
        took = seconds(b, start) / ASKED;
        best = took < best ? took : best;
    }
    return best;
}

/* ---- what there is to compare with: rank 0 alone ---- */

static double checksum_rate(void)
{
    char *data = calloc(BUFFER_BYTES, 1);
    uint64_t all = 0;
    double start = now();

    for (int i = 0; i < 1024; i++)
        all ^= fsdp__checksum(data, BUFFER_BYTES) + (uint64_t)(data[i] = (char)i);
    free(data);
    return all ? 1024.0 * BUFFER_BYTES / 1e9 / (now() - start) : 0;
}

static void copy_file(const char *from, const char *to)
{
    char *buffer = malloc(BUFFER_BYTES);
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ssize_t got;

    while ((got = read(in, buffer, BUFFER_BYTES)) > 0)
        if (write(out, buffer, (size_t)got) != got)
            exit(1);
    if (got < 0 || fsync(out) != 0)
        exit(1);
    close(in);
    close(out);
    free(buffer);
}

/* Measures a file of that size: seconds of a copy and of sha256sum. */
static void compare(const bench *b, double *out_copy, double *out_sha)
{
    char from[4096], to[4096], command[8300];
    double start;

    snprintf(from, sizeof from, "%s/plain", b->folder);
    snprintf(to, sizeof to, "%s/copy", b->folder);
    snprintf(command, sizeof command, "head -c %.0f /dev/zero > '%s'", b->gigabytes * 1e9, from);
    if (system(command) != 0)
        exit(1);
    start = now();
    copy_file(from, to);
    *out_copy = now() - start;
    snprintf(command, sizeof command, "sha256sum '%s' > /dev/null", from);
    start = now();
    if (system(command) != 0)
        exit(1);
    *out_sha = now() - start;
    unlink(from);
    unlink(to);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

static void report(const bench *b)
{
    double call, snapshot, save = best_save(b, false, &call), async = best_save(b, true, &snapshot),
                           load = best_load(b), ask = best_ask(b);
    double copy, sha, rate, of_checks;

    if (fsdp_process_group_rank(b->world) == 0) {
        compare(b, &copy, &sha);
        rate = checksum_rate();
        of_checks = b->gigabytes / fsdp_process_group_size(b->world) / rate;
        printf("| %d | %.2f | %.0f %% | %.2f | %.2f | %.2f | %.0f %% | %.2f | %.2f | %.1f | %.1f |\n",
               fsdp_process_group_size(b->world), b->gigabytes / save, 100 * of_checks / save, b->gigabytes / async,
               b->gigabytes / snapshot, b->gigabytes / load, 100 * of_checks / load, b->gigabytes / copy,
               b->gigabytes / sha, rate, ask * 1e6);
        if (nftw(b->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
            exit(1);
    }
    CHECK(fsdp_barrier(b->world));
}

static int rank_main(const char *folder, double megabytes)
{
    int64_t rows = (int64_t)(megabytes * 1e6 / TENSORS / COLUMNS / sizeof(float));
    bench b = {.folder = folder, .gigabytes = (double)(rows * TENSORS * COLUMNS) * sizeof(float) / 1e9};

    CHECK(fsdp_context_from_env(&b.context));
    b.world = fsdp_world(b.context);
    fill(&b, rows);
    report(&b);
    fsdp_state_dict_free(b.state);
    fsdp_mesh_unref(b.mesh);
    fsdp_context_free(b.context);
    return 0;
}

int main(int argc, char **argv)
{
    const char *megabytes = argc > 2 ? argv[2] : "512", *ranks[] = {"1", "2"};
    char program[4096], folder[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    if (getenv("FSDP_SHM_FD"))
        return rank_main(argv[1], atof(argv[2]));
    if (argc < 2 || length < 0) {
        fprintf(stderr, "bench_checkpoint FOLDER [MEGABYTES [RANKS ...]]\n");
        return 2;
    }
    program[length] = '\0';
    snprintf(folder, sizeof folder, "%s/bench_checkpoint.%ld", argv[1], (long)getpid());
    printf("| ranks | save | of it checked | asynchronous | until it returns | load | of it checked | copy | sha256sum "
           "| checksum | asked |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    fflush(stdout);
    for (int i = 0; i < (argc > 3 ? argc - 3 : 2); i++) {
        const char *rank_argv[] = {program, folder, megabytes, NULL};
        int count = atoi(argc > 3 ? argv[3 + i] : ranks[i]);

        CHECK(fsdp_launch(&(fsdp_launch_options){.ranks = count, .argv = rank_argv}, NULL));
    }
    return 0;
}
