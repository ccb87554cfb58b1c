/* gguf_write.c - makes the header of a file of llama.cpp, and its types of tensors. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "format/gguf.h"

/* ---- types ---- */

static const struct {
    fsdp__gguf_type type;
    const char *names[3];
} types[] = {{FSDP__GGUF_F32, {"float32", "f32", "F32"}},
             {FSDP__GGUF_F16, {"float16", "f16", "F16"}},
             {FSDP__GGUF_BF16, {"bfloat16", "bf16", "BF16"}},
             {FSDP__GGUF_Q8_0, {"q8_0", "q8", "Q8_0"}}};

const char *fsdp__gguf_type_name(fsdp__gguf_type type)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(types); i++)
        if (types[i].type == type)
            return types[i].names[0];
    return "unknown";
}

bool fsdp__gguf_type_of(const char *name, fsdp__gguf_type *out)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(types); i++)
        for (size_t n = 0; n < FSDP__COUNT_OF(types[i].names); n++)
            if (strcmp(types[i].names[n], name) == 0) {
                *out = types[i].type;
                return true;
            }
    return false;
}

/* Rounds a number that is not negative to float16, to nearest even; what is too large becomes infinite. */
static uint16_t to_half(float x)
{
    int exponent;
    double fraction = frexp((double)x, &exponent); /* x = fraction 2^exponent, fraction in [1/2, 1) */
    long steps;

    if (!(x > 0))
        return x == 0 ? 0 : 0x7e00;
    if (exponent < -13) /* below 2^-14: in steps of 2^-24 */
        return (uint16_t)lrint(ldexp((double)x, 24));
    steps = lrint(ldexp(fraction, 11)); /* 1024 to 2048 */
    return exponent > 16 || (exponent == 16 && steps == 2048) ? 0x7c00 : (uint16_t)(steps + ((exponent + 13) << 10));
}

static float from_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double x = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);

    if (exponent == 31)
        x = mantissa ? (double)NAN : (double)INFINITY;
    return (float)(bits >> 15 ? -x : x);
}

/* Rounds half away from zero. */
static float round_away(float x)
{
    float whole = floorf(fabsf(x)), rest = fabsf(x) - whole;

    return copysignf(whole + floorf(2 * rest), x);
}

void fsdp__gguf_to_blocks(const float *from, int64_t numel, unsigned char *to)
{
    for (int64_t b = 0; b < numel; b += FSDP__GGUF_BLOCK, to += FSDP__GGUF_BLOCK_BYTES) {
        float largest = 0, scale, inverse;
        uint16_t stored;

        for (int i = 0; i < FSDP__GGUF_BLOCK; i++)
            largest = fmaxf(largest, fabsf(from[b + i]));
        scale = largest / 127;
        inverse = scale == 0 ? 0 : 1 / scale;
        stored = to_half(scale);
        memcpy(to, &stored, sizeof stored);
        for (int i = 0; i < FSDP__GGUF_BLOCK; i++)
            to[2 + i] = (unsigned char)(signed char)round_away(from[b + i] * inverse);
    }
}

void fsdp__gguf_from_blocks(const unsigned char *from, int64_t numel, float *to)
{
    for (int64_t b = 0; b < numel; b += FSDP__GGUF_BLOCK, from += FSDP__GGUF_BLOCK_BYTES) {
        uint16_t stored;

        memcpy(&stored, from, sizeof stored);
        for (int i = 0; i < FSDP__GGUF_BLOCK; i++)
            to[b + i] = from_half(stored) * (float)(signed char)from[2 + i];
    }
}

/* ---- the header ---- */

static void put(fsdp__gguf_header *h, const void *data, size_t bytes)
{
    h->failed = h->failed || fsdp__grow(&h->data, h->bytes + (int64_t)bytes, &h->capacity, 1) != FSDP_OK;
    if (h->failed || bytes == 0)
        return;
    memcpy(h->data + h->bytes, data, bytes);
    h->bytes += (int64_t)bytes;
}

static void put_u32(fsdp__gguf_header *h, uint32_t value)
{
    put(h, &value, sizeof value);
}

static void put_u64(fsdp__gguf_header *h, uint64_t value)
{
    put(h, &value, sizeof value);
}

void fsdp__gguf_add_text(fsdp__gguf_header *h, const char *text, size_t bytes)
{
    put_u64(h, bytes);
    put(h, text, bytes);
}

void fsdp__gguf_add_i32(fsdp__gguf_header *h, int32_t value)
{
    put(h, &value, sizeof value);
}

void fsdp__gguf_add_real(fsdp__gguf_header *h, float value)
{
    put(h, &value, sizeof value);
}

void fsdp__gguf_header_begin(fsdp__gguf_header *h)
{
    *h = (fsdp__gguf_header){.bytes = 0};
    put(h, "GGUF", 4);
    put_u32(h, 3);
    put_u64(h, 0);
    put_u64(h, 0);
}

static void begin_value(fsdp__gguf_header *h, const char *key, fsdp__gguf_kind kind)
{
    h->values++;
    fsdp__gguf_add_text(h, key, strlen(key));
    put_u32(h, (uint32_t)kind);
}

void fsdp__gguf_put_integer(fsdp__gguf_header *h, const char *key, fsdp__gguf_kind kind, int64_t value)
{
    begin_value(h, key, kind);
    put(h, &value, kind == FSDP__GGUF_BOOL ? 1 : 4); /* of little-endian integers the first bytes */
}

void fsdp__gguf_put_real(fsdp__gguf_header *h, const char *key, float value)
{
    begin_value(h, key, FSDP__GGUF_REAL);
    put(h, &value, sizeof value);
}

void fsdp__gguf_put_text(fsdp__gguf_header *h, const char *key, const char *text)
{
    begin_value(h, key, FSDP__GGUF_TEXT);
    fsdp__gguf_add_text(h, text, strlen(text));
}

void fsdp__gguf_put_array(fsdp__gguf_header *h, const char *key, fsdp__gguf_kind kind, uint64_t count)
{
    begin_value(h, key, FSDP__GGUF_ARRAY);
    put_u32(h, (uint32_t)kind);
    put_u64(h, count);
}

void fsdp__gguf_add_tensor(fsdp__gguf_header *h, const char *name, int ndim, const int64_t *shape, fsdp__gguf_type type,
                           uint64_t *offset)
{
    int64_t numel = 1;
    uint64_t bytes;

    h->tensors++;
    fsdp__gguf_add_text(h, name, strlen(name));
    put_u32(h, (uint32_t)ndim);
    for (int d = ndim - 1; d >= 0; d--) {
        put_u64(h, (uint64_t)shape[d]);
        numel *= shape[d];
    }
    put_u32(h, (uint32_t)type);
    put_u64(h, h->data_bytes);
    *offset = h->data_bytes;
    bytes = fsdp__gguf_bytes(type, numel);
    h->data_bytes += FSDP__ROUND_UP(bytes, FSDP__GGUF_ALIGNMENT);
}

fsdp_status fsdp__gguf_header_finish(fsdp__gguf_header *h)
{
    static const unsigned char zeros[FSDP__GGUF_ALIGNMENT];

    put(h, zeros, (size_t)(-h->bytes & (FSDP__GGUF_ALIGNMENT - 1)));
    if (h->failed)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write a GGUF file");
    memcpy(h->data + 8, &h->tensors, sizeof h->tensors);
    memcpy(h->data + 16, &h->values, sizeof h->values);
    return FSDP_OK;
}

void fsdp__gguf_header_release(fsdp__gguf_header *h)
{
    fsdp__free(fsdp__take(&h->data));
}
