/* loss.cu - softmax and cross-entropy over rows of logits, with their gradient. */
#include "backend/cuda/kernels/rows.cuh"

enum {
    EACH = 16,                        /* columns that make it worth while to take another thread for a row */
    PADDED_THREADS = MOST_THREADS / 2 /* at most, of a padded row: masks take registers */
};

struct loss_plan {
    fsdp__cross_entropy_args args;
    row_threads threads;
    bool whole;
    double *losses; /* (rows) */
};

/* Caps a logit; slope() is the derivative, by what has become of it. */
struct capped {
    enum {
        BLOCKS = 1, /* of 1,024 threads on a multiprocessor, as its registers allow */
        PLAIN = 0
    };
    float cap;

    DEVICE float operator()(float x, bool real) const
    {
        return real ? cap * tanhf(x / cap) : x;
    }
    DEVICE float slope(float y) const
    {
        return 1.0f - y / cap * (y / cap);
    }
};

/* Returns whether a row counts; if not, its target is bad or is to be ignored. */
DEVICE bool counts(const fsdp__cross_entropy_args &k, int32_t target)
{
    return target != k.ignore_index && (k.largest || (target >= 0 && target < k.cols));
}

/* Computes the gradient of a row, of G, which may lie in x. */
template <bool PADDED, class T, class G, class Made>
DEVICE void store_gradient(const loss_plan &k, const T *x, G *g, int64_t target, exp_sum s, Made made)
{
    const int n = ACCESS / (int)sizeof(T);
    const int64_t cols = k.args.cols;
    float factor = k.args.loss_scale / s.sum;

    EACH_ROW_PACK (col, cols, n, k.threads.group) {
        pack<T, n> logits = get<n>(x, col, cols, PADDED || k.whole);
        int hit = (int)(target - col); /* the element that is the target, if it is one of these */
        pack<G, n> out;

        UNROLL
        for (int e = 0; e < n; e++) {
            float y = made(to_float(logits.at[e]), true), p = exponential(y - s.largest);
            float d = e == hit ? k.args.loss_scale * (p / s.sum - 1.0f) : p * factor;

            out.at[e] = from_float<G>(d * made.slope(y));
        }
        put<n>(g, col, cols, PADDED ? col + n <= (uint32_t)cols : k.whole, out);
    }
}

template <class G>
DEVICE void clear_row(const loss_plan &k, G *g)
{
    for (int64_t col = threadIdx.x % (unsigned)k.threads.group; col < k.args.cols; col += k.threads.group)
        g[col] = G();
}

/* Writes what a part of a row gives to the sum and to the target's logit of all of it. */
template <class T, class Made>
DEVICE void store_part(const loss_plan &k, const T *x, int64_t row, int64_t target, exp_sum s, Made made)
{
    if (threadIdx.x % (unsigned)k.threads.group != 0)
        return;
    k.args.sums[row] = s.sum * exponential(s.largest - k.args.largest[row]);
    k.args.at_targets[row] = target >= 0 && target < k.args.cols ? made(load(x, target), true) : 0.0f;
}

/* Does so, or computes the gradient of a part by what is known of all of the row. */
template <class T, class G, class Made>
DEVICE void part_of_row(const loss_plan &k, const T *x, G *g, int64_t row, float *partial, Made made)
{
    int64_t target = k.args.targets[row] - k.args.first_col;

    if (g) {
        exp_sum s = {k.args.largest[row], k.args.sums[row]};

        store_gradient<false>(k, x, g, target, s, made);
    } else {
        store_part(k, x, row, target, sum_exponentials(x, k.args.cols, k.whole, k.threads.group, partial, made), made);
    }
}

/* Writes what a row gives that does not count. */
template <class G>
DEVICE void leave_out(const loss_plan &k, G *g, int64_t row)
{
    if (g) {
        clear_row(k, g);
    } else if (k.args.largest && threadIdx.x % (unsigned)k.threads.group == 0) {
        k.args.sums[row] = 1.0f;
        k.args.at_targets[row] = 0.0f;
    }
}

/* PADDED: rows are whole packs, of which the last one is not all columns; they are no parts. */
template <bool PADDED, class T, class G, class Made>
static __global__ __launch_bounds__(PADDED ? PADDED_THREADS : MOST_THREADS,
                                    PADDED ? 1 + Made::BLOCKS
                                           : Made::BLOCKS) void row_losses(GRID_CONSTANT(loss_plan) k, Made made)
{
    __shared__ float partial[WARP];

    EACH_GROUP (row, k.args.rows, k.threads.group) {
        int32_t target = k.args.targets[row];
        const T *x = (const T *)k.args.logits + row * k.args.logits_row;
        G *g = k.args.dlogits ? (G *)k.args.dlogits + row * k.args.logits_row : NULL;
        double loss = 0.0;

        if (!counts(k.args, target)) {
            leave_out(k, g, row);
        } else if (!PADDED && k.args.largest) {
            part_of_row(k, x, g, row, partial, made);
        } else {
            float at_target = made(load(x, target), true);
            exp_sum s = sum_exponentials<PADDED>(x, k.args.cols, PADDED || k.whole, k.threads.group, partial, made);

            loss = (double)logf(s.sum) + (double)s.largest - (double)at_target;
            if (g) {
                group_sync(k.threads.group); /* everybody has read x, where g may lie */
                store_gradient<PADDED>(k, x, g, target, s, made);
            }
        }
        if (threadIdx.x % (unsigned)k.threads.group == 0)
            k.losses[row] = loss;
    }
}

/* ---- rows of 16 bits that are read once ----
 *
 * A block keeps a row while it adds it up and computes its gradient, each thread the packs that it has above: some in
 * registers, the others in shared memory, where no other thread reads them. As the gradient of a pack is stored, the
 * same pack of the block's next row is on its way there. */

enum {
    OWN = 5,       /* packs of a thread that are in registers, if shared memory cannot hold a row */
    BESIDE = 2048, /* bytes of shared memory that a block needs besides */
    THREADS = 2048,
    CARDS_BLOCKS = 32 /* the most of a multiprocessor */
};

/* Holds a block's row. */
template <class T, int OWNS>
struct kept_row {
    typedef pack<T, ACCESS / (int)sizeof(T)> one;
    int packs;
    one *shared, own[OWNS > 0 ? OWNS : 1];

    /* Starts to fetch a thread's pack of number `p`, which is its r-th. */
    DEVICE void fetch(const T *row, int p, int r)
    {
        if (r < OWNS)
            own[r] = ((const one *)row)[p];
        else
            copy_16(&shared[p - OWNS * (int)blockDim.x], (const one *)row + p, ACCESS);
    }

    /* Calls f(pack, number) for all packs of the thread, and fetches them of the next row, if there is one. */
    template <class F>
    DEVICE void each(const T *next, F f)
    {
        int p = (int)threadIdx.x;

        UNROLL
        for (int r = 0; r < OWNS; r++, p += (int)blockDim.x) {
            if (p < packs)
                f(own[r], p);
            if (p < packs && next)
                fetch(next, p, r);
        }
        copies_wait<0>();
        for (; p < packs; p += (int)blockDim.x) {
            f(shared[p - OWNS * (int)blockDim.x], p);
            if (next)
                fetch(next, p, OWNS);
        }
        copies_commit();
    }
};

/* Computes the gradient of a pack by the sums of its row; element `hit` is the target. */
template <class T, int N>
DEVICE pack<T, N> gradient_of(const pack<T, N> &p, float largest, float factor, int hit, float at_hit)
{
    float d[N];

    unpack(p, d);
    UNROLL
    for (int e = 0; e < N; e++)
        d[e] = exponential(d[e] - largest) * factor;
    if ((unsigned)hit < N) {
        UNROLL
        for (int e = 0; e < N; e++)
            d[e] = e == hit ? at_hit : d[e];
    }
    return rounded<T>(d);
}

/* Returns the loss of a row that is on its way, and stores its gradient. */
template <bool PADDED, int OWNS, class T>
DEVICE double loss_of_kept(const loss_plan &k, kept_row<T, OWNS> &kept, const T *x, T *g, const T *next, int32_t target,
                           float *partial)
{
    const int n = ACCESS / (int)sizeof(T), cols = (int)k.args.cols;
    float at_target = load(x, target), at_hit, factor;
    exp_sum s = {-INFINITY, 0.0f};

    kept.each(NULL, [&](pack<T, n> p, int i) {
        if (PADDED)
            mask_pack(p, (uint32_t)i * n, cols);
        add_exponentials(p, (uint32_t)i * n, cols, true, as_it_is(), s);
    });
    s = join_exponentials(s, (int)blockDim.x, partial); /* everybody has read x, where g may lie */
    factor = k.args.loss_scale / s.sum;
    at_hit = k.args.loss_scale * (exponential(at_target - s.largest) / s.sum - 1.0f);
    kept.each(next, [&](const pack<T, n> &p, int i) {
        put<n>(g, i * n, cols, !PADDED || i * n + n <= cols,
               gradient_of(p, s.largest, factor, (int)target - i * n, at_hit));
    });
    return (double)logf(s.sum) + (double)s.largest - (double)at_target;
}

template <bool PADDED, int OWNS, class T>
static __global__ __launch_bounds__(PADDED ? PADDED_THREADS : MOST_THREADS,
                                    OWNS > 0 ? 1 : 2) void kept_losses(GRID_CONSTANT(loss_plan) k)
{
    typedef typename kept_row<T, OWNS>::one one;
    SHARED_BYTES(one, shared);
    __shared__ float partial[WARP];
    const int64_t step = gridDim.x * k.args.logits_row;
    kept_row<T, OWNS> kept = {(int)(k.args.cols * (int64_t)sizeof(T) + ACCESS - 1) / ACCESS, shared, {}};

    for (int p = (int)threadIdx.x, r = 0; p < kept.packs; p += (int)blockDim.x, r++)
        kept.fetch((const T *)k.args.logits + blockIdx.x * k.args.logits_row, p, r);
    copies_commit();
    EACH_ROW (row, k.args.rows) {
        int32_t target = k.args.targets[row];
        const T *x = (const T *)k.args.logits + row * k.args.logits_row;
        const T *next = row + gridDim.x < k.args.rows ? x + step : NULL;
        T *g = (T *)k.args.dlogits + row * k.args.logits_row;
        double loss = 0.0;

        if (counts(k.args, target)) {
            loss = loss_of_kept<PADDED>(k, kept, x, g, next, target, partial);
        } else {
            kept.each(next, [](const one &, int) {});
            __syncthreads(); /* everybody has read x */
            clear_row(k, g);
        }
        if (threadIdx.x == 0)
            k.losses[row] = loss;
    }
}

/* ---- the sum of all rows ---- */

DEVICE double block_sum_double(double x, double *partial)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    if (lane_of_warp() == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int warp = 1; warp < (int)blockDim.x / WARP; warp++)
        x += threadIdx.x == 0 ? partial[warp] : 0.0;
    return x;
}

/* One block adds the rows' losses, and looks for the first bad row. */
static __global__ __launch_bounds__(MOST_THREADS) void fold_losses(GRID_CONSTANT(loss_plan) k)
{
    __shared__ double sums[WARP];
    __shared__ int64_t least[WARP];
    double loss = 0.0;
    int64_t bad = k.args.rows;

    EACH_ITEM (row, k.args.rows) {
        int32_t target = k.args.targets[row];

        loss += k.losses[row];
        if (target != k.args.ignore_index && !counts(k.args, target) && row < bad)
            bad = row;
    }
    loss = block_sum_double(loss, sums) * (double)k.args.loss_scale;
    bad = block_min(bad, least);
    if (threadIdx.x == 0) {
        *k.args.loss = (float)(k.args.accumulate_loss ? (double)*k.args.loss + loss : loss);
        if (k.args.bad_row && bad < k.args.rows)
            *k.args.bad_row = bad;
    }
}

template <class Kernel, class Made>
static fsdp_status launch_padded(fsdp_stream *stream, loss_plan k, Kernel *kernel, Made made)
{
    if (k.threads.block > PADDED_THREADS)
        k.threads.block = (unsigned)(k.threads.group = PADDED_THREADS);
    return launch(stream, "cross_entropy", kernel, k.threads.grid, k.threads.block, 0, k, made);
}

/* Launches kernels that keep rows, if a card has room for these; otherwise `done` stays as it is. */
template <bool PADDED, class T>
static fsdp_status launch_kept(fsdp_stream *stream, loss_plan k, bool *done)
{
    int64_t bytes = (k.args.cols * (int64_t)sizeof(T) + ACCESS - 1) / ACCESS * ACCESS, blocks = 1, own = 0;
    auto *kernel = kept_losses<PADDED, 0, T>;
    int multiprocessors;
    size_t card;

    fsdp__cuda_card(stream, &multiprocessors, &card);
    if (PADDED && k.threads.block > PADDED_THREADS)
        k.threads.block = (unsigned)(k.threads.group = PADDED_THREADS);
    if (2 * (bytes + BESIDE) <= (int64_t)card) {
        blocks = FSDP__MIN((int64_t)card / (bytes + BESIDE), (int64_t)(THREADS / k.threads.block));
    } else {
        kernel = kept_losses<PADDED, OWN, T>;
        own = (int64_t)OWN * ACCESS * k.threads.block;
    }
    *done = k.threads.group > WARP && bytes - own + BESIDE <= (int64_t)card;
    if (!*done)
        return FSDP_OK;
    blocks = FSDP__MIN(FSDP__MIN(blocks, (int64_t)CARDS_BLOCKS) * multiprocessors, k.args.rows);
    return launch(stream, "cross_entropy", kernel, (unsigned)blocks, k.threads.block,
                  (size_t)FSDP__MAX(bytes - own, (int64_t)0), k); /* registers may hold more than a row */
}

template <class T, class Made>
static fsdp_status launch_rows_of(fsdp_stream *stream, loss_plan k, Made made)
{
    const fsdp__cross_entropy_args *a = &k.args;
    bool aligned = is_aligned(a->logits, a->logits_row * (int64_t)sizeof(T));
    bool padded = a->cols % (ACCESS / (int64_t)sizeof(T)) != 0, done = false;

    if constexpr (is_half_word<T>::value && Made::PLAIN)
        if (aligned && a->dlogits && a->dlogits_dtype == a->dtype && is_aligned(a->dlogits, 0) && !a->largest)
            FSDP_TRY((padded ? launch_kept<true, T>(stream, k, &done) : launch_kept<false, T>(stream, k, &done)));
    if (done)
        return FSDP_OK;
#define TO(G)                                                                        \
    aligned = aligned && is_aligned(a->dlogits, a->logits_row * (int64_t)sizeof(G)); \
    if (aligned && padded && !a->largest)                                            \
        return launch_padded(stream, k, row_losses<true, T, G, Made>, made);         \
    k.whole = aligned && !padded;                                                    \
    FSDP_TRY(                                                                        \
        launch(stream, "cross_entropy", row_losses<false, T, G, Made>, k.threads.grid, k.threads.block, 0, k, made))
    EACH_FLOAT(a->dlogits ? a->dlogits_dtype : a->dtype, G, TO(G));
#undef TO
    return FSDP_OK;
}

ENTRY(cross_entropy, a)
{
    loss_plan k = {*a, threads_of_rows(a->rows, a->cols, EACH), false, NULL};

    k.losses = (double *)fsdp__stream_workspace(stream, (size_t)a->rows * sizeof *k.losses + 1);
    if (a->logits_row == 0)
        k.args.logits_row = a->cols;
    if (!k.losses)
        return fsdp_last_status();
    if (a->softcap > 0.0f)
        EACH_FLOAT(a->dtype, T, FSDP_TRY(launch_rows_of<T>(stream, k, capped{a->softcap})))
    else
        EACH_FLOAT(a->dtype, T, FSDP_TRY(launch_rows_of<T>(stream, k, as_it_is{})));
    return a->largest ? FSDP_OK : launch(stream, "cross_entropy", fold_losses, 1, MOST_THREADS, 0, k);
}
