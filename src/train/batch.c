/* batch.c - makes tensors of a batch in host memory. */
#include "fsdp/train.h"

fsdp_tensor *fsdp_batch_tensor(fsdp_device *device, const fsdp_data_batch *batch, int field)
{
    if (!device || !batch || field < 0 || field >= batch->field_count) {
        FSDP_FAIL(FSDP_INVALID, "a batch of %d fields has no field %d, or there is no device",
                  batch ? batch->field_count : 0, field);
        return NULL;
    }
    return fsdp_from_data(device, batch->fields[field].dtype, batch->fields[field].ndim, batch->fields[field].shape,
                          batch->data[field]);
}
