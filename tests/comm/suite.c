/* suite.c - what every rank expects, and the plain collectives held to it. */
#include "comm/suite.h"

#include "comm/group_calls.h"
#include "oracle/oracle.h"
#include "support/ranks.h"

/* ---- numbers: small integers are exact in every dtype ---- */

uint16_t suite_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); /* nearest even; no NaN here */
}

static uint16_t suite_half(int x)
{
    int magnitude = x < 0 ? -x : x, exponent = 0;

    if (x == 0)
        return 0;
    while (magnitude >> (exponent + 1))
        exponent++;
    return (uint16_t)((x < 0 ? 0x8000 : 0) | (exponent + 15) << 10 | ((magnitude << (10 - exponent)) & 0x3ff));
}

static void suite_store(void *buffer, int64_t i, fsdp_dtype dtype, int x)
{
    switch (dtype) {
    case FSDP_F32:
        ((float *)buffer)[i] = (float)x;
        break;
    case FSDP_BF16:
        ((uint16_t *)buffer)[i] = suite_bf16((float)x);
        break;
    case FSDP_F16:
        ((uint16_t *)buffer)[i] = suite_half(x);
        break;
    case FSDP_I32:
        ((int32_t *)buffer)[i] = x;
        break;
    case FSDP_I64:
        ((int64_t *)buffer)[i] = x;
        break;
    default:
        ((uint8_t *)buffer)[i] = (uint8_t)x;
    }
}

/* What rank r holds at i: -7 .. 8, or 0 .. 15 where there is no sign. */
static int suite_value(int r, int64_t i, fsdp_dtype dtype)
{
    int x = (int)(((uint64_t)i * 7 + (uint64_t)r * 5 + ((uint64_t)i >> 7)) % 16);

    return dtype == FSDP_U8 || dtype == FSDP_BOOL ? x : x - 7;
}

static int suite_reduced(int size, int64_t i, fsdp_dtype dtype, fsdp_reduce_op op)
{
    int result = suite_value(0, i, dtype);

    for (int r = 1; r < size; r++) {
        int x = suite_value(r, i, dtype);
        if (op == FSDP_SUM || op == FSDP_AVG)
            result += x;
        else
            result = (op == FSDP_MAX) == (x > result) ? x : result;
    }
    return result;
}

/* Expected average: the f32 sum divided by size, rounded once more to the dtype. */
static void suite_store_average(void *buffer, int64_t i, fsdp_dtype dtype, int sum, int size)
{
    float x = (float)sum / (float)size;

    if (dtype == FSDP_F32)
        ((float *)buffer)[i] = x;
    else
        ((uint16_t *)buffer)[i] = suite_bf16(x);
}

static void suite_sum_close(suite_sum *sum)
{
    bool rounds = test_machines_of(sum->ranks) > 1;
    float rounded = rounds ? (float)oracle_round(sum->dtype, (double)sum->of_machine) : sum->of_machine;

    if (sum->of_machine_count > 0)
        sum->value = sum->any ? sum->value + rounded : rounded;
    sum->any = sum->any || sum->of_machine_count > 0;
    sum->of_machine_count = 0;
}

void suite_sum_add(suite_sum *sum, int rank, float x)
{
    int machine = rank / (sum->ranks / test_machines_of(sum->ranks));

    if (machine != sum->machine)
        suite_sum_close(sum);
    sum->machine = machine;
    sum->of_machine = sum->of_machine_count++ > 0 ? sum->of_machine + x : x;
}

void suite_sum_end(suite_sum *sum)
{
    suite_sum_close(sum);
}

void suite_fill(fsdp_dtype dtype, void *p, int64_t n, double (*value)(int rank, int64_t i), int rank)
{
    const int64_t period = 4099;
    size_t element = fsdp_dtype_size(dtype);

    for (int64_t i = 0; i < n && i < period; i++)
        oracle_put(dtype, p, i, value(rank, i));
    for (int64_t i = period; i < n; i += period)
        memcpy((char *)p + (size_t)i * element, p, (size_t)(n - i < period ? n - i : period) * element);
}

/* ---- buffers ---- */

static void *suite_alloc(const suite *s, size_t bytes)
{
    void *buffer = NULL;

    if (s->symmetric && fsdp_process_group_can_share(s->group, FSDP_MEMORY_SYMMETRIC))
        CHECK_OK(fsdp_process_group_alloc(s->group, FSDP_MEMORY_SYMMETRIC, bytes, &buffer));
    else
        buffer = malloc(bytes ? bytes : 1);
    CHECK(buffer != NULL);
    memset(buffer, 0xee, bytes);
    return buffer;
}

static void suite_free(const suite *s, void *buffer, size_t bytes)
{
    if (s->symmetric && fsdp_process_group_can_share(s->group, FSDP_MEMORY_SYMMETRIC))
        fsdp_process_group_free_memory(s->group, FSDP_MEMORY_SYMMETRIC, buffer, bytes);
    else
        free(buffer);
}

void suite_sync(const suite *s)
{
    CHECK_OK(fsdp_stream_synchronize(s->stream));
}

/* ---- one collective each ---- */

static void suite_all_gather(const suite *s, fsdp_dtype dtype, int64_t count, bool in_place)
{
    int size = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    size_t element = fsdp_dtype_size(dtype), bytes = (size_t)count * element, all = bytes * (size_t)size;
    char *recv = suite_alloc(s, all), *expected = malloc(all + 1);
    char *send = in_place ? recv + (size_t)rank * bytes : suite_alloc(s, bytes);

    for (int64_t i = 0; i < count; i++)
        suite_store(send, i, dtype, suite_value(rank, i, dtype));
    for (int64_t i = 0; i < count * size; i++)
        suite_store(expected, i, dtype, suite_value((int)(i / count), i % count, dtype));
    CHECK_OK(fsdp_all_gather(s->group, send, recv, count, dtype, s->stream));
    suite_sync(s);
    CHECK_BYTES(recv, expected, all);
    if (!in_place)
        suite_free(s, send, bytes);
    suite_free(s, recv, all);
    free(expected);
}

static void suite_reduce_scatter(const suite *s, fsdp_dtype dtype, int64_t count, fsdp_reduce_op op, bool in_place)
{
    int size = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    size_t element = fsdp_dtype_size(dtype), bytes = (size_t)count * element, all = bytes * (size_t)size;
    char *send = suite_alloc(s, all), *expected = malloc(bytes + 1);
    char *recv = in_place ? send + (size_t)rank * bytes : suite_alloc(s, bytes);

    for (int64_t i = 0; i < count * size; i++)
        suite_store(send, i, dtype, suite_value(rank, i, dtype));
    for (int64_t i = 0; i < count; i++) {
        int x = suite_reduced(size, rank * count + i, dtype, op);
        if (op == FSDP_AVG)
            suite_store_average(expected, i, dtype, x, size);
        else
            suite_store(expected, i, dtype, x);
    }
    CHECK_OK(fsdp_reduce_scatter(s->group, send, recv, count, dtype, op, s->stream));
    suite_sync(s);
    CHECK_BYTES(recv, expected, bytes);
    if (!in_place)
        suite_free(s, recv, bytes);
    suite_free(s, send, all);
    free(expected);
}

static void suite_all_reduce(const suite *s, fsdp_dtype dtype, int64_t count, fsdp_reduce_op op, bool in_place)
{
    int size = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    size_t bytes = (size_t)count * fsdp_dtype_size(dtype);
    char *send = suite_alloc(s, bytes), *recv = in_place ? send : suite_alloc(s, bytes), *expected = malloc(bytes + 1);

    for (int64_t i = 0; i < count; i++) {
        int x = suite_reduced(size, i, dtype, op);
        suite_store(send, i, dtype, suite_value(rank, i, dtype));
        if (op == FSDP_AVG)
            suite_store_average(expected, i, dtype, x, size);
        else
            suite_store(expected, i, dtype, x);
    }
    CHECK_OK(fsdp_all_reduce(s->group, send, recv, count, dtype, op, s->stream));
    suite_sync(s);
    CHECK_BYTES(recv, expected, bytes);
    if (!in_place)
        suite_free(s, recv, bytes);
    suite_free(s, send, bytes);
    free(expected);
}

static void suite_broadcast(const suite *s, fsdp_dtype dtype, int64_t count, int root)
{
    size_t bytes = (size_t)count * fsdp_dtype_size(dtype);
    char *buffer = suite_alloc(s, bytes), *expected = malloc(bytes + 1);

    for (int64_t i = 0; i < count; i++) {
        suite_store(buffer, i, dtype, suite_value(fsdp_process_group_rank(s->group), i, dtype));
        suite_store(expected, i, dtype, suite_value(root, i, dtype));
    }
    CHECK_OK(fsdp_broadcast(s->group, buffer, count, dtype, root, s->stream));
    suite_sync(s);
    CHECK_BYTES(buffer, expected, bytes);
    suite_free(s, buffer, bytes);
    free(expected);
}

static void suite_all_to_all(const suite *s, fsdp_dtype dtype, int64_t count)
{
    int size = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    size_t all = (size_t)count * fsdp_dtype_size(dtype) * (size_t)size;
    char *send = suite_alloc(s, all), *recv = suite_alloc(s, all), *expected = malloc(all + 1);

    for (int64_t i = 0; i < count * size; i++) {
        suite_store(send, i, dtype, suite_value(rank, i, dtype));
        suite_store(expected, i, dtype, suite_value((int)(i / count), rank * count + i % count, dtype));
    }
    CHECK_OK(fsdp_all_to_all(s->group, send, recv, count, dtype, s->stream));
    suite_sync(s);
    CHECK_BYTES(recv, expected, all);
    suite_free(s, recv, all);
    suite_free(s, send, all);
    free(expected);
}

void suite_rank_order(const suite *s, int64_t count)
{
    int size = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    size_t bytes = (size_t)count * sizeof(float);
    float *buffer = suite_alloc(s, bytes), *expected = malloc(bytes);

    for (int64_t i = 0; i < count; i++) {
        buffer[i] = (float)(i % 977 + 1) / (float)(rank + 3);
        suite_sum sum = {.ranks = size, .dtype = FSDP_F32};

        for (int r = 0; r < size; r++)
            suite_sum_add(&sum, r, (float)(i % 977 + 1) / (float)(r + 3));
        suite_sum_end(&sum);
        expected[i] = sum.value;
    }
    CHECK_OK(fsdp_all_reduce(s->group, buffer, buffer, count, FSDP_F32, FSDP_SUM, s->stream));
    suite_sync(s);
    CHECK_BYTES(buffer, expected, bytes);
    suite_free(s, buffer, bytes);
    free(expected);
}

/* Each rank has set one, nobody the last; or rank 0 all, or everybody. */
static void suite_flags_of(const suite *s, int64_t count, bool first, bool all)
{
    int size = fsdp_process_group_size(s->group), rank = fsdp_process_group_rank(s->group);
    size_t bytes = (size_t)count * sizeof(float);
    float *buffer = suite_alloc(s, bytes);
    uint8_t *flags = calloc((size_t)size + 1, 1);

    for (int64_t i = 0; i < count; i++)
        buffer[i] = (float)rank + 1;
    flags[rank] = 1;
    CHECK_OK(fsdp__process_group_any(s->group, &(fsdp__any){.flags = all || (first && rank == 0) ? NULL : flags,
                                                            .count = size + 1,
                                                            .stream = s->stream,
                                                            .send = buffer,
                                                            .recv = buffer,
                                                            .numel = count,
                                                            .dtype = FSDP_F32}));
    suite_sync(s);
    for (int i = 0; i <= size; i++)
        CHECK_EQ(flags[i], all || (first && rank == 0) ? i == rank : first || i < size);
    memset(flags, 0, (size_t)size + 1);
    flags[rank] = 1;
    CHECK_OK(fsdp__process_group_any(
        s->group, &(fsdp__any){.flags = all ? NULL : flags, .count = size + 1, .stream = s->stream}));
    suite_sync(s);
    for (int i = 0; i <= size; i++)
        CHECK_EQ(flags[i], all ? i == rank : i < size);
    CHECK_EQ(buffer[count - 1], (float)(size * (size + 1) / 2));
    suite_free(s, buffer, bytes);
    free(flags);
}

static void suite_flags(const suite *s, int64_t count)
{
    suite_flags_of(s, count, false, false);
    suite_flags_of(s, count, true, false);
    suite_flags_of(s, count, false, true);
}

/* ---- all of them ---- */

void suite_plain_count(const suite *s, fsdp_dtype dtype, int64_t count)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        suite_all_gather(s, dtype, count, in_place);
        for (int op = FSDP_SUM; op <= FSDP_MIN; op++) {
            if (op == FSDP_AVG && dtype != FSDP_F32 && dtype != FSDP_BF16)
                continue;
            suite_reduce_scatter(s, dtype, count, (fsdp_reduce_op)op, in_place);
            suite_all_reduce(s, dtype, count, (fsdp_reduce_op)op, in_place);
        }
    }
    suite_broadcast(s, dtype, count, 0);
    suite_broadcast(s, dtype, count, fsdp_process_group_size(s->group) - 1);
    suite_all_to_all(s, dtype, count);
}

void suite_plain(const suite *s)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_I64, FSDP_U8};
    static const int64_t counts[] = {0, 1, 13, 1500, 5003};

    size_t every = test_brief() ? 4 : 1;

    /* But for `make test-long` each dtype has every second count. */
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d += every)
        for (size_t c = test_long() ? 0 : d / every % 2; c < sizeof counts / sizeof *counts; c += test_long() ? 1 : 2)
            suite_plain_count(s, dtypes[d], counts[c]);
    suite_all_gather(s, FSDP_I64, 100003, false);
    suite_broadcast(s, FSDP_I64, 100003, 0);
    suite_all_reduce(s, FSDP_F32, 200003, FSDP_AVG, true);
    suite_reduce_scatter(s, FSDP_BF16, 70001, FSDP_SUM, false);
    suite_all_to_all(s, FSDP_I32, 40009);
    suite_rank_order(s, 1000);
    suite_rank_order(s, 100003);
    suite_flags(s, 3);
    suite_flags(s, 100003);
    CHECK_OK(fsdp_barrier(s->group));
}

static void suite_objects_sized(fsdp_process_group *group, size_t scale)
{
    int size = fsdp_process_group_size(group), rank = fsdp_process_group_rank(group), root = size - 1;
    size_t bytes = (size_t)rank * scale, *sizes = NULL, got = 0;
    const void **given = calloc((size_t)size, sizeof *given);
    size_t *given_bytes = calloc((size_t)size, sizeof *given_bytes);
    unsigned char *mine = malloc((size_t)size * scale + 1);
    void **objects = NULL, *part = NULL;

    memset(mine, rank + 1, (size_t)size * scale);
    CHECK_OK(fsdp_gather_objects(group, mine, bytes, &objects, &sizes));
    for (int r = 0; r < size; r++) {
        CHECK_EQ(sizes[r], (size_t)r * scale);
        for (size_t i = 0; i < sizes[r]; i++)
            CHECK_EQ(((unsigned char *)objects[r])[i], r + 1);
    }
    fsdp_objects_free(group, objects, sizes);
    for (int r = 0; r < size; r++) {
        given[r] = mine;
        given_bytes[r] = (size_t)r * scale;
    }
    CHECK_OK(
        fsdp_scatter_objects(group, root, rank == root ? given : NULL, rank == root ? given_bytes : NULL, &part, &got));
    CHECK_EQ(got, bytes);
    for (size_t i = 0; i < got; i++)
        CHECK_EQ(((unsigned char *)part)[i], root + 1);
    free(part);
    free(mine);
    free(given_bytes);
    free((void *)given);
}

void suite_objects(fsdp_process_group *group)
{
    suite_objects_sized(group, 0);
    suite_objects_sized(group, 7);
    suite_objects_sized(group, 40000);
    CHECK_OK(fsdp_agree(group, FSDP_OK));
}

fsdp_status plain_make(const plain_call *c, fsdp_process_group *group, void *send, void *recv, fsdp_stream *stream)
{
    switch (c->what) {
    case GATHER:
        return fsdp_all_gather(group, send, recv, c->count, c->dtype, stream);
    case SCATTER:
        return fsdp_reduce_scatter(group, send, recv, c->count, c->dtype, c->op, stream);
    case REDUCE:
        return fsdp_all_reduce(group, send, recv, c->count, c->dtype, c->op, stream);
    case BROADCAST:
        return fsdp_broadcast(group, recv, c->count, c->dtype, fsdp_process_group_size(group) - 1, stream);
    default:
        return fsdp_all_to_all(group, send, recv, c->count, c->dtype, stream);
    }
}
