/* embedding.c - reads rows of a table by id, and computes their gradient. */
#include "backend/cpu/kernels/dtype.h"
#include "base/alloc.h"

static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__embedding_forward_args *k = args;
    size_t bytes = (size_t)k->cols * fsdp__float_size(k->dtype);

    for (int64_t r = begin; r < end; r++) {
        void *y = fsdp__at(k->dtype, k->y, r * k->cols);
        if (k->ids[r] >= 0 && k->ids[r] < k->table_rows)
            memcpy(y, fsdp__at(k->dtype, k->table, k->ids[r] * k->cols), bytes);
        else
            memset(y, 0, bytes);
    }
}

FSDP__KERNEL(embedding_forward, k)
{
    for (int64_t r = 0; k->bad_row && r < k->rows; r++) {
        if (k->ids[r] < 0 || k->ids[r] >= k->table_rows) {
            *k->bad_row = r;
            break;
        }
    }
    fsdp__for_ranges(k->cols > 0 ? k->rows : 0, k->cols, forward_range, k);
    return FSDP_OK;
}

/* Lists, for every table row, the rows that have its id, in order: head[id], then next[row], until -1. */
typedef struct lists {
    int64_t *head, *tail, *next;
} lists;

static void make_lists(const fsdp__embedding_backward_args *k, lists *l)
{
    memset(l->head, -1, (size_t)k->table_rows * sizeof *l->head);
    for (int64_t r = 0; r < k->rows; r++) {
        int64_t id = k->ids[r];
        if (id < 0 || id >= k->table_rows)
            continue;
        l->next[r] = -1;
        if (l->head[id] < 0)
            l->head[id] = r;
        else
            l->next[l->tail[id]] = r;
        l->tail[id] = r;
    }
}

/* Counts the columns that are summed at a time, on the stack. */
#define COLUMNS 1024

FSDP__INLINE void add_row(fsdp_dtype dtype, const void *dy, float *restrict sum, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] += fsdp__load(dtype, dy, i);
}

static void sum_list(const fsdp__embedding_backward_args *k, const lists *l, int64_t id)
{
    float sum[COLUMNS];

    for (int64_t first = 0; first < k->cols; first += COLUMNS) {
        int64_t n = FSDP__MIN(k->cols - first, COLUMNS);
        void *out = fsdp__at(k->dtable_dtype, k->dtable, id * k->cols + first);

        if (k->accumulate)
            fsdp__widen(k->dtable_dtype, out, n, sum);
        else
            memset(sum, 0, (size_t)n * sizeof(float));
        for (int64_t r = l->head[id]; r >= 0; r = l->next[r]) {
            FSDP__EACH_FLOAT(k->dtype, T, add_row(T, fsdp__at(T, k->dy, r * k->cols + first), sum, n));
        }
        fsdp__narrow(k->dtable_dtype, sum, n, out);
    }
}

FSDP__KERNEL(embedding_backward, k)
{
    size_t row_bytes = (size_t)k->cols * fsdp__float_size(k->dtable_dtype);
    int64_t work = (k->rows + (k->accumulate ? 0 : k->table_rows)) * k->cols;
    lists l;

    FSDP__TRY_NEW(l.head = fsdp__stream_workspace(stream, (size_t)(2 * k->table_rows + k->rows) * sizeof(int64_t) + 1));
    l.tail = l.head + k->table_rows;
    l.next = l.tail + k->table_rows;
    make_lists(k, &l);
    /* Every table row has one thread; ids are uneven, so threads take the next one when they are free. */
#pragma omp parallel for schedule(dynamic, 16) if (work > FSDP__PARALLEL_MIN)
    for (int64_t id = 0; id < k->table_rows; id++) {
        if (l.head[id] >= 0)
            sum_list(k, &l, id);
        else if (!k->accumulate)
            memset(fsdp__at(k->dtable_dtype, k->dtable, id * k->cols), 0, row_bytes);
    }
    return FSDP_OK;
}
