/* encode_piece.c - documents of a piece: of JSON lines, between separators, or a part of one. */
#include "data/encode_piece.h"

#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word.h"

#define REPLACEMENT "\xef\xbf\xbd"

/* What every document of the piece needs. */
typedef struct job {
    fsdp_encoder *encoder;
    const fsdp_tokenize_options *options;
    int32_t eos;
    const fsdp__piece *piece;
    fsdp__encoded *out;
} job;

/* ---- bytes that are no UTF-8 ---- */

/* The text with U+FFFD in their place; fsdp__free it. */
static char *replace_invalid(const char *text, size_t bytes, size_t *out_bytes)
{
    char *out = fsdp__malloc(3 * bytes + 1);
    size_t used = 0;

    while (out && bytes > 0) {
        size_t good = fsdp__utf8_prefix(text, bytes), bad;
        bool cut;

        memcpy(out + used, text, good);
        used += good;
        text += good;
        bytes -= good;
        if (bytes == 0)
            break;
        bad = fsdp__utf8_broken(text, bytes, &cut);
        memcpy(out + used, REPLACEMENT, sizeof REPLACEMENT - 1);
        used += sizeof REPLACEMENT - 1;
        text += bad;
        bytes -= bad;
    }
    *out_bytes = used;
    return out;
}

/* ---- one document, or a part of it ---- */

static fsdp_status encode(const job *j, const char *text, size_t bytes)
{
    fsdp_encode_options options = {.plain_specials = j->options->plain_specials};

    j->out->text_bytes += (int64_t)bytes;
    return fsdp_encoder_encode(j->encoder, text, bytes, &options, &j->out->ids);
}

static fsdp_status end_document(const job *j)
{
    j->out->documents++;
    return j->options->no_eos ? FSDP_OK : fsdp__token_list_add(&j->out->ids, j->eos);
}

/* ---- text ---- */

/* `at` is where it stands in the piece. */
static fsdp_status encode_text(const job *j, const char *text, size_t bytes)
{
    int64_t offset = j->piece->offset + (text - j->piece->text);
    size_t good = fsdp__utf8_prefix(text, bytes), replaced_bytes = 0;
    char *replaced;
    fsdp_status status;

    if (good == bytes) {
        status = encode(j, text, bytes);
    } else if (!j->options->replace_invalid) {
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is no UTF-8 at offset %lld of its text (byte 0x%02x)",
                         j->piece->path, (long long)offset + (long long)good, (unsigned)(unsigned char)text[good]);
    } else {
        replaced = replace_invalid(text, bytes, &replaced_bytes);
        status = replaced ? encode(j, replaced, replaced_bytes) : FSDP_NO_MEMORY;
        fsdp__free(replaced);
    }
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot encode '%s' from offset %lld on", j->piece->path, (long long)offset);
    return FSDP_OK;
}

static fsdp_status encode_texts(const job *j)
{
    const char *separator = j->options->separator, *at = j->piece->text, *last = at + j->piece->bytes;
    bool begun = j->piece->continues;

    for (;;) {
        const char *end = separator ? memmem(at, (size_t)(last - at), separator, strlen(separator)) : NULL;
        size_t bytes = (size_t)((end ? end : last) - at);

        if (bytes > 0)
            FSDP_TRY(encode_text(j, at, bytes));
        begun = begun || bytes > 0;
        if (begun && (end || j->piece->ends))
            FSDP_TRY(end_document(j));
        if (!end)
            return FSDP_OK;
        begun = false;
        at = end + strlen(separator);
    }
}

/* ---- JSON lines ---- */

static fsdp_status bad_line(const job *j, int64_t line, const char *what)
{
    return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': line %lld: %s", j->piece->path, (long long)line,
                     FSDP__SHOWN_NAME(what));
}

static fsdp_status encode_field(const job *j, int64_t line, const json_t *object)
{
    const char *field = j->options->field ? j->options->field : "text";
    const json_t *value = json_object_get(object, field);
    fsdp_status status;

    if (!json_is_object(object))
        return bad_line(j, line, "not a JSON object");
    if (!json_is_string(value))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': line %lld: field '%s' is %s", j->piece->path, (long long)line,
                         field, value ? "not a string" : "missing");
    if (json_string_length(value) == 0)
        return FSDP_OK;
    status = encode(j, json_string_value(value), json_string_length(value));
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot encode '%s', line %lld", j->piece->path, (long long)line);
    return end_document(j);
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r", text[i]) || text[i] == '\0')
            return false;
    return true;
}

static fsdp_status encode_line(const job *j, int64_t line, const char *text, size_t bytes)
{
    bool replaces = j->options->replace_invalid && fsdp__utf8_prefix(text, bytes) < bytes;
    char *replaced = replaces ? replace_invalid(text, bytes, &bytes) : NULL;
    json_error_t error;
    json_t *object;
    fsdp_status status;

    if (replaces && !replaced)
        return FSDP_NO_MEMORY;
    object = json_loadb(replaces ? replaced : text, bytes, JSON_ALLOW_NUL, &error);
    status = object ? encode_field(j, line, object) : bad_line(j, line, error.text);
    json_decref(object);
    fsdp__free(replaced);
    return status;
}

static fsdp_status encode_lines(const job *j)
{
    const char *at = j->piece->text, *last = at + j->piece->bytes;

    for (int64_t line = j->piece->line; at < last; line++) {
        const char *found = memchr(at, '\n', (size_t)(last - at)), *end = found ? found : last;

        if (!is_blank(at, (size_t)(end - at)))
            FSDP_TRY(encode_line(j, line, at, (size_t)(end - at)));
        at = found ? found + 1 : last;
    }
    return FSDP_OK;
}

fsdp_status fsdp__encode_piece(fsdp_encoder *encoder, const fsdp_tokenize_options *options, int32_t eos,
                               const fsdp__piece *piece, fsdp__encoded *out)
{
    job j = {.encoder = encoder, .options = options, .eos = eos, .piece = piece, .out = out};

    out->ids.count = 0;
    out->documents = out->text_bytes = 0;
    return piece->json_lines ? encode_lines(&j) : encode_texts(&j);
}
