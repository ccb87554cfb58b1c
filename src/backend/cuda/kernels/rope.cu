/* rope.cu - rotary position embedding, rotate_half layout. */
#include "backend/cuda/kernels/kernel.cuh"

/* Each thread rotates one pair, for all batches and heads: the angle is computed once. */
template <class T>
static __global__ void rotate(const __grid_constant__ fsdp__rope_args k)
{
    int64_t half = k.head_dim / 2;

    EACH_ITEM (at, k.time * half) {
        int64_t t = at / half, i = at % half;
        float angle = (float)(k.position0 + t) * k.frequency[i], sine, cosine;

        sincosf(angle, &sine, &cosine);
        sine = k.inverse ? -sine : sine;
        for (int64_t b = 0; b < k.batch; b++)
            for (int64_t h = 0; h < k.heads; h++) {
                const T *x = (const T *)k.x + b * k.x_batch + t * k.x_time + h * k.x_head;
                T *y = (T *)k.y + b * k.y_batch + t * k.y_time + h * k.y_head;
                float first = load(x, i), second = load(x, i + half);
                float c = first * cosine - second * sine, d = second * cosine + first * sine;

                store(y, i, k.accumulate ? load(y, i) + c : c);
                store(y, i + half, k.accumulate ? load(y, i + half) + d : d);
            }
    }
}

ENTRY(rope)
{
    const fsdp__rope_args *k = (const fsdp__rope_args *)args;

#define ROTATE(T) \
    FSDP_TRY(launch(stream, "rope", rotate<T>, blocks_for(k->time *(k->head_dim / 2), BLOCK), BLOCK, 0, *k))
    EACH_FLOAT(k->dtype, ROTATE)
#undef ROTATE
    return FSDP_OK;
}
