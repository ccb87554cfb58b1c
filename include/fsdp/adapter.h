/* fsdp/adapter.h - LoRA: small trained matrices beside the frozen weights of a model, and the folders of them that the
 * package peft reads and writes.
 *
 *     fsdp_lora_options options = {.rank = 8, .alpha = 16, .target_count = 2,
 *                                  .targets = (const char *[]){"q_proj", "v_proj"}};
 *     fsdp_adapter_add(model, &options, &adapter);        // on the meta device, before the model is sharded
 *     fsdp_adapter_quantize(adapter, FSDP_QUANTIZE_NF4);  // QLoRA
 *     fsdp_fully_shard(...); fsdp_module_materialize(model, device);
 *     fsdp_adapter_load_base(adapter, "folder", config);  // the model's own values
 *     fsdp_adapter_initialize(adapter, seed);             // or fsdp_adapter_load
 *     ... train ...
 *     fsdp_adapter_save(adapter, "out", "folder", group);
 *
 * An adapted layer computes y = W x + bias + s B A drop(x), where A is (rank,in), B (out,rank), s = alpha / rank
 * (rsLoRA: alpha / sqrt(rank)). With DoRA the rows of V = W + s B A get trained norms m in place of their own norms n:
 * y = bias + (m / n) V x; n counts as constant in the backward. A, B and m are parameters of child modules of the layer
 * (lora_A, lora_B, lora_magnitude_vector), so they are sharded, reduced and stepped with the unit that the layer
 * belongs to, by every front door; a plan that cuts the layer (fsdp/parallelize.h) cuts them with it. All other
 * parameters are frozen: they have no gradients and no optimizer state.
 *
 * A, B and m are float32 unless the model is converted afterwards (fsdp_module_to). Over a base in bf16 the layer's
 * input is cast to their dtype, the sum is taken in the wider of the two and cast back to the base's. */
#ifndef FSDP_ADAPTER_H
#define FSDP_ADAPTER_H

#include "fsdp/models.h"
#include "fsdp/nn.h"
#include "fsdp/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives a value to the layers whose names match `key`, a regular expression for the end of the name (after a dot, or
 * all of it): "down_proj", "layers\\.0\\..*". If several patterns match a layer, the first one counts. */
typedef struct fsdp_lora_pattern {
    const char *key;
    double value;
} fsdp_lora_pattern;

/* Has the settings of peft's LoraConfig. If all fields but the targets are zero, they are peft's defaults. */
typedef struct fsdp_lora_options {
    int64_t rank;   /* 0: 8; at most 2^20 */
    double alpha;   /* 0: 8 */
    double dropout; /* of the input of A, in training */
    bool rslora, dora;
    /* Choose the layers (Linear, Conv1D) whose name, or its end after a dot, is one of `targets`. The only target
     * "all-linear" chooses all of them but the model's head. */
    const char *const *targets;
    int64_t target_count;
    const char *target_regex;   /* in place of `targets`: matches the whole name */
    bool some_targets;          /* targets without a layer are allowed, if another has one */
    const char *const *exclude; /* as `targets`: these are left out */
    int64_t exclude_count;
    const char *exclude_regex;
    const fsdp_lora_pattern *rank_patterns, *alpha_patterns; /* other ranks and alphas */
    int64_t rank_pattern_count, alpha_pattern_count;
    const char *const *saved; /* peft's modules_to_save, matched as `targets`: trained whole, saved with the adapter */
    int64_t saved_count;
    uint64_t seed; /* of the dropout */
} fsdp_lora_options;

typedef struct fsdp_adapter fsdp_adapter;

/* Freezes the model, and adds A, B (and m) to its layers. The model may be on the meta device. FSDP_STATE: it has an
 * adapter, or it or a part of it is sharded, replicated or cut already. FSDP_NOT_FOUND: a target has no layer.
 * FSDP_UNSUPPORTED: a target is another kind of module, or a weight is shared with another module (a tied head). Then
 * the model is unchanged. After any other failure it may be frozen and adapted in part: drop it. The caller frees
 * `*out`; the model keeps its adapter. */
FSDP_API fsdp_status fsdp_adapter_add(fsdp_module *model, const fsdp_lora_options *options, fsdp_adapter **out);
FSDP_API void fsdp_adapter_free(fsdp_adapter *adapter); /* NULL is allowed */

/* Turn the adapter off and on: while it is off the model computes as its base does (the reference of DPO).
 * FSDP_UNSUPPORTED: modules are trained whole, so the base's values are gone. */
FSDP_API fsdp_status fsdp_adapter_set_enabled(fsdp_adapter *adapter, bool enabled);

/* Says how frozen weights are held in fewer bits. The numbers are those of bitsandbytes. */
typedef enum fsdp_quantization {
    FSDP_QUANTIZE_NONE,
    FSDP_QUANTIZE_NF4, /* 4 bits: blocks of 64 elements of the weight as it is stored, row-major, with a scale in f32 */
    FSDP_QUANTIZE_INT8 /* 8 bits: rows of the weight as it is stored, with a scale in f32 */
} fsdp_quantization;

/* Holds frozen weights in fewer bits (QLoRA): those of all Linear and Conv1D layers, adapted or not, except the head
 * and modules that are trained whole. A weight becomes a U8 tensor (rows,bytes): each row has a scale and the codes of
 * one block of the weight (NF4), or of one row of it (INT8). It must be sharded in dimension 0, so no block is cut,
 * every world has the same numbers, and gathers move the codes. Forwards and backwards decode a weight to the dtype of
 * the layer's input where they use it, and drop it after that. FSDP_STATE: a layer is not on the meta device, is
 * sharded or replicated, or is quantized already; then nothing is changed. The fsdp1 door refuses such a model, since
 * its units have one dtype. */
FSDP_API fsdp_status fsdp_adapter_quantize(fsdp_adapter *adapter, fsdp_quantization kind);

/* Loads the model's own values as fsdp_hub_load does, quantized or not. Each rank reads the elements of a quantized
 * weight whose codes it has, in float32 on the host, one weight at a time. Call fsdp_agree on the result. */
FSDP_API fsdp_status fsdp_adapter_load_base(fsdp_adapter *adapter, const char *folder, const fsdp_model_config *config);
/* Does what fsdp_module_initialize does with the model; a quantized weight gets the codes of the values that it would
 * otherwise get. [collective] */
FSDP_API fsdp_status fsdp_adapter_initialize_base(fsdp_adapter *adapter, uint64_t seed);

/* List the adapted layers, in the order of the tree. */
FSDP_API int64_t fsdp_adapter_count(const fsdp_adapter *adapter);
typedef struct fsdp_adapter_layer {
    const char *name; /* of the layer in the model: "model.layers.0.self_attn.q_proj" */
    int64_t rank, in, out;
    double alpha;
} fsdp_adapter_layer;
/* Returns an adapted layer. If no layer has this index, the result is all zeros and the last error is set. */
FSDP_API fsdp_adapter_layer fsdp_adapter_layer_at(const fsdp_adapter *adapter, int64_t index);

/* ---- values ---- */

/* Make state dicts. The first has the adapter's parameters and the modules that are trained whole. The second has the
 * model's own parameters and buffers, including those modules, but no weights that are quantized. Names are the
 * model's. [as fsdp_state_dict_from_module] */
FSDP_API fsdp_status fsdp_adapter_state_dict(const fsdp_adapter *adapter, fsdp_state_dict **out);
FSDP_API fsdp_status fsdp_adapter_base_state_dict(const fsdp_adapter *adapter, fsdp_state_dict **out);

/* Sets first values, the same in every world: A uniform in +-1/sqrt(in), B zero, m the row norms of W, which must have
 * its values. FSDP_STATE: the adapter is on the meta device. [collective] */
FSDP_API fsdp_status fsdp_adapter_initialize(fsdp_adapter *adapter, uint64_t seed);

/* Makes a state dict of the model with the adapter in its weights, W + s B A or (m / n) V, under the base's names.
 * Weights that change are copies on the host, distributed as they are in the model, and rounded to their dtype once;
 * other entries are the model's tensors. `from` has the values: a state dict of the whole model; NULL: the model
 * itself. Quantized weights are decoded, to the dtype that they had before. Whether the adapter is on does not matter.
 * Errors name the tensor that is missing, has another shape, or is on the meta device. Every rank holds one whole
 * weight at a time. [collective] */
FSDP_API fsdp_status fsdp_adapter_merge(const fsdp_adapter *adapter, const fsdp_state_dict *from,
                                        fsdp_state_dict **out);

/* ---- peft's folders ---- */

/* Reads adapter_config.json; free `*out`, which has its strings, with fsdp_lora_options_free. Settings that
 * change numbers and that the library does not have are refused by name. */
FSDP_API fsdp_status fsdp_adapter_read_options(const char *folder, fsdp_lora_options **out);
FSDP_API void fsdp_lora_options_free(fsdp_lora_options *options); /* NULL is allowed */

/* Loads adapter_model.safetensors; every rank reads its rows. Missing, surplus or misshapen tensors are errors. Call
 * fsdp_agree on the result. */
FSDP_API fsdp_status fsdp_adapter_load(fsdp_adapter *adapter, const char *folder);

/* Writes adapter_config.json and adapter_model.safetensors, as fsdp_hub_save writes a model. `base` names the model
 * that the adapter is for (a folder or a name on the hub), and is written into the config; NULL: null. [collective] */
FSDP_API fsdp_status fsdp_adapter_save(const fsdp_adapter *adapter, const char *folder, const char *base,
                                       fsdp_process_group *group);

#ifdef __cplusplus
}
#endif
#endif
