/* originals.h - the original parameters that lie in a flat one (FSDP1's): state is saved and loaded under their names
 * and in their shapes, as if the optimizer had each of them.
 *
 * A flat parameter has an *original* for each of them, a parameter without a life of its own: while originals are open,
 * their moments are views of the flat parameter's, and their steps are its steps. */
#pragma once

#include "optim/optim.h"

/* Creates the originals of param->tensor if it has parts. The param must have its name. */
fsdp_status fsdp__originals_create(fsdp__optimizer_param *param);
void fsdp__originals_free(fsdp__optimizer_param *param);

/* Opens the originals of all flat parameters. With `make`, parameters without state get zeros. */
fsdp_status fsdp__originals_open(const fsdp_optimizer *optimizer, bool make);
/* Closes them again. With `taken`, their state was loaded: where some originals of a parameter have state, those
 * without get zeros. Returns FSDP_INVALID if originals have taken different numbers of steps; the state then is as it
 * was loaded, with the first one's number. */
fsdp_status fsdp__originals_close(const fsdp_optimizer *optimizer, bool taken);
