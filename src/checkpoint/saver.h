/* saver.h - what a run may ask of its saver. */
#ifndef CHECKPOINT_SAVER_H
#define CHECKPOINT_SAVER_H

#include "base/directory.h"
#include "fsdp/checkpoint.h"

/* From here on a save fails where the name of the saver's folder does not stand for this one, which the run holds:
 * whoever may write to the directory above could give the name to another run's. On the first rank. */
fsdp_status fsdp__saver_stay(fsdp_checkpoint_saver *saver, const fsdp__directory *folder);

#endif
