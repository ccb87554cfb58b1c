/* sentencepiece.c - parses a tokenizer.model: a message of sentencepiece.proto. */
#include "format/sentencepiece.h"

#include <math.h>

#include "base/alloc.h"
#include "format/sentencepiece.pb-c.h"

typedef Fsdp__Sentencepiece__Model message;

enum {
    UNIGRAM = 1,
    BPE
}; /* model_type */

/* ---- memory that protobuf-c asks for ---- */

static void *give(void *unused, size_t bytes)
{
    (void)unused;
    return fsdp__malloc(bytes);
}

static void take_back(void *unused, void *memory)
{
    (void)unused;
    fsdp__free(memory);
}

/* Such memory, for the time of a call. */
#define ALLOCATOR (&(ProtobufCAllocator){.alloc = give, .free = take_back})

/* ---- pieces ---- */

static fsdp_status bad_piece(const char *path, size_t id, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': piece %zu %s", path, id, what);
}

static fsdp_status read_piece(const char *path, const Fsdp__Sentencepiece__Piece *from, size_t id, fsdp__piece *out)
{
    if (!from->piece || !*from->piece)
        return bad_piece(path, id, "has no text");
    if (from->type < FSDP__PIECE_NORMAL || from->type > FSDP__PIECE_BYTE)
        return bad_piece(path, id, "is of a type that SentencePiece does not have");
    if (!isfinite(from->score))
        return bad_piece(path, id, "has a score that is no number");
    *out = (fsdp__piece){.text = from->piece, .score = from->score, .type = (fsdp__piece_type)from->type};
    return FSDP_OK;
}

static fsdp_status read_pieces(const char *path, const message *from, fsdp__sentencepiece *out)
{
    if (from->n_pieces == 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it has no pieces: it is no tokenizer.model of SentencePiece",
                         path);
    out->pieces = fsdp__calloc(from->n_pieces, sizeof *out->pieces);
    FSDP__TRY_NEW(out->pieces);
    for (size_t i = 0; i < from->n_pieces; i++)
        FSDP_TRY(read_piece(path, from->pieces[i], i, &out->pieces[i]));
    out->count = (int64_t)from->n_pieces;
    return FSDP_OK;
}

/* ---- settings ---- */

static fsdp_status unsupported(const char *path, const char *what)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot read '%s': %s is not supported", path, what);
}

static int32_t id_or_none(const fsdp__sentencepiece *model, int32_t id)
{
    return id >= 0 && id < model->count ? id : -1;
}

static fsdp_status read_trainer(const char *path, const message *from, fsdp__sentencepiece *out)
{
    Fsdp__Sentencepiece__Trainer defaults = FSDP__SENTENCEPIECE__TRAINER__INIT;
    const Fsdp__Sentencepiece__Trainer *trainer = from->trainer_spec ? from->trainer_spec : &defaults;

    if (trainer->model_type != UNIGRAM && trainer->model_type != BPE)
        return unsupported(path, "a model_type of words or characters (only unigram and bpe are): it");
    if (trainer->treat_whitespace_as_suffix)
        return unsupported(path, "treat_whitespace_as_suffix");
    out->bpe = trainer->model_type == BPE;
    out->byte_fallback = trainer->byte_fallback;
    out->bos = id_or_none(out, trainer->bos_id);
    out->eos = id_or_none(out, trainer->eos_id);
    out->unknown = -1;
    for (int64_t i = 0; i < out->count && out->unknown < 0; i++)
        if (out->pieces[i].type == FSDP__PIECE_UNKNOWN)
            out->unknown = (int32_t)i;
    return out->unknown >= 0 ? FSDP_OK : FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': no piece is the unknown one", path);
}

static fsdp_status read_normalizer(const char *path, const message *from, fsdp__sentencepiece *out)
{
    Fsdp__Sentencepiece__Normalizer defaults = FSDP__SENTENCEPIECE__NORMALIZER__INIT;
    const Fsdp__Sentencepiece__Normalizer *normalizer = from->normalizer_spec ? from->normalizer_spec : &defaults;

    if (!normalizer->escape_whitespaces)
        return unsupported(path, "escape_whitespaces false");
    out->space_in_front = normalizer->add_dummy_prefix;
    out->single_spaces = normalizer->remove_extra_whitespaces;
    if (normalizer->precompiled_charsmap.len > 0) {
        out->table = (const char *)normalizer->precompiled_charsmap.data;
        out->table_bytes = normalizer->precompiled_charsmap.len;
    }
    return FSDP_OK;
}

fsdp_status fsdp__sentencepiece_parse(const char *path, const void *data, size_t bytes, fsdp__sentencepiece *out)
{
    message *model = fsdp__sentencepiece__model__unpack(ALLOCATOR, bytes, data);

    *out = (fsdp__sentencepiece){.message = model};
    if (!model)
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it is no tokenizer.model of SentencePiece, or there is no memory", path);
    FSDP_TRY(read_pieces(path, model, out));
    FSDP_TRY(read_trainer(path, model, out));
    return read_normalizer(path, model, out);
}

void fsdp__sentencepiece_release(fsdp__sentencepiece *model)
{
    if (model->message)
        fsdp__sentencepiece__model__free_unpacked(model->message, ALLOCATOR);
    fsdp__free(model->pieces);
    *model = (fsdp__sentencepiece){0};
}

int fsdp__by_score(const void *a, const void *b)
{
    const fsdp__scored_piece *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}
