/* Operations of a user's own: right gradients, whatever they are a part of; what is refused; what is freed.
 * Links: ops */
#include "autograd/tools.h"
#include "device/device.h"
#include "device/kernels.h"
#include "fsdp/ops.h"
#include "ops/swish.h"

enum {
    COLS = 5
};

static fsdp_context *begin(bool behind)
{
    fsdp_context *context = test_context();

    if (behind && test_on_cpu())
        test_run_behind(test_device(context));
    CHECK_OK(fsdp_scope_begin(context));
    return context;
}

static void end(fsdp_context *context)
{
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(test_device(context))));
    CHECK_EQ(tensor_bytes(context), 0);
    test_check_races(context);
    fsdp_context_free(context);
}

/* ---- what it computes ---- */

static fsdp_tensor *swish_of(void *arg, fsdp_tensor *const *in, int count)
{
    (void)arg, (void)count;
    return swish(in[0], in[1]);
}

TEST(a_users_operation_has_the_right_gradient)
{
    for (int behind = 0; behind < 2; behind++) {
        fsdp_context *context = begin(behind);
        fsdp_tensor *in[] = {make_leaf(test_device(context), 1, FSDP_SHAPE(2, 3, COLS)),
                             make_leaf(test_device(context), 2, FSDP_SHAPE(COLS))};

        CHECK_OK(fsdp_gradcheck(swish_of, NULL, in, 2, 4e-3, 2e-3, 1e-2));
        end(context);
    }
}

typedef struct result {
    float dx[3 * COLS], dslope[COLS], loss;
} result;

/* silu(slope x), either way: slope is used twice, so a gradient is added to. */
static fsdp_tensor *scaled(fsdp_tensor *x, fsdp_tensor *slope, bool own)
{
    return own ? fsdp_mul(swish(x, slope), slope) : fsdp_silu(fsdp_mul(x, slope));
}

static fsdp_tensor *scaled_recomputed(void *arg, fsdp_tensor *const *in, int count)
{
    (void)count;
    return fsdp_relu(scaled(in[0], in[1], *(const bool *)arg));
}

static result run(fsdp_context *context, fsdp_dtype dtype, bool own, bool recomputed, bool view)
{
    fsdp_device *device = test_device(context);
    fsdp_tensor *x = make_leaf(device, 3, FSDP_SHAPE(3, COLS)), *slope = make_leaf(device, 4, FSDP_SHAPE(COLS));
    fsdp_tensor *in[] = {fsdp_cast(x, dtype), fsdp_cast(slope, dtype)}, *loss, *y;
    double item;
    result r;

    if (view)
        in[0] = fsdp_transpose(fsdp_contiguous(fsdp_transpose(in[0], 0, 1)), 0, 1);
    y = recomputed ? fsdp_recompute(context, scaled_recomputed, &own, in, 2, NULL) : scaled_recomputed(&own, in, 2);
    loss = CHECK_PTR(fsdp_sum(fsdp_mul(fsdp_cast(y, FSDP_F32), x)));
    CHECK_OK(fsdp_tensor_item(loss, &item));
    r.loss = (float)item;
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, r.dx));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(slope), FSDP_F32, r.dslope));
    return r;
}

TEST(it_gives_what_composed_operations_give)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};

    for (int i = 0; i < 3 * 8; i++) {
        fsdp_context *context = begin(i & 1);
        fsdp_dtype dtype = dtypes[i / 8];
        double tolerance = dtype == FSDP_F32 ? 1e-5 : dtype == FSDP_F16 ? 4e-3 : 4e-2;
        result composed = run(context, dtype, false, i & 2, i & 4), own = run(context, dtype, true, i & 2, i & 4);

        CHECK_CLOSE(own.dx, composed.dx, 3 * COLS, tolerance, tolerance);
        CHECK_CLOSE(own.dslope, composed.dslope, COLS, tolerance, tolerance);
        CHECK_NEAR(own.loss, composed.loss, tolerance * 10);
        end(context);
    }
}

TEST(a_recomputed_function_runs_it_again_and_changes_no_bit)
{
    for (int behind = 0; behind < 2; behind++) {
        fsdp_context *context = begin(behind);
        result plain, again;
        int runs = swish_runs();

        plain = run(context, FSDP_F32, true, false, false);
        CHECK_EQ(swish_runs() - runs, 1);
        again = run(context, FSDP_F32, true, true, false);
        CHECK_EQ(swish_runs() - runs, 3);
        CHECK_BYTES(&again, &plain, sizeof plain);
        end(context);
    }
}

TEST(a_kept_graph_walks_it_twice)
{
    fsdp_context *context = begin(false);
    fsdp_tensor *x = make_leaf(test_device(context), 1, FSDP_SHAPE(2, COLS));
    fsdp_tensor *slope = make_leaf(test_device(context), 2, FSDP_SHAPE(COLS));
    fsdp_tensor *loss = CHECK_PTR(fsdp_sum(swish(x, slope)));
    float once[2 * COLS], twice[2 * COLS];

    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, once));
    CHECK_OK(fsdp_backward(loss));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x), FSDP_F32, twice));
    for (int i = 0; i < 2 * COLS; i++)
        CHECK_NEAR(twice[i], 2 * once[i], 1e-6);
    CHECK_ERROR(fsdp_backward(loss), FSDP_STATE, "a second time");
    end(context);
}

TEST(without_gradients_nothing_is_recorded)
{
    fsdp_context *context = begin(false);
    fsdp_tensor *x = make_leaf(test_device(context), 1, FSDP_SHAPE(2, COLS));
    fsdp_tensor *slope = make_random(test_device(context), 2, FSDP_SHAPE(COLS));

    CHECK(fsdp_tensor_requires_grad(CHECK_PTR(swish(x, slope))));
    fsdp_no_grad_begin(context);
    CHECK(!fsdp_tensor_requires_grad(CHECK_PTR(swish(x, slope))));
    fsdp_no_grad_end(context);
    CHECK(!fsdp_tensor_requires_grad(CHECK_PTR(swish(slope, slope))));
    CHECK_OK(fsdp_backward(fsdp_sum(swish(x, slope)))); /* of one input alone */
    CHECK_PTR(fsdp_tensor_grad(x));
    CHECK_NULL(fsdp_tensor_grad(slope));
    end(context);
}

TEST(on_the_meta_device_it_has_shapes_alone)
{
    fsdp_context *context = begin(false);
    fsdp_tensor *x = make_leaf(fsdp_meta(context), 1, FSDP_SHAPE(2, COLS));
    fsdp_tensor *slope = make_leaf(fsdp_meta(context), 2, FSDP_SHAPE(COLS));
    int runs = swish_runs();

    CHECK_OK(fsdp_backward(fsdp_sum(swish(x, slope))));
    CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_tensor_grad(slope)), 0), COLS);
    CHECK_EQ(swish_runs(), runs);
    end(context);
}

TEST(nothing_leaks_whatever_fails)
{
    fsdp_context *context = begin(false);
    fsdp_tensor *x = make_leaf(test_device(context), 1, FSDP_SHAPE(2, COLS));
    fsdp_tensor *slope = make_leaf(test_device(context), 2, FSDP_SHAPE(COLS));

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp_scope_begin(context);
        bool begun = status == FSDP_OK;

        if (begun) {
            fsdp_tensor *in[] = {x, slope}, *y = fsdp_recompute(context, swish_of, NULL, in, 2, NULL);
            fsdp_tensor *loss = fsdp_sum(fsdp_mul(y, y));

            status = loss ? fsdp_backward(loss) : fsdp_last_status();
            fsdp_scope_end(context, NULL);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK_OK(fsdp_tensor_set_grad(x, NULL));
        CHECK_OK(fsdp_tensor_set_grad(slope, NULL));
    }
    end(context);
}

/* ---- what is refused ---- */

typedef struct wrong {
    enum {
        RIGHT,
        SHAPE,
        DTYPE,
        DEVICE,
        INPUT,
        TWICE,
        TARGET_TWICE,
        NOTHING,
        SAVED,
        NO_GRADIENT
    } what;
    fsdp_node **seen;
} wrong;

static fsdp_status wrong_backward(fsdp_node *node, fsdp_tensor *const *grads)
{
    const wrong *w = fsdp_node_state(node);
    fsdp_tensor *dy = grads[0], *target;
    bool accumulate;

    *w->seen = node;
    switch (w->what) {
    case SHAPE:
        return fsdp_node_give(node, 0, fsdp_sum(dy));
    case DTYPE:
        return fsdp_node_give(node, 0, fsdp_cast(dy, FSDP_BF16));
    case DEVICE:
        return fsdp_node_give(
            node, 0, fsdp_empty(fsdp_meta(fsdp_device_context(fsdp_tensor_device(dy))), FSDP_F32, FSDP_SHAPE(2)));
    case INPUT:
        return fsdp_node_give(node, 2, dy);
    case TWICE:
        FSDP_TRY(fsdp_node_give(node, 0, dy));
        return fsdp_node_give(node, 0, dy);
    case TARGET_TWICE:
        FSDP_TRY(fsdp_node_target(node, 0, &target, &accumulate));
        FSDP_TRY(fsdp_tensor_fill_(target, 1));
        return fsdp_node_give(node, 0, dy);
    case NOTHING:
        return fsdp_node_target(node, 1, &target, &accumulate);
    case SAVED:
        return fsdp_node_saved(node, 1) ? FSDP_OK : fsdp_last_status();
    case NO_GRADIENT:
        return fsdp_node_give(node, 0, NULL);
    case RIGHT:
        break;
    }
    FSDP_TRY(fsdp_node_give(node, 1, dy)); /* not wanted: nothing happens */
    return fsdp_node_give(node, 0, dy);
}

static const fsdp_operation wrong_operation = {.name = "wrong", .backward = wrong_backward};

static fsdp_tensor *make_wrong(fsdp_tensor *x, wrong w)
{
    fsdp_tensor *inputs[] = {x, NULL}, *y;

    y = CHECK_PTR(fsdp_full(fsdp_tensor_device(x), FSDP_F32, FSDP_SHAPE(2), 1));
    CHECK_OK(fsdp_record(&wrong_operation, inputs, 2, &y, 1, &x, 1, &w, sizeof w));
    return y;
}

TEST(gradients_that_do_not_fit_are_named)
{
    static const char *const messages[] = {
        [SHAPE] = "backward of wrong: a float32 gradient () does not fit input 0, which is float32 (2,)",
        [DTYPE] = "backward of wrong: a bfloat16 gradient (2,) does not fit input 0",
        [DEVICE] = "a gradient on meta does not fit input 0",
        [INPUT] = "'wrong' has 2 inputs: there is none with index 2",
        [TWICE] = "the gradient of input 0 was given twice",
        [TARGET_TWICE] = "the gradient of input 0 was given twice",
        [NOTHING] = "no target for the gradient of input 1: it is not wanted",
        [SAVED] = "'wrong' has saved 1 tensors: there is none with index 1",
        [NO_GRADIENT] = "no gradient was given for input 0",
    };
    fsdp_context *context = begin(false);
    fsdp_tensor *ones = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2), 1));

    for (int leaf = 0; leaf < 2; leaf++)
        for (int what = SHAPE; what <= NO_GRADIENT; what++) {
            fsdp_node *node;
            fsdp_tensor *x = make_leaf(test_device(context), 1, FSDP_SHAPE(2)), *y;

            fsdp_clear_error();
            y = make_wrong(leaf ? x : fsdp_scale(x, 2), (wrong){what, &node});
            CHECK(fsdp_backward_from(&y, &ones, 1, false) != FSDP_OK);
            CHECK_CONTAINS(fsdp_last_error(), messages[what]);
            CHECK_NULL(fsdp_tensor_grad(x));
        }
    end(context);
}

TEST(nothing_can_be_asked_of_a_node_that_has_run)
{
    fsdp_context *context = begin(false);
    fsdp_node *node = NULL;
    fsdp_tensor *x = make_leaf(test_device(context), 1, FSDP_SHAPE(2)), *target;
    fsdp_tensor *y = make_wrong(x, (wrong){RIGHT, &node}); /* which holds the node */
    fsdp_tensor *ones = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2), 1));
    bool accumulate;

    CHECK_OK(fsdp_backward_from(&y, &ones, 1, false));
    CHECK_PTR(node);
    CHECK_NULL(fsdp_node_saved(node, 0));
    CHECK_CONTAINS(fsdp_last_error(), "a saved tensor of 'wrong' was asked for outside its backward");
    CHECK_NULL(fsdp_node_state(node));
    CHECK(!fsdp_node_needs(node, 0));
    CHECK_ERROR(fsdp_node_give(node, 0, x), FSDP_STATE, "outside its backward");
    CHECK_ERROR(fsdp_node_target(node, 0, &target, &accumulate), FSDP_STATE, "outside its backward");
    CHECK_ERROR(fsdp_node_target(node, 0, NULL, &accumulate), FSDP_INVALID, "places");
    end(context);
}

TEST(what_cannot_be_recorded_is_named)
{
    static const fsdp_operation nameless = {.backward = wrong_backward}, without_backward = {.name = "half"};
    const fsdp_operation *op = &wrong_operation;
    fsdp_context *context = begin(false);
    fsdp_device *device = test_device(context);
    fsdp_tensor *x = make_leaf(device, 1, FSDP_SHAPE(2)), *none = NULL,
                *y = CHECK_PTR(fsdp_zeros(device, FSDP_F32, 0, NULL));
    fsdp_tensor *ids = make_ids(device, FSDP_SHAPE(1), (const int32_t[]){1}), *made = CHECK_PTR(fsdp_scale(x, 2));
    fsdp_tensor *twice[] = {y, y};

    CHECK_ERROR(fsdp_record(NULL, &x, 1, &y, 1, NULL, 0, NULL, 0), FSDP_INVALID, "needs a name and a backward");
    CHECK_ERROR(fsdp_record(&nameless, &x, 1, &y, 1, NULL, 0, NULL, 0), FSDP_INVALID, "needs a name and a backward");
    CHECK_ERROR(fsdp_record(&without_backward, &x, 1, &y, 1, NULL, 0, NULL, 0), FSDP_INVALID,
                "needs a name and a backward");
    CHECK_ERROR(fsdp_record(op, &x, 0, &y, 1, NULL, 0, NULL, 0), FSDP_INVALID, "'wrong': 0 inputs, 1 outputs");
    CHECK_ERROR(fsdp_record(op, &x, 1, &y, 0, NULL, 0, NULL, 0), FSDP_INVALID, "0 outputs");
    CHECK_ERROR(fsdp_record(op, &x, 1, &y, 1, NULL, 1, NULL, 0), FSDP_INVALID, "1 saved tensors");
    CHECK_ERROR(fsdp_record(op, &x, 1, &y, 1, NULL, 0, NULL, 8), FSDP_INVALID, "8 bytes of state");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_record(op, &x, 1, &none, 1, NULL, 0, NULL, 0), FSDP_INVALID, "output 0 is NULL");
    CHECK_ERROR(fsdp_record(op, &x, 1, &ids, 1, NULL, 0, NULL, 0), FSDP_INVALID,
                "is int32, which can have no gradient");
    CHECK_ERROR(fsdp_record(op, &x, 1, &x, 1, NULL, 0, NULL, 0), FSDP_INVALID, "output 0 (2,) is not a fresh tensor");
    CHECK_ERROR(fsdp_record(op, &x, 1, &made, 1, NULL, 0, NULL, 0), FSDP_INVALID, "is not a fresh tensor");
    CHECK_ERROR(fsdp_record(op, &x, 1, twice, 2, NULL, 0, NULL, 0), FSDP_INVALID, "output 1 () is not a fresh tensor");
    CHECK(!fsdp_tensor_requires_grad(y));
    CHECK(!fsdp_will_record(NULL, 0));
    end(context);
}

/* ---- kernels ---- */

typedef struct fill {
    float value;
    fsdp_status status;
    bool silent;
} fill;

static fsdp_status fill_kernel(const void *arg, void *const *data)
{
    const fill *f = arg;

    if (f->status != FSDP_OK)
        return f->silent ? f->status : FSDP_FAIL(f->status, "no ink");
    for (int i = 0; i < 2 && data[0]; i++)
        ((float *)data[0])[i] += f->value;
    return FSDP_OK;
}

static fsdp_status launch_fill(fsdp_tensor *tensor, fill f)
{
    return fsdp_launch_kernel("fill", fill_kernel, &f, sizeof f, &tensor, 1, &tensor, 1);
}

TEST(a_kernel_runs_in_the_order_of_the_stream)
{
    for (int behind = 0; behind < 2; behind++) {
        fsdp_context *context = begin(behind);
        float values[2];

        CHECK_OK(fsdp_scope_begin(context));
        for (int i = 0; i < 20; i++) { /* memory that is handed out again while kernels wait */
            fsdp_tensor *x;

            CHECK_OK(fsdp_scope_begin(context));
            x = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2), i));
            CHECK_OK(launch_fill(x, (fill){.value = 0.5f}));
            x = fsdp_scale(x, 2);
            CHECK_OK(launch_fill(x, (fill){.value = 0.25f}));
            if (i % 7 == 6) {
                CHECK_OK(fsdp_tensor_read(x, FSDP_F32, values));
                CHECK_NEAR(values[1], 2 * (i + 0.5) + 0.25, 0);
            }
            fsdp_scope_end(context, NULL);
        }
        fsdp_scope_end(context, NULL);
        CHECK_OK(launch_fill(CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(0))), (fill){0}));
        end(context);
    }
}

TEST(a_kernel_that_fails_is_named)
{
    for (int i = 0; i < 4; i++) {
        fsdp_context *context = begin(i & 1);
        fsdp_tensor *x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2)));
        fsdp_status status = launch_fill(x, (fill){.status = FSDP_IO, .silent = i & 2});

        if (status == FSDP_OK)
            status = fsdp_stream_synchronize(fsdp_device_stream(test_device(context)));
        CHECK_EQ(status, FSDP_IO);
        CHECK_CONTAINS(fsdp_last_error(), i & 2 ? "kernel 'fill': input or output failed" : "kernel 'fill': no ink");
        end(context);
    }
}

TEST(a_kernel_writes_as_others_do)
{
    fsdp_context *context = begin(false);
    fsdp_tensor *x = make_leaf(test_device(context), 1, FSDP_SHAPE(2));
    fsdp_tensor *slope = make_leaf(test_device(context), 2, FSDP_SHAPE(2)), *in[] = {x, slope};
    fsdp_tensor *loss = CHECK_PTR(fsdp_sum(fsdp_recompute(context, swish_of, NULL, in, 2, NULL)));

    CHECK_OK(launch_fill(x, (fill){.value = 1}));
    CHECK_ERROR(fsdp_backward(loss), FSDP_STATE, "input 0 (2,) of a recomputed function was written to");
    end(context);
}

/* y = the first and the last of x, of which the first is a tensor by itself, too. */
static fsdp_status add_first(const void *arg, void *const *data)
{
    const float *first = data[0], *whole = data[1];
    float *y = data[2];

    (void)arg;
    *y = *first + whole[COLS - 1];
    return FSDP_OK;
}

static fsdp_status write_seven(const void *arg, void *const *data)
{
    (void)arg;
    for (int i = 0; i < COLS; i++)
        ((float *)data[1])[i] = 7;
    return FSDP_OK;
}

TEST(tensors_that_are_read_may_share_elements)
{
    for (int behind = 0; behind < 2; behind++) {
        fsdp_context *context = begin(behind);
        fsdp_tensor *x = make_floats(test_device(context), COLS, (const float[]){1, 2, 3, 4, 5});
        fsdp_tensor *y = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1));
        fsdp_tensor *part = fsdp_slice(x, 0, 0, 1), *reads[] = {part, x, fsdp_slice(x, 0, 0, 0)};

        CHECK_OK(fsdp_launch_kernel("add", add_first, NULL, 0, reads, 2, &y, 1));
        CHECK_NEAR(first_of(y), 6, 0);
        reads[0] = reads[2]; /* none of them: what is written is apart */
        CHECK_OK(fsdp_launch_kernel("seven", write_seven, NULL, 0, reads, 1, &x, 1));
        CHECK_NEAR(first_of(part), 7, 0);
        CHECK_ERROR(fsdp_launch_kernel("add", add_first, NULL, 0, &part, 1, &x, 1), FSDP_INVALID, "shares some");
        CHECK_ERROR(fsdp_launch_kernel("add", add_first, NULL, 0, &x, 1, &part, 1), FSDP_INVALID, "shares some");
        end(context);
    }
}

/* On the device's own memory: y += x, as whoever writes kernels for it launches one. */
static fsdp_status add_there(fsdp_stream *stream, const void *arg, void *const *data)
{
    const int64_t *numel = arg;

    return fsdp__run_kernel(
        stream, FSDP__KERNEL_SCALE,
        &(fsdp__scale_args){
            .x = data[0], .y = data[2], .alpha = 1, .numel = *numel, .dtype = FSDP_F32, .accumulate = true});
}

static fsdp_status refuse_there(fsdp_stream *stream, const void *arg, void *const *data)
{
    (void)stream;
    (void)arg;
    (void)data;
    return FSDP_FAIL(FSDP_UNSUPPORTED, "not today");
}

TEST(a_kernel_for_the_device_gets_its_memory_and_its_stream)
{
    for (int behind = 0; behind < 2; behind++) {
        fsdp_context *context = begin(behind);
        fsdp_device *device = test_device(context);
        fsdp_tensor *x = make_floats(device, COLS, (const float[]){1, 2, 3, 4, 5}), *reads[] = {x, NULL};
        fsdp_tensor *y = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(COLS));
        float values[COLS];
        int64_t numel = COLS;

        reads[1] = y;
        for (int i = 0; i < 3; i++)
            CHECK_OK(fsdp_launch_device_kernel("add", add_there, &numel, sizeof numel, reads, 2, &y, 1));
        CHECK_OK(fsdp_tensor_read(y, FSDP_F32, values));
        for (int i = 0; i < COLS; i++)
            CHECK_NEAR(values[i], 3 * (i + 1), 0);
        if (fsdp_launch_device_kernel("no", refuse_there, NULL, 0, &x, 1, &y, 1) == FSDP_OK)
            CHECK_ERROR(fsdp_stream_synchronize(fsdp_device_stream(device)), FSDP_UNSUPPORTED,
                        "kernel 'no': not today");
        CHECK_ERROR(fsdp_launch_device_kernel("k", NULL, NULL, 0, &x, 1, &x, 1), FSDP_INVALID, "a function");
        end(context);
    }
}

TEST(what_cannot_be_launched_is_named)
{
    fsdp_context *context = begin(false);
    fsdp_device *device = test_device(context);
    fsdp_tensor *x = make_random(device, 1, FSDP_SHAPE(2, 3)), *view = CHECK_PTR(fsdp_transpose(x, 0, 1));
    fsdp_tensor *none = NULL, *meta = make_random(fsdp_meta(context), 1, FSDP_SHAPE(2));

    CHECK_ERROR(fsdp_launch_kernel(NULL, fill_kernel, NULL, 0, &x, 1, &x, 1), FSDP_INVALID, "needs a name");
    CHECK_ERROR(fsdp_launch_kernel("k", NULL, NULL, 0, &x, 1, &x, 1), FSDP_INVALID, "a function");
    CHECK_ERROR(fsdp_launch_kernel("k", fill_kernel, NULL, 4, &x, 1, &x, 1), FSDP_INVALID, "argument");
    CHECK_ERROR(fsdp_launch_kernel("k", fill_kernel, NULL, 0, &x, 0, &x, 0), FSDP_INVALID,
                "kernel 'k': 0 tensors to read and 0 to write");
    CHECK_ERROR(fsdp_launch_kernel("k", fill_kernel, NULL, 0, NULL, 1, &x, 1), FSDP_INVALID, "1 tensors to read");
    CHECK_ERROR(fsdp_launch_kernel("k", fill_kernel, NULL, 0, &none, 1, &x, 1), FSDP_INVALID,
                "tensor 0 that it reads is NULL");
    CHECK_ERROR(fsdp_launch_kernel("k", fill_kernel, NULL, 0, NULL, 0, &view, 1), FSDP_INVALID,
                "tensor 0 (3, 2) that it writes is not contiguous");
    CHECK_ERROR(fsdp_launch_kernel("k", fill_kernel, NULL, 0, &x, 1, &meta, 1), FSDP_INVALID, "and on meta");
    end(context);
}
