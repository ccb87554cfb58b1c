/* check_model.c - checks what a config asks of its model, in words of keys, before any rank is started. */
#include "device/device.h"
#include "hub/hub.h"
#include "parallel/degrees.h"
#include "train/run.h"
#include "train/run_config.h"

/* ---- of any run ---- */

/* Checks whether cuDNN takes the model's attention, if it is to. */
static fsdp_status check_attention(const fsdp_train_config *c, const fsdp_model_config *m)
{
    const char *name = fsdp_architecture_name(m->architecture);

    if (c->kernels.attention == FSDP_ATTENTION_EXACT)
        return FSDP_OK;
    if (c->training.mixed_precision_param == FSDP_F32)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "kernels.attention: cuDNN has no attention in float32: set "
                                           "training.mixed_precision_param=bfloat16, or kernels.attention=exact");
    if (m->attention_softcap > 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "kernels.attention: %s caps its attention scores (attention_softcap %g), which cuDNN is not "
                         "asked for: set kernels.attention=exact",
                         name, (double)m->attention_softcap);
    if (m->head_dim > FSDP__FAST_HEAD_DIM || m->head_dim % FSDP__FAST_HEAD_MULTIPLE != 0)
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "kernels.attention: the heads of this %s have %lld numbers, and cuDNN takes multiples of %d up "
            "to %d: set kernels.attention=exact",
            name, (long long)m->head_dim, FSDP__FAST_HEAD_MULTIPLE, FSDP__FAST_HEAD_DIM);
    return FSDP_OK;
}

static fsdp_status check_length(const fsdp_train_config *c, const fsdp_model_config *m)
{
    int rows = fsdp__train_is_dpo(c) ? 2 : 1; /* of a window that is full; each has the positions for itself */

    if (c->training.seq_len <= rows * m->max_seq_len)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "training.seq_len %lld is more than %sthe %lld positions of the model: set training.seq_len=%lld",
                     (long long)c->training.seq_len, rows == 2 ? "twice " : "", (long long)m->max_seq_len,
                     (long long)(rows * m->max_seq_len));
}

/* ---- of ranks that share it ---- */

/* Checks the heads by the names that the user has given them, or finds in the folder. */
static fsdp_status check_heads(const fsdp_train_config *c, const fsdp_model_config *m)
{
    bool of_keys = !c->model.path || c->model.n_heads || c->model.n_kv_heads;
    const fsdp__degree degree = {"parallelism.tensor_parallel_degree", c->parallelism.tensor_parallel_degree};

    return fsdp__check_heads(degree, m, of_keys ? "model.n_heads" : fsdp__hub_heads_key(m->architecture, false),
                             of_keys ? "model.n_kv_heads" : fsdp__hub_heads_key(m->architecture, true));
}

fsdp_status fsdp__train_check_model(const fsdp_train_config *c, const fsdp_model_config *m)
{
    FSDP_TRY(check_length(c, m));
    if (m->attention_dropout > 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "the model's config.json asks for dropout %g in attention, which cannot be trained: set "
                         "model.dropout, for example --model.dropout=0",
                         (double)m->attention_dropout);
    FSDP_TRY(check_heads(c, m));
    return check_attention(c, m);
}

/* ---- before the start ---- */

fsdp_status fsdp__train_check_on_paper(const fsdp_train_config *config, int world_size)
{
    fsdp_model_config model;

    FSDP_TRY(fsdp__train_config_check_model(config));
    FSDP_TRY(fsdp__train_model_config(config, &model));
    FSDP_TRY(fsdp__train_check_team(config, world_size));
    return fsdp__train_check_model(config, &model);
}
