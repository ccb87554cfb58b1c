/* run_steps.h - what a run does around its steps and at its end, in files of their own. */
#pragma once

#include "train/dry_memory.h"
#include "train/run.h"

/* ---- step_report.c ---- */

/* Returns whether a validation is due after the latest step, by the config alone. */
bool fsdp__validation_due(const fsdp_train_run *run);
/* Completes the report of a step, which was taken or not, by its loss, and writes its line of metrics: does what all
 * ranks must do together. */
fsdp_status fsdp__step_report(fsdp_train_run *run, bool stepped, fsdp_train_report *report);
/* Tells the listener what a step has reported. With training.on_nan: stop one that is not finite fails instead. */
fsdp_status fsdp__step_tell(fsdp_train_run *run, const fsdp_train_report *report);

/* ---- steps_ahead.c ---- */

/* Decides, once the optimizer exists, whether the host runs ahead of the device, and makes what that takes. */
fsdp_status fsdp__ahead_begin(fsdp_train_run *run);
void fsdp__ahead_release(fsdp_train_run *run);
/* The next three are for a run whose host runs ahead. Keeps the loss of a microbatch for the verdict about the step. */
fsdp_status fsdp__ahead_note_loss(fsdp_train_run *run, int64_t microbatch, const fsdp_tensor *loss);
/* Queues the verdict, and the step, which the device takes if the verdict says so. */
fsdp_status fsdp__ahead_step(fsdp_train_run *run);
/* Queues a copy of the step's report to the host. `report` has what the host knows of the step already. */
fsdp_status fsdp__ahead_queue(fsdp_train_run *run, const fsdp__meter *meter, const fsdp_train_report *report);
/* Waits until at most `leave` steps are open; reports and tells each that is settled: a failure is fsdp__step_tell's,
 * or has aborted the world. `out` gets the report of the last; it may be NULL. Does nothing where none is open.
 * [blocks] */
fsdp_status fsdp__ahead_settle(fsdp_train_run *run, int leave, fsdp_train_report *out);

/* ---- best_weights.c: does nothing where the last weights are exported ---- */

/* Notes that a validation was the best so far: copies the weights, unless a checkpoint will have them. [collective] */
fsdp_status fsdp__best_note(fsdp_train_run *run);
/* Checks whether there is, or can be, a best model to export. Call it once the run stands where its checkpoint says. */
fsdp_status fsdp__best_check(const fsdp_train_run *run);
/* Returns whether the weights to export are not those that the model has now. */
bool fsdp__best_is_earlier(const fsdp_train_run *run);
/* Returns the weights of the best validation, divided as the model's `state` is; they belong to the run. */
fsdp_status fsdp__best_state(fsdp_train_run *run, const fsdp_state_dict *state, const fsdp_state_dict **out);
void fsdp__best_release(fsdp_train_run *run);

/* ---- ema.c: does nothing without training.ema_decay ---- */

/* Begins the average, once the model has its values: with the weights, or with the average of the checkpoint from which
 * the run continues. */
fsdp_status fsdp__ema_begin(fsdp_train_run *run);
void fsdp__ema_release(fsdp_train_run *run);
/* Moves it after a step; not if the device leaves that out, by the verdict, which may be NULL. [stream] */
fsdp_status fsdp__ema_step(const fsdp_train_run *run, const void *verdict);
/* Has average and weights change places; if that fails, those that have go back. */
fsdp_status fsdp__ema_swap(const fsdp_train_run *run);

/* ---- step_in_backward.c ---- */

/* Decides, once the optimizer exists, whether its steps need no common decision, and are taken by a host that has
 * nothing else to do meanwhile; if so the model is told to take them in the backward. */
fsdp_status fsdp__train_step_early(fsdp_train_run *run);

/* ---- export.c ---- */

/* Takes hold of export.path on rank 0, if it is set: if it cannot be written to, the run fails now and not at its
 * end. */
fsdp_status fsdp__export_hold(fsdp_train_run *run);
/* Checks, once the model exists, whether it fits there. */
fsdp_status fsdp__export_check(fsdp_train_run *run);
/* Removes what the hold has made, unless the model was written. */
void fsdp__export_release(fsdp_train_run *run);

/* ---- finite.c ---- */

enum {
    FSDP__FINITE_NAME = 200
};
/* Fails when a parameter that is to be exported is not finite, unless training.on_nan is continue. */
fsdp_status fsdp__check_finite(fsdp_train_run *run);
/* Finds the name of a parameter that is not finite on some rank, "" when all are; looks at shards. [collective] */
fsdp_status fsdp__find_not_finite(fsdp_train_run *run, char name[FSDP__FINITE_NAME]);

/* ---- validation.c ---- */

/* Decides, once the run's tokens are open, what to evaluate on, and how many tokens are left to train on. */
fsdp_status fsdp__validation_open(fsdp_train_run *run);
void fsdp__validation_close(fsdp_train_run *run);
/* Returns how many tokens a validation predicts; 0: there is no validation. */
int64_t fsdp__validation_tokens(const fsdp_train_run *run);
/* Sets how many pairs a validation compares, and how many of data.path are not trained on, where there are pairs. */
void fsdp__validation_count_pairs(const fsdp_train_run *run, fsdp_train_summary *out);
/* Gets what older checkpoints keep as a hash of what was validated on: a hash of some of it. */
fsdp_status fsdp__validation_sample(const fsdp_train_run *run, int64_t *out);
/* Checks the loss: with training.on_nan: stop, one that is NaN or infinite is an error, which names a parameter that is
 * not finite. [collective] */
fsdp_status fsdp__validation_check(fsdp_train_run *run, const fsdp_train_validation *v);

/* ---- traced_steps.c: does nothing where the config asks for no trace ---- */

/* Checks, on rank 0, whether there can be a trace where the config wants it. */
fsdp_status fsdp__trace_check(const fsdp_train_config *config);
/* Begins the trace, goes on with it or pauses it, before a step. A trace that cannot be written does not cost the
 * model: it is a warning, and the run reports it at its end. `step` takes one, of a dry run for the planned line: it is
 * fsdp_train_step. [collective] */
fsdp_status fsdp__trace_before_step(fsdp_train_run *run, fsdp__train_step_taker *step);
/* Writes it, after the last of its steps. [collective] */
fsdp_status fsdp__trace_after_step(fsdp_train_run *run);
/* Writes what is left when no more steps come. [collective] */
fsdp_status fsdp__trace_after_steps(fsdp_train_run *run);
/* Returns why there is no trace, or not one of all steps. */
fsdp_status fsdp__trace_failure(const fsdp_train_run *run);

/* ---- samples.c ---- */

/* Opens what metrics.sample_prompt needs, once the data is open; does nothing if it is not set. */
fsdp_status fsdp__samples_open(fsdp_train_run *run);
void fsdp__samples_release(fsdp_train_run *run);
/* Generates and writes a text after every metrics.sample_freq steps, always by the most likely tokens. The training
 * that follows does not change by a bit. [collective] */
fsdp_status fsdp__samples_after_step(fsdp_train_run *run);

/* ---- saves.c: does nothing where the run keeps no checkpoints ---- */

/* Takes hold of checkpoint.folder on rank 0: a second run is refused. */
fsdp_status fsdp__saves_hold(fsdp_train_run *run);
/* Returns FSDP_STATE while a run keeps its checkpoints in the folder: it would remove those of others by its own
 * rules. */
fsdp_status fsdp__saves_check_free(const char *folder);
/* Checks, once model and optimizer exist, whether there is room for a checkpoint, and for all that the run writes. */
fsdp_status fsdp__saves_begin(fsdp_train_run *run);
/* Saves where it is time, or somebody asks for it; *out_stop tells whether to end the run. A save that fails is a
 * warning. [collective] */
fsdp_status fsdp__saves_after_step(fsdp_train_run *run, bool *out_stop);
/* Returns the failure of the newest checkpoint, when it could not be written. */
fsdp_status fsdp__saves_failure(const fsdp_train_run *run);
void fsdp__saves_release(fsdp_train_run *run);

/* ---- disk_needs.c ---- */

/* Checks, on rank 0, whether each file system has room for all that the run surely writes to it: checkpoints and
 * metrics at the last checkpoint, and with the model at the export. A run that may end early surely writes one
 * checkpoint. */
fsdp_status fsdp__train_check_disk(const fsdp_train_run *run);

/* ---- warnings.c: what stands out is said once, in the log and the metrics (watch/signs.h) ---- */

enum {
    FSDP__RANK_TIMES = 5 /* numbers of fsdp__rank_times */
};

/* Begins to look, on rank 0, once the model is sharded. */
fsdp_status fsdp__notice_begin(fsdp_train_run *run);
void fsdp__notice_free(fsdp__notice *notice); /* NULL is allowed */
/* Notes what the step took on this rank. */
void fsdp__notice_step(fsdp_train_run *run, const fsdp_train_report *report);
/* Looks at the times of all ranks: `all` has each rank's losses, and its times behind them. Those of this rank begin
 * again. */
void fsdp__notice_ranks(fsdp_train_run *run, void *const *all, int ranks);
/* Looks at the step's loss, if that is known, and its norm. */
void fsdp__notice_report(fsdp_train_run *run, const fsdp_train_report *report);
/* Looks at the histograms, which have just been added up. */
void fsdp__notice_units(fsdp_train_run *run, const fsdp_train_report *report);

/* ---- meter.c ---- */

/* Gets the counters of the groups within this rank's team; zeros if this rank computes alone. */
void fsdp__team_stats(const fsdp_train_run *run, fsdp_comm_stats *out);
fsdp_status fsdp__meter_begin(fsdp__meter *meter, const fsdp_train_run *run);
/* Fills in the report's time, once the device has done the step's work. */
void fsdp__meter_time(const fsdp__meter *meter, const fsdp_train_run *run, fsdp_train_report *report);
/* Fills in the report's memory and communication. */
fsdp_status fsdp__meter_end(const fsdp__meter *meter, const fsdp_train_run *run, fsdp_train_report *report);
/* Computes the mean of the losses of all ranks' microbatches, added in the order of their data: the same microbatches
 * have the same mean on any number of ranks. It does not count among the step's collectives. The ranks' times go along
 * with it: fsdp__notice_ranks. [collective] */
fsdp_status fsdp__mean_loss(fsdp_train_run *run, double *mean);
/* Adds a microbatch to the hash of them, with its answers, if other ranks of the team must have the same. */
void fsdp__note_batch(fsdp_train_run *run, const fsdp_batch *batch);
