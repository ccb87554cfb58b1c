/* digit_sum.h - sums of non-negative numbers, with the same bits in whatever order and parts they are added.
 *
 * A number is cut into digits of 26 bits at places that are the same for all numbers: place i counts multiples of 2^(26
 * i - 1074). Digits of one place are added as integers, which is exact, so parts of a sum may be made anywhere and
 * added in any order (Demmel and Nguyen, "Fast reproducible floating-point summation", 2013, with digits that are
 * truncated instead of rounded). Of each number the digits of three places are kept, counted down from the top digit of
 * the largest number that it is added with. The value is computed from the three top places of the whole sum, at which
 * no part has left anything out. So n numbers have an error of at most n 2^-52 times the largest of them.
 *
 * A sum takes up to 2^37 numbers. A sum of all zeros is empty. */
#pragma once

#include <stdint.h>

enum {
    FSDP__DIGIT_SUM_BITS = 26,
    FSDP__DIGIT_SUM_PLACES = 81, /* all that a double reaches */
    FSDP__DIGIT_SUM_KEPT = 3,
    FSDP__DIGIT_SUM_WORDS = FSDP__DIGIT_SUM_PLACES + 2 /* int64_t in a sum */
};

/* Each word is added by itself: an all-reduce of FSDP__DIGIT_SUM_WORDS I64 adds the ranks' sums. */
typedef struct fsdp__digit_sum {
    int64_t places[FSDP__DIGIT_SUM_PLACES];
    int64_t infinite, nan; /* how many parts contained such a number */
} fsdp__digit_sum;

/* Returns the place of the top digit of `largest`, which is finite and above 0. */
int fsdp__digit_sum_top(double largest);
/* Returns the factor, a power of two, that makes numbers up to that place less than 2^26: their top digit is then what
 * stands before the binary point. */
double fsdp__digit_sum_scale(int top);
/* Adds digits of the places top, top - 1 and top - 2, or sums of such digits. */
void fsdp__digit_sum_put(fsdp__digit_sum *sum, int top, const double digits[FSDP__DIGIT_SUM_KEPT]);
void fsdp__digit_sum_add(fsdp__digit_sum *sum, const fsdp__digit_sum *other);
double fsdp__digit_sum_value(const fsdp__digit_sum *sum);
