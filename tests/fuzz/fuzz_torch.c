/* Any bytes as a pytorch_model.bin: the first and the last element of every tensor can be read, or an error says why
 * not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "format/torch_file.h"
#include "tensor/tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp__torch_file *file = NULL;
    int fd = memfd_create("x.bin", MFD_CLOEXEC);
    fsdp_status status;
    char path[32];

    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    status = fsdp__torch_file_open(path, &file);
    close(fd); /* what was opened has a descriptor of its own */
    if (status != FSDP_OK)
        return 0;
    for (int64_t i = 0; i < fsdp__torch_file_count(file); i++) {
        const fsdp__torch_tensor *tensor = fsdp__torch_file_at(file, i);
        int64_t numel = fsdp__shape_numel(tensor->ndim, tensor->shape);
        char element[8];

        if (numel < 0 || (i > 0 && strcmp(tensor[-1].name, tensor->name) >= 0))
            abort();
        /* Walking through a large view that repeats its elements takes long, and nothing new happens. */
        if (numel == 0 || numel > 4096)
            continue;
        (void)fsdp__torch_file_read(file, tensor, 0, 1, element);
        (void)fsdp__torch_file_read(file, tensor, numel - 1, 1, element);
    }
    fsdp__torch_file_close(file);
    return 0;
}
