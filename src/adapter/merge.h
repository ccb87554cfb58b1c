/* merge.h - a layer's weight with its adapter in it, calculated on the host. */
#ifndef ADAPTER_MERGE_H
#define ADAPTER_MERGE_H

#include "adapter/adapter.h"

/* Sets the magnitudes of all layers to the row norms of W + s B A. `state` is that of the model. [collective] */
fsdp_status fsdp__adapter_set_magnitudes(const fsdp_adapter *adapter, const fsdp_state_dict *state);

#endif
