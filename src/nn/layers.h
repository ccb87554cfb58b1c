/* layers.h - what the files of the standard layers share. */
#ifndef NN_LAYERS_H
#define NN_LAYERS_H

#include "nn/module.h"

extern const fsdp_module_type fsdp__module_list_type;

/* Ends a constructor: returns `module`, or frees it and returns NULL if building it failed. */
fsdp_module *fsdp__module_built(fsdp_module *module, fsdp_status status);

/* Which of the layers that others may put something beside a module is. */
typedef enum fsdp__layer_form {
    FSDP__LAYER_OTHER,
    FSDP__LAYER_LINEAR, /* made by fsdp_linear_create, fsdp_conv1d_create */
    FSDP__LAYER_CONV1D
} fsdp__layer_form;
fsdp__layer_form fsdp__layer_form_of(const fsdp_module *module);

/* Calls several Linears with one input as one product (fsdp_linear_group), if nothing acts around any of them and their
 * weights lie side by side on a device that gains by it. Returns whether it did; `outputs` are NULL on failure. */
bool fsdp__linears_joined(fsdp_module *const *modules, int count, fsdp_tensor *x, fsdp_tensor **outputs);

/* Returns a float as Python writes it: the shortest text that reads back as the same number, "1e-05", "0.0". */
const char *fsdp__float_text(float value, char text[32]);

/* Creates a dropout that draws by `seed`, and by `seed_of_all` where it is said which rows of a batch a forward has
 * (fsdp__set_rows_of_batch): a seed of its own for each rank, and one for all. */
fsdp_module *fsdp__dropout_create(fsdp_context *context, float p, uint64_t seed, uint64_t seed_of_all);

/* Creates an RMSNorm that multiplies by 1 + weight, as Gemma has it; the weight begins with zeros. */
fsdp_module *fsdp__rmsnorm_plus_one_create(fsdp_context *context, fsdp_device *device, int64_t dim, float eps);

#endif
