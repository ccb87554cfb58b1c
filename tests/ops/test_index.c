/* Elements by index, the largest of a dimension, repeated batches, more shapes: against PyTorch's numbers
 * (tests/numbers/index.py) and difference quotients, in every dtype; what is refused. Links: data */
#include "fsdp/ops.h"

#include <limits.h>
#include <math.h>

#include "autograd/tools.h"
#include "support/numbers.h"

enum {
    MOST = 256
};

typedef fsdp_tensor *const *tensors;

/* ---- the operations, of leaves in[0], in[1] and an index ---- */

static fsdp_tensor *squared(fsdp_tensor *x)
{
    return x ? fsdp_mul(fsdp_contiguous(x), fsdp_contiguous(x)) : NULL;
}

static fsdp_tensor *stacked(tensors in)
{
    fsdp_tensor *parts[] = {in[0], in[1], in[0]};

    return squared(fsdp_stack(parts, 3, -1));
}

/* The parts, each multiplied, in reverse. */
static fsdp_tensor *turned(fsdp_tensor *x, int dim, const int64_t *sizes)
{
    fsdp_tensor *parts[3], *reverse[3];

    if (fsdp_split(x, dim, 3, sizes, parts) != FSDP_OK)
        return NULL;
    for (int i = 0; i < 3; i++)
        reverse[2 - i] = fsdp_scale(parts[i], 1 + i);
    return fsdp_concat(reverse, 3, dim);
}

typedef fsdp_tensor *(*operation)(tensors in, fsdp_tensor *index, fsdp_tensor **indices);

#define OPERATION(name, expression)                                                      \
    static fsdp_tensor *name##_of(tensors in, fsdp_tensor *index, fsdp_tensor **indices) \
    {                                                                                    \
        (void)index, (void)indices;                                                      \
        return (expression);                                                             \
    }

OPERATION(index_select, fsdp_index_select(in[0], 1, index))
OPERATION(index_select_last, fsdp_index_select(in[0], -1, index))
OPERATION(gather, fsdp_gather(in[0], 1, index))
OPERATION(gather_first, fsdp_gather(in[0], 0, index))
OPERATION(scatter, fsdp_scatter(in[0], 1, index, in[1]))
OPERATION(scatter_add, fsdp_scatter_add(in[0], -2, index, in[1]))
OPERATION(topk, fsdp_topk(in[0], 3, 1, true, indices))
OPERATION(smallest, fsdp_topk(in[0], 2, -1, false, indices))
OPERATION(sort, fsdp_sort(in[0], 0, false, indices))
OPERATION(sort_down, fsdp_sort(in[0], -1, true, indices))
OPERATION(matmul, fsdp_matmul(in[0], in[1]))
OPERATION(permute, squared(fsdp_permute(in[0], 3, (const int[]){2, 0, -2})))
OPERATION(unsqueeze, squared(fsdp_expand(fsdp_unsqueeze(in[0], -1), FSDP_SHAPE(2, 3, 4))))
OPERATION(expand, squared(fsdp_expand(in[0], FSDP_SHAPE(2, 3, -1, 4, 2))))
OPERATION(stack, stacked(in))
OPERATION(split, turned(in[0], 1, (const int64_t[]){2, 0, 3}))
OPERATION(chunk, turned(in[0], 0, NULL))
OPERATION(flatten, squared(fsdp_flatten(fsdp_transpose(in[0], 1, 2), 1, -2)))

static const struct {
    const char *name, *leaves[2];
    operation of;
} operations[] = {
    {"index_select", {"x"}, index_select_of},
    {"index_select_last", {"x"}, index_select_last_of},
    {"gather", {"x"}, gather_of},
    {"gather_first", {"x"}, gather_first_of},
    {"scatter", {"x", "z"}, scatter_of},
    {"scatter_add", {"x", "z"}, scatter_add_of},
    {"topk", {"x"}, topk_of},
    {"smallest", {"x"}, smallest_of},
    {"sort", {"x"}, sort_of},
    {"sort_down", {"x"}, sort_down_of},
    {"matmul_column", {"a", "b"}, matmul_of},
    {"matmul_row", {"a", "b"}, matmul_of},
    {"matmul_dot", {"a", "b"}, matmul_of},
    {"matmul_vector_matrix", {"a", "b"}, matmul_of},
    {"matmul_crossed", {"a", "b"}, matmul_of},
    {"matmul_one_left", {"a", "b"}, matmul_of},
    {"matmul_first", {"a", "b"}, matmul_of},
    {"permute", {"x"}, permute_of},
    {"unsqueeze", {"x"}, unsqueeze_of},
    {"expand", {"x"}, expand_of},
    {"stack", {"a", "b"}, stack_of},
    {"split", {"x"}, split_of},
    {"chunk", {"x"}, chunk_of},
    {"flatten", {"x"}, flatten_of},
};

enum {
    OPERATIONS = sizeof operations / sizeof *operations
};

/* ---- against PyTorch ---- */

static fsdp_tensor *load(fsdp_device *device, const char *name, const char *part, fsdp_dtype dtype)
{
    const number_tensor *n = number_find("index", name, part);

    return n ? CHECK_PTR(fsdp_cast(CHECK_PTR(fsdp_from_data(device, FSDP_F32, n->ndim, n->shape, n->data)), dtype))
             : NULL;
}

static void compare(const char *name, const char *part, const fsdp_tensor *tensor, double tolerance)
{
    const number_tensor *n = number_get("index", name, part);
    float values[MOST];

    CHECK(fsdp_tensor_numel(CHECK_PTR(tensor)) <= MOST);
    CHECK_EQ(fsdp_tensor_ndim(tensor), n->ndim);
    for (int d = 0; d < n->ndim; d++)
        CHECK_EQ(fsdp_tensor_shape(tensor)[d], n->shape[d]);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    CHECK_CLOSE(values, n->data, fsdp_tensor_numel(tensor), tolerance, tolerance);
}

static void compare_one(fsdp_context *context, int at, fsdp_dtype dtype, fsdp_dtype index_dtype)
{
    const char *name = operations[at].name;
    fsdp_device *device = test_device(context);
    fsdp_tensor *in[2] = {NULL, NULL}, *indices = NULL, *y, *weights = load(device, name, "w", dtype);
    double tolerance = dtype == FSDP_F32 ? 2e-5 : dtype == FSDP_F16 ? 1e-2 : 6e-2;
    char part[8];

    for (int i = 0; i < 2 && operations[at].leaves[i]; i++) {
        in[i] = load(device, name, operations[at].leaves[i], dtype);
        CHECK_OK(fsdp_tensor_set_requires_grad(in[i], true));
    }
    y = operations[at].of(in, load(device, name, "i", index_dtype), &indices);
    compare(name, "y", y, tolerance);
    if (indices) {
        CHECK_EQ(fsdp_tensor_dtype(indices), FSDP_I32);
        compare(name, "indices", indices, 0);
    }
    CHECK_OK(fsdp_backward_from(&y, &weights, 1, false));
    for (int i = 0; i < 2 && in[i]; i++) {
        snprintf(part, sizeof part, "d%s", operations[at].leaves[i]);
        compare(name, part, fsdp_tensor_grad(in[i]), tolerance);
    }
}

TEST(all_is_as_in_pytorch)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    for (int at = 0; at < OPERATIONS; at++)
        for (int i = 0; i < 3; i++) {
            fsdp_context *context = test_context();

            CHECK_OK(fsdp_scope_begin(context));
            compare_one(context, at, dtypes[i], i % 2 ? FSDP_I64 : FSDP_I32);
            fsdp_scope_end(context, NULL);
            CHECK_EQ(tensor_bytes(context), 0);
            fsdp_context_free(context);
        }
}

/* ---- gradients ---- */

static fsdp_tensor *ids(fsdp_tensor *like, int64_t a, int64_t b, const int32_t *values)
{
    return make_ids(fsdp_tensor_device(like), 2, (const int64_t[]){a, b}, values);
}

/* A narrow index into a larger x, from a larger source that is a view. */
static fsdp_tensor *scattered(void *arg, tensors in, int count)
{
    fsdp_tensor *source = fsdp_transpose(in[1], 0, 1), *index = ids(in[0], 3, 2, (const int32_t[]){1, 0, 3, 3, 0, 1});

    (void)count;
    return *(const bool *)arg ? fsdp_scatter_add(in[0], 0, index, source)
                              : fsdp_scatter(in[0], 1, ids(in[0], 2, 3, (const int32_t[]){2, 0, 1, 0, 2, 1}), source);
}

static fsdp_tensor *gathered(void *arg, tensors in, int count)
{
    fsdp_tensor *rows =
        fsdp_index_select(fsdp_transpose(in[0], 0, 1), 0,
                          make_ids(fsdp_tensor_device(in[0]), 1, (const int64_t[]){4}, (const int32_t[]){1, 1, 0, 2}));

    (void)arg, (void)count;
    return fsdp_mul(fsdp_gather(rows, 1, ids(in[0], 4, 2, (const int32_t[]){0, 3, 3, 1, 2, 2, 0, 3})),
                    fsdp_slice(rows, 1, 1, 2));
}

static fsdp_tensor *product(void *arg, tensors in, int count)
{
    (void)arg, (void)count;
    return fsdp_matmul(in[0], fsdp_transpose(in[1], -1, -2));
}

static fsdp_tensor *best(void *arg, tensors in, int count)
{
    fsdp_tensor *values = fsdp_topk(in[0], 2, 0, true, NULL);

    (void)arg, (void)count;
    return fsdp_mul(values, fsdp_topk(in[0], 2, 0, false, NULL));
}

static void gradcheck(fsdp_gradcheck_function function, void *arg, int ndim0, const int64_t *shape0, int ndim1,
                      const int64_t *shape1)
{
    fsdp_context *context = test_context();
    fsdp_tensor *in[2];

    CHECK_OK(fsdp_scope_begin(context));
    in[0] = make_leaf(test_device(context), 1, ndim0, shape0);
    in[1] = make_leaf(test_device(context), 2, ndim1, shape1);
    CHECK_OK(fsdp_gradcheck(function, arg, in, ndim1 ? 2 : 1, 4e-3, 2e-3, 1e-2));
    fsdp_scope_end(context, NULL);
    CHECK_EQ(tensor_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(gradients_are_right_of_views_and_parts)
{
    bool add = true, replace = false;

    gradcheck(scattered, &add, FSDP_SHAPE(4, 3), FSDP_SHAPE(3, 3));
    gradcheck(scattered, &replace, FSDP_SHAPE(3, 4), FSDP_SHAPE(3, 3));
    gradcheck(gathered, NULL, FSDP_SHAPE(4, 3), 0, NULL);
    gradcheck(best, NULL, FSDP_SHAPE(5, 2), 0, NULL);
    gradcheck(product, NULL, FSDP_SHAPE(2, 1, 3, 4), FSDP_SHAPE(3, 2, 4));
    gradcheck(product, NULL, FSDP_SHAPE(1, 3, 4), FSDP_SHAPE(2, 2, 2, 4));
    gradcheck(product, NULL, FSDP_SHAPE(4), FSDP_SHAPE(2, 3, 4));
}

/* Of one weight that is used for all, the gradient is added to what is there; recomputed the same. */
static fsdp_tensor *twice(void *arg, tensors in, int count)
{
    fsdp_tensor *index = make_ids(fsdp_tensor_device(in[0]), 1, (const int64_t[]){3}, (const int32_t[]){1, 0, 1});
    fsdp_tensor *rows = fsdp_index_select(in[0], 0, index);

    (void)arg, (void)count;
    return fsdp_mul(fsdp_topk(fsdp_matmul(rows, fsdp_unsqueeze(in[1], 0)), 2, -1, true, NULL),
                    fsdp_slice(fsdp_unsqueeze(fsdp_index_select(in[0], 0, index), 0), 2, 0, 2));
}

TEST(a_recomputed_function_changes_no_bit)
{
    float values[2][2 * 3];

    for (int recomputed = 0; recomputed < 2; recomputed++) {
        fsdp_context *context = test_context();
        fsdp_tensor *in[2];

        CHECK_OK(fsdp_scope_begin(context));
        in[0] = make_leaf(test_device(context), 1, FSDP_SHAPE(2, 3));
        in[1] = make_leaf(test_device(context), 2, FSDP_SHAPE(3, 4));
        CHECK_OK(fsdp_backward(
            fsdp_sum(recomputed ? fsdp_recompute(context, twice, NULL, in, 2, NULL) : twice(NULL, in, 2))));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(in[0]), FSDP_F32, values[recomputed]));
        fsdp_scope_end(context, NULL);
        CHECK_EQ(tensor_bytes(context), 0);
        fsdp_context_free(context);
    }
    CHECK_BYTES(values[0], values[1], sizeof values[0]);
}

/* ---- the edges ---- */

CONTEXT_TEST(dimensions_of_zero_and_the_meta_device)
{
    fsdp_device *devices[] = {test_device(context), fsdp_meta(context)};

    for (int i = 0; i < 2; i++) {
        fsdp_tensor *none = CHECK_PTR(fsdp_zeros(devices[i], FSDP_F32, FSDP_SHAPE(0, 3))), *y, *indices;
        fsdp_tensor *no_index = CHECK_PTR(fsdp_zeros(devices[i], FSDP_I32, FSDP_SHAPE(0)));
        fsdp_tensor *x = make_leaf(devices[i], 1, FSDP_SHAPE(2, 3));
        fsdp_tensor *index = CHECK_PTR(fsdp_zeros(devices[i], FSDP_I64, FSDP_SHAPE(2, 1)));

        CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_index_select(x, 1, no_index)), 1), 0);
        CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_index_select(none, 0, no_index)), 1), 3);
        CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(fsdp_topk(none, 0, 0, true, &indices))), 0);
        CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(fsdp_topk(none, 2, 1, true, &indices))), 0);
        CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(fsdp_expand(none, FSDP_SHAPE(2, 0, 3)))), 0);
        CHECK_EQ(fsdp_tensor_numel(
                     CHECK_PTR(fsdp_matmul(none, CHECK_PTR(fsdp_zeros(devices[i], FSDP_F32, FSDP_SHAPE(2, 3, 2)))))),
                 0);
        y = fsdp_matmul(fsdp_scatter_add(x, 1, index, fsdp_gather(x, 1, index)), fsdp_transpose(x, 0, 1));
        CHECK_OK(fsdp_backward(fsdp_sum(fsdp_topk(y, 1, 0, true, &indices))));
        CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_tensor_grad(x)), 1), 3);
        CHECK_EQ(fsdp_tensor_size(indices, 1), 2);
        CHECK(fsdp_squeeze(x, 0) == x);
    }
}

/* A scatter into a part of its input is made of several operations, each of which may fail. */
CONTEXT_TEST(no_memory_is_an_error_and_not_a_crash)
{
    fsdp_device *device = test_device(context);
    fsdp_tensor *x, *index, *y;

    CHECK_OK(fsdp_scope_begin(context));
    x = make_leaf(device, 1, FSDP_SHAPE(4, 3, 5));
    index = ids(x, 2, 2, (const int32_t[]){0, 1, 2, 2});
    index = CHECK_PTR(fsdp_unsqueeze(index, 2));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp_scope_begin(context);

        if (status == FSDP_OK) {
            y = fsdp_scatter_add(x, 1, index, fsdp_gather(x, 1, index));
            y = fsdp_topk(y, 2, 0, true, NULL);
            status = y ? FSDP_OK : fsdp_last_status();
            fsdp_scope_end(context, NULL);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
    fsdp_scope_end(context, NULL);
}

/* Integers and masks are moved as they are; there is no gradient. */
CONTEXT_TEST(any_dtype_can_be_taken_by_index)
{
    static const fsdp_dtype dtypes[] = {FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL, FSDP_BF16};

    for (int i = 0; i < 5; i++) {
        fsdp_device *device = test_device(context);
        fsdp_tensor *index = make_ids(device, 1, (const int64_t[]){4}, (const int32_t[]){1, 0, 1, 1});
        fsdp_tensor *x =
            CHECK_PTR(fsdp_cast(make_ids(device, 1, (const int64_t[]){2}, (const int32_t[]){0, 1}), dtypes[i]));
        int32_t values[4];

        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_index_select(x, 0, index)), FSDP_I32, values));
        CHECK_BYTES(values, ((const int32_t[]){1, 0, 1, 1}), sizeof values);
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_scatter(x, 0, fsdp_slice(index, 0, 1, 1), fsdp_slice(x, 0, 1, 1))),
                                  FSDP_I32, values));
        CHECK_BYTES(values, ((const int32_t[]){1, 1}), 2 * sizeof *values);
    }
}

/* ---- one tensor in several places ---- */

static void check_gradient(const fsdp_tensor *leaf, const float *expected)
{
    float values[16];

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(leaf)), FSDP_F32, values));
    CHECK_BYTES(values, expected, (size_t)fsdp_tensor_numel(leaf) * sizeof *values);
}

/* x as what is written to, and as what is written: both gradients arrive. */
CONTEXT_TEST(a_tensor_may_be_scattered_into_itself)
{
    static const float weights[] = {1, 2, 3, 4, 5, 6}, replaced[] = {2, 3, 1, 4, 9, 6}, added[] = {3, 5, 4, 8, 9, 12};
    fsdp_device *device = test_device(context);
    const int64_t shape[] = {2, 3};

    for (int adds = 0; adds < 2; adds++) {
        fsdp_tensor *x, *w, *index, *y;

        CHECK_OK(fsdp_scope_begin(context));
        x = make_leaf(device, 1, 2, shape);
        w = CHECK_PTR(fsdp_from_data(device, FSDP_F32, 2, shape, weights));
        index = make_ids(device, 2, shape, (const int32_t[]){1, 2, 0, 0, 0, 2});
        y = adds ? fsdp_scatter_add(x, 1, index, x) : fsdp_scatter(x, 1, index, x);
        CHECK_OK(fsdp_backward(fsdp_sum(fsdp_mul(y, w))));
        check_gradient(x, adds ? added : replaced);
        fsdp_scope_end(context, NULL);
    }
}

/* The gradient of what is repeated is added to one that is there. */
CONTEXT_TEST(what_is_repeated_adds_to_a_gradient_that_is_there)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const float expected[] = {129, 129, 129};
    fsdp_device *device = test_device(context);

    for (int i = 0; i < 3; i++) {
        fsdp_tensor *x;

        CHECK_OK(fsdp_scope_begin(context));
        x = CHECK_PTR(fsdp_full(device, dtypes[i], FSDP_SHAPE(3), 2.0));
        CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
        CHECK_OK(fsdp_backward(fsdp_sum(x)));
        CHECK_OK(fsdp_backward(fsdp_sum(fsdp_expand(x, FSDP_SHAPE(128, 3)))));
        check_gradient(x, expected);
        fsdp_scope_end(context, NULL);
    }
}

#define ZEROS(...) fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(__VA_ARGS__))

CONTEXT_TEST(an_index_outside_is_named)
{
    fsdp_device *device = test_device(context);
    const int64_t wide[] = {0, 1, (int64_t)1 << 32};
    fsdp_tensor *x, *far, *index;

    x = ZEROS(2, 3);
    index = ids(x, 2, 3, (const int32_t[]){0, 1, 2, 2, -1, 0});
    far = CHECK_PTR(fsdp_from_data(device, FSDP_I64, FSDP_SHAPE(3), wide));
    CHECK_INVALID(fsdp_gather(x, 1, index), "gather: index -1 at position (1, 1) is outside [0, 3)");
    CHECK_INVALID(fsdp_gather(x, 0, index), "gather: index 2 at position (0, 2) is outside [0, 2)");
    CHECK_INVALID(fsdp_index_select(x, 1, far), "index_select: index 4294967296 at position (2,) is outside [0, 3)");
    CHECK_INVALID(fsdp_scatter(x, 1, index, x), "scatter: index -1 at position (1, 1)");
    CHECK_INVALID(fsdp_scatter_add(x, 1, index, x), "scatter_add: index -1 at position (1, 1)");
    CHECK_INVALID(fsdp_index_select(ZEROS(0, 2), 0, fsdp_slice(far, 0, 0, 1)),
                  "index 0 at position (0,) is outside [0, 0)");
}

CONTEXT_TEST(what_does_not_fit_is_named)
{
    fsdp_device *device = test_device(context);
    fsdp_tensor *x, *i, *indices, *parts[3], *small;

    x = ZEROS(2, 3);
    i = CHECK_PTR(fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(2, 3)));
    small = CHECK_PTR(fsdp_zeros(device, FSDP_BF16, FSDP_SHAPE(2, 3)));
    CHECK_INVALID(fsdp_index_select(x, 2, i), "index_select: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_index_select(x, 0, i), "index_select: index must be of one dimension, not int32 (2, 3)");
    CHECK_INVALID(fsdp_gather(x, 0, x), "gather: index must be int32 or int64, not float32 (2, 3)");
    CHECK_INVALID(fsdp_gather(ZEROS(2, 2), 0, i), "gather: index (2, 3) does not fit input (2, 2)");
    CHECK_INVALID(fsdp_scatter(x, 0, i, ZEROS(2, 2)), "scatter: index (2, 3) does not fit source (2, 2)");
    CHECK_INVALID(fsdp_scatter(x, 0, i, small), "scatter: input is float32 and source bfloat16");
    CHECK_INVALID(fsdp_scatter_add(i, 0, i, i), "scatter_add: input must be floating");
    CHECK_INVALID(fsdp_topk(x, 4, 1, true, &indices), "topk: cannot take 4 elements of dimension 1 of (2, 3)");
    CHECK_NULL(indices);
    CHECK_INVALID(fsdp_topk(x, -1, 1, true, &indices), "topk: -1 elements");
    CHECK_INVALID(fsdp_sort(i, 0, true, NULL), "sort: input must be floating");
    CHECK_INVALID(fsdp_matmul(ZEROS(2, 3, 4), ZEROS(3, 4, 5)), "matmul: left (2, 3, 4) does not fit right (3, 4, 5)");
    CHECK_INVALID(fsdp_matmul(x, ZEROS(2)), "matmul: left (2, 3) does not fit right (2,)");
    CHECK_INVALID(fsdp_permute(x, 2, (const int[]){0, 0}), "permute: the 2 dimensions are not those of (2, 3)");
    CHECK_INVALID(fsdp_permute(x, 2, NULL), "permute: the list of 2 is NULL");
    CHECK_INVALID(fsdp_expand(x, INT_MIN, &(int64_t){2}), "expand: (2, 3) cannot be repeated");
    CHECK_INVALID(fsdp_unsqueeze(x, 3), "unsqueeze: input (2, 3) has no dimension 3");
    CHECK_INVALID(fsdp_unsqueeze(ZEROS(1, 1, 1, 1, 1, 1), 0), "0 to 6 are possible");
    CHECK_INVALID(fsdp_squeeze(x, -3), "squeeze: input (2, 3) has no dimension -3");
    CHECK_INVALID(fsdp_flatten(x, 1, 0), "flatten: dimension 1 comes after dimension 0 of (2, 3)");
    CHECK_INVALID(fsdp_expand(x, FSDP_SHAPE(3, 3)), "expand: (2, 3) cannot be repeated to (3, 3)");
    CHECK_INVALID(fsdp_expand(x, FSDP_SHAPE(-1, 2, 3)), "expand: (2, 3) cannot be repeated to (-1, 2, 3)");
    CHECK_INVALID(fsdp_expand(x, FSDP_SHAPE(3)), "cannot be repeated to (3,)");
    CHECK_ERROR(fsdp_split(x, 1, 3, (const int64_t[]){2, 2, -1}, parts), FSDP_INVALID, "the 3 sizes do not add up");
    CHECK_ERROR(fsdp_split(x, 1, 3, (const int64_t[]){INT64_MAX, INT64_MAX, 5}, parts), FSDP_INVALID,
                "the 3 sizes do not add up");
    CHECK_ERROR(fsdp_split(x, 1, 0, NULL, parts), FSDP_INVALID, "split: the 0 sizes");
    CHECK_NULL(parts[0]);
    parts[0] = x, parts[1] = ZEROS(3);
    CHECK_INVALID(fsdp_stack(parts, 2, 0), "stack: tensor (3,) does not fit the first (2, 3)");
    CHECK_INVALID(fsdp_stack(parts, 0, 0), "stack: at least one tensor is needed");
    CHECK_ERROR(fsdp_tensor_fill_(CHECK_PTR(fsdp_expand(x, FSDP_SHAPE(4, 2, 3))), 1), FSDP_INVALID,
                "repeats its elements");
    x = CHECK_PTR(fsdp_empty(fsdp_meta(context), FSDP_U8, FSDP_SHAPE((int64_t)3 << 30)));
    i = CHECK_PTR(fsdp_empty(fsdp_meta(context), FSDP_I64, FSDP_SHAPE(2)));
    CHECK_FAILS(fsdp_index_select(x, 0, i), FSDP_UNSUPPORTED, "index_select: a dimension of 3221225472 elements");
    CHECK_NULL(fsdp_gather(NULL, 0, i));
    CHECK_NULL(fsdp_expand(NULL, 0, NULL));
}
