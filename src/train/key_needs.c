/* key_needs.c - which keys of a training run have an effect only beside others. A key that is in no entry has an effect
 * by itself, or the check of its section names it (tests/train/test_key_needs.c goes over all). */
#include "train/run_config.h"

#define VALIDATION_DATA "validation.path|validation.share|~validation.enable=false"
#define FSDP1 "parallelism.strategy=fsdp1"
#define DDP "parallelism.strategy=ddp"
#define ADAPTER "adapter.rank|adapter.path"
#define GPU "training.device=cuda*,auto"
#define TENSOR_PARALLEL "parallelism.tensor_parallel_degree"

/* clang-format off */
const fsdp__key_need fsdp__train_key_needs[] = {
    {"model", "load", "model.path", NULL, true},
    {"model", "load", "model.init=!random", NULL, true},
    {"data", "on_bad_line", "data.tokenizer=!bytes", NULL, true},

    {"training", "no_sync", "training.global_batch_size", "true", true},
    {"training", "early_stop", "validation.path|validation.share", NULL, false},
    {"training", "early_stop", "validation.enable=!false", NULL, false},
    {"training", "early_stop_min_delta", "training.early_stop", NULL, false},
    {"training", "ema_decay", "checkpoint.folder|validation.which=ema|export.which=ema", NULL, true},

    {"optimizer", "beta1 beta2", "optimizer.name=adamw,adam,adamw8bit,lion,muon", NULL, false},
    {"optimizer", "eps", "optimizer.name=adamw,adam,adamw8bit,muon", NULL, false},
    {"optimizer", "momentum", "optimizer.name=sgd,muon", "0", false},
    {"optimizer", "nesterov", "optimizer.name=sgd,muon", NULL, false},
    {"optimizer", "muon_adjust", "optimizer.name=muon", NULL, false},
    {"optimizer", "decay", "optimizer.weight_decay=!0", NULL, true},
    {"lr_scheduler", "min_lr_factor", "lr_scheduler.decay_type=!constant", NULL, false},
    {"lr_scheduler", "decay_steps decay_shape", "lr_scheduler.decay_type=wsd", NULL, false},
    {"lr_scheduler", "timescale", "lr_scheduler.decay_type=inverse_sqrt", NULL, false},

    {"parallelism", "sequence_parallel loss_parallel", TENSOR_PARALLEL, NULL, true},
    {"parallelism", "enable_async_tensor_parallel", TENSOR_PARALLEL, NULL, false},
    {"parallelism", "enable_async_tensor_parallel", "parallelism.sequence_parallel=true", NULL, false},
    {"parallelism", "fsdp1_strategy", FSDP1, NULL, false},
    {"parallelism", "fsdp1_use_orig_params fsdp1_forward_prefetch", FSDP1, "false", false},
    {"parallelism", "fsdp1_backward_prefetch", FSDP1, NULL, false},
    {"parallelism", "ddp_bucket_cap_mb", DDP, NULL, false},
    {"parallelism", "ddp_find_unused_parameters ddp_static_graph ddp_gradient_as_bucket_view", DDP, "false", false},
    {"parallelism", "ddp_compress", DDP, "none", false},
    {"parallelism", "wrap_min_num_params", "parallelism.wrap_policy=size", NULL, false},
    {"parallelism", "wrap_classes", "parallelism.wrap_policy=class", NULL, false},
    {"parallelism", "keep_last_unit", "parallelism.fsdp_reshard_after_forward=!never", NULL, true},
    {"parallelism", "keep_last_unit", "parallelism.strategy=!zero1,zero2", NULL, true},
    {"parallelism", "schedule_memory schedule_prices", "parallelism.schedule=plan", NULL, false},
    {"activation_checkpoint", "selective_ac_option", "activation_checkpoint.mode=selective", NULL, true},

    {"validation", "enable", "validation.path|validation.share", "false", false},
    {"validation", "freq steps local_batch_size keep_best which", VALIDATION_DATA, NULL, false},

    {"comm", "carrier nccl_buffers", GPU, NULL, true},
    {"comm", "nccl_buffers", "comm.carrier=auto,nccl", NULL, true},
    {"metrics", "exact", GPU, NULL, true},
    {"metrics", "trace.steps", "metrics.trace.path", NULL, false},
    {"metrics", "sample_prompt", "metrics.tensorboard", NULL, false},
    {"metrics", "sample_freq sample_tokens", "metrics.sample_prompt", NULL, true},

    {"checkpoint", "enable", "checkpoint.folder", "false", false},
    {"checkpoint", "interval keep_latest_k keep_every async_mode load_step exclude_from_loading", "checkpoint.folder|~checkpoint.enable=false", NULL, false},
    {"checkpoint", "keep_every", "checkpoint.keep_latest_k=!0", NULL, true},
    {"export", "overwrite max_shard_size", "export.path", NULL, true},
    {"export", "fallback_path dtype", "export.path", NULL, false},
    {"export", "which", "export.path", "last", false},
    {"export", "merge", "export.path", "false", false},
    {"export", "merge", ADAPTER, "false", false},

    {"adapter", "alpha dropout targets target_pattern exclude rank_pattern alpha_pattern modules_to_save base_dtype quantize", ADAPTER, NULL, false},
    {"adapter", "rslora dora", ADAPTER, "false", false},
    {"dpo", "beta label_smoothing", "training.objective=dpo", NULL, false},
    {0},
};
/* clang-format on */
