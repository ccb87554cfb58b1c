/* digit_sum.c - digits of one place are integers, so their sums are exact. */
#include "base/digit_sum.h"

#include <math.h>

#define SMALLEST (-1074) /* exponent of the least bit of a double */

int fsdp__digit_sum_top(double largest)
{
    int top = (ilogb(largest) - SMALLEST) / FSDP__DIGIT_SUM_BITS;

    return top < FSDP__DIGIT_SUM_KEPT - 1 ? FSDP__DIGIT_SUM_KEPT - 1 : top; /* there are no places below 0 */
}

double fsdp__digit_sum_scale(int top)
{
    return ldexp(1, -SMALLEST - FSDP__DIGIT_SUM_BITS * top);
}

void fsdp__digit_sum_put(fsdp__digit_sum *sum, int top, const double digits[FSDP__DIGIT_SUM_KEPT])
{
    for (int i = 0; i < FSDP__DIGIT_SUM_KEPT; i++)
        sum->places[top - i] += (int64_t)digits[i];
}

void fsdp__digit_sum_add(fsdp__digit_sum *sum, const fsdp__digit_sum *other)
{
    for (int i = 0; i < FSDP__DIGIT_SUM_PLACES; i++)
        sum->places[i] += other->places[i];
    sum->infinite += other->infinite;
    sum->nan += other->nan;
}

double fsdp__digit_sum_value(const fsdp__digit_sum *sum)
{
    int top = FSDP__DIGIT_SUM_PLACES - 1;
    double value = 0;

    if (sum->nan > 0)
        return NAN;
    if (sum->infinite > 0)
        return INFINITY;
    while (top > FSDP__DIGIT_SUM_KEPT - 1 && sum->places[top] == 0)
        top--;
    for (int i = top - (FSDP__DIGIT_SUM_KEPT - 1); i <= top; i++)
        value += ldexp((double)sum->places[i], FSDP__DIGIT_SUM_BITS * i + SMALLEST);
    return value;
}
