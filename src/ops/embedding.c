/* embedding.c - rows of a table. */
#include "ops/op.h"

#include <string.h>

static fsdp_status embedding_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *ids = fsdp__node_saved(node, 0);    /* (...) */
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]); /* (...,C) */
    fsdp_tensor *dtable;                             /* (V,C) */
    bool accumulate;

    FSDP__TRY_MADE(dy);
    FSDP_TRY(fsdp__node_target_of_any(node, 0, &dtable, &accumulate));
    const fsdp__embedding_backward_args args = {.ids = fsdp_tensor_data(ids),
                                                .dy = fsdp_tensor_data(dy),
                                                .dtable = fsdp_tensor_data(dtable),
                                                .rows = fsdp_tensor_numel(ids),
                                                .cols = dtable->shape[1],
                                                .table_rows = dtable->shape[0],
                                                .dtype = dy->dtype,
                                                .dtable_dtype = dtable->dtype,
                                                .accumulate = accumulate};
    return fsdp_tensor_numel(dtable) > 0 ? fsdp__launch_embedding_backward(fsdp__op_stream(dtable), &args) : FSDP_OK;
}

static const fsdp__op embedding_op = {.name = "embedding", .backward = embedding_backward};

/* There are no sums of integers, but f32 holds numbers below 2^24 exactly. The rank of the first rows makes new ids,
 * too: it should have no less memory than others, because plans are made of rank 0 alone. */
fsdp_tensor *fsdp__op_ids_from(fsdp_tensor *ids, int64_t first, int64_t count)
{
    if (count <= 1 << 24)
        return fsdp_cast(fsdp_add_scalar(fsdp_cast(ids, FSDP_F32), -(double)first), FSDP_I32);
    FSDP_FAIL(FSDP_UNSUPPORTED, "%lld rows cannot be divided among ranks: ids are counted below 2^24 only",
              (long long)count);
    return NULL;
}

static fsdp_tensor *global_embedding(fsdp_tensor *const *inputs)
{
    fsdp__global_call call = {.name = "embedding", .rule = FSDP__RULE_EMBEDDING, .inputs = inputs, .count = 2};
    fsdp_tensor *y;

    if (!fsdp__global_begin(&call))
        return NULL;
    y = call.first < 0 ? fsdp_embedding(call.parts[0], call.parts[1])
                       : fsdp__op_embedding_part(call.parts[0], call.parts[1], call.first, call.reduced);
    return fsdp__global_end(&call, y);
}

fsdp_tensor *fsdp_embedding(fsdp_tensor *table, fsdp_tensor *ids)
{
    fsdp_tensor *inputs[] = {table, ids};

    if (table && ids && fsdp__is_global(inputs, 2))
        return global_embedding(inputs);
    return fsdp__op_embedding_part(table, ids, 0, table ? table->shape[0] : 0);
}

fsdp_tensor *fsdp__op_embedding_part(fsdp_tensor *table, fsdp_tensor *ids, int64_t first, int64_t count)
{
    fsdp_tensor *inputs[] = {table, ids}, *y, *rows, *wanted;
    int64_t shape[FSDP_MAX_DIMS], valid;

    if (!table || !ids || !fsdp__op_inputs("embedding", inputs, 2))
        return NULL;
    if (table->ndim != 2 || !fsdp_dtype_is_floating(table->dtype))
        return fsdp__op_bad("embedding", "table", "a floating matrix", table);
    if (ids->dtype != FSDP_I32 || ids->ndim >= FSDP_MAX_DIMS)
        return fsdp__op_bad("embedding", "ids", "int32 of at most 5 dimensions", ids);
    if (fsdp__op_check_indices("embedding", "id", ids, count, count, &valid) != FSDP_OK)
        return NULL;
    memcpy(shape, ids->shape, sizeof shape);
    shape[ids->ndim] = table->shape[1];
    rows = fsdp__op_contiguous(table);
    wanted = fsdp__op_contiguous(count == table->shape[0] ? ids : fsdp__op_ids_from(ids, first, count));
    y = fsdp_empty(table->storage->device, table->dtype, ids->ndim + 1, shape); /* (...,C) */
    if (!rows || !wanted || !y)
        return NULL;
    const fsdp__embedding_forward_args args = {.table = fsdp_tensor_data(rows),
                                               .ids = fsdp_tensor_data(wanted),
                                               .y = fsdp_tensor_data(y),
                                               .rows = fsdp_tensor_numel(ids),
                                               .cols = table->shape[1],
                                               .table_rows = table->shape[0],
                                               .dtype = table->dtype};
    if ((fsdp_tensor_numel(y) > 0 && fsdp__launch_embedding_forward(fsdp__op_stream(y), &args) != FSDP_OK) ||
        fsdp__record(&embedding_op, &table, 1, &y, 1, &wanted, 1, NULL, 0) != FSDP_OK)
        return NULL;
    return y;
}
