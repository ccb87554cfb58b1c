/* parse_sentencepiece.c - makes a tokenizer of SentencePiece's tokenizer.model. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/sentencepiece.h"
#include "tokenizer/parse.h"

static bool is_text(const fsdp__piece *piece)
{
    return piece->type == FSDP__PIECE_NORMAL || piece->type == FSDP__PIECE_USER_DEFINED;
}

/* ---- the vocabulary ---- */

static fsdp_status add_pieces(const char *path, const fsdp__sentencepiece *model, fsdp__bpe *bpe)
{
    int count;

    for (int64_t id = 0; id < model->count; id++) {
        FSDP_TRY(fsdp_fail_prefix(fsdp__vocabulary_add(&bpe->vocabulary, model->pieces[id].text, id),
                                  "cannot read '%s'", path));
    }
    bpe->unknown = model->unknown;
    bpe->fuse_unknown = bpe->characters = true;
    bpe->byte_fallback = model->byte_fallback;
    return fsdp__find_written_bytes(bpe, &count);
}

/* Adds the tokens that are searched for in a text: control tokens, and those that its maker has defined. */
static fsdp_status add_searched(const char *path, const fsdp__sentencepiece *model, fsdp_tokenizer *out)
{
    for (int64_t id = 0; id < model->count; id++) {
        const fsdp__piece *piece = &model->pieces[id];

        if (piece->type == FSDP__PIECE_CONTROL)
            FSDP_TRY(fsdp__add_special_token(path, piece->text, id, out));
        else if (piece->type == FSDP__PIECE_USER_DEFINED && model->bpe)
            FSDP_TRY(fsdp__add_searched_token(path, piece->text, id, out));
    }
    out->bpe.vocabulary.tokens[model->unknown].special = true;
    return FSDP_OK;
}

/* ---- BPE: any two pieces merge that are a piece together, the one of the highest score first ---- */

/* Returns the piece of these bytes that merges may take or make; FSDP__NO_TOKEN: there is none. */
static int32_t find_part(const fsdp__sentencepiece *model, const fsdp__bpe *bpe, const char *bytes, size_t count)
{
    int32_t id = fsdp__vocabulary_find_bytes(&bpe->vocabulary, bytes, count);

    return id != FSDP__NO_TOKEN && is_text(&model->pieces[id]) ? id : FSDP__NO_TOKEN;
}

/* Adds every way to make a piece. */
static void add_ways(const fsdp__sentencepiece *model, int64_t id, uint32_t rank, fsdp__bpe *bpe)
{
    const char *text = model->pieces[id].text;
    size_t bytes = strlen(text);

    for (size_t at = 1; at < bytes; at++) {
        fsdp__merge merge = {.result = (int32_t)id, .rank = rank};

        if (((unsigned char)text[at] & 0xc0) == 0x80)
            continue;
        merge.left = find_part(model, bpe, text, at);
        merge.right = find_part(model, bpe, text + at, bytes - at);
        if (merge.left != FSDP__NO_TOKEN && merge.right != FSDP__NO_TOKEN)
            fsdp__merges_add(&bpe->merges, &merge);
    }
}

static fsdp_status add_merges(const fsdp__sentencepiece *model, fsdp__bpe *bpe)
{
    FSDP__FREED fsdp__scored_piece *order = fsdp__malloc((size_t)model->count * sizeof *order);
    int64_t count = 0, ways = 0;
    uint32_t rank = 0;

    FSDP__TRY_NEW(order);
    for (int64_t id = 0; id < model->count; id++)
        if (is_text(&model->pieces[id])) {
            order[count++] = (fsdp__scored_piece){.score = model->pieces[id].score, .id = id};
            ways += (int64_t)strlen(model->pieces[id].text);
        }
    qsort(order, (size_t)count, sizeof *order, fsdp__by_score);
    FSDP_TRY(fsdp__merges_init(&bpe->merges, ways));
    for (int64_t i = 0; i < count; i++) {
        rank += i > 0 && order[i].score < order[i - 1].score; /* of equal scores the leftmost goes first */
        add_ways(model, order[i].id, rank, bpe);
    }
    return FSDP_OK;
}

/* Refuses pieces that text may become, but that SentencePiece would take apart again. */
static fsdp_status refuse_unused(const char *path, const fsdp__sentencepiece *model)
{
    for (int64_t id = 0; model->bpe && id < model->count; id++)
        if (model->pieces[id].type == FSDP__PIECE_UNUSED && model->pieces[id].text[0] != '<')
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot read '%s': piece %lld is marked as unused (a vocabulary that was restricted), "
                             "which is not supported in a BPE model",
                             path, (long long)id);
    return FSDP_OK;
}

/* ---- Unigram ---- */

/* Sets the scores. A piece that its maker has defined is better than whatever its text could be cut into. */
static fsdp_status set_scores(const fsdp__sentencepiece *model, fsdp__unigram *out)
{
    float least = 0, most = 0;
    bool any = false;

    FSDP__TRY_NEW(out->scores = fsdp__calloc((size_t)model->count, sizeof *out->scores));
    FSDP__TRY_NEW(out->order = fsdp__calloc((size_t)model->count, sizeof *out->order));
    for (int64_t id = 0; id < model->count; id++) {
        float score = model->pieces[id].score;

        if (model->pieces[id].type != FSDP__PIECE_NORMAL)
            continue;
        least = any && least < score ? least : score;
        most = any && most > score ? most : score;
        any = true;
    }
    for (int64_t id = 0; id < model->count; id++) {
        const fsdp__piece *piece = &model->pieces[id];
        double defined = (double)((float)strlen(piece->text) * most) - 0.1;

        if (!is_text(piece))
            continue;
        out->scores[id] = piece->type == FSDP__PIECE_USER_DEFINED ? (double)(float)defined : (double)piece->score;
        out->order[out->count++] = (int32_t)id;
    }
    out->unknown_score = (double)(least - 10.0f);
    return FSDP_OK;
}

/* ---- all of it ---- */

static fsdp_status add_step(const char *path, fsdp_tokenizer *t, fsdp__normalizer_kind kind, const char *what,
                            const char *with)
{
    fsdp_status status = fsdp__normalizer_add(&t->normalizer, kind, what, what ? strlen(what) : 0, with);

    return fsdp_fail_prefix(status, "cannot read '%s'", path);
}

static fsdp_status add_normalizer(const char *path, const fsdp__sentencepiece *model, fsdp_tokenizer *t)
{
    fsdp_status status = FSDP_OK;

    if (model->table)
        status = fsdp__normalizer_add(&t->normalizer, FSDP__NORMALIZE_TABLE, model->table, model->table_bytes, NULL);
    FSDP_TRY(fsdp_fail_prefix(status, "cannot read '%s'", path));
    if (model->single_spaces)
        FSDP_TRY(add_step(path, t, FSDP__NORMALIZE_SINGLE_SPACES, NULL, NULL));
    if (model->space_in_front)
        FSDP_TRY(add_step(path, t, FSDP__NORMALIZE_PREPEND_FIRST, NULL, " "));
    return add_step(path, t, FSDP__NORMALIZE_REPLACE, " ", FSDP__SPACE_MARK);
}

static fsdp_status fill(const char *path, const fsdp__sentencepiece *model, fsdp_tokenizer *t)
{
    t->eos = FSDP__NO_TOKEN;
    t->model_eos = model->eos;
    t->bpe.vocabulary.plain = true;
    t->strips = model->space_in_front || model->single_spaces;
    t->strips_all = model->single_spaces;
    FSDP_TRY(refuse_unused(path, model));
    FSDP_TRY(add_pieces(path, model, &t->bpe));
    t->next_id = t->bpe.vocabulary.used;
    FSDP_TRY(add_normalizer(path, model, t));
    fsdp__find_words(t);
    FSDP_TRY(add_searched(path, model, t));
    if (model->bos >= 0)
        FSDP_TRY(fsdp__token_list_add(&t->prefix, model->bos));
    if (model->bpe)
        return add_merges(model, &t->bpe);
    t->unigram.on = t->unigram.in_single = true;
    FSDP_TRY(set_scores(model, &t->unigram));
    fsdp__unigram_sort(&t->unigram, &t->bpe.vocabulary);
    return FSDP_OK;
}

fsdp_status fsdp__tokenizer_parse_model(const char *path, const void *data, size_t bytes, fsdp_tokenizer **out)
{
    FSDP__SCOPED(fsdp__sentencepiece_release) fsdp__sentencepiece model = {0};
    FSDP__SCOPED(fsdp_tokenizer_close_at) fsdp_tokenizer *t = NULL;

    *out = NULL;
    FSDP_TRY(fsdp__sentencepiece_parse(path, data, bytes, &model));
    FSDP__TRY_NEW(t = fsdp__calloc(1, sizeof *t));
    FSDP_TRY(fill(path, &model, t));
    fsdp__added_tokens_order(&t->raw);
    fsdp__added_tokens_order(&t->normalized);
    *out = fsdp__take(&t);
    return FSDP_OK;
}
