/* Attention with windows, documents and capped scores against what other operations make of it; rotary positions that
 * restart; positions that are wrong. */
#include "fsdp/ops.h"

#include <string.h>

#include "autograd/tools.h"
#include "base/compiler.h"
#include "support/dice.h"
#include "support/scope.h"

enum {
    MOST = 1 << 16 /* elements of a tensor */
};

typedef struct sizes {
    int64_t batch, q_time, kv_time, heads, kv_heads, dim, window;
    int64_t length; /* of a document, about; 0: no positions */
    float softcap, scale;
} sizes;

/* Positions of documents whose lengths are drawn. */
static void draw_positions(const sizes *s, int32_t *out)
{
    uint64_t state = 11;

    for (int64_t i = 0; i < s->batch * s->q_time; i++)
        out[i] = i % s->q_time == 0 || dice_below(&state, (int)s->length) == 0 ? 0 : out[i - 1] + 1;
}

/* Returns a mask (B,1,T,S) of what is hidden. */
static fsdp_tensor *hidden(const sizes *s, const int32_t *positions)
{
    static int32_t mask[MOST];
    int64_t count = s->batch * s->q_time * s->kv_time;

    CHECK(count <= MOST);
    for (int64_t i = 0; i < count; i++) {
        int64_t key = i % s->kv_time, row = i / s->kv_time, t = row % s->q_time, last = t + s->kv_time - s->q_time;
        bool seen = key <= last && (s->window == 0 || key > last - s->window);

        mask[i] = !seen || (positions && key < t - positions[row]);
    }
    return fsdp_cast(make_ids(device, 4, (const int64_t[]){s->batch, 1, s->q_time, s->kv_time}, mask), FSDP_BOOL);
}

/* Returns keys or values (B,S,G,D), repeated for each head, as (B,H,S,D). */
static fsdp_tensor *repeated(const sizes *s, fsdp_tensor *x)
{
    int64_t group = s->heads / s->kv_heads;

    x = fsdp_expand(fsdp_unsqueeze(x, 3), FSDP_SHAPE(s->batch, s->kv_time, s->kv_heads, group, s->dim));
    x = fsdp_reshape(x, FSDP_SHAPE(s->batch, s->kv_time, s->heads, s->dim));
    return fsdp_transpose(x, 1, 2);
}

static fsdp_tensor *composed(const sizes *s, fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v, const int32_t *positions)
{
    fsdp_tensor *scores = fsdp_matmul(fsdp_transpose(q, 1, 2), fsdp_transpose(repeated(s, k), 2, 3)); /* (B,H,T,S) */

    scores = fsdp_scale(scores, (double)s->scale);
    if (s->softcap > 0)
        scores = fsdp_scale(fsdp_tanh(fsdp_scale(scores, 1 / (double)s->softcap)), (double)s->softcap);
    scores = fsdp_masked_fill(scores, hidden(s, positions), -1e30);
    return fsdp_transpose(fsdp_matmul(fsdp_softmax(scores), repeated(s, v)), 1, 2);
}

/* Reads an output and the gradients of q, k and v. */
static void read_all(fsdp_tensor *out, fsdp_tensor *const *leaves, float *to)
{
    fsdp_tensor *weights = make_random(device, 9, 4, fsdp_tensor_shape(CHECK_PTR(out)));

    CHECK_OK(fsdp_tensor_read(out, FSDP_F32, to));
    to += fsdp_tensor_numel(out);
    CHECK_OK(fsdp_backward(fsdp_sum(fsdp_mul(out, weights))));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(leaves[i]), FSDP_F32, to));
        to += fsdp_tensor_numel(leaves[i]);
        CHECK_OK(fsdp_tensor_set_grad(leaves[i], NULL));
    }
}

static void compare(const sizes *s)
{
    static float fused[4 * MOST], plain[4 * MOST];
    static int32_t positions[MOST];
    const int64_t q[] = {s->batch, s->q_time, s->heads, s->dim}, k[] = {s->batch, s->kv_time, s->kv_heads, s->dim};
    fsdp_tensor *leaves[] = {make_leaf(device, 1, 4, q), make_leaf(device, 2, 4, k), make_leaf(device, 3, 4, k)};
    fsdp_attention_options options = {.causal = true, .scale = s->scale, .window = s->window, .softcap = s->softcap};
    int64_t count = 0;

    for (int i = 0; i < 3; i++)
        count += fsdp_tensor_numel(leaves[i]) * (i == 0 ? 2 : 1);
    if (s->length > 0) {
        draw_positions(s, positions);
        options.positions = make_ids(device, 2, (const int64_t[]){s->batch, s->q_time}, positions);
    }
    read_all(fsdp_attention(leaves[0], leaves[1], leaves[2], &options), leaves, fused);
    read_all(composed(s, leaves[0], leaves[1], leaves[2], s->length > 0 ? positions : NULL), leaves, plain);
    CHECK_CLOSE(fused, plain, count, 1e-4, 2e-5);
}

SCOPE_TEST(narrow_attention_is_what_masks_make_of_it)
{
    static const sizes list[] = {
        {1, 130, 130, 2, 1, 8, .window = 1, .scale = 0.3f},
        {2, 49, 49, 4, 2, 5, .window = 7, .scale = 0.4f},
        {1, 60, 129, 2, 2, 16, .window = 48, .scale = 0.2f},
        {1, 5, 130, 1, 1, 8, .window = 500, .scale = 0.3f},
        {2, 97, 97, 3, 1, 8, .length = 4, .scale = 0.5f},
        {1, 200, 200, 1, 1, 12, .length = 90, .scale = 0.5f},
        {3, 48, 48, 2, 1, 8, .length = 20, .window = 6, .scale = 0.3f},
        {1, 150, 150, 2, 1, 8, .length = 60, .window = 33, .softcap = 2, .scale = 0.6f},
        {2, 33, 40, 2, 2, 8, .softcap = 5, .scale = 1},
        {1, 1, 1, 2, 1, 8, .length = 1, .window = 1, .softcap = 1, .scale = 1},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(list); i++)
        compare(&list[i]);
}

SCOPE_TEST(a_window_wider_than_all_hides_nothing)
{
    fsdp_tensor *q = make_random(device, 1, 4, (const int64_t[]){1, 5, 1, 4});
    fsdp_attention_options options = {.causal = true};
    float without[20], with[20];

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_attention(q, q, q, &options)), FSDP_F32, without));
    options.window = INT64_MAX;
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_attention(q, q, q, &options)), FSDP_F32, with));
    CHECK_CLOSE(with, without, 20, 1e-6, 1e-6);
}

SCOPE_TEST(no_queries_have_no_gradients)
{
    fsdp_tensor *q = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1, 0, 2, 4));
    fsdp_tensor *qkv = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1, 0, 24));

    CHECK_OK(fsdp_tensor_set_requires_grad(q, true));
    CHECK_OK(fsdp_tensor_set_requires_grad(qkv, true));
    for (int64_t window = 0; window < 3; window += 2) {
        const fsdp_attention_options options = {.causal = true, .window = window};

        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(fsdp_attention(q, q, q, &options)))));
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(fsdp_attention_packed(qkv, 2, 2, &options)))));
    }
}

SCOPE_TEST(packed_heads_are_counted_without_overflow)
{
    fsdp_tensor *qkv = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1, 2, 24));

    CHECK_INVALID(fsdp_attention_packed(qkv, INT64_MAX, 1, NULL), "does not hold 9223372036854775807 query heads");
    CHECK_INVALID(fsdp_attention_packed(qkv, 1, INT64_MAX, NULL), "and 2 x 9223372036854775807 of key and value");
}

SCOPE_TEST(one_query_after_a_cache_sees_its_window_only)
{
    for (int64_t window = 1; window < 40; window += 9) {
        const sizes s = {2, 1, 37, 4, 2, 16, .window = window, .softcap = 3, .scale = 0.4f};
        fsdp_attention_options options = {.causal = true, .scale = s.scale, .window = window, .softcap = s.softcap};
        fsdp_tensor *q = make_random(device, 1, 4, (const int64_t[]){2, 1, 4, 16});
        fsdp_tensor *k = make_random(device, 2, 4, (const int64_t[]){2, 37, 2, 16});
        fsdp_tensor *v = make_random(device, 3, 4, (const int64_t[]){2, 37, 2, 16});
        float fused[128], plain[128];

        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_attention(q, k, v, &options)), FSDP_F32, fused));
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(composed(&s, q, k, v, NULL)), FSDP_F32, plain));
        CHECK_CLOSE(fused, plain, 128, 1e-5, 1e-6);
    }
}

/* Three documents of 5, 1 and 6 tokens: a row of all of them, with attention and rotary positions of their own, has
 * what each has alone. */
SCOPE_TEST(packed_documents_do_not_see_each_other)
{
    static const int32_t lengths[] = {5, 1, 6}, positions[] = {0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5};
    static const float frequencies[] = {1.0f, 0.3f, 0.05f};
    const int64_t shape[] = {1, 12, 2, 6};
    fsdp_tensor *turns = make_floats(device, 3, frequencies), *q = make_random(device, 1, 4, shape);
    fsdp_tensor *where = make_ids(device, 2, (const int64_t[]){1, 12}, positions);
    fsdp_attention_options options = {.causal = true, .positions = where}, alone = {.causal = true};
    fsdp_tensor *turned = fsdp_rope_at(q, turns, where), *all = fsdp_attention(turned, turned, q, &options);
    float packed[144], single[144];
    int64_t first = 0;

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(all), FSDP_F32, packed));
    for (int i = 0; i < 3; i++) {
        fsdp_tensor *x = fsdp_slice(q, 1, first, lengths[i]), *y = fsdp_rope(x, turns, 0);

        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_attention(y, y, x, &alone)), FSDP_F32, single + first * 12));
        first += lengths[i];
    }
    CHECK_CLOSE(packed, single, 144, 1e-6, 1e-7);
}

SCOPE_TEST(the_rest_of_a_head_that_rotates_in_part_stays)
{
    static const float frequencies[] = {1.0f, 0.3f};
    fsdp_tensor *x = make_random(device, 1, 4, (const int64_t[]){2, 3, 2, 7}),
                *turns = make_floats(device, 2, frequencies);
    float part[84], whole[84], before[84];

    x = CHECK_PTR(fsdp_slice(x, 3, 0, 6)); /* a head's elements are followed by others */
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_rope(x, turns, 5)), FSDP_F32, part));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_rope(fsdp_slice(x, 3, 0, 4), turns, 5)), FSDP_F32, whole));
    CHECK_OK(fsdp_tensor_read(x, FSDP_F32, before));
    for (int row = 0; row < 12; row++) {
        CHECK(memcmp(part + row * 6, whole + row * 4, 4 * sizeof(float)) == 0);
        CHECK(memcmp(part + row * 6 + 4, before + row * 6 + 4, 2 * sizeof(float)) == 0);
    }
}

static fsdp_tensor *attended(fsdp_tensor *positions)
{
    fsdp_attention_options options = {.causal = true, .positions = positions};
    fsdp_tensor *x = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2, 3, 1, 4));

    return fsdp_attention(x, x, x, &options);
}

SCOPE_TEST(wrong_positions_are_named)
{
    static const int32_t begins[] = {0, 1, 0, 1, 2, 3}, jumps[] = {0, 1, 2, 0, 1, 3}, falls[] = {0, 1, 2, 0, 0, -1};
    const int64_t shape[] = {2, 3};
    fsdp_tensor *right = make_ids(device, 2, shape, (const int32_t[]){0, 1, 0, 0, 1, 2});

    CHECK_INVALID(attended(make_ids(device, 2, shape, begins)), "attention: position 1 at (1, 0): a row begins with 0");
    CHECK_INVALID(attended(make_ids(device, 2, shape, jumps)),
                  "attention: position 3 at (1, 2) is neither 0, where a document begins, nor 2");
    CHECK_INVALID(attended(make_ids(device, 2, shape, falls)), "attention: position -1 at (1, 2) is neither 0");
    CHECK_INVALID(attended(fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(2, 4))),
                  "positions (2, 4) do not fit a batch of 2 x 3");
    CHECK_INVALID(attended(fsdp_zeros(device, FSDP_I64, FSDP_SHAPE(2, 3))), "positions must be int32");
    CHECK_PTR(attended(right));
    CHECK_OK(fsdp_tensor_write(right, FSDP_I32, jumps)); /* what was known of them is not true any more */
    CHECK_INVALID(attended(right), "attention: position 3 at (1, 2)");
    CHECK_INVALID(fsdp_rope_at(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2, 3, 1, 4)),
                               fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2)), right),
                  "rope: position 3 at (1, 2)");
}

SCOPE_TEST(what_does_not_go_together_is_named)
{
    fsdp_tensor *q = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1, 2, 1, 4)),
                *k = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1, 3, 1, 4));
    fsdp_tensor *positions = fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(1, 2));

    CHECK_INVALID(fsdp_attention(q, q, q, &(fsdp_attention_options){.window = 3}), "need causal attention");
    CHECK_INVALID(fsdp_attention(q, q, q, &(fsdp_attention_options){.positions = positions}), "need causal attention");
    CHECK_INVALID(fsdp_attention(q, q, q, &(fsdp_attention_options){.causal = true, .window = -1}), "window -1");
    CHECK_INVALID(fsdp_attention(q, q, q, &(fsdp_attention_options){.causal = true, .softcap = -2}), "softcap -2");
    CHECK_INVALID(fsdp_attention(q, k, k, &(fsdp_attention_options){.causal = true, .positions = positions}),
                  "positions with 2 queries and 3 keys");
}
