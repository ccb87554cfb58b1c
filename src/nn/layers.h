/* layers.h - what the files of the standard layers share. */
#pragma once

#include "nn/module.h"
#include "ops/coded_weight.h"
#include "ops/op.h"

extern const fsdp_module_type fsdp__module_list_type;

/* Ends a constructor: returns `module`, or frees it and returns NULL if building it failed. */
fsdp_module *fsdp__module_built(fsdp_module *module, fsdp_status status);

/* Says which of the layers that others may put something beside a module is. */
typedef enum fsdp__layer_form {
    FSDP__LAYER_OTHER,
    FSDP__LAYER_LINEAR, /* made by fsdp_linear_create, fsdp_conv1d_create, ... */
    FSDP__LAYER_CONV1D,
    FSDP__LAYER_EMBEDDING,
    FSDP__LAYER_LAYERNORM,
    FSDP__LAYER_RMSNORM, /* also the one that multiplies by 1 + weight */
    FSDP__LAYER_DROPOUT
} fsdp__layer_form;
fsdp__layer_form fsdp__layer_form_of(const fsdp_module *module);
bool fsdp__layer_is_product(const fsdp_module *module); /* a Linear or Conv1D */

/* Calls several Linears with one input as one product (fsdp_linear_group), if nothing acts around any of them and their
 * weights lie side by side on a device that gains by it. Returns whether it did; `outputs` are NULL on failure. */
bool fsdp__linears_joined(fsdp_module *const *modules, int count, fsdp_tensor *x, fsdp_tensor **outputs);

/* Calls two Linears or Conv1Ds with GELU in its tanh form between them as one operation, if nothing acts around any of
 * the three, on a device that gains by it. Returns whether it did; `*out` is NULL on failure. */
bool fsdp__mlp_joined(fsdp_module *up, fsdp_module *act, fsdp_module *down, fsdp_tensor *x, fsdp_tensor **out);
/* Calls a Linear with silu(gate) * up, or gelu(gate) * up in the tanh form, as one operation that does not keep that,
 * if nothing acts around the Linear, on a device that gains by it. Returns whether it did; `*out` is NULL on failure.
 */
bool fsdp__gated_joined(fsdp_module *down, bool gelu, fsdp_tensor *gate, fsdp_tensor *up, fsdp_tensor **out);
/* Calls several Linears with one input by what their hooks have for all of them together, if they have that and nothing
 * else acts around any of them. Returns whether it did; `outputs` are NULL on failure. */
bool fsdp__linears_together(fsdp_module *const *modules, int count, fsdp_tensor *x, fsdp_tensor **outputs);

/* ---- a weight in fewer bits: of Linear and Conv1D ---- */

/* Replaces the layer's weight, which is on the meta device, by the tensor of its bytes there. They have no gradient,
 * and fsdp_module_initialize refuses them. */
fsdp_status fsdp__layer_code_weight(fsdp_module *layer, fsdp__weight_code code);
/* Holds the weight that such a layer had. */
typedef struct fsdp__layer_code {
    fsdp__coded_weight weight; /* PLAIN: it has not been replaced */
    fsdp_init init;
    fsdp_dtype dtype;
} fsdp__layer_code;
/* Returns what is known of the weight of a Linear or Conv1D. */
const fsdp__layer_code *fsdp__layer_code_of(const fsdp_module *layer);
/* Returns the tensor that the layer's field of its weight names: W, or its bytes. */
fsdp_tensor *fsdp__layer_weight_field(const fsdp_module *layer);
/* Returns W in `dtype`, as it is stored, without a graph if it is decoded; its product with x, of that dtype,
 * without a bias. The parameters are gathered. */
fsdp_tensor *fsdp__layer_weight(const fsdp_module *layer, fsdp_dtype dtype);
fsdp_tensor *fsdp__layer_product(const fsdp_module *layer, fsdp_tensor *x);

/* ---- what is beside a Linear or Conv1D: an adapter ---- */

/* Its matrices have the layer's inputs and outputs, so a plan that cuts the layer cuts them, too. Hooks of the layer
 * keep it, and their post_forward adds it to the output. */
typedef struct fsdp__layer_beside {
    fsdp_module *a, *b;     /* Linears without a bias: (rank,in), (out,rank) */
    fsdp_module *magnitude; /* has a "weight" (out); NULL: there is none */
    fsdp_module *dropout;   /* of the input of `a`; NULL: there is none */
    float scaling;          /* of their product */
    bool off;               /* nothing is added */
    /* A plan that cuts the inputs sets this: it adds up what the ranks have of x, without a gradient. The plan then
     * computes in place of the layer and calls fsdp__layer_add_beside, and post_forward does nothing. */
    fsdp_tensor *(*sum)(void *sum_arg, fsdp_tensor *x);
    void *sum_arg;
    /* Returns y (...,out), the layer's product with x without the bias, and what is beside it. */
    fsdp_tensor *(*add)(struct fsdp__layer_beside *beside, fsdp_tensor *x, fsdp_tensor *y);
} fsdp__layer_beside;
/* Returns what is beside the layer; NULL: nothing. */
fsdp__layer_beside *fsdp__layer_beside_of(const fsdp_module *layer);
/* Returns y with what is beside the layer added to it: both are this rank's part of a sum. */
fsdp_tensor *fsdp__layer_add_beside(const fsdp_module *layer, fsdp_tensor *x, fsdp_tensor *y);

/* Creates an RMSNorm that multiplies by 1 + weight, as Gemma has it; the weight begins with zeros. */
fsdp_module *fsdp__rmsnorm_plus_one_create(fsdp_context *context, fsdp_device *device, int64_t dim, float eps);

/* ---- dropout.c ---- */

bool fsdp__is_dropout(const fsdp_module *module);
/* Creates a dropout that draws by `seed`, and by `seed_of_all` where it is said which rows of a batch a forward has
 * (fsdp__set_rows_of_batch): a seed of its own for each rank, and one for all. */
fsdp_module *fsdp__dropout_create(fsdp_context *context, float p, uint64_t seed, uint64_t seed_of_all);
/* Returns the place of a dropout's own seed; NULL for other modules. */
uint64_t *fsdp__dropout_seed(fsdp_module *module);
/* Says that inputs (B,T,C) of a dropout have chunks of sequences, so its masks are those of whole ones. Nothing is done
 * to other modules. */
void fsdp__dropout_set_chunks(fsdp_module *module, fsdp__op_chunks chunks);
/* Does what the dropout's forward does with a part of its input: the mask is that part of the whole one's. */
fsdp_tensor *fsdp__dropout_part(fsdp_module *dropout, fsdp_tensor *x, fsdp__op_part part);
