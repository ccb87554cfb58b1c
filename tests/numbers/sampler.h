/* numbers/sampler.h - made by sampler.py with PyTorch 2.15.0. */
#ifndef TESTS_NUMBERS_SAMPLER_H
#define TESTS_NUMBERS_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sampler_number {
    int64_t length;
    int world, rank;
    bool shuffle, drop_last;
    int64_t seed, epoch, count;
    int64_t indices[32];
} sampler_number;

/* clang-format off */
static const sampler_number sampler_numbers[] = {
{10, 1, 0, true, false, 0, 0, 10, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
{10, 3, 0, true, false, 0, 1, 4, {5, 2, 9, 4}},
{10, 3, 1, true, false, 0, 1, 4, {6, 0, 3, 5}},
{10, 3, 2, true, false, 0, 1, 4, {1, 8, 7, 6}},
{11, 4, 0, true, true, 7, 2, 2, {4, 3}},
{11, 4, 1, true, true, 7, 2, 2, {9, 7}},
{11, 4, 2, true, true, 7, 2, 2, {2, 0}},
{11, 4, 3, true, true, 7, 2, 2, {8, 1}},
{11, 4, 0, false, false, 0, 0, 3, {0, 4, 8}},
{11, 4, 1, false, false, 0, 0, 3, {1, 5, 9}},
{11, 4, 2, false, false, 0, 0, 3, {2, 6, 10}},
{11, 4, 3, false, false, 0, 0, 3, {3, 7, 0}},
{10, 4, 0, false, true, 0, 5, 2, {0, 4}},
{10, 4, 1, false, true, 0, 5, 2, {1, 5}},
{10, 4, 2, false, true, 0, 5, 2, {2, 6}},
{10, 4, 3, false, true, 0, 5, 2, {3, 7}},
{3, 8, 0, true, false, 5, 4, 1, {1}},
{3, 8, 1, true, false, 5, 4, 1, {0}},
{3, 8, 2, true, false, 5, 4, 1, {2}},
{3, 8, 3, true, false, 5, 4, 1, {1}},
{3, 8, 4, true, false, 5, 4, 1, {0}},
{3, 8, 5, true, false, 5, 4, 1, {2}},
{3, 8, 6, true, false, 5, 4, 1, {1}},
{3, 8, 7, true, false, 5, 4, 1, {0}},
{3, 8, 0, true, true, 5, 4, 0, {0}},
{3, 8, 1, true, true, 5, 4, 0, {0}},
{3, 8, 2, true, true, 5, 4, 0, {0}},
{3, 8, 3, true, true, 5, 4, 0, {0}},
{3, 8, 4, true, true, 5, 4, 0, {0}},
{3, 8, 5, true, true, 5, 4, 0, {0}},
{3, 8, 6, true, true, 5, 4, 0, {0}},
{3, 8, 7, true, true, 5, 4, 0, {0}},
{60, 2, 0, true, false, 4294967299, 10, 30, {58, 40, 50, 12, 24, 27, 16, 42, 11, 29, 53, 8, 44, 23, 39, 35, 20, 31, 47, 54, 19, 46, 33, 6, 1, 2, 13, 15, 57, 28}},
{60, 2, 1, true, false, 4294967299, 10, 30, {26, 38, 41, 43, 21, 18, 32, 36, 7, 4, 10, 59, 34, 48, 30, 9, 17, 22, 51, 56, 3, 37, 45, 49, 14, 25, 0, 52, 5, 55}},
};
/* clang-format on */

#endif
