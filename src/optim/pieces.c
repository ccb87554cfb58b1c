/* pieces.c - views of a flat parameter's state. */
#include "optim/pieces.h"

#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "tensor/tensor.h"

static const char flat_name[] = "_flat_param";

/* The name of a part, from where that of the flat parameter begins. */
static char *name_of(const fsdp__optimizer_param *param, const char *part)
{
    size_t length = strlen(param->name), own = strlen(flat_name);
    bool ends = length >= own && strcmp(param->name + length - own, flat_name) == 0;

    return fsdp__sprintf("%.*s%s", ends ? (int)(length - own) : 0, param->name, part);
}

static fsdp_status add(fsdp__optimizer_param *param, const fsdp__leaf_part *part, int64_t *capacity)
{
    fsdp__optimizer_param *piece;

    if (fsdp__grow(&param->pieces, param->piece_count, capacity, sizeof *param->pieces))
        return FSDP_NO_MEMORY;
    piece = &param->pieces[param->piece_count];
    *piece = (fsdp__optimizer_param){.name = name_of(param, part->name), .first = part->at};
    if (!piece->name)
        return FSDP_NO_MEMORY;
    piece->tensor = fsdp_tensor_ref(part->tensor);
    param->piece_count++;
    return FSDP_OK;
}

fsdp_status fsdp__pieces_create(fsdp__optimizer_param *param)
{
    int64_t capacity = 0;
    fsdp__leaf_part part;

    while (fsdp__leaf_part_at(param->tensor, param->piece_count, &part))
        FSDP_TRY(add(param, &part, &capacity));
    return FSDP_OK;
}

static void let_go(fsdp__optimizer_param *piece)
{
    fsdp_tensor_unref(piece->moment1);
    fsdp_tensor_unref(piece->moment2);
    piece->moment1 = piece->moment2 = NULL;
    piece->steps = 0;
}

void fsdp__pieces_free(fsdp__optimizer_param *param)
{
    for (int64_t i = 0; i < param->piece_count; i++) {
        let_go(&param->pieces[i]);
        fsdp_tensor_unref(param->pieces[i].tensor);
        fsdp__free(param->pieces[i].name);
    }
    fsdp__free(param->pieces);
    param->pieces = NULL;
    param->piece_count = 0;
}

/* ---- open ---- */

/* Of a moment, which may be NULL. */
static fsdp_status view(const fsdp_tensor *moment, const fsdp__optimizer_param *piece, fsdp_tensor **out)
{
    const fsdp_tensor *like = piece->tensor;
    fsdp_status status;

    *out = NULL;
    if (!moment)
        return FSDP_OK;
    FSDP_TRY(fsdp__tensor_create_view(moment->storage, moment->dtype, like->ndim, like->shape, NULL,
                                      moment->offset + piece->first, out));
    status = fsdp_tensor_set_distribution(*out, fsdp_tensor_distribution(like));
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(*out);
    *out = NULL;
    return status;
}

static fsdp_status open(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                        fsdp__optimizer_param *param, bool make)
{
    if (make || param->steps > 0 || param->moment1)
        FSDP_TRY(fsdp__optimizer_fit_state(optimizer, group, param));
    for (int64_t i = 0; i < param->piece_count; i++) {
        fsdp__optimizer_param *piece = &param->pieces[i];

        let_go(piece);
        FSDP_TRY(view(param->moment1, piece, &piece->moment1));
        FSDP_TRY(view(param->moment2, piece, &piece->moment2));
        piece->steps = param->steps;
    }
    return FSDP_OK;
}

fsdp_status fsdp__pieces_open(const fsdp_optimizer *optimizer, bool make)
{
    fsdp_status status = FSDP_OK;

    for (int g = 0; g < optimizer->group_count; g++)
        for (int64_t i = 0; i < optimizer->groups[g].count; i++)
            if (optimizer->groups[g].params[i].piece_count > 0)
                FSDP_TRY_GOTO(status, open(optimizer, &optimizer->groups[g], &optimizer->groups[g].params[i], make),
                              out);
    return FSDP_OK;
out:
    (void)fsdp__pieces_close(optimizer, false);
    return status;
}

/* ---- close ---- */

static bool has_state(const fsdp__optimizer_param *piece)
{
    return piece->steps > 0 || piece->moment1;
}

/* A piece that has none has given up its views. */
static fsdp_status clear(const fsdp__optimizer_param *param, const fsdp__optimizer_param *piece)
{
    fsdp_tensor *const moments[] = {param->moment1, param->moment2};

    for (int m = 0; m < 2; m++) {
        fsdp_tensor *part;
        fsdp_status status;

        FSDP_TRY(view(moments[m], piece, &part));
        status = part ? fsdp_tensor_fill_(part, 0.0) : FSDP_OK;
        fsdp_tensor_unref(part);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* The flat parameter has what they have. */
static fsdp_status take(fsdp__optimizer_param *param)
{
    const fsdp__optimizer_param *first = NULL;

    for (int64_t i = 0; i < param->piece_count && !first; i++)
        if (has_state(&param->pieces[i]))
            first = &param->pieces[i];
    if (!first) {
        fsdp__optimizer_forget_state(param);
        return FSDP_OK;
    }
    param->steps = first->steps;
    for (int64_t i = 0; i < param->piece_count; i++) {
        const fsdp__optimizer_param *piece = &param->pieces[i];

        if (!has_state(piece))
            FSDP_TRY(clear(param, piece));
        else if (piece->steps != first->steps)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot load the state of '%s': '%s' has taken %lld steps and '%s' %lld, but they are one "
                             "flat parameter here",
                             param->name, first->name, (long long)first->steps, piece->name, (long long)piece->steps);
    }
    return FSDP_OK;
}

fsdp_status fsdp__pieces_close(const fsdp_optimizer *optimizer, bool taken)
{
    fsdp_status status = FSDP_OK;

    for (int g = 0; g < optimizer->group_count; g++)
        for (int64_t i = 0; i < optimizer->groups[g].count; i++) {
            fsdp__optimizer_param *param = &optimizer->groups[g].params[i];

            if (taken && param->piece_count > 0)
                FSDP_KEEP_FIRST(status, take(param));
            for (int64_t p = 0; p < param->piece_count; p++)
                let_go(&param->pieces[p]);
        }
    return status;
}

/* ---- all of a group ---- */

fsdp__optimizer_param *fsdp__pieces_next(const fsdp__optimizer_group *group, fsdp__pieces_walk *walk)
{
    fsdp__optimizer_param *param;

    if (walk->param >= group->count)
        return NULL;
    param = &group->params[walk->param];
    if (param->piece_count == 0) {
        walk->param++;
        return param;
    }
    param = &param->pieces[walk->piece++];
    if (walk->piece == group->params[walk->param].piece_count) {
        walk->piece = 0;
        walk->param++;
    }
    return param;
}
