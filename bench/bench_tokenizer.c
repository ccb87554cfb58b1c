/* bench_tokenizer.c - measures how fast text becomes ids on one core.
 *
 *     bench_tokenizer TOKENIZER TEXT [ROUNDS]
 *
 * Encodes the file line by line, as bench/peer/tokenizer.py does, and prints MB/s of processor time: the median of the
 * rounds. It prints the number of ids and their sum, as the peer does, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "check.h"
#include "fsdp/tokenizer.h"

enum {
    MOST_ROUNDS = 100
};

static double processor_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Encodes with a new encoder each time, so what it has to learn is measured, too. */
static void encode_lines(const fsdp_tokenizer *tokenizer, const fsdp__mapping *text, fsdp_token_list *ids)
{
    const char *at = (const char *)text->data, *last = at + text->bytes;
    fsdp_encoder *encoder = NULL;

    CHECK(fsdp_encoder_create(tokenizer, &encoder));
    ids->count = 0;
    while (at < last) {
        const char *end = memchr(at, '\n', (size_t)(last - at));
        size_t bytes = (size_t)((end ? end + 1 : last) - at);

        CHECK(fsdp_encoder_encode(encoder, at, bytes, NULL, ids));
        at += bytes;
    }
    fsdp_encoder_free(encoder);
}

int main(int argc, char **argv)
{
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    fsdp_tokenizer *tokenizer = NULL;
    double seconds[MOST_ROUNDS];
    fsdp_token_list ids = {0};
    fsdp__mapping text;
    long long sum = 0;

    if (argc < 3 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "bench_tokenizer TOKENIZER TEXT [ROUNDS]\n");
        return 2;
    }
    CHECK(fsdp_tokenizer_open(argv[1], &tokenizer));
    CHECK(fsdp__file_map(argv[2], &text));
    for (int i = 0; i < rounds; i++) {
        double began = processor_seconds();

        encode_lines(tokenizer, &text, &ids);
        seconds[i] = processor_seconds() - began;
    }
    for (int64_t i = 0; i < ids.count; i++)
        sum += ids.ids[i];
    qsort(seconds, (size_t)rounds, sizeof *seconds, compare);
    printf("%.1f MB/s (%.1f-%.1f)  %lld ids, sum %lld\n", (double)text.bytes / 1e6 / seconds[rounds / 2],
           (double)text.bytes / 1e6 / seconds[rounds - 1], (double)text.bytes / 1e6 / seconds[0], (long long)ids.count,
           sum);
    fsdp__file_unmap(&text);
    fsdp_token_list_release(&ids);
    fsdp_tokenizer_close(tokenizer);
    return 0;
}
