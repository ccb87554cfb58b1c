/* mode.c - what autograd hangs on a context: whether operations are recorded, which backward is running. */
#include "autograd/node.h"
#include "base/alloc.h"
#include "base/context.h"

fsdp__autograd *fsdp__autograd_get(const fsdp_context *context)
{
    return fsdp__context_get(context, FSDP__SLOT_AUTOGRAD);
}

static void autograd_free(void *pointer)
{
    fsdp__autograd *autograd = pointer;

    FSDP__FREE_ALL(autograd->outside, autograd);
}

fsdp__autograd *fsdp__autograd_make(fsdp_context *context)
{
    return fsdp__context_get_or_make(context, FSDP__SLOT_AUTOGRAD, sizeof(fsdp__autograd), autograd_free);
}

fsdp_context *fsdp__tensor_context(const fsdp_tensor *tensor)
{
    return fsdp_device_context(tensor->storage->device);
}

fsdp_status fsdp__set_storage_namer(fsdp_context *context, fsdp__storage_namer namer)
{
    fsdp__autograd *autograd = fsdp__autograd_make(context);

    FSDP__TRY_NEW(autograd);
    autograd->namer = namer;
    return FSDP_OK;
}

fsdp_status fsdp__set_rows_of_batch(fsdp_context *context, fsdp__rows_of_batch rows)
{
    fsdp__autograd *autograd = fsdp__autograd_make(context);

    FSDP__TRY_NEW(autograd);
    autograd->rows = rows;
    return FSDP_OK;
}

fsdp__rows_of_batch fsdp__get_rows_of_batch(const fsdp_context *context)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return autograd ? autograd->rows : (fsdp__rows_of_batch){0};
}

/* If memory runs out here, a forward only records what it need not. */
void fsdp_no_grad_begin(fsdp_context *context)
{
    fsdp__autograd *autograd = fsdp__autograd_make(context);

    if (autograd)
        autograd->no_grad++;
}

void fsdp_no_grad_end(fsdp_context *context)
{
    fsdp__autograd *autograd = fsdp__autograd_get(context);

    if (autograd && autograd->no_grad > 0)
        autograd->no_grad--;
}

fsdp_status fsdp_enable_grad_begin(fsdp_context *context)
{
    fsdp__autograd *autograd = context ? fsdp__autograd_make(context) : NULL;

    if (!context)
        return FSDP_FAIL(FSDP_INVALID, "cannot enable gradients: the context is NULL");
    if (!autograd || fsdp__grow(&autograd->outside, autograd->outside_count, &autograd->outside_capacity,
                                sizeof *autograd->outside) != 0)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot enable gradients");
    autograd->outside[autograd->outside_count++] = autograd->no_grad;
    autograd->no_grad = 0;
    return FSDP_OK;
}

void fsdp_enable_grad_end(fsdp_context *context)
{
    fsdp__autograd *autograd = fsdp__autograd_get(context);

    if (autograd && autograd->outside_count > 0)
        autograd->no_grad = autograd->outside[--autograd->outside_count];
}

bool fsdp_grad_enabled(const fsdp_context *context)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return !autograd || autograd->no_grad == 0;
}

bool fsdp__in_backward(const fsdp_context *context)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return autograd && autograd->running;
}

uint64_t fsdp__backwards(const fsdp_context *context)
{
    const fsdp__autograd *autograd = fsdp__autograd_get(context);

    return autograd ? autograd->backwards : 0;
}

fsdp_status fsdp_backward_queue_callback(fsdp_context *context, fsdp_backward_callback callback, void *arg)
{
    fsdp__autograd *autograd = fsdp__autograd_get(context);
    fsdp__run *run = autograd ? autograd->running : NULL;

    if (!callback)
        return FSDP_FAIL(FSDP_INVALID, "cannot queue a callback: it is NULL");
    if (!run)
        return FSDP_FAIL(FSDP_STATE, "cannot queue a callback: no backward is running");
    FSDP_TRY(fsdp__grow(&run->callbacks, run->callback_count, &run->callback_capacity, sizeof *run->callbacks));
    run->callbacks[run->callback_count++] = (fsdp__callback){callback, arg};
    return FSDP_OK;
}
