/* nearest.h - "did you mean": finds the word of a list that is a few typing errors away. */
#pragma once

/* Returns the word of `words` (NULL-terminated) that is nearest to `word`; NULL if none is near. */
const char *fsdp__nearest(const char *word, const char *const *words);
