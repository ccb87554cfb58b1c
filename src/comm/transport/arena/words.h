/* words.h - short texts in shared memory that others may read while they are written: a reader may see a torn text, but
 * there is no data race. */
#ifndef COMM_ARENA_WORDS_H
#define COMM_ARENA_WORDS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* Fills all words with `text`; what a shorter text leaves is filled with zeros. */
static inline void fsdp__words_store(_Atomic uint64_t *words, int count, const char *text)
{
    for (int i = 0; i < count; i++) {
        uint64_t word = 0;
        size_t length = strnlen(text, sizeof word);

        memcpy(&word, text, length);
        text += length;
        atomic_store_explicit(&words[i], word, memory_order_release);
    }
}

/* Reads the words into `text`, which has room for them and a terminating zero. */
static inline void fsdp__words_load(const _Atomic uint64_t *words, int count, char *text)
{
    for (int i = 0; i < count; i++) {
        uint64_t word = atomic_load_explicit(&words[i], memory_order_acquire);

        memcpy(text + 8 * i, &word, sizeof word);
    }
    text[8 * count] = '\0';
}

#endif
