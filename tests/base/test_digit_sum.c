/* Sums in any order and parts. */
#include "base/digit_sum.h"

#include <math.h>
#include <stdlib.h>

#include "support/test.h"

enum {
    NUMBERS = 3000,
    PARTS = 5
};

/* The digits of one number, as a part of its own. */
static void add_number(fsdp__digit_sum *sum, double x)
{
    double digits[FSDP__DIGIT_SUM_KEPT];
    int top;

    if (x == 0)
        return;
    top = fsdp__digit_sum_top(x);
    x *= fsdp__digit_sum_scale(top);
    for (int i = 0; i < FSDP__DIGIT_SUM_KEPT; i++, x = ldexp(x, FSDP__DIGIT_SUM_BITS)) {
        digits[i] = floor(x);
        x -= digits[i];
    }
    fsdp__digit_sum_put(sum, top, digits);
}

static void draw(double *numbers, int spread)
{
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = ldexp(1 + rand() % 1000000 / 1e6, rand() % (2 * spread + 1) - spread);
}

TEST(any_order_and_any_parts_have_the_same_bits)
{
    static const int spreads[] = {0, 3, 20, 100, 1000};

    srand(7);
    for (int s = 0; s < 5; s++) {
        double numbers[NUMBERS], expected = 0, largest = 0;
        long double plain = 0;

        draw(numbers, spreads[s]);
        for (int i = 0; i < NUMBERS; i++)
            plain += numbers[i], largest = fmax(largest, numbers[i]);
        for (int round = 0; round < 20; round++) {
            fsdp__digit_sum parts[PARTS] = {{.nan = 0}}, sum = {.nan = 0};

            for (int i = NUMBERS - 1; i > 0; i--) {
                int other = rand() % (i + 1);
                double x = numbers[i];

                numbers[i] = numbers[other];
                numbers[other] = x;
            }
            for (int i = 0; i < NUMBERS; i++)
                add_number(&parts[rand() % PARTS], numbers[i]);
            for (int p = 0; p < PARTS; p++)
                fsdp__digit_sum_add(&sum, &parts[p]);
            expected = round == 0 ? fsdp__digit_sum_value(&sum) : expected;
            CHECK(fsdp__digit_sum_value(&sum) == expected);
        }
        CHECK_NEAR(expected, (double)plain, (double)plain * 0x1p-50 + NUMBERS * 0x1p-52 * largest);
    }
}

TEST(one_number_is_itself)
{
    static const double numbers[] = {0, 1, 3, 0.1, 1e-300, 0x1p-1074, 0x1.fffffep127 * 0x1.fffffep127, 1.7e308};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        fsdp__digit_sum sum = {.nan = 0};

        add_number(&sum, numbers[i]);
        CHECK(fsdp__digit_sum_value(&sum) == numbers[i]);
    }
}

TEST(what_is_not_finite_stays)
{
    fsdp__digit_sum sum = {.nan = 0}, infinite = {.infinite = 1}, nan = {.nan = 1};

    add_number(&sum, 3);
    fsdp__digit_sum_add(&sum, &infinite);
    CHECK(isinf(fsdp__digit_sum_value(&sum)));
    fsdp__digit_sum_add(&sum, &nan);
    CHECK(isnan(fsdp__digit_sum_value(&sum)));
}
