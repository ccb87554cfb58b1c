/* product_rows.c - the table of algorithms, and looking a call up in it. */
#include "backend/cuda/product_rows.h"

#include <string.h>

#include "base/compiler.h"

#ifndef FSDP_PRODUCT_ROWS /* tests have rows of their own */
#define FSDP_PRODUCT_ROWS "backend/cuda/product_rows.inc"
#endif

#define ROW(card_, version_, layout_, in_, out_, epilogue_, n_, m_, k_, first_, second_, ld_, ...) \
    {.card = (card_),                                                                              \
     .version = (version_),                                                                        \
     .layout = (layout_),                                                                          \
     .in = FSDP_##in_,                                                                             \
     .out = FSDP_##out_,                                                                           \
     .epilogue = FSDP__EPILOGUE_##epilogue_,                                                       \
     .n = (n_),                                                                                    \
     .m = (m_),                                                                                    \
     .k = (k_),                                                                                    \
     .first_ld = (first_),                                                                         \
     .second_ld = (second_),                                                                       \
     .out_ld = (ld_),                                                                              \
     .algorithm = {__VA_ARGS__}},

const fsdp__product_row fsdp__product_rows[] = {
#include FSDP_PRODUCT_ROWS
    {.card = NULL}};

static bool is_aligned(int32_t alignment)
{
    return alignment == FSDP__PRODUCT_ALIGNMENT;
}

bool fsdp__product_row_of(const fsdp__product_call *call, fsdp__product_row *out)
{
    static const char *const layouts[2][2] = {{"NN", "NT"}, {"TN", "TT"}};

    *out = (fsdp__product_row){
        .layout = layouts[call->first.transposed != 0][call->second.transposed != 0],
        .in = call->first.dtype,
        .out = call->out.dtype,
        .epilogue = (fsdp__product_epilogue)call->epilogue,
        .n = call->out.rows,
        .m = call->out.cols,
        .k = call->first.transposed ? call->first.rows : call->first.cols,
        .first_ld = call->first.ld,
        .second_ld = call->second.ld,
        .out_ld = call->out.ld,
    };
    return call->batch == 1 && is_aligned(call->first.alignment) && is_aligned(call->second.alignment) &&
           is_aligned(call->out.alignment) && (call->bias_alignment == 0 || is_aligned(call->bias_alignment)) &&
           (call->aux_alignment == 0 || is_aligned(call->aux_alignment));
}

static bool is_for(const fsdp__product_row *row, const char *card, int64_t version)
{
    return row->version == version && strcmp(row->card, card) == 0;
}

static bool same_call(const fsdp__product_row *a, const fsdp__product_row *b)
{
    return strcmp(a->layout, b->layout) == 0 && a->in == b->in && a->out == b->out && a->epilogue == b->epilogue &&
           a->n == b->n && a->m == b->m && a->k == b->k && a->first_ld == b->first_ld && a->second_ld == b->second_ld &&
           a->out_ld == b->out_ld;
}

const fsdp__product_row *fsdp__product_row_find(const fsdp__product_row *rows, const char *card, int64_t version,
                                                const fsdp__product_call *call)
{
    fsdp__product_row wanted;

    if (!fsdp__product_row_of(call, &wanted))
        return NULL;
    for (; rows->card; rows++)
        if (is_for(rows, card, version) && same_call(rows, &wanted))
            return rows;
    return NULL;
}

int fsdp__product_rows_count(const fsdp__product_row *rows, const char *card, int64_t version,
                             const fsdp__product_row **other)
{
    int count = 0;

    *other = NULL;
    for (; rows->card; rows++)
        if (is_for(rows, card, version))
            count++;
        else if (strcmp(rows->card, card) == 0)
            *other = rows;
    return count;
}

void fsdp__product_row_print(const fsdp__product_row *row, FILE *out)
{
    static const char *const dtypes[] = {[FSDP_F32] = "F32", [FSDP_BF16] = "BF16", [FSDP_F16] = "F16"};
    const fsdp__product_algorithm *a = &row->algorithm;

    const int64_t sizes[] = {row->n, row->m, row->k, row->first_ld, row->second_ld, row->out_ld};

    fprintf(out, "ROW(\"%s\", %lld, \"%s\", %s, %s, %s, ", row->card, (long long)row->version, row->layout,
            dtypes[row->in], dtypes[row->out], fsdp__product_epilogue_names[row->epilogue]);
    for (size_t i = 0; i < FSDP__COUNT_OF(sizes); i++)
        fprintf(out, "%lld, ", (long long)sizes[i]);
    fprintf(out, "%d, %u, %u, %d, %u, %u, %u, %u, %u)", a->id, a->tile, a->stages, a->split_k, a->reduction, a->swizzle,
            a->custom, a->inner, a->cluster);
}
