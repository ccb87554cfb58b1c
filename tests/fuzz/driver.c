/* driver.c - runs the fuzzers without libFuzzer: every file of a corpus directory, then random mutations of them.
 * The mutations are the same on every run.
 *
 *     fuzz X CORPUS-DIRECTORY-OR-FILE [RUNS [SEED]]      runs fuzz_X.c
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The build names them all, as FUZZER(x) FUZZER(y), and renames their LLVMFuzzerTestOneInput. */
#define FUZZER(x) int fuzz_##x(const uint8_t *data, size_t bytes);
FUZZERS
#undef FUZZER
#define FUZZER(x) {#x, fuzz_##x},
static const struct {
    const char *name;
    int (*run)(const uint8_t *data, size_t bytes);
} fuzzers[] = {FUZZERS};

static int (*fuzzer)(const uint8_t *data, size_t bytes); /* the one that runs */

enum {
    MAX_INPUTS = 1024,
    MAX_BYTES = 1 << 16
};

typedef struct input {
    uint8_t *data;
    size_t bytes;
} input;

static uint64_t random_state;

static uint64_t random_below(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return limit ? random_state % limit : 0;
}

static int read_input(const char *path, input *out)
{
    FILE *file = fopen(path, "rb");

    if (!file)
        return -1;
    out->data = malloc(MAX_BYTES);
    if (!out->data)
        exit(1);
    out->bytes = fread(out->data, 1, MAX_BYTES, file);
    fclose(file);
    return 0;
}

static int read_corpus(const char *path, input *inputs)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    struct stat info;
    int count = 0;

    if (!directory)
        return read_input(path, inputs) == 0 ? 1 : 0;
    while ((entry = readdir(directory)) && count < MAX_INPUTS) {
        char name[4096];

        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (stat(name, &info) == 0 && S_ISREG(info.st_mode) && read_input(name, &inputs[count]) == 0)
            count++;
    }
    closedir(directory);
    return count;
}

/* The input in a block of exactly its size, so that AddressSanitizer sees a read past its end. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *exact = malloc(bytes ? bytes : 1);

    if (!exact)
        exit(1);
    memcpy(exact, data, bytes);
    fuzzer(exact, bytes);
    free(exact);
}

static size_t mutate(uint8_t *data, size_t bytes, const input *other)
{
    static const uint64_t interesting[] = {0,          1,          0x7F,          0x80,      0xFF,
                                           0x7FFFFFFF, 0xFFFFFFFF, INT64_MAX / 2, INT64_MAX, UINT64_MAX};
    size_t at = random_below(bytes), length = random_below(32), from;
    uint64_t value;

    switch (random_below(7)) {
    case 0: /* a bit */
        if (bytes)
            data[at] ^= (uint8_t)(1u << random_below(8));
        return bytes;
    case 1: /* a byte */
        if (bytes)
            data[at] = (uint8_t)random_below(256);
        return bytes;
    case 2: /* a number that breaks things */
        value = interesting[random_below(sizeof interesting / sizeof interesting[0])];
        length = (size_t)1 << random_below(4);
        if (at + length <= bytes)
            memcpy(data + at, &value, length);
        return bytes;
    case 3: /* the end missing */
        return at;
    case 4: /* a piece missing */
        if (at + length >= bytes)
            return at;
        memmove(data + at, data + at + length, bytes - at - length);
        return bytes - length;
    case 5: /* a piece twice */
        if (at + length > bytes || bytes + length > MAX_BYTES)
            return bytes;
        memmove(data + at + length, data + at, bytes - at);
        return bytes + length;
    default: /* a piece of another input */
        from = random_below(other->bytes);
        if (from + length > other->bytes || at + length > bytes)
            return bytes;
        memcpy(data + at, other->data + from, length);
        return bytes;
    }
}

int main(int argc, char **argv)
{
    static input inputs[MAX_INPUTS];
    static uint8_t data[MAX_BYTES];
    long runs = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    int count = argc > 2 ? read_corpus(argv[2], inputs) : 0;

    random_state = argc > 4 ? strtoull(argv[4], NULL, 10) * 2 + 1 : 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < sizeof fuzzers / sizeof *fuzzers; i++)
        if (argc > 1 && strcmp(argv[1], fuzzers[i].name) == 0)
            fuzzer = fuzzers[i].run;
    if (!fuzzer || count == 0) {
        fprintf(stderr, "no fuzzer '%s', or no inputs in '%s'\n", argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
        return 1;
    }
    run(data, 0);
    for (int i = 0; i < count; i++)
        run(inputs[i].data, inputs[i].bytes);
    for (long i = 0; i < runs; i++) {
        const input *base = &inputs[random_below((uint64_t)count)];
        size_t bytes = base->bytes;

        memcpy(data, base->data, bytes);
        for (uint64_t change = 0, changes = 1 + random_below(4); change < changes; change++)
            bytes = mutate(data, bytes, &inputs[random_below((uint64_t)count)]);
        run(data, bytes);
    }
    for (int i = 0; i < count; i++)
        free(inputs[i].data);
    printf("%d inputs and %ld mutations\n", count, runs);
    return 0;
}
