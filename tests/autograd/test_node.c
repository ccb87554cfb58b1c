/* What a node saved and what was written since: an error that says what it is, or the gradient of what was there.
 * Links: ops */
#include <math.h>

#include "autograd/tools.h"
#include "fsdp/ops.h"
#include "support/dice.h"
#include "support/scope.h"

#define WRITTEN "was written to after the forward"

static fsdp_tensor *leaf(int64_t rows, int64_t cols)
{
    static uint64_t key;

    return make_leaf(device, ++key, FSDP_SHAPE(rows, cols));
}

static fsdp_tensor *plain(int64_t rows, int64_t cols)
{
    return make_random(device, 7, FSDP_SHAPE(rows, cols));
}

/* ---- an error that says what it is ---- */

SCOPE_TEST(a_written_input_is_an_error_that_names_it)
{
    fsdp_tensor *w = leaf(2, 3), *x = leaf(2, 3), *y = CHECK_PTR(fsdp_mul(fsdp_mul(w, x), w));

    CHECK_OK(fsdp_tensor_fill_(w, 10));
    CHECK_ERROR(fsdp_backward(fsdp_sum(y)), FSDP_STATE,
                "backward of mul: input 1 (2, 3) was written to after the forward: the backward needs version 1 of it, "
                "this is version 2; run the backward before the write, or give the operation a copy");
    CHECK_NULL(fsdp_tensor_grad(w));
    CHECK_NULL(fsdp_tensor_grad(x));
    y = CHECK_PTR(fsdp_exp(x));
    CHECK_OK(fsdp_tensor_fill_(y, 10));
    CHECK_ERROR(fsdp_backward(fsdp_sum(y)), FSDP_STATE, "backward of exp: output 0 (2, 3) " WRITTEN);
    w = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(3)); /* the second that is given, of places for a residual as well */
    CHECK_OK(fsdp_tensor_set_requires_grad(w, true));
    y = CHECK_PTR(fsdp_rmsnorm(x, w, 1e-5f));
    CHECK_OK(fsdp_tensor_fill_(w, 10));
    CHECK_ERROR(fsdp_backward(fsdp_sum(y)), FSDP_STATE, "input 1 (3,) " WRITTEN);
}

static fsdp_status write_ones(const void *arg, void *const *data)
{
    (void)arg;
    ((float *)data[0])[0] = 1;
    return FSDP_OK;
}

static void write_by(int kind, fsdp_tensor *tensor)
{
    const float values[6] = {1, 2, 3, 4, 5, 6};

    fsdp_no_grad_begin(context);
    switch (kind) {
    case 0:
        CHECK_OK(fsdp_tensor_fill_(tensor, 1));
        break;
    case 1:
        CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
        break;
    case 2:
        CHECK_OK(fsdp_tensor_copy_(tensor, plain(2, 3)));
        break;
    case 3:
        CHECK_OK(fsdp_launch_kernel("ones", write_ones, NULL, 0, &tensor, 1, &tensor, 1));
        break;
    case 4:
        CHECK_OK(fsdp_tensor_begin_write(tensor));
        break;
    case 5: /* by a view */
        CHECK_OK(fsdp_tensor_fill_(fsdp_slice(tensor, 0, 1, 1), 1));
        break;
    default:
        CHECK_OK(fsdp_tensor_fill_(fsdp_detach(fsdp_transpose(tensor, 0, 1)), 1));
    }
    fsdp_no_grad_end(context);
}

SCOPE_TEST(every_way_to_write_counts_also_by_a_view)
{
    for (int kind = 0; kind < 7; kind++) {
        fsdp_tensor *x = leaf(2, 3), *of_view, *y;

        of_view = fsdp_square(fsdp_slice(x, 0, 0, 1));
        y = fsdp_square(fsdp_detach(x)); /* for a view that is made before, and one that is made after */
        CHECK(!fsdp_tensor_requires_grad(y));
        write_by(kind, x);
        CHECK_ERROR(fsdp_backward(fsdp_sum(of_view)), FSDP_STATE, "backward of square: input 0 (1, 3) " WRITTEN);
        CHECK_OK(fsdp_backward(fsdp_sum(fsdp_square(x)))); /* of what was read after it */
    }
}

/* ---- what the backward does not read ---- */

#define UNREAD(name, x, expression, written)                                                    \
    {                                                                                           \
        fsdp_tensor *x = leaf(2, 3), *y;                                                        \
        float before[6], after[6];                                                              \
                                                                                                \
        for (int writes = 0; writes < 2; writes++) {                                            \
            CHECK_OK(fsdp_tensor_set_grad(x, NULL));                                            \
            y = CHECK_PTR(fsdp_sum(expression));                                                \
            if (writes)                                                                         \
                CHECK_OK(fsdp_tensor_fill_(written, 3));                                        \
            CHECK_OK(fsdp_backward(y));                                                         \
            CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, writes ? after : before)); \
        }                                                                                       \
        CHECK(memcmp(before, after, sizeof before) == 0);                                       \
    }

SCOPE_TEST(what_a_backward_does_not_read_may_be_written)
{
    fsdp_tensor *other = plain(2, 3), *weight = plain(4, 3), *row = plain(4, 1);

    row = fsdp_reshape(row, FSDP_SHAPE(4));
    UNREAD("add", x, fsdp_add(x, other), other)
    UNREAD("add", x, fsdp_sub(fsdp_scale(other, 2), x), x)
    UNREAD("scale", x, fsdp_scale(x, 2), x)
    UNREAD("mul", x, fsdp_mul(x, other), x)
    UNREAD("div", x, fsdp_div(x, other), x)
    UNREAD("swiglu", x, fsdp_swiglu(other, x), x)
    UNREAD("sum", x, fsdp_sum_dim(x, 0, false), x)
    UNREAD("mean", x, fsdp_mean(x), x)
    UNREAD("exp", x, fsdp_exp(x), x)
    UNREAD("softmax", x, fsdp_softmax(x), x)
    UNREAD("dropout", x, fsdp_dropout(x, 0.4f, 3), x)
    UNREAD("linear", x, fsdp_linear(x, weight, row), row)
    UNREAD("linear", x, fsdp_linear(x, weight, FSDP_NO_BIAS), x)
    UNREAD("matmul", x, fsdp_matmul(x, fsdp_transpose(weight, 0, 1)), x)
    UNREAD("a copy", x, fsdp_square(fsdp_contiguous(fsdp_transpose(x, 0, 1))), x)
    UNREAD("the loss", x, fsdp_cross_entropy(x, fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(2))), x)
}

/* ---- graphs that are kept, gradients ---- */

SCOPE_TEST(a_kept_graph_may_be_walked_again_until_something_is_written)
{
    fsdp_tensor *x = leaf(2, 3), *y = CHECK_PTR(fsdp_sum(fsdp_square(x)));

    CHECK_OK(fsdp_backward_from(&y, NULL, 1, true));
    CHECK_OK(fsdp_backward_from(&y, NULL, 1, true));
    CHECK_OK(fsdp_tensor_fill_(x, 1));
    CHECK_ERROR(fsdp_backward_from(&y, NULL, 1, true), FSDP_STATE, WRITTEN);
    CHECK_ERROR(fsdp_backward_from(&y, NULL, 1, false), FSDP_STATE, WRITTEN);
}

SCOPE_TEST(a_gradient_that_was_used_and_then_added_to_is_an_error)
{
    fsdp_tensor *w = leaf(2, 3), *v = leaf(2, 3), *y;

    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_square(w))));
    y = CHECK_PTR(fsdp_sum(fsdp_mul(v, fsdp_tensor_grad(w))));
    CHECK_OK(fsdp_backward_from(&y, NULL, 1, true));
    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_square(w))));
    CHECK_ERROR(fsdp_backward_from(&y, NULL, 1, false), FSDP_STATE, "backward of mul: input 1 (2, 3) " WRITTEN);
}

/* The product for the weight's gradient reads what it would add to. */
SCOPE_TEST(an_operation_may_read_the_gradient_that_it_adds_to)
{
    fsdp_tensor *w = leaf(3, 3), *copy, *y;
    float sums[9], parts[2][9];

    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_square(w))));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, parts[0]));
    copy = CHECK_PTR(fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(3, 3), parts[0]));
    y = CHECK_PTR(fsdp_sum(fsdp_linear(fsdp_tensor_grad(w), w, FSDP_NO_BIAS)));
    CHECK_OK(fsdp_backward(y));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, sums));
    CHECK_OK(fsdp_tensor_set_grad(w, NULL));
    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_linear(copy, w, FSDP_NO_BIAS))));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, parts[1]));
    for (int i = 0; i < 9; i++)
        CHECK_NEAR(sums[i], parts[0][i] + parts[1][i], 1e-5);
}

/* ---- recomputed functions ---- */

typedef struct captured {
    fsdp_tensor *scale, *shift;
} captured;

/* Reads two tensors that are no inputs; nothing saves the second. */
static fsdp_tensor *with_captured(void *arg, fsdp_tensor *const *inputs, int count)
{
    const captured *c = arg;

    (void)count;
    return fsdp_square(fsdp_add(fsdp_mul(inputs[0], c->scale), c->shift));
}

SCOPE_TEST(a_recomputed_function_that_computes_from_what_was_written_is_an_error)
{
    captured c = {plain(2, 3), plain(2, 3)};
    const fsdp_recompute_options options = {.mode = FSDP_RECOMPUTE_FULL};
    fsdp_tensor *written[] = {c.scale, c.shift, NULL};

    for (int i = 0; i < 3; i++) {
        fsdp_tensor *x = leaf(2, 3), *y;

        y = CHECK_PTR(fsdp_sum(fsdp_recompute(context, with_captured, &c, &x, 1, &options)));
        if (written[i])
            CHECK_OK(fsdp_tensor_fill_(written[i], 2));
        if (written[i])
            CHECK_ERROR(fsdp_backward(y), FSDP_STATE, i == 0 ? WRITTEN : "reads a tensor that was written to");
        else
            CHECK_OK(fsdp_backward(y));
    }
}

/* Of the products the first is kept. */
static fsdp_status two_products(void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                                int output_count)
{
    (void)count, (void)output_count;
    outputs[0] = fsdp_linear(inputs[0], arg, FSDP_NO_BIAS);
    outputs[1] = fsdp_square(fsdp_scale(outputs[0], 2));
    return outputs[1] ? FSDP_OK : fsdp_last_status();
}

SCOPE_TEST(a_kept_result_that_was_written_is_computed_again)
{
    const fsdp_recompute_options options = {.mode = FSDP_RECOMPUTE_SELECTIVE};
    fsdp_tensor *x = leaf(2, 3), *w = leaf(3, 3), *y[2];
    float gradients[2][9];

    for (int writes = 0; writes < 2; writes++) {
        CHECK_OK(fsdp_recompute_many(context, two_products, w, &x, 1, y, 2, &options));
        if (writes)
            CHECK_OK(fsdp_tensor_fill_(y[0], 2));
        CHECK_OK(fsdp_backward(fsdp_sum(y[1])));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, gradients[writes]));
        CHECK_OK(fsdp_tensor_set_grad(w, NULL));
    }
    CHECK_BYTES(gradients[1], gradients[0], sizeof gradients[0]);
}

/* ---- programs in any order ---- */

enum {
    LEAVES = 3,
    MOST = 40, /* tensors of a program */
    SIZE = 3   /* all are (3,3), of small whole numbers: sums are exact in any order */
};

/* One step: makes a tensor, or writes to one that is there. */
typedef struct step {
    int kind, a, b;
    float value;
} step;

enum {
    ADD,
    SUB,
    MUL,
    MATMUL,
    SQUARE,
    MAXIMUM,
    VIEW,   /* all of it, by other strides */
    REPEAT, /* recomputed */
    WRITE,
    KINDS
};

static fsdp_tensor *product_of(void *arg, fsdp_tensor *const *inputs, int count)
{
    (void)arg;
    return fsdp_add(fsdp_mul(inputs[0], inputs[count - 1]), inputs[0]);
}

/* The tensor that takes the place of `old` where that is not written to but copied: its gradient is that of `old`. */
static fsdp_status overwrite_backward(fsdp_node *node, fsdp_tensor *const *grads)
{
    return fsdp_node_give(node, 0, grads[0]);
}

static fsdp_tensor *overwritten(fsdp_tensor *old, double value)
{
    static const fsdp_operation operation = {.name = "overwrite", .backward = overwrite_backward};
    fsdp_tensor *y;

    fsdp_no_grad_begin(context);
    y = CHECK_PTR(fsdp_full(device, FSDP_F32, FSDP_SHAPE(SIZE, SIZE), value));
    fsdp_no_grad_end(context);
    CHECK_OK(fsdp_record(&operation, &old, 1, &y, 1, NULL, 0, NULL, 0));
    return y;
}

typedef struct program {
    fsdp_tensor *made[MOST];
    int base[MOST]; /* of a view the tensor that it shows, else itself */
    int count;
    bool copies; /* nothing is written to */
} program;

static fsdp_tensor *now(const program *p, int index)
{
    fsdp_tensor *base = p->made[p->base[index]];

    if (p->base[index] == index || !p->copies)
        return p->made[index];
    return fsdp_transpose(base, 0, 1);
}

static void run_step(program *p, const step *s)
{
    fsdp_tensor *a = now(p, s->a), *b = now(p, s->b), *pair[] = {a, b}, *y = NULL;

    switch (s->kind) {
    case ADD:
        y = fsdp_add(a, b);
        break;
    case SUB:
        y = fsdp_sub(a, b);
        break;
    case MUL:
        y = fsdp_mul(a, b);
        break;
    case MATMUL:
        y = fsdp_matmul(a, b);
        break;
    case SQUARE:
        y = fsdp_square(a);
        break;
    case MAXIMUM:
        y = fsdp_maximum(a, b);
        break;
    case VIEW:
        y = fsdp_transpose(p->made[p->base[s->a]], 0, 1);
        break;
    case REPEAT:
        y = fsdp_recompute(context, product_of, NULL, pair, 2, NULL);
        break;
    default:
        if (p->copies)
            p->made[p->base[s->a]] = overwritten(p->made[p->base[s->a]], (double)s->value);
        else
            CHECK_OK(fsdp_tensor_fill_(p->made[s->a], (double)s->value));
        return;
    }
    p->base[p->count] = s->kind == VIEW ? p->base[s->a] : p->count;
    p->made[p->count++] = CHECK_PTR(y);
}

/* The gradients of the leaves of a sum of all that was made; false: refused. */
static bool run_program(const step *steps, int count, bool copies, float gradients[LEAVES][SIZE * SIZE])
{
    program p = {.copies = copies};
    fsdp_tensor *leaves[LEAVES], *sum;
    fsdp_status status;

    CHECK_OK(fsdp_scope_begin(context));
    for (; p.count < LEAVES; p.count++) {
        float values[SIZE * SIZE];

        for (int i = 0; i < SIZE * SIZE; i++)
            values[i] = (float)((i * 5 + p.count * 7) % 3 - 1);
        leaves[p.count] = fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(SIZE, SIZE), values);
        CHECK_OK(fsdp_tensor_set_requires_grad(CHECK_PTR(leaves[p.count]), true));
        p.made[p.count] = leaves[p.count];
        p.base[p.count] = p.count;
    }
    for (int i = 0; i < count; i++)
        run_step(&p, &steps[i]);
    sum = now(&p, p.count - 1);
    for (int i = 0; i + 1 < p.count; i++)
        sum = fsdp_add(sum, now(&p, i));
    status = fsdp_backward(fsdp_sum(sum));
    CHECK(status == FSDP_OK || (!copies && status == FSDP_STATE && strstr(fsdp_last_error(), "written to")));
    for (int i = 0; i < LEAVES && status == FSDP_OK; i++)
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(leaves[i])), FSDP_F32, gradients[i]));
    fsdp_scope_end(context, NULL);
    return status == FSDP_OK;
}

/* Whether sums may have been rounded. */
static bool is_large(float gradients[LEAVES][SIZE * SIZE])
{
    bool large = false;

    for (int i = 0; i < LEAVES; i++)
        for (int k = 0; k < SIZE * SIZE; k++)
            large = large || !(fabsf(gradients[i][k]) < 1e5f);
    return large;
}

static bool same(float a[LEAVES][SIZE * SIZE], float b[LEAVES][SIZE * SIZE])
{
    bool equal = true;

    for (int i = 0; i < LEAVES; i++)
        for (int k = 0; k < SIZE * SIZE; k++) /* the sign of a zero may follow from the order */
            equal = equal && !(a[i][k] < b[i][k]) && !(a[i][k] > b[i][k]);
    return equal;
}

/* A write that the backward notices is refused; after one that it does not, the gradients are those of a program that
 * copies instead of writing. */
SCOPE_TEST(programs_in_any_order_have_the_right_gradients_or_none)
{
    const dice_seeds seeds = dice_seeds_of("PROGRAMS", test_long() ? 20000 : 1500);
    int right = 0, refused = 0, least = (int)(seeds.end - seeds.first) / 5;

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        float gradients[2][LEAVES][SIZE * SIZE];
        uint64_t random = seed * 0x9e3779b97f4a7c15u;
        int count = 2 + dice_below(&random, 10), made = LEAVES;
        step steps[MOST];

        for (int i = 0; i < count; i++) {
            steps[i] = (step){.kind = dice_below(&random, KINDS + 1),
                              .a = dice_below(&random, made),
                              .b = dice_below(&random, made),
                              .value = (float)(dice_below(&random, 3) - 1)};
            steps[i].kind = steps[i].kind == KINDS ? WRITE : steps[i].kind;
            made += steps[i].kind != WRITE;
        }
        if (!run_program(steps, count, true, gradients[0]))
            TEST_FAIL("seed %llu: refused without a write", (unsigned long long)seed);
        if (!run_program(steps, count, false, gradients[1]))
            refused++;
        else if (is_large(gradients[0]))
            continue;
        else if (!same(gradients[0], gradients[1]))
            TEST_FAIL("seed %llu: other gradients", (unsigned long long)seed);
        else
            right++;
    }
    CHECK(seeds.only || (right > least && refused > least));
}
