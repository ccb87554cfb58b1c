/* Any bytes as changes of the record of a rank's last calls: pairs of a place and a value. With the checks made right
 * again, all that lies behind them gets what cannot be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watch/flight_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum {
    RECORDS = 12,
    BYTES = (int)(offsetof(fsdp__flight_file, records) + RECORDS * sizeof(fsdp__flight_record))
};

/* A rank of three in two groups, of which one has calls that are begun and issued. */
static void begin(fsdp__flight_file *file)
{
    memset(file, 0, BYTES);
    file->head = (fsdp__flight_head){.magic = FSDP__FLIGHT_MAGIC,
                                     .version = FSDP__FLIGHT_VERSION,
                                     .record_bytes = sizeof(fsdp__flight_record),
                                     .rank = 1,
                                     .world = 3,
                                     .machines = 1,
                                     .host = "a",
                                     .build = "b"};
    file->end.state = FSDP__FLIGHT_RUNS_ON;
    file->end.written_ns = 5000;
    for (int g = 0; g < 2; g++)
        file->groups[g] = (fsdp__flight_group){.issued = RECORDS,
                                               .begun = RECORDS - 1,
                                               .done = RECORDS - 2,
                                               .size = 3 - g,
                                               .runs = 1,
                                               .run = {{0, 1 + g, 3 - g}},
                                               .name = "world"};
    for (int i = 0; i < RECORDS; i++)
        file->records[i] = (fsdp__flight_record){.turn = (uint64_t)i + 1,
                                                 .issued = 10 * i,
                                                 .begun = i < RECORDS - 1 ? 10 * i + 1 : 0,
                                                 .done = i < RECORDS - 2 ? 10 * i + 2 : 0,
                                                 .number = (uint64_t)i + 1,
                                                 .group = i == 5,
                                                 .name = "barrier",
                                                 .module = "m"};
}

static void make_right(fsdp__flight_file *file)
{
    file->head.check = fsdp__flight_head_check(&file->head);
    file->place.check = fsdp__flight_place_check(&file->place, file->place.turn);
    for (int g = 0; g < 2; g++)
        file->groups[g].check = fsdp__flight_group_check(&file->groups[g]);
    for (int i = 0; i < RECORDS; i++)
        file->records[i].check = fsdp__flight_record_check(&file->records[i], file->records[i].turn);
}

static void read_it(const fsdp__flight_file *file)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out;
    fsdp__flight_log log;
    fsdp__flight_logs logs = {.logs = &log, .count = 1};

    if (fsdp__flight_log_parse("x", file, BYTES, &log) != FSDP_OK)
        return;
    logs.world = log.head.world;
    out = open_memstream(&text, &bytes);
    if (out && (fsdp__flight_print(&logs, 20, out) != FSDP_OK || fsdp__flight_print_json(&logs, out) != FSDP_OK))
        abort();
    if (out)
        fclose(out);
    free(text);
    fsdp__flight_log_release(&log);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp__flight_file *file = calloc(1, sizeof *file);

    if (!file)
        return 0;
    begin(file);
    make_right(file);
    read_it(file);
    for (size_t i = 0; i + 3 <= bytes; i += 3)
        ((unsigned char *)file)[(data[i] * 256u + data[i + 1]) % (unsigned)BYTES] = data[i + 2];
    read_it(file);
    make_right(file);
    read_it(file);
    free(file);
    return 0;
}
