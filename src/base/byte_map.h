/* byte_map.h - the 256 numbers from -1 to 1, or from 0 to 1, that a byte stands for in the moments of an optimizer: in
 * each of seven decades evenly spaced ones, more of them in higher decades, and 0 and 1 (bitsandbytes' dynamic map).
 * C++ may include this file. */
#pragma once

#ifdef __CUDACC__
#define FSDP__BYTE_MAP static __host__ __device__ inline
#else
#define FSDP__BYTE_MAP static inline
#endif

/* Returns the `place`-th positive number (from 0) below 1: the midpoints of [0.1, 1] cut into first << decade parts,
 * times 10^(decade - 6). `first` is 1 with a sign, and 2 without. */
FSDP__BYTE_MAP float fsdp__byte_map_positive(int place, int first)
{
    double scale = 1e-6;
    int parts = first;

    while (place >= parts) {
        place -= parts;
        parts *= 2;
        scale *= 10;
    }
    return (float)((0.1 + 0.9 * (place + 0.5) / parts) * scale);
}

/* Returns the number of a code. They grow with it. */
FSDP__BYTE_MAP float fsdp__byte_map_value(int code, int has_sign)
{
    if (code == 255)
        return 1.0f;
    if (!has_sign)
        return code == 0 ? 0.0f : fsdp__byte_map_positive(code - 1, 2);
    return code < 127    ? -fsdp__byte_map_positive(126 - code, 1)
           : code == 127 ? 0.0f
                         : fsdp__byte_map_positive(code - 128, 1);
}
