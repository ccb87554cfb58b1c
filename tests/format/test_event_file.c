/* Event files: what is in them, byte by byte, and failures. */
#include "format/event_file.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "format/event_reader.h"

typedef struct fixture {
    char *path;
    fsdp__directory folder;
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->path = test_directory();
    CHECK_OK(fsdp__directory_open(f->path, &f->folder));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp__directory_close(&f->folder);
    return 0;
}

static const double limits[] = {-1, 0, 2.5}, buckets[] = {1, 0, 6};
static const fsdp__event_histogram histogram = {-1.5, 2.25, 7, 3, 12.5, limits, buckets, 3};

TEST_OF(a_file_begins_with_its_version_and_the_start_of_a_session, setup, teardown, fixture *f)
{
    fsdp__event_file *file = NULL;
    read_events events;

    CHECK_OK(fsdp__event_file_create(&f->folder, 41, &file));
    CHECK_OK(fsdp__event_file_close(file));
    events = events_read_folder(f->path, NULL, 0);
    CHECK_EQ(events.count, 2);
    CHECK_EQ(events.items[0].kind, 'v');
    CHECK_STRING(events.items[0].text, "brain.Event:2");
    CHECK(events.items[0].wall_time > (double)time(NULL) - 3600);
    CHECK_EQ(events.items[1].kind, 's');
    CHECK_EQ(events.items[1].step, 41);
    events_free(&events);
}

TEST_OF(numbers_histograms_and_texts_come_back, setup, teardown, fixture *f)
{
    const fsdp__event_value values[] = {{.tag = "a/zero", .number = 0},
                                        {.tag = "a/b c", .number = -0.25},
                                        {.tag = "h", .histogram = &histogram},
                                        {.tag = "t", .text = "line\n\xc3\xa4"}};
    fsdp__event_file *file = NULL;
    const read_event *event;
    read_events events;

    CHECK_OK(fsdp__event_file_create(&f->folder, 1, &file));
    CHECK_OK(fsdp__event_file_add(file, 7, values, 4));
    events = events_read_folder(f->path, NULL, 0); /* all of it is there before the end */
    CHECK_EQ(events.count, 6);
    CHECK_EQ(events_find(&events, "a/zero", 7, true)->kind, 'n'); /* a zero is not left out */
    CHECK(events_find(&events, "a/b c", 7, true)->number == -0.25);
    event = events_find(&events, "h", 7, true);
    CHECK(event->min == -1.5 && event->max == 2.25 && event->num == 7 && event->sum == 3 && event->squares == 12.5);
    CHECK_EQ(event->bucket_count, 3);
    CHECK_BYTES(event->limits, limits, sizeof limits);
    CHECK_BYTES(event->buckets, buckets, sizeof buckets);
    event = events_find(&events, "t", 7, true);
    CHECK_STRING(event->text, "line\n\xc3\xa4");
    CHECK(event->dashboard);
    events_free(&events);
    CHECK_OK(fsdp__event_file_close(file));
    CHECK_OK(fsdp__event_file_close(NULL));
}

/* Of the same process in the same second, too. */
TEST_OF(no_file_takes_the_place_of_another, setup, teardown, fixture *f)
{
    fsdp__event_file *files[5] = {NULL};
    int found = 0;
    DIR *names;

    for (int i = 0; i < 5; i++)
        CHECK_OK(fsdp__event_file_create(&f->folder, 1, &files[i]));
    for (int i = 0; i < 5; i++)
        CHECK_OK(fsdp__event_file_close(files[i]));
    CHECK_OK(fsdp__directory_list(&f->folder, &names));
    for (struct dirent *entry; (entry = readdir(names));)
        found += strstr(entry->d_name, "tfevents") != NULL;
    closedir(names);
    CHECK_EQ(found, 5);
}

TEST_OF(every_failed_write_and_allocation_of_an_event_is_told, setup, teardown, fixture *f)
{
    const fsdp__event_value values[] = {{.tag = "n", .number = 1}, {.tag = "h", .histogram = &histogram}};

    for (int kind = 0; kind < 2; kind++) {
        fsdp__fault_kind fault = kind ? FSDP__FAULT_WRITE : FSDP__FAULT_ALLOCATION;

        for (long n = 0; test_next_fault(fault, &n);) {
            fsdp__event_file *file = NULL;
            fsdp_status status = fsdp__event_file_create(&f->folder, 1, &file);

            CHECK((status == FSDP_OK) == (file != NULL));
            if (status == FSDP_OK)
                status = fsdp__event_file_add(file, 1, values, 2);
            CHECK_FAULT(fault, status);
            (void)fsdp__event_file_close(file);
        }
    }
}
