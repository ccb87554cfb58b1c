/* nearest.h - "did you mean": the word of a list that is few typing errors away. */
#ifndef CONFIG_NEAREST_H
#define CONFIG_NEAREST_H

/* The word of `words` (NULL-terminated) nearest to `word`; NULL when none is near. */
const char *fsdp__nearest(const char *word, const char *const *words);

#endif
