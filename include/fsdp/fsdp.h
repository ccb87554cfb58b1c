/* fsdp/fsdp.h - includes all public headers.
 *
 * Here is a complete program. It trains a model to return its random inputs, sharded over the ranks that `fsdp run -n 4
 * -- ./program` starts (without `fsdp run` it is a world of one rank). FSDP_TRY is all of its error handling, and a
 * failure ends every rank.
 *
 *     #include <fsdp/fsdp.h>
 *     #include <stdio.h>
 *
 *     typedef struct { fsdp_module base; fsdp_module *up, *down; } mlp;
 *
 *     static fsdp_tensor *mlp_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
 *     {
 *         mlp *m = (mlp *)self;
 *         (void)count;
 *         return fsdp_call(m->down, fsdp_gelu(fsdp_call(m->up, inputs[0])));      // (B,8) -> (B,32) -> (B,8)
 *     }
 *     static const fsdp_module_type mlp_type = {.name = "MLP", .forward = mlp_forward};
 *
 *     static fsdp_status build(fsdp_context *context, fsdp_device *device, fsdp_module **out)
 *     {
 *         mlp *m = NULL;
 *         FSDP_TRY(fsdp_module_create(context, &mlp_type, sizeof *m, &m));
 *         *out = &m->base;
 *         m->up = fsdp_linear_create(context, device, 8, 32, NULL);
 *         FSDP_TRY(fsdp_module_add_child(&m->base, "up", m->up));
 *         m->down = fsdp_linear_create(context, device, 32, 8, NULL);
 *         return fsdp_module_add_child(&m->base, "down", m->down);
 *     }
 *
 *     static fsdp_tensor *random_batch(fsdp_context *context, int step)           // (16,8), different on each rank
 *     {
 *         float values[16 * 8];
 *         uint32_t number = (uint32_t)(step * 1000 + fsdp_context_rank(context));
 *         for (int i = 0; i < 16 * 8; i++)
 *             values[i] = (float)((number = number * 1664525u + 1013904223u) >> 8) / (1 << 24);
 *         return fsdp_from_data(fsdp_cpu(context), FSDP_F32, FSDP_SHAPE(16, 8), values);
 *     }
 *
 *     static fsdp_status train(fsdp_context *context, fsdp_module *model, fsdp_optimizer **adamw)
 *     {
 *         fsdp_adam_options options = fsdp_adam_options_default();
 *         fsdp_parameters parameters;
 *
 *         FSDP_TRY(fsdp_fully_shard(model, NULL));                        // one group; blocks first in a deep model
 *         FSDP_TRY(fsdp_module_materialize(model, fsdp_cpu(context)));    // this rank's rows only
 *         FSDP_TRY(fsdp_module_initialize(model, 42));                    // the same values for any number of ranks
 *         FSDP_TRY(fsdp_module_parameters(model, &parameters));
 *         FSDP_TRY(fsdp_adamw_create(&parameters, &options, adamw));
 *         fsdp_parameters_release(&parameters);
 *         for (int step = 0; step < 100; step++) {
 *             FSDP_TRY(fsdp_scope_begin(context));                        // frees the step's tensors at its end
 *             fsdp_tensor *x = random_batch(context, step);
 *             fsdp_tensor *y = fsdp_add(fsdp_call(model, x), fsdp_scale(x, -1));
 *             FSDP_TRY(fsdp_backward(fsdp_mean(fsdp_mul(y, y))));         // unshards, reduces gradients
 *             FSDP_TRY(fsdp_clip_grad_norm(*adamw, 1.0, NULL));
 *             FSDP_TRY(fsdp_optimizer_step(*adamw));                      // on this rank's rows
 *             FSDP_TRY(fsdp_optimizer_zero_grad(*adamw));
 *             fsdp_scope_end(context, NULL);
 *         }
 *         return FSDP_OK;
 *     }
 *
 *     int main(void)
 *     {
 *         fsdp_context *context = NULL;
 *         fsdp_module *model = NULL;
 *         fsdp_optimizer *adamw = NULL;
 *         fsdp_status status = fsdp_context_from_env(&context);
 *
 *         if (status == FSDP_OK)
 *             status = build(context, fsdp_meta(context), &model);        // shapes only
 *         if (status == FSDP_OK)
 *             status = train(context, model, &adamw);
 *         if (status != FSDP_OK) {
 *             fprintf(stderr, "%s\n", fsdp_last_error());
 *             if (context)
 *                 fsdp_abort(context, fsdp_last_error());                 // or the other ranks would wait
 *         }
 *         fsdp_optimizer_free(adamw);
 *         fsdp_module_unref(model);
 *         fsdp_context_free(context);
 *         return status != FSDP_OK;
 *     }
 *
 * The examples folder has programs that are ready to build; 02_mlp_sharded.c there is much like this one.
 *
 * Read next, as your program needs it:
 *
 *     the ground          status.h          error codes and messages; FSDP_TRY
 *                         context.h         the context of a rank, which owns all that the rank has; its log
 *                         dtype.h           element types
 *                         device.h          devices, their memory, and the streams that order their work
 *                         tensor.h          tensors: shape, strides, storage, views, scopes
 *     a model             nn.h              modules: their tree, parameters, calls and hooks
 *                         layers.h          layers for images, norms, and attention
 *                         models.h          GPT-2, Llama and models like it
 *                         ops.h             the operations of a forward
 *                         autograd.h        gradients; recomputation; operations of your own
 *     ranks               launch.h          starts ranks, and joins their world
 *                         comm.h            process groups and collectives
 *                         dist.h            meshes of ranks, and distributed tensors
 *     sharding            shard.h           FSDP2: what is gathered when
 *                         wrap.h            units by a policy
 *                         fsdp1.h           FSDP1
 *                         replicate.h       DDP: all parameters on every rank
 *                         shard_map.h       which rank has what
 *     tensor parallel     parallelize.h     plans: which weights are cut, by the names of modules
 *                         parallel.h        collectives with gradients, and distributed tensors in operations
 *     steps and state     optim.h           optimizers, clipping, learning rates, the gradient scaler
 *                         state.h           state dicts
 *                         checkpoint.h      checkpoints of a run
 *     data                data.h            token streams, and batches of them
 *                         dataset.h         your own data
 *                         tokenizer.h       text to token ids and back
 *                         tokenize.h        text files to a token file
 *                         chat.h            conversations as tokens
 *     models as files     hub.h             Hugging Face folders
 *                         format.h          safetensors and other weight files
 *                         adapter.h         LoRA, and peft's folders
 *                         generate.h        text from a model
 *     a whole run         train.h           a run as a config says
 *                         train_config.h    that config
 *                         explain.h         what a strategy costs, before you run it
 *                         watch.h           what a run shows of itself
 *                         trace.h           where time and memory of a loop go
 */
#ifndef FSDP_FSDP_H
#define FSDP_FSDP_H

#include "fsdp/adapter.h"
#include "fsdp/autograd.h"
#include "fsdp/chat.h"
#include "fsdp/checkpoint.h"
#include "fsdp/comm.h"
#include "fsdp/context.h"
#include "fsdp/data.h"
#include "fsdp/dataset.h"
#include "fsdp/device.h"
#include "fsdp/dist.h"
#include "fsdp/dtype.h"
#include "fsdp/explain.h"
#include "fsdp/format.h"
#include "fsdp/fsdp1.h"
#include "fsdp/generate.h"
#include "fsdp/hub.h"
#include "fsdp/launch.h"
#include "fsdp/layers.h"
#include "fsdp/models.h"
#include "fsdp/nn.h"
#include "fsdp/ops.h"
#include "fsdp/optim.h"
#include "fsdp/parallel.h"
#include "fsdp/parallelize.h"
#include "fsdp/replicate.h"
#include "fsdp/shard.h"
#include "fsdp/shard_map.h"
#include "fsdp/state.h"
#include "fsdp/status.h"
#include "fsdp/tensor.h"
#include "fsdp/tokenize.h"
#include "fsdp/tokenizer.h"
#include "fsdp/trace.h"
#include "fsdp/train.h"
#include "fsdp/train_config.h"
#include "fsdp/watch.h"
#include "fsdp/wrap.h"

#endif
