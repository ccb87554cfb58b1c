/* gguf_save.c - writes a model as a file of llama.cpp. */
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/temporary.h"
#include "hub/gguf_names.h"
#include "models/models.h"
#include "tensor/tensor.h"

/* ---- keys ---- */

static void put_size(fsdp__gguf_header *h, const char *architecture, const char *key, int64_t value)
{
    char text[128];

    snprintf(text, sizeof text, "%s.%s", architecture, key);
    fsdp__gguf_put_integer(h, text, FSDP__GGUF_U32, value);
}

static void put_real(fsdp__gguf_header *h, const char *architecture, const char *key, float value)
{
    char text[128];

    snprintf(text, sizeof text, "%s.%s", architecture, key);
    fsdp__gguf_put_real(h, text, value);
}

/* Puts keys that only some architectures have. llama.cpp itself knows which layers are local, and what Phi-3's window
 * of 0 means. */
static void put_attention(fsdp__gguf_header *h, const char *architecture, const fsdp_model_config *c)
{
    bool phi3 = c->architecture == FSDP_PHI3, local = fsdp_model_layer_is_local(c, 0);
    bool longrope = c->rope_type == FSDP_ROPE_LONGROPE;

    if (local || phi3)
        put_size(h, architecture, "attention.sliding_window", local ? c->window : 0);
    if (phi3)
        put_size(h, architecture, "rope.scaling.original_context_length",
                 longrope ? c->rope_original_max_seq_len : c->max_seq_len);
    if (longrope)
        put_real(h, architecture, "rope.scaling.attn_factor", (float)fsdp__rope_attention_factor(c));
    if (c->attention_softcap > 0)
        put_real(h, architecture, "attn_logit_softcapping", c->attention_softcap);
    if (c->logits_softcap > 0)
        put_real(h, architecture, "final_logit_softcapping", c->logits_softcap);
}

static void put_llama(fsdp__gguf_header *h, const char *architecture, const fsdp_model_config *c)
{
    put_size(h, architecture, "attention.head_count_kv", c->n_kv_heads);
    put_size(h, architecture, "attention.key_length", c->head_dim);
    put_size(h, architecture, "attention.value_length", c->head_dim);
    put_size(h, architecture, "vocab_size", c->vocab_size);
    put_size(h, architecture, "rope.dimension_count", fsdp__rotary_dim(c));
    put_real(h, architecture, "rope.freq_base", c->rope_theta);
    put_real(h, architecture, "attention.layer_norm_rms_epsilon", c->norm_eps);
    if (c->rope_type == FSDP_ROPE_LINEAR) {
        char text[128];

        snprintf(text, sizeof text, "%s.rope.scaling.type", architecture);
        fsdp__gguf_put_text(h, text, "linear");
        put_real(h, architecture, "rope.scaling.factor", c->rope_factor);
    }
    put_attention(h, architecture, c);
}

static int64_t file_type(fsdp__gguf_type type)
{
    return type == FSDP__GGUF_F32 ? 0 : type == FSDP__GGUF_F16 ? 1 : type == FSDP__GGUF_Q8_0 ? 7 : 32;
}

static void put_keys(fsdp__gguf_header *h, const fsdp__gguf_model *model, const char *architecture)
{
    const fsdp_model_config *c = model->config;

    fsdp__gguf_put_text(h, "general.architecture", architecture);
    fsdp__gguf_put_text(h, "general.name", model->name);
    fsdp__gguf_put_integer(h, "general.file_type", FSDP__GGUF_U32, file_type(model->type));
    fsdp__gguf_put_integer(h, "general.quantization_version", FSDP__GGUF_U32, 2);
    put_size(h, architecture, "context_length", c->max_seq_len);
    put_size(h, architecture, "embedding_length", c->dim);
    put_size(h, architecture, "block_count", c->n_layers);
    put_size(h, architecture, "feed_forward_length", c->ffn_dim);
    put_size(h, architecture, "attention.head_count", c->n_heads);
    if (c->architecture == FSDP_GPT2)
        put_real(h, architecture, "attention.layer_norm_epsilon", c->norm_eps);
    else
        put_llama(h, architecture, c);
}

/* ---- tensors ---- */

/* Describes one tensor of the file, and where it comes from. */
typedef struct part {
    fsdp__gguf_place place;
    const fsdp_tensor *from; /* NULL: factors of frequencies */
    const float *factors;    /* longrope's; NULL: llama3's */
    int ndim;
    int64_t shape[2];
    fsdp__gguf_type type;
    uint64_t offset;
} part;

static fsdp__gguf_type type_of(fsdp__gguf_type wanted, const part *p)
{
    if (p->ndim < 2 || strcmp(p->place.name, "position_embd.weight") == 0)
        return FSDP__GGUF_F32;
    return wanted == FSDP__GGUF_Q8_0 && p->shape[p->ndim - 1] % FSDP__GGUF_BLOCK != 0 ? FSDP__GGUF_F16 : wanted;
}

static fsdp_status plan_part(const fsdp__gguf_model *model, const fsdp_state_dict_entry *entry, part *p)
{
    *p = (part){.from = entry->tensor, .ndim = entry->ndim};
    if (!fsdp__gguf_place_of(model->config, entry->name, &p->place))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "a GGUF file has no name for parameter '%s'", entry->name);
    for (int d = 0; d < p->ndim; d++)
        p->shape[d] = entry->global_shape[p->place.transposed ? p->ndim - 1 - d : d];
    p->type = type_of(model->type, p);
    return FSDP_OK;
}

static void plan_factors(const fsdp_model_config *c, const char *name, const float *factors, part *p)
{
    *p = (part){.ndim = 1, .shape = {fsdp__rotary_dim(c) / 2}, .type = FSDP__GGUF_F32, .factors = factors};
    snprintf(p->place.name, sizeof p->place.name, "%s", name);
}

/* Makes the list of tensors, and puts them into the header. */
static fsdp_status plan_parts(const fsdp__gguf_model *model, fsdp__gguf_header *h, part *parts, int64_t *count)
{
    const fsdp_model_config *c = model->config;

    for (int64_t i = 0; i < model->state->count; i++)
        FSDP_TRY(plan_part(model, &model->state->entries[i], &parts[(*count)++]));
    if (c->rope_type == FSDP_ROPE_LLAMA3)
        plan_factors(c, "rope_freqs.weight", NULL, &parts[(*count)++]);
    if (c->rope_type == FSDP_ROPE_LONGROPE) {
        plan_factors(c, FSDP__GGUF_LONG, c->rope_long_factors, &parts[(*count)++]);
        plan_factors(c, FSDP__GGUF_SHORT, c->rope_short_factors, &parts[(*count)++]);
    }
    for (int64_t i = 0; i < *count; i++)
        fsdp__gguf_add_tensor(h, parts[i].place.name, parts[i].ndim, parts[i].shape, parts[i].type, &parts[i].offset);
    return FSDP_OK;
}

/* Gives the elements of a tensor in the file's order; fsdp__free them. */
static fsdp_status values_of(const fsdp__gguf_model *model, const part *p, float **out)
{
    int64_t numel = p->shape[0] * (p->ndim > 1 ? p->shape[1] : 1);
    FSDP__FREED float *values = fsdp__malloc((size_t)numel * sizeof(float) + 1), *ordered = NULL;

    FSDP__TRY_NEW(values);
    if (p->factors) {
        memcpy(values, p->factors, (size_t)numel * sizeof *values);
    } else if (!p->from) {
        fsdp__gguf_rope_factors(model->config, values);
    } else {
        FSDP_TRY(fsdp_tensor_read(p->from, FSDP_F32, values));
        fsdp__gguf_shift(&p->place, true, numel, values);
        if (fsdp__gguf_is_reordered(&p->place)) {
            FSDP__TRY_NEW(ordered = fsdp__malloc((size_t)numel * sizeof(float) + 1));
            fsdp__gguf_reorder(&p->place, p->shape, p->ndim, true, values, ordered);
            *out = fsdp__take(&ordered);
            return FSDP_OK;
        }
    }
    *out = fsdp__take(&values);
    return FSDP_OK;
}

/* Rounds values to a dtype by way of a tensor, as everything else here is rounded. */
static fsdp_status round_to(const fsdp__gguf_model *model, fsdp_dtype dtype, const float *values, int64_t numel,
                            void *out)
{
    fsdp_device *device = fsdp_tensor_device(model->state->entries[0].tensor);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;

    FSDP_TRY(fsdp_tensor_create(device, dtype, 1, &numel, FSDP_MEMORY_WORKSPACE, &tensor));
    FSDP_TRY(fsdp_tensor_write(tensor, FSDP_F32, values));
    return fsdp_tensor_read(tensor, dtype, out);
}

static fsdp_status write_part(const fsdp__gguf_model *model, const part *p, int fd, const char *path, uint64_t start)
{
    int64_t numel = p->shape[0] * (p->ndim > 1 ? p->shape[1] : 1);
    size_t bytes = (size_t)fsdp__gguf_bytes(p->type, numel);
    FSDP__FREED float *values = NULL;
    FSDP__FREED unsigned char *coded = NULL;

    FSDP_TRY(values_of(model, p, &values));
    if (p->type == FSDP__GGUF_F32)
        return fsdp__file_pwrite(fd, path, values, bytes, start + p->offset);
    FSDP__TRY_NEW(coded = fsdp__malloc(bytes + 1));
    if (p->type == FSDP__GGUF_Q8_0)
        fsdp__gguf_to_blocks(values, numel, coded);
    else
        FSDP_TRY(round_to(model, p->type == FSDP__GGUF_F16 ? FSDP_F16 : FSDP_BF16, values, numel, coded));
    return fsdp__file_pwrite(fd, path, coded, bytes, start + p->offset);
}

/* ---- the file ---- */

static fsdp_status write_all(const fsdp__gguf_model *model, const fsdp__gguf_header *h, const part *parts,
                             int64_t count, int fd, const char *path)
{
    static const char end[FSDP__GGUF_ALIGNMENT];
    uint64_t all = (uint64_t)h->bytes + h->data_bytes;

    FSDP_TRY(fsdp__file_pwrite(fd, path, h->data, (size_t)h->bytes, 0));
    if (h->data_bytes > 0) /* the last tensor's padding */
        FSDP_TRY(fsdp__file_pwrite(fd, path, end, sizeof end, all - sizeof end));
    for (int64_t i = 0; i < count; i++)
        FSDP_TRY(write_part(model, &parts[i], fd, path, (uint64_t)h->bytes));
    return fsdp__file_sync(fd, path);
}

/* Takes the lock of an unfinished file, and makes sure that the name still stands for it. */
static fsdp_status hold(const fsdp__directory *in, const char *name, int fd)
{
    struct stat held, there;

    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &held) == 0 && fsdp__directory_look(in, name, &there) &&
        held.st_dev == there.st_dev && held.st_ino == there.st_ino)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE, "another process writes to '%s/%s': wait for it, or name another file", in->path,
                     name);
}

/* Removes what a writer has left that was killed: nobody holds its lock, and it begins as such a file does. */
static fsdp_status remove_left(const fsdp__directory *in, const char *name)
{
    char begin[4];
    struct stat info;
    ssize_t bytes;
    fsdp_status status;
    int fd;

    if (!fsdp__directory_look(in, name, &info))
        return FSDP_OK;
    FSDP_TRY(fsdp__directory_open_file(in, name, &fd, &info));
    bytes = pread(fd, begin, sizeof begin, 0);
    status =
        fsdp__directory_owns(in, &info) && (bytes == 0 || (bytes == 4 && memcmp(begin, "GGUF", 4) == 0))
            ? hold(in, name, fd)
            : FSDP_FAIL(FSDP_INVALID, "'%s/%s', where the file would be written first, is another file: move it away",
                        in->path, name);
    if (status == FSDP_OK)
        status = fsdp__directory_unlink(in, name);
    close(fd);
    return status;
}

/* Makes the file that is written to, and holds its lock. Until it does, another writer may take the file for what was
 * left and put its own there, so it is noted after that. */
static fsdp_status begin(const fsdp__directory *in, const char *name, int *out_fd, int *out_note)
{
    fsdp__making making;
    fsdp_status status;
    int fd = -1;

    FSDP_TRY(remove_left(in, name));
    making = fsdp__temporary_begin();
    status = fsdp__directory_create(in, name, &fd);
    if (status == FSDP_OK)
        status = hold(in, name, fd);
    *out_note = fsdp__temporary_made(&making, in->fd, status == FSDP_OK ? name : NULL);
    if (status != FSDP_OK && fd >= 0)
        close(fd);
    else
        *out_fd = fd;
    return status;
}

/* Writes the file under another name first, so that nobody takes an unfinished file for a finished one. */
static fsdp_status publish(const char *path, const fsdp__gguf_model *model, const fsdp__gguf_header *h,
                           const part *parts, int64_t count)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory in = {0};
    FSDP__FREED char *name = NULL, *unfinished = NULL;
    fsdp_status status;
    int fd = -1, note = 0;

    FSDP_TRY(fsdp__directory_of(path, &in, &name));
    FSDP__TRY_NEW(unfinished = fsdp__sprintf("%s.writing", name));
    FSDP_TRY(begin(&in, unfinished, &fd, &note));
    status = write_all(model, h, parts, count, fd, path);
    if (status == FSDP_OK)
        status = fsdp__directory_rename(&in, unfinished, &in, name, FSDP__RENAME_NEW);
    if (status != FSDP_OK)
        (void)fsdp__directory_unlink(&in, unfinished);
    fsdp__temporary_gone(note);
    close(fd);
    return status == FSDP_OK ? fsdp__directory_sync(&in) : status;
}

/* ---- what llama.cpp would compute otherwise ---- */

static const char *wrong_rope(const fsdp_model_config *c)
{
    if (c->rope_type == FSDP_ROPE_LLAMA3)
        return c->architecture == FSDP_LLAMA || c->architecture == FSDP_MISTRAL ? NULL : "llama3 rotary positions";
    if (c->rope_type == FSDP_ROPE_LONGROPE)
        return c->architecture == FSDP_PHI3 ? NULL : "longrope rotary positions";
    if (c->rope_type != FSDP_ROPE_DEFAULT && c->rope_type != FSDP_ROPE_LINEAR)
        return "dynamic or yarn rotary positions";
    return fsdp__rotary_dim(c) != c->head_dim && c->architecture != FSDP_PHI3 ? "heads that rotate in part" : NULL;
}

static const char *wrong_scores(const fsdp__gguf_family *family, const fsdp_model_config *c)
{
    float scalar = (float)fsdp__gguf_query_scalar(family, c);

    if (family->soft_caps ? !(c->attention_softcap > 0 && c->logits_softcap > 0)
                          : c->attention_softcap > 0 || c->logits_softcap > 0)
        return family->soft_caps ? "attn_logit_softcapping or final_logit_softcapping of null" : "soft caps";
    return (c->query_scalar > 0 ? c->query_scalar : (float)c->head_dim) != scalar ? "another query_pre_attn_scalar"
                                                                                  : NULL;
}

/* Returns the property of a layer for which there is no key. Phi-3's window has one, although llama.cpp only warns that
 * it ignores it. */
static const char *wrong_layer(const fsdp__gguf_family *family, const fsdp_model_config *c, int64_t layer)
{
    if (fsdp_model_layer_has_rope(c, layer) != fsdp__gguf_has_rope(family, layer))
        return family->no_rope > 0 ? "no_rope_layers other than every fourth" : "no_rope_layers";
    if (c->architecture == FSDP_PHI3)
        return fsdp_model_layer_is_local(c, layer) != fsdp_model_layer_is_local(c, 0) ? "layer_types that differ"
                                                                                      : NULL;
    if (fsdp_model_layer_is_local(c, layer) == fsdp__gguf_is_local(family, layer))
        return NULL;
    return family->period > 0 ? "layer_types other than the usual" : "local layers (sliding_window)";
}

static const char *wrong_rest(const fsdp__gguf_family *family, const fsdp_model_config *c)
{
    if (c->attention_bias && c->architecture != FSDP_LLAMA)
        return "biases of attention";
    if (c->mlp_bias && c->architecture != FSDP_LLAMA)
        return "biases of the MLP";
    if (c->local_rope_theta != family->local_theta)
        return "another rope_theta of local layers";
    if (c->architecture == FSDP_PHI3 && c->n_heads * c->head_dim != c->dim)
        return "heads that are not as wide as the model together";
    return family->must_tie && !c->tie_word_embeddings ? "a head of its own" : NULL;
}

/* Refuses what llama.cpp has no key for: it would compute another model. */
static fsdp_status check_config(const fsdp_model_config *c)
{
    const fsdp__gguf_family *family = fsdp__gguf_family_of(c->architecture);
    const char *name = fsdp_architecture_name(c->architecture), *what = c->gelu_erf ? "the erf form of GELU" : NULL;

    if (!family)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s cannot be written as GGUF", name);
    if (c->architecture != FSDP_GPT2) {
        what = wrong_rope(c);
        what = what ? what : wrong_scores(family, c);
        what = what ? what : wrong_rest(family, c);
    }
    for (int64_t i = 0; i < c->n_layers && !what && c->architecture != FSDP_GPT2; i++)
        if ((what = wrong_layer(family, c, i)) != NULL)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "a %s with %s cannot be written as GGUF (layer %lld): llama.cpp has no "
                             "key for it",
                             name, what, (long long)i);
    return what ? FSDP_FAIL(FSDP_UNSUPPORTED, "a %s with %s cannot be written as GGUF: llama.cpp has no key for it",
                            name, what)
                : FSDP_OK;
}

fsdp_status fsdp__gguf_save(const char *path, const fsdp__gguf_model *model)
{
    FSDP__SCOPED(fsdp__gguf_header_release) fsdp__gguf_header h;
    FSDP__FREED part *parts = fsdp__calloc((size_t)model->state->count + 2, sizeof *parts);
    int64_t count = 0;

    fsdp__gguf_header_begin(&h);
    FSDP__TRY_NEW(parts);
    FSDP_TRY(check_config(model->config));
    if (fsdp__path_exists(path))
        return FSDP_FAIL(FSDP_IO, "'%s' exists already: name another file", path);
    put_keys(&h, model, fsdp__gguf_family_of(model->config->architecture)->name);
    if (model->tokenizer)
        FSDP_TRY(fsdp__gguf_put_tokenizer(&h, model->tokenizer, model->config));
    else
        fsdp__gguf_put_text(&h, "tokenizer.ggml.model", "none");
    FSDP_TRY(plan_parts(model, &h, parts, &count));
    FSDP_TRY(fsdp__gguf_header_finish(&h));
    return publish(path, model, &h, parts, count);
}
