/* Intersections and runs of boxes, against counting element by element. */
#include "fsdp/dist.h"
#include "support/test.h"

enum {
    MAX_NUMEL = 4096
};

static unsigned draw(unsigned *random, unsigned below)
{
    *random = *random * 1664525u + 1013904223u;
    return (*random >> 12) % below;
}

static void draw_box(unsigned *random, int ndim, const int64_t *shape, int64_t *offset, int64_t *size)
{
    for (int d = 0; d < ndim; d++) {
        bool full = draw(random, 3) == 0;

        offset[d] = full ? 0 : draw(random, (unsigned)shape[d] + 1);
        size[d] = full ? shape[d] : draw(random, (unsigned)(shape[d] - offset[d]) + 1);
    }
}

/* Marks the box's elements in a row-major tensor with their order in the box, from 1. */
static int64_t mark(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size, int *marks)
{
    int64_t numel = 1, count = 0;

    for (int d = 0; d < ndim; d++)
        numel *= shape[d];
    for (int64_t i = 0; i < numel; i++) {
        int64_t rest = i;
        bool inside = true;

        for (int d = ndim - 1; d >= 0; d--) {
            int64_t at = rest % shape[d];

            rest /= shape[d];
            inside = inside && at >= offset[d] && at < offset[d] + size[d];
        }
        marks[i] = inside ? (int)++count : 0;
    }
    return numel;
}

typedef struct visit {
    int marks[MAX_NUMEL];
    int64_t numel, calls, next_local, end;
} visit;

static fsdp_status check_run(void *arg, int64_t global, int64_t local, int64_t numel)
{
    visit *v = arg;

    CHECK(numel > 0);
    CHECK_EQ(local, v->next_local);
    CHECK(global > v->end || v->calls == 0); /* maximal: it does not go on where the last one ended */
    for (int64_t i = 0; i < numel; i++)
        CHECK_EQ(v->marks[global + i], local + i + 1);
    v->next_local += numel;
    v->end = global + numel;
    v->calls++;
    return FSDP_OK;
}

TEST(runs_are_the_box_in_order_and_maximal)
{
    unsigned random = 5;
    static visit v;

    for (int round = 0; round < 3000; round++) {
        int ndim = (int)draw(&random, 5);
        int64_t shape[4], offset[4], size[4], expected = 1;

        for (int d = 0; d < ndim; d++)
            shape[d] = draw(&random, 6);
        draw_box(&random, ndim, shape, offset, size);
        memset(&v, 0, sizeof v);
        v.numel = mark(ndim, shape, offset, size, v.marks);
        for (int d = 0; d < ndim; d++)
            expected *= size[d];
        CHECK_OK(fsdp_box_runs(ndim, shape, offset, size, check_run, &v));
        CHECK_EQ(v.next_local, expected);
    }
}

TEST(full_rows_are_one_run)
{
    static visit v;
    static const int64_t shape[] = {9, 4, 5}, offset[] = {2, 0, 0}, size[] = {3, 4, 5}, row[] = {1, 2, 5};

    mark(3, shape, offset, size, v.marks);
    CHECK_OK(fsdp_box_runs(3, shape, offset, size, check_run, &v));
    CHECK_EQ(v.calls, 1);
    CHECK_EQ(v.end, 100);
    memset(&v, 0, sizeof v);
    mark(3, shape, offset, row, v.marks);
    CHECK_OK(fsdp_box_runs(3, shape, offset, row, check_run, &v));
    CHECK_EQ(v.calls, 1);
}

static fsdp_status fail_at_second(void *arg, int64_t global, int64_t local, int64_t numel)
{
    (void)global;
    (void)local;
    (void)numel;
    return ++*(int *)arg == 2 ? FSDP_FAIL(FSDP_IO, "disk full") : FSDP_OK;
}

TEST(a_failing_run_ends_it_and_bad_boxes_are_refused)
{
    static const int64_t shape[] = {4, 4}, offset[] = {0, 1}, size[] = {4, 2};
    static const int64_t large[] = {4, 4}, negative[] = {-1, 0}, far[] = {5, 0}, nothing[] = {0, 0};
    int calls = 0;

    CHECK_ERROR(fsdp_box_runs(2, shape, offset, size, fail_at_second, &calls), FSDP_IO, "disk full");
    CHECK_EQ(calls, 2);
    CHECK_ERROR(fsdp_box_runs(2, shape, offset, large, fail_at_second, &calls), FSDP_INVALID, "dimension 1 of size 4");
    CHECK_STATUS(fsdp_box_runs(2, shape, negative, size, fail_at_second, &calls), FSDP_INVALID);
    CHECK_STATUS(fsdp_box_runs(2, shape, far, nothing, fail_at_second, &calls), FSDP_INVALID);
    CHECK_STATUS(fsdp_box_runs(7, shape, offset, size, fail_at_second, &calls), FSDP_INVALID);
    CHECK_EQ(calls, 2);
}

TEST(intersections_are_what_both_boxes_hold)
{
    unsigned random = 11;
    static int a_marks[MAX_NUMEL], b_marks[MAX_NUMEL], both_marks[MAX_NUMEL];

    for (int round = 0; round < 3000; round++) {
        int ndim = (int)draw(&random, 5);
        int64_t shape[4], a_offset[4], a_size[4], b_offset[4], b_size[4], offset[4], size[4], numel;
        bool some = false;

        for (int d = 0; d < ndim; d++)
            shape[d] = draw(&random, 7);
        draw_box(&random, ndim, shape, a_offset, a_size);
        draw_box(&random, ndim, shape, b_offset, b_size);
        numel = mark(ndim, shape, a_offset, a_size, a_marks);
        mark(ndim, shape, b_offset, b_size, b_marks);
        for (int64_t i = 0; i < numel; i++)
            some = some || (a_marks[i] && b_marks[i]);
        CHECK_EQ(fsdp_box_intersect(ndim, a_offset, a_size, b_offset, b_size, offset, size), some);
        mark(ndim, shape, offset, size, both_marks);
        for (int64_t i = 0; i < numel; i++)
            CHECK_EQ(both_marks[i] != 0, a_marks[i] && b_marks[i]);
    }
}
