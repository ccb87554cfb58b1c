/* What a report takes from a trace of kernels: which take the time, and the gaps between them. */
#include <stdlib.h>

#include "report/report.h"
#include "support/test.h"

typedef struct event {
    int rank, lane;
    const char *category, *name;
    int begin, end; /* microseconds */
    int flops;
} event;

/* Writes a trace of two ranks. The caller frees the path. */
static char *write_trace(const char *folder, const event *events, size_t count)
{
    char *path = test_path(folder, "trace.json"), *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    fputs("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"format\":\"fsdp trace\",\"version\":\"1\",\"world_size\":2,"
          "\"ranks\":[",
          out);
    for (int r = 0; r < 2; r++)
        fprintf(out,
                "%s\n{\"rank\":%d,\"host\":\"h\",\"machine\":0,\"clock_offset_ns\":0,\"clock_uncertain_ns\":0,"
                "\"events\":9,\"dropped\":0}",
                r ? "," : "", r);
    fputs("]},\"traceEvents\":[\n", out);
    for (size_t i = 0; i < count; i++)
        fprintf(out,
                "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%d.000,\"dur\":%d.000,\"cat\":\"%s\",\"name\":\"%s\","
                "\"args\":{\"ns\":1,\"flops\":%d}},\n",
                events[i].rank + 1, events[i].lane + 1, events[i].begin, events[i].end - events[i].begin,
                events[i].category, events[i].name, events[i].flops);
    fputs("{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":1}}\n]}\n", out);
    fclose(out);
    test_write_file(path, text, bytes);
    free(text);
    return path;
}

/* Rank 0 computes on a stream of its own, beside what the host does; rank 1 on the host, with a kernel in another. */
static const event events[] = {
    {0, 0, "stage", "step 1", 0, 1000, 0},       {0, 2, "kernel", "matmul", 100, 300, 4000},
    {0, 2, "kernel", "softmax", 300, 350, 0},    {0, 2, "copy", "copy", 400, 410, 0}, /* after a gap of 50 */
    {0, 0, "kernel", "fill", 420, 430, 0},                                            /* on another lane */
    {0, 2, "kernel", "matmul", 610, 910, 8000},                                       /* of 200 */
    {1, 0, "stage", "step 1", 0, 1000, 0},       {1, 0, "kernel", "matmul", 0, 500, 12000},
    {1, 0, "kernel", "copy_in_it", 100, 200, 0}, {1, 0, "kernel", "softmax", 500, 990, 0},
    {1, 0, "kernel", "matmul", 995, 1100, 0}, /* of 5; 5 of it are in the step */
};

TEST(kernels_and_gaps_of_a_step_are_added_up)
{
    char *folder = test_directory(), *path = write_trace(folder, events, sizeof events / sizeof *events);
    fsdp__traced_step step;

    CHECK_OK(fsdp__traced_step_read(path, &step));
    CHECK_EQ(step.kernel_count, 3);
    CHECK_STRING(step.kernels[0].name, "matmul");
    CHECK_EQ(step.kernels[0].calls, 4);
    CHECK_EQ(step.kernels[0].ns, 1005000);
    CHECK(step.kernels[0].flops == 24000);
    CHECK_STRING(step.kernels[1].name, "softmax");
    CHECK_EQ(step.kernels[1].ns, 540000);
    CHECK_STRING(step.kernels[2].name, "copy_in_it");
    CHECK_EQ(step.ranks[0].gaps, 2);
    CHECK_EQ(step.ranks[0].gap_ns, 250000);
    CHECK_EQ(step.ranks[0].longest_gap, 200000);
    CHECK_STRING(step.ranks[0].gap_after, "copy");
    CHECK_STRING(step.ranks[0].gap_before, "matmul");
    CHECK_EQ(step.ranks[1].gaps, 1);
    CHECK_EQ(step.ranks[1].longest_gap, 5000);
    CHECK_STRING(step.ranks[1].gap_after, "softmax");
    fsdp__traced_step_release(&step);
}

/* Writes a report of the trace, as a page or as text. */
static char *report_of(const char *path, fsdp_status (*write)(const fsdp__report *, FILE *))
{
    fsdp__report *report = calloc(1, sizeof *report);
    FILE *out = test_begin_text();

    CHECK_OK(fsdp__sources_add(&report->sources, path));
    CHECK_OK(write(report, out));
    fsdp__sources_release(&report->sources);
    free(report);
    return test_end_text(out);
}

TEST(a_page_and_a_text_show_them)
{
    char *folder = test_directory(), *path = write_trace(folder, events, sizeof events / sizeof *events);
    char *page = report_of(path, fsdp__report_page), *text = report_of(path, fsdp__report_text);

    CHECK_CONTAINS(page, "Kernels that take most time, on the average of the ranks");
    CHECK_CONTAINS(page, "Gaps between kernels, in which nothing is computed");
    CHECK_CONTAINS(page, "copy_in_it");
    CHECK_CONTAINS(text, "  matmul                                   2    0.502 ms        50.2 %");
    CHECK_CONTAINS(text, "  gaps between kernels, nothing is computed     0.128 ms        12.8 %");
}
