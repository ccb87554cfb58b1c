/* sort.h - what qsort and bsearch compare by. */
#ifndef BASE_SORT_H
#define BASE_SORT_H

/* Compares two numbers, as qsort's functions do. */
#define FSDP__COMPARE(a, b) (((a) > (b)) - ((a) < (b)))
/* Returns from such a function unless the two are equal. */
#define FSDP__ORDER_BY(a, b)                \
    do {                                    \
        if ((a) != (b))                     \
            return FSDP__COMPARE((a), (b)); \
    } while (0)

/* Compares two doubles, the lesser first. */
int fsdp__by_value(const void *a, const void *b);
/* Compares two structs by their first member, which is a name. */
int fsdp__by_name(const void *a, const void *b);

#endif
