/* talk.c - the template renders the whole talk for every message; what the model has seen of it is not computed
 * again. */
#include "cli/talk.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "cli/cli.h"
#include "tokenizer/utf8.h"

enum {
    FIRST_CAPACITY = 1024
};

/* Refuses a message that is no text, and one with a NUL in it. */
static fsdp_status check_text(const char *text, size_t bytes)
{
    size_t good = fsdp__utf8_prefix(text, FSDP__MIN(bytes, strlen(text)));

    if (good == bytes)
        return FSDP_OK;
    if (text[good] == '\0')
        return FSDP_FAIL(FSDP_FORMAT, "it has a NUL at byte %zu", good + 1);
    return FSDP_FAIL(FSDP_FORMAT, "it is not UTF-8 at byte %zu (0x%02x)", good + 1,
                     (unsigned)(unsigned char)text[good]);
}

fsdp_status fsdp__talk_open(const char *folder, const fsdp_tokenizer *tokenizer, const char *file, const char *system,
                            fsdp__talk *out)
{
    FSDP_TRY(fsdp_chat_open(folder, tokenizer, file, &out->chat));
    if (!fsdp_chat_has_template(out->chat))
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "'%s' has no chat template: give one with --chat-template FILE, or --prompt "
                         "without --chat",
                         folder);
    FSDP__TRY_NEW(out->messages = fsdp__strdup(""));
    return system ? fsdp_fail_prefix(fsdp__talk_say(out, "system", system), "--system") : FSDP_OK;
}

void fsdp__talk_close(fsdp__talk *talk)
{
    fsdp_kv_cache_free(talk->cache);
    fsdp_chat_row_release(&talk->row);
    fsdp_chat_close(talk->chat);
    FSDP__FREE_ALL(talk->messages, talk->known);
    *talk = (fsdp__talk){0};
}

bool fsdp__talk_read(fsdp__talk *talk, char **line, size_t *room)
{
    for (;;) {
        ssize_t bytes;

        if (isatty(STDIN_FILENO))
            (void)fputs("> ", stdout);
        (void)fflush(stdout);
        bytes = getline(line, room, stdin);
        if (bytes < 0)
            return false;
        while (bytes > 0 && ((*line)[bytes - 1] == '\n' || (*line)[bytes - 1] == '\r'))
            (*line)[--bytes] = '\0';
        if (bytes > 0 && check_text(*line, (size_t)bytes) == FSDP_OK)
            return true;
        if (bytes > 0)
            fsdp__talk_leave_out(talk);
    }
}

void fsdp__talk_leave_out(fsdp__talk *talk)
{
    talk->left_out++;
    (void)fsdp__failure("the message is left out: %s", fsdp_last_error());
    fsdp_clear_error();
}

fsdp_status fsdp__talk_say(fsdp__talk *talk, const char *role, const char *text)
{
    FSDP__FREED char *made = NULL;
    size_t bytes;
    FILE *to;

    FSDP_TRY(check_text(text, strlen(text)));
    to = fsdp__begin_text(&made, &bytes);
    FSDP__TRY_NEW(to);
    fprintf(to, "%s%s{\"role\": \"%s\", \"content\": ", talk->messages, *talk->messages ? ", " : "", role);
    fsdp__print_json_string(text, to);
    (void)fputs("}", to);
    FSDP_TRY(fsdp__end_text(to));
    fsdp__free(talk->messages);
    talk->messages = fsdp__take(&made);
    return FSDP_OK;
}

fsdp_status fsdp__talk_tokens(fsdp__talk *talk, int64_t more, int32_t **out, int64_t *out_count)
{
    const fsdp_chat_options options = {.prompt = true, .no_mask = true};
    FSDP__FREED char *row = fsdp__sprintf("{\"messages\": [%s]}", talk->messages);

    FSDP__TRY_NEW(row);
    FSDP_TRY(fsdp_chat_encode(talk->chat, NULL, row, strlen(row), &options, &talk->row));
    FSDP__TRY_NEW(*out = fsdp__calloc((size_t)(talk->row.ids.count + more), sizeof **out));
    memcpy(*out, talk->row.ids.ids, (size_t)talk->row.ids.count * sizeof **out);
    *out_count = talk->row.ids.count;
    return FSDP_OK;
}

fsdp_status fsdp__talk_cache(fsdp__talk *talk, fsdp_module *model, const int32_t *tokens, int64_t most)
{
    int64_t limit = fsdp_model_get_config(model)->max_seq_len, same = 0;

    most = FSDP__MIN(most, limit);
    if (!talk->cache || most > talk->capacity) {
        fsdp_kv_cache_free(fsdp__take(&talk->cache));
        talk->capacity = FSDP__MIN(FSDP__MAX(FSDP__MAX(most, 2 * talk->capacity), FIRST_CAPACITY), limit);
        return fsdp_kv_cache_create(model, 1, talk->capacity, &talk->cache);
    }
    while (same < talk->known_count && same < talk->row.ids.count && talk->known[same] == tokens[same])
        same++;
    return fsdp_kv_cache_length(talk->cache) > same ? fsdp_kv_cache_truncate(talk->cache, same) : FSDP_OK;
}

fsdp_status fsdp__talk_answer(fsdp__talk *talk, const fsdp_tokenizer *tokenizer, const int32_t *tokens, int64_t begin,
                              int64_t count)
{
    static const fsdp_decode_options options = {.skip_specials = true};
    int64_t known = count;
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    while (known > begin && tokens[known - 1] >= fsdp_tokenizer_vocab_size(tokenizer))
        known--; /* a vocabulary may be larger than the tokenizer's */
    FSDP_TRY(fsdp_tokenizer_decode(tokenizer, tokens + begin, known - begin, &options, &text, &bytes));
    fsdp__free(talk->known);
    FSDP__TRY_NEW(talk->known = fsdp__calloc((size_t)count, sizeof *talk->known));
    memcpy(talk->known, tokens, (size_t)count * sizeof *tokens);
    talk->known_count = count;
    return fsdp__talk_say(talk, "assistant", text);
}
