/* encode_piece.c - encodes the documents of a piece: JSON lines, documents between separators, or a part of one. */
#include "data/encode_piece.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "data/content.h"
#include "data/parquet.h"
#include "format/json_scan.h"
#include "tokenizer/bpe.h"
#include "tokenizer/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"

enum {
    FEW = 64 /* bytes that are not UTF-8 */
};

/* Holds what every document of the piece needs. */
typedef struct job {
    fsdp_encoder *encoder;
    const fsdp_tokenize_options *options;
    int32_t eos;
    const fsdp__piece *piece;
    fsdp__encoded *out;
} job;

static const char *field_of(const job *j)
{
    return j->options->field ? j->options->field : "text";
}

/* ---- bytes that are no UTF-8 ---- */

/* Returns the text with U+FFFD in place of what is not UTF-8; fsdp__free it. */
static char *replace_invalid(const job *j, const char *text, size_t bytes, size_t *out_bytes)
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
        j->out->replaced_bytes += (int64_t)bad;
    }
    *out_bytes = used;
    return out;
}

/* Checks how much had to be replaced. Some bytes of a text may be wrong. If many are, the text is in another encoding
 * or none, and would be full of U+FFFD. */
static fsdp_status check_replaced(const job *j)
{
    int64_t bad = j->out->replaced_bytes, all = (int64_t)j->piece->bytes;

    if (bad < FEW || 4 * bad < all)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s': %lld of %lld bytes from offset %lld on are not UTF-8: it is in another "
                     "encoding (convert it with 'iconv -f ENCODING -t UTF-8'), or packed",
                     j->piece->path, (long long)bad, (long long)all, (long long)j->piece->offset);
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

/* Encodes text that stands at `at` in the piece. */
static fsdp_status encode_text(const job *j, const char *text, size_t bytes)
{
    int64_t offset = j->piece->offset + (text - j->piece->text);
    size_t good = fsdp__utf8_prefix(text, bytes), replaced_bytes = 0;
    FSDP__FREED char *replaced = NULL;
    fsdp_status status;

    if (good == bytes) {
        status = encode(j, text, bytes);
    } else if (!j->options->replace_invalid) {
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': it is not UTF-8 at offset %lld of its text (byte 0x%02x): convert it with "
                         "'iconv -f ENCODING -t UTF-8'",
                         j->piece->path, (long long)offset + (long long)good, (unsigned)(unsigned char)text[good]);
    } else {
        replaced = replace_invalid(j, text, bytes, &replaced_bytes);
        status = replaced ? encode(j, replaced, replaced_bytes) : FSDP_NO_MEMORY;
    }
    return fsdp_fail_prefix(status, "cannot encode '%s' from offset %lld on", j->piece->path, (long long)offset);
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

/* Returns what messages call a line: those of Parquet are rows. */
static const char *line_word(const job *j)
{
    return fsdp__parquet_is_named(j->piece->path) ? "row" : "line";
}

__attribute__((format(printf, 3, 4))) static fsdp_status bad_line(const job *j, int64_t line, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(j->out->why, sizeof j->out->why, format, args);
    va_end(args);
    return FSDP_FAIL(FSDP_FORMAT,
                     "cannot read '%s': %s %lld: %s; data.on_bad_line=skip (--on-bad-line=skip) leaves such lines out",
                     j->piece->path, line_word(j), (long long)line, j->out->why);
}

/* Decodes the escapes of a string. An escape may stand for half a surrogate pair, which no encoding of text has. */
static fsdp_status unescape(const job *j, int64_t line, const fsdp__json_member *value, char **out, size_t *bytes)
{
    int64_t halves;

    FSDP__TRY_NEW(*out = fsdp__malloc(value->bytes));
    *bytes = fsdp__json_unescape(value->text, value->bytes, *out, &halves);
    if (halves == 0 || j->options->replace_invalid)
        return FSDP_OK;
    return bad_line(j, line, "field '%s' has half a surrogate pair (as \\ud83d alone), which is not a character",
                    field_of(j));
}

static fsdp_status encode_string(const job *j, int64_t line, const fsdp__json_member *value)
{
    FSDP__FREED char *plain = NULL;
    size_t bytes = value->bytes;
    fsdp_status status;

    if (value->escaped)
        FSDP_TRY(unescape(j, line, value, &plain, &bytes));
    status = encode(j, plain ? plain : value->text, bytes);
    FSDP_TRY(fsdp_fail_prefix(status, "cannot encode '%s', %s %lld", j->piece->path, line_word(j), (long long)line));
    return end_document(j);
}

static fsdp_status missing(const job *j, int64_t line, const char *text, size_t bytes)
{
    char keys[100];

    fsdp__json_list_keys(text, bytes, keys, sizeof keys);
    return bad_line(j, line,
                    "field '%s' is missing, and the line has %s: name the field of the text with data.field (--field); "
                    "fields of conversations are messages, conversations, prompt with completion, instruction with "
                    "output, or chosen with rejected",
                    field_of(j), keys[0] ? keys : "none");
}

/* Encodes a line that is a conversation. What another line may do better is the line's fault, and the rest is not. */
static fsdp_status encode_conversation(const job *j, int64_t line, const char *text, size_t bytes)
{
    const fsdp_tokenize_options *o = j->options;
    const fsdp_chat_options options = {
        .kind = o->chat_kind, .no_mask = o->learn_all, .replace_invalid = o->replace_invalid, .refuse_unwritten = true};
    int64_t before = j->out->ids.count;
    fsdp_status status =
        fsdp__conversations_encode(o->chat, &options, j->encoder, text, bytes, &j->out->ids, &j->out->rows);
    char why[sizeof j->out->why];

    if (status == FSDP_FORMAT)
        return bad_line(j, line, "%s", fsdp__shown(fsdp_last_error(), why, sizeof why));
    FSDP_TRY(fsdp_fail_prefix(status, "cannot encode '%s', %s %lld", j->piece->path, line_word(j), (long long)line));
    j->out->documents += j->out->ids.count > before; /* a row without tokens is left out */
    j->out->text_bytes += (int64_t)j->out->rows.row.text_bytes;
    return FSDP_OK;
}

static fsdp_status encode_object(const job *j, int64_t line, const char *text, size_t bytes)
{
    fsdp__json_member value;
    fsdp__json_fault fault;
    fsdp_status status = fsdp__json_find(text, bytes, j->options->chat ? "" : field_of(j), &value, &fault);

    if (status == FSDP_FORMAT && fsdp__json_begins_array(text, bytes))
        return bad_line(j, line, "not a JSON object but an array: if the file is one, " FSDP__JSON_ARRAY_ADVICE);
    if (status == FSDP_FORMAT)
        return bad_line(j, line, "%s at column %zu%s", fault.what, fault.offset + 1,
                        fault.offset >= bytes        ? ", where the line ends: a line is a whole object (jq -c . makes "
                                                       "lines of objects that go over several)"
                        : text[fault.offset] == '\0' ? " (a NUL byte)"
                                                     : "");
    FSDP_TRY(status);
    if (j->options->chat)
        return encode_conversation(j, line, text, bytes);
    if (!value.text)
        return missing(j, line, text, bytes);
    if (!value.is_string)
        return bad_line(j, line, "field '%s' is not a string", field_of(j));
    return value.bytes > 0 ? encode_string(j, line, &value) : FSDP_OK;
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
    size_t good = fsdp__utf8_prefix(text, bytes);
    FSDP__FREED char *replaced = NULL;

    if (good == bytes)
        return encode_object(j, line, text, bytes);
    if (!j->options->replace_invalid)
        return bad_line(j, line, "it is not UTF-8 at column %zu (byte 0x%02x)", good + 1,
                        (unsigned)(unsigned char)text[good]);
    replaced = replace_invalid(j, text, bytes, &bytes);
    return replaced ? encode_object(j, line, replaced, bytes) : FSDP_NO_MEMORY;
}

/* Takes back what a bad line has given so far, and counts the line. */
static void leave_out(const job *j, int64_t line, int64_t ids, int64_t text_bytes)
{
    fsdp__encoded *out = j->out;
    if (out->left_out_lines++ == 0)
        snprintf(out->first_left_out, sizeof out->first_left_out, "%s:%lld: %s", j->piece->path, (long long)line,
                 out->why);
    fsdp_clear_error();
    out->ids.count = ids;
    out->text_bytes = text_bytes;
}

static fsdp_status encode_lines(const job *j)
{
    const char *at = j->piece->text, *last = at + j->piece->bytes;

    for (int64_t line = j->piece->line; at < last; line++) {
        const char *found = memchr(at, '\n', (size_t)(last - at)), *end = found ? found : last;
        int64_t ids = j->out->ids.count, text_bytes = j->out->text_bytes;
        fsdp_status status;

        at += fsdp__utf8_mark(at, (size_t)(end - at)); /* files may have been concatenated */
        if (!is_blank(at, (size_t)(end - at))) {
            j->out->lines++;
            status = encode_line(j, line, at, (size_t)(end - at));
            if (status == FSDP_FORMAT && j->options->skip_bad_lines)
                leave_out(j, line, ids, text_bytes);
            else
                FSDP_TRY(status);
        }
        at = found ? found + 1 : last;
    }
    return FSDP_OK;
}

fsdp_status fsdp__encode_piece(fsdp_encoder *encoder, const fsdp_tokenize_options *options, int32_t eos,
                               const fsdp__piece *piece, fsdp__encoded *out)
{
    job j = {.encoder = encoder, .options = options, .eos = eos, .piece = piece, .out = out};

    out->ids.count = 0;
    out->rows.count = out->rows.answers = 0;
    out->documents = out->text_bytes = out->lines = out->left_out_lines = out->replaced_bytes = 0;
    if (options->chat && !piece->json_lines)
        return FSDP_FAIL(FSDP_FORMAT, "'%s' is no file of JSON lines, and the others hold conversations: name one kind",
                         piece->path);
    if (!piece->json_lines)
        FSDP_TRY(fsdp__content_check_text(piece->path, piece->offset, piece->text, piece->bytes));
    FSDP_TRY(piece->json_lines ? encode_lines(&j) : encode_texts(&j));
    return check_replaced(&j);
}

const char *fsdp__left_out_text(const fsdp_tokenize_summary *summary, char text[FSDP__LEFT_OUT_TEXT])
{
    text[0] = '\0';
    if (summary->left_out_lines > 0)
        snprintf(text, FSDP__LEFT_OUT_TEXT, "%s of %s lines left out: first at %s",
                 FSDP__THOUSANDS(summary->left_out_lines), FSDP__THOUSANDS(summary->lines), summary->first_left_out);
    return text;
}
