/* tree.h - what a folder holds, as one text that can be compared. */
#pragma once

/* A line for each file and folder below `path`, by name: its kind, size and a hash of its bytes. What is called `skip`
 * (may be NULL) is left out. "nothing" when there is no such folder. free() it. */
char *tree_text(const char *path, const char *skip);
/* Makes `to` hold what `from` holds, and nothing else; `from` may not be there. */
void tree_copy(const char *from, const char *to);
