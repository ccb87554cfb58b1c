/* originals.h - the original parameters that lie in a flat one (FSDP1's): state goes out and in under their names and
 * in their shapes, as if the optimizer had each of them.
 *
 * A flat parameter has an *original* for each, a parameter without life of its own: while originals are open their
 * moments are views of the flat one's, and their steps its. */
#ifndef OPTIM_ORIGINALS_H
#define OPTIM_ORIGINALS_H

#include "optim/optim.h"

/* Those of param->tensor, if it has parts; the name is there. */
fsdp_status fsdp__originals_create(fsdp__optimizer_param *param);
void fsdp__originals_free(fsdp__optimizer_param *param);

/* Of all flat parameters. `make`: state where there is none yet, zeros. */
fsdp_status fsdp__originals_open(const fsdp_optimizer *optimizer, bool make);
/* Once more. `taken`: their state was loaded; what some have none of is zeros where others have some. FSDP_INVALID
 * where they have taken different numbers of steps: then the state is as it was loaded, by the first one's number. */
fsdp_status fsdp__originals_close(const fsdp_optimizer *optimizer, bool taken);

/* All parameters of a group by the names of their state: originals in place of flat ones. Begins with zeros. */
typedef struct fsdp__originals_walk {
    int64_t param, original;
} fsdp__originals_walk;
/* NULL behind the last. */
fsdp__optimizer_param *fsdp__originals_next(const fsdp__optimizer_group *group, fsdp__originals_walk *walk);

#endif
