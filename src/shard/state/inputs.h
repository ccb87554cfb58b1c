/* inputs.h - what a state does to the inputs and outputs of its modules: mixed precision, and the device. */
#ifndef SHARD_STATE_INPUTS_H
#define SHARD_STATE_INPUTS_H

#include "shard/state/root.h"

/* Moves inputs of the outermost module to the parameters' device. Tensors without bytes, which ask for shapes, stay. */
fsdp_status fsdp__inputs_move(const fsdp__root *root, fsdp_tensor **inputs, int count);
/* Cast floating inputs, and outputs, to the dtypes that the state's policy asks for. */
fsdp_status fsdp__inputs_cast(fsdp__module_state *state, fsdp_tensor **inputs, int count);
fsdp_status fsdp__outputs_cast(const fsdp__module_state *state, fsdp_tensor **outputs, int count);

#endif
