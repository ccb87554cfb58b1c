/* quantize.h - the frozen weights of an adapter's model that are held in fewer bits (ops/coded_weight.h). */
#pragma once

#include "adapter/adapter.h"
#include "hub/hub.h"
#include "tensor/tensor.h"

/* Decodes this rank's part of the layer's weight, of which `bytes` are the codes: a float32 tensor on the host that is
 * distributed as they are. The caller owns `*out`. */
fsdp_status fsdp__coded_layer_decode(const fsdp__coded_layer *layer, const fsdp_tensor *bytes, fsdp_tensor **out);

/* Returns how many of a parameter's elements are this rank's: of a weight in fewer bits those whose codes are.
 * `adapter` may be NULL. */
int64_t fsdp__adapter_numel(const fsdp_adapter *adapter, const fsdp_parameter *parameter);

/* Says where the values of a model without its adapter go to. Those that are to be encoded go, one weight after the
 * other, to the same memory: this rank's part in float32, on the host. So fsdp__base_values_arrived must be called with
 * each entry before the next gets its values. */
typedef struct fsdp__base_values {
    const fsdp_adapter *adapter;
    fsdp_state_dict *state;
    fsdp__storage *storage;
} fsdp__base_values;
/* Call fsdp__base_values_release also after a failure. */
fsdp_status fsdp__base_values_begin(const fsdp_adapter *adapter, fsdp__base_values *out);
fsdp_status fsdp__base_values_arrived(void *arg, const fsdp_state_dict_entry *entry);
void fsdp__base_values_release(fsdp__base_values *values);
