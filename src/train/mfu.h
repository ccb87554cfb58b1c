/* mfu.h - what MFU (model FLOPs utilization) of a run is a share of. */
#pragma once

#include "fsdp/train.h"

/* Returns whether there may be a peak of the devices to find, of which MFU (model FLOPs utilization) is a share: the
 * same on all ranks, which all have the same kind of device. */
bool fsdp__mfu_is_asked(const fsdp_train_run *run);
/* Finds the peak of this rank's device, as metrics.mfu and metrics.peak_tflops say; 0: the card is not known. */
fsdp_status fsdp__mfu_look(fsdp_train_run *run);
/* Adds up the peaks of all ranks' devices; 0, if one is not known. [collective] */
fsdp_status fsdp__mfu_add_up(fsdp_train_run *run);
/* Takes off the FLOPs for one token what a backward leaves out, since weights of frozen parameters have no gradients,
 * and adds what adapters take: 6 for each of their parameters. */
double fsdp__mfu_of_trained(const fsdp_train_run *run, double flops_per_token);
