/* sort.h - what qsort and bsearch compare by. */
#pragma once

/* Compares two numbers, as qsort's functions do. */
#define FSDP__COMPARE(a, b) (((a) > (b)) - ((a) < (b)))
/* Returns from such a function unless the two are equal. */
#define FSDP__ORDER_BY(a, b)                \
    do {                                    \
        if ((a) != (b))                     \
            return FSDP__COMPARE((a), (b)); \
    } while (0)

/* Define a function of qsort's for an array of `type` (not of pointers to it). It orders by one member, the lesser
 * first, by two, or by three. */
#define FSDP__ORDER_BY_ONE(name, type, member)                                      \
    static int name(const void *a, const void *b)                                   \
    {                                                                               \
        return FSDP__COMPARE(((const type *)a)->member, ((const type *)b)->member); \
    }
#define FSDP__ORDER_BY_TWO(name, type, first, second)                               \
    static int name(const void *a, const void *b)                                   \
    {                                                                               \
        FSDP__ORDER_BY(((const type *)a)->first, ((const type *)b)->first);         \
        return FSDP__COMPARE(((const type *)a)->second, ((const type *)b)->second); \
    }
#define FSDP__ORDER_BY_THREE(name, type, first, second, third)                    \
    static int name(const void *a, const void *b)                                 \
    {                                                                             \
        FSDP__ORDER_BY(((const type *)a)->first, ((const type *)b)->first);       \
        FSDP__ORDER_BY(((const type *)a)->second, ((const type *)b)->second);     \
        return FSDP__COMPARE(((const type *)a)->third, ((const type *)b)->third); \
    }

/* Defines one that orders by one member, the greater first. */
#define FSDP__ORDER_DOWN_BY(name, type, member)                                     \
    static int name(const void *a, const void *b)                                   \
    {                                                                               \
        return FSDP__COMPARE(((const type *)b)->member, ((const type *)a)->member); \
    }

/* Compares two int64_t, the lesser first. */
int fsdp__by_integer(const void *a, const void *b);
/* Compares two doubles, the lesser first. */
int fsdp__by_value(const void *a, const void *b);
/* Compares two structs by their first member, which is a name. */
int fsdp__by_name(const void *a, const void *b);
