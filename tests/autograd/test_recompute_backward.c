/* What a recomputed function may write to, and what then is an error: never another gradient.
 * Links: ops */
#include "autograd/tools.h"
#include "fsdp/ops.h"
#include "support/scope.h"

static fsdp_tensor *leaf(int64_t rows, int64_t cols)
{
    return make_leaf(device, 1, FSDP_SHAPE(rows, cols));
}

static fsdp_tensor *plain(int64_t rows, int64_t cols)
{
    return make_random(device, 7, FSDP_SHAPE(rows, cols));
}

/* What a recomputed function does with a tensor of its own, `buffer`, before it gives x times a tensor of threes. */
typedef enum own_write {
    FILLS,
    COPIES,
    WRITES_FROM_HOST,
    LAUNCHES,
    KEEPS_STATISTICS, /* for others to read */
    COUNTS,
    IS_NESTED,
    ADDS_UP, /* from here on it reads what its other run has written */
    COUNTS_AND_READS,
    FILLS_A_PART,
    COMPUTES_A_MASK,
    COMPUTES_MORE,
    WRITES_AFTER
} own_write;

typedef struct own_buffer {
    fsdp_tensor *buffer, *threes;
    own_write kind;
    double value; /* that it fills with */
} own_buffer;

static fsdp_status write_threes(const void *arg, void *const *data)
{
    (void)arg;
    for (int i = 0; i < 6; i++)
        ((float *)data[0])[i] = 3;
    return FSDP_OK;
}

/* By one more than there was. */
static void count_up(fsdp_tensor *buffer)
{
    float values[6];

    CHECK_OK(fsdp_tensor_read(buffer, FSDP_F32, values));
    for (int i = 0; i < 6; i++)
        values[i]++;
    CHECK_OK(fsdp_tensor_write(buffer, FSDP_F32, values));
}

static fsdp_tensor *with_own_buffer(void *arg, fsdp_tensor *const *inputs, int count)
{
    const own_buffer *o = arg;
    own_buffer inner = {o->buffer, o->threes, FILLS, o->value};
    const float threes[6] = {3, 3, 3, 3, 3, 3};
    fsdp_tensor *b = o->buffer, *x = inputs[0], *y;

    (void)count;
    switch (o->kind) {
    case FILLS:
        CHECK_OK(fsdp_tensor_fill_(b, o->value));
        return fsdp_mul(x, b);
    case COPIES:
        CHECK_OK(fsdp_tensor_copy_(b, fsdp_scale(o->threes, 1)));
        return fsdp_mul(x, fsdp_reshape(b, FSDP_SHAPE(2, 3)));
    case WRITES_FROM_HOST:
        CHECK_OK(fsdp_tensor_write(b, FSDP_F32, threes));
        return fsdp_mul(x, fsdp_scale(b, 1));
    case LAUNCHES:
        CHECK_OK(fsdp_launch_kernel("threes", write_threes, NULL, 0, NULL, 0, &b, 1));
        return fsdp_mul(x, b);
    case KEEPS_STATISTICS:
        CHECK_OK(fsdp_tensor_copy_(b, fsdp_add(fsdp_mul(x, b), fsdp_square(b))));
        return fsdp_mul(x, o->threes);
    case COUNTS:
        count_up(b);
        return fsdp_mul(x, o->threes);
    case IS_NESTED:
        y = fsdp_recompute(context, with_own_buffer, &inner, &x, 1, NULL);
        return fsdp_mul(y, fsdp_exp(fsdp_scale(b, 0)));
    case ADDS_UP:
        CHECK_OK(fsdp_tensor_copy_(b, fsdp_add(b, o->threes)));
        return fsdp_mul(x, fsdp_scale(b, 2));
    case COUNTS_AND_READS:
        count_up(b);
        return fsdp_mul(x, b);
    case FILLS_A_PART:
        CHECK_OK(fsdp_tensor_fill_(fsdp_slice(b, 0, 0, 1), 3));
        return fsdp_mul(x, b);
    case COMPUTES_A_MASK: /* which is no input of where */
        y = fsdp_mul(x, fsdp_where(fsdp_gt(b, o->threes), o->threes, fsdp_scale(o->threes, 2)));
        CHECK_OK(fsdp_tensor_fill_(b, 7));
        return y;
    default:
        y = fsdp_mul(x, o->kind == COMPUTES_MORE ? fsdp_square(b) : b); /* the square is not recorded */
        CHECK_OK(fsdp_tensor_fill_(b, 7));
        return y;
    }
}

static own_buffer own_buffer_of(own_write kind)
{
    own_buffer o = {plain(2, 3), plain(2, 3), kind, 3};

    CHECK_OK(fsdp_tensor_fill_(o.threes, 3));
    return o;
}

static fsdp_tensor *through_own_buffer(own_buffer *o, fsdp_tensor *x)
{
    return CHECK_PTR(fsdp_sum(fsdp_recompute(context, with_own_buffer, o, &x, 1, NULL)));
}

static void check_gradient(fsdp_tensor *x, float value)
{
    float values[6];

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(x)), FSDP_F32, values));
    for (int i = 0; i < 6; i++)
        CHECK_NEAR(values[i], value, 0);
}

SCOPE_TEST(a_recomputed_function_may_write_to_tensors_of_its_own)
{
    for (own_write kind = FILLS; kind <= WRITES_AFTER; kind++) {
        own_buffer o = own_buffer_of(kind);
        fsdp_tensor *x = leaf(2, 3), *y = through_own_buffer(&o, x);

        if (kind >= ADDS_UP) {
            CHECK_STATUS(fsdp_backward(y), FSDP_STATE);
            CHECK_CONTAINS(fsdp_last_error(), "was written to");
            CHECK_NULL(fsdp_tensor_grad(x));
            continue;
        }
        CHECK_OK(fsdp_backward_from(&y, NULL, 1, true));
        check_gradient(x, 3);
        CHECK_OK(fsdp_backward(y));
        check_gradient(x, 6);
    }
}

SCOPE_TEST(a_write_from_outside_to_what_a_recomputed_function_writes_to_is_an_error)
{
    for (own_write kind = FILLS; kind <= IS_NESTED; kind++)
        for (int source = 0; source < 2; source++) {
            own_buffer o = own_buffer_of(kind);
            fsdp_tensor *x = leaf(2, 3), *y = through_own_buffer(&o, x);
            bool reads = kind == KEEPS_STATISTICS || kind == COUNTS ? source : !source || kind == COPIES;

            CHECK_OK(fsdp_tensor_fill_(source ? o.threes : o.buffer, 4));
            CHECK_STATUS(fsdp_backward(y), reads ? FSDP_STATE : FSDP_OK);
            if (reads)
                CHECK_NULL(fsdp_tensor_grad(x));
            else
                check_gradient(x, 3);
        }
}

SCOPE_TEST(recomputed_functions_may_share_what_they_write_to)
{
    own_buffer a = own_buffer_of(FILLS), b = a, reader = a;
    fsdp_tensor *x = leaf(2, 3), *y;

    b.value = 5;
    y = fsdp_add(through_own_buffer(&a, x), through_own_buffer(&b, x));
    CHECK_OK(fsdp_backward_from(&y, NULL, 1, true));
    check_gradient(x, 8);
    /* What came back of the one is kept, and was written to by the other. */
    CHECK_ERROR(fsdp_backward(y), FSDP_STATE, "was written to after the forward");
    x = leaf(2, 3);
    reader.kind = COMPUTES_MORE;
    y = through_own_buffer(&reader, x); /* it reads what is there before its own write */
    y = fsdp_add(y, through_own_buffer(&b, x));
    CHECK_ERROR(fsdp_backward(y), FSDP_STATE, "reads a tensor that was written to");
}

/* ---- what a function reads that is no input of it ---- */

/* Of a tensor of whole numbers or a mask that an operation copies before it reads it. */
typedef enum reading {
    SELECTS_WIDE,   /* int64 */
    SELECTS_TURNED, /* not contiguous */
    EMBEDS_TURNED,
    GATHERS_WIDE,
    FILLS_BY_TURNED,
    CHOOSES_BY_TURNED,
    COMPARES_TURNED,
    READINGS
} reading;

typedef struct reader {
    reading kind;
    fsdp_tensor *read;
} reader;

static fsdp_tensor *with_reading(void *arg, fsdp_tensor *const *inputs, int count)
{
    const reader *r = arg;
    fsdp_tensor *x = fsdp_square(inputs[0]), *turned = fsdp_transpose(r->read, 0, 1);

    (void)count;
    switch (r->kind) {
    case SELECTS_WIDE:
        return fsdp_square(fsdp_index_select(x, 0, fsdp_reshape(r->read, FSDP_SHAPE(9))));
    case SELECTS_TURNED:
        return fsdp_square(fsdp_index_select(x, 0, fsdp_squeeze(fsdp_slice(r->read, 1, 1, 1), 1)));
    case EMBEDS_TURNED:
        return fsdp_square(fsdp_embedding(x, turned));
    case GATHERS_WIDE:
        return fsdp_square(fsdp_gather(x, 1, r->read));
    case FILLS_BY_TURNED:
        return fsdp_square(fsdp_masked_fill(x, turned, 0.5));
    case CHOOSES_BY_TURNED:
        return fsdp_square(fsdp_where(turned, x, inputs[0]));
    default:
        return fsdp_square(fsdp_where(fsdp_gt(turned, fsdp_scalar(turned, 0.5)), x, inputs[0]));
    }
}

static fsdp_dtype dtype_read(reading kind)
{
    return kind == SELECTS_WIDE || kind == GATHERS_WIDE           ? FSDP_I64
           : kind == SELECTS_TURNED || kind == EMBEDS_TURNED      ? FSDP_I32
           : kind == FILLS_BY_TURNED || kind == CHOOSES_BY_TURNED ? FSDP_BOOL
                                                                  : FSDP_F32;
}

static fsdp_tensor *numbers_read(reading kind, const float *values)
{
    return CHECK_PTR(fsdp_cast(make_floats(device, 9, values), dtype_read(kind)));
}

SCOPE_TEST(a_write_to_what_is_copied_before_it_is_read_is_an_error)
{
    static const float first[9] = {0, 1, 0, 1, 1, 0, 0, 0, 1}, then[9] = {1, 0, 0, 0, 1, 1, 0, 1, 0};

    for (reading kind = 0; kind < READINGS; kind++)
        for (int how = 0; how < 4; how++) { /* plain; read again; written; another tensor */
            reader r = {kind, CHECK_PTR(fsdp_reshape(numbers_read(kind, first), FSDP_SHAPE(3, 3)))};
            fsdp_tensor *x = leaf(3, 3), *y;
            static float plain_gradient[9];
            float gradient[9];

            y = how == 0 ? with_reading(&r, &x, 1) : fsdp_recompute(context, with_reading, &r, &x, 1, NULL);
            y = CHECK_PTR(fsdp_sum(y));
            if (how == 2)
                CHECK_OK(fsdp_tensor_copy_(r.read, fsdp_reshape(numbers_read(kind, then), FSDP_SHAPE(3, 3))));
            if (how == 3)
                r.read = CHECK_PTR(fsdp_reshape(numbers_read(kind, then), FSDP_SHAPE(3, 3)));
            if (how >= 2) {
                CHECK_ERROR(fsdp_backward(y), FSDP_STATE, "reads a tensor that was written to");
                continue;
            }
            CHECK_OK(fsdp_backward(y));
            CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, how == 0 ? plain_gradient : gradient));
            if (how == 1)
                CHECK_BYTES(gradient, plain_gradient, sizeof gradient);
        }
}

/* A product that is kept, and to which the function adds. */
static fsdp_status add_one(const void *arg, void *const *data)
{
    (void)arg;
    for (int i = 0; i < 6; i++)
        ((float *)data[0])[i] += 1;
    return FSDP_OK;
}

static fsdp_tensor *with_changed_product(void *arg, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *y = fsdp_linear(inputs[0], arg, FSDP_NO_BIAS);

    (void)count;
    if (!y || fsdp_launch_kernel("add one", add_one, NULL, 0, &y, 1, &y, 1) != FSDP_OK)
        return NULL;
    return fsdp_mul(y, fsdp_tanh(y));
}

SCOPE_TEST(a_function_may_write_to_its_own_result)
{
    float gradients[4][9];

    for (fsdp_recompute_mode mode = FSDP_RECOMPUTE_NONE; mode <= FSDP_RECOMPUTE_CHEAP; mode++) {
        fsdp_tensor *x = plain(2, 3), *w = leaf(3, 3);

        CHECK_OK(fsdp_backward(fsdp_sum(
            fsdp_recompute(context, with_changed_product, w, &x, 1, &(fsdp_recompute_options){.mode = mode}))));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, gradients[mode]));
        CHECK_BYTES(gradients[mode], gradients[0], sizeof gradients[0]);
    }
}
