/* saver.h - what a run may ask of its saver. */
#pragma once

#include "base/directory.h"
#include "fsdp/checkpoint.h"

/* Makes every save from here on fail if the name of the saver's folder does not stand for this folder, which the run
 * holds: whoever may write to the directory above could give the name to another run's folder. Called on the first
 * rank. */
fsdp_status fsdp__saver_stay(fsdp_checkpoint_saver *saver, const fsdp__directory *folder);
