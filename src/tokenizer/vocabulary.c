/* vocabulary.c - tokens by id, and a hash table of ids. */
#include "tokenizer/vocabulary.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/text.h"

/* ---- byte-level tokens ----
 *
 * In files each of the 256 bytes is written as one character, its own if it is visible, otherwise one from U+0100 on.
 */

enum {
    BYTES = 256,
    FIRST_STAND_IN = 256
};

static bool is_own_character(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* Returns the byte that a character stands for; -1: none. Bytes without a visible character have stand-ins, in their
 * order. */
static int byte_of(uint32_t character)
{
    uint32_t stand_in = FIRST_STAND_IN;

    if (character < BYTES)
        return is_own_character(character) ? (int)character : -1;
    for (unsigned byte = 0; byte < BYTES; byte++)
        if (!is_own_character(byte) && stand_in++ == character)
            return (int)byte;
    return -1;
}

/* Decodes `token` into the bytes that it stands for, at most strlen(token), in `out`. Returns false if it has a
 * character that stands for no byte. */
static bool byte_level_bytes(const char *token, char *out, size_t *out_bytes)
{
    size_t count = 0;

    for (const char *at = token; *at;) {
        uint32_t character = 0;
        int length = fsdp__utf8_next(at, &character), byte = length > 0 ? byte_of(character) : -1;

        if (byte < 0)
            return false;
        out[count++] = (char)byte;
        at += length;
    }
    *out_bytes = count;
    return true;
}

enum {
    FIRST_SLOTS = 1024, /* a power of two; at most half of them are used */
    IDS_MOST = 1 << 24  /* the largest vocabularies have a quarter of a million */
};

/* ---- what a token stands for ---- */

typedef struct key {
    const char *bytes;
    size_t count;
    bool literal;
} key;

/* Makes room after the others for one more token of at most `most` bytes; NULL when out of memory. */
static char *reserve(fsdp__vocabulary *v, size_t most)
{
    int64_t last = v->byte_count + (int64_t)most;

    return fsdp__grow(&v->bytes, last, &v->byte_capacity, 1) == 0 ? v->bytes + v->byte_count : NULL;
}

static key read_key(const fsdp__vocabulary *v, const char *text, char *scratch)
{
    key k = {.bytes = scratch};

    if (v->plain)
        return (key){.bytes = text, .count = strlen(text)};
    if (!byte_level_bytes(text, scratch, &k.count))
        k = (key){.bytes = text, .count = strlen(text), .literal = true};
    return k;
}

/* ---- the table ---- */

static uint64_t hash_key(const key *k)
{
    uint64_t hash = fsdp__hash_bytes(FSDP__HASH_OF_NOTHING ^ (uint64_t)k->literal, k->bytes, k->count);

    return hash ^ (hash >> 32);
}

static key key_of(const fsdp__vocabulary *v, int32_t id)
{
    const fsdp__token *token = &v->tokens[id];

    return (key){.bytes = v->bytes + token->at, .count = token->bytes, .literal = token->literal};
}

/* Returns the slot of the key, or the free slot where it belongs. */
static int32_t *find_slot(const fsdp__vocabulary *v, const key *k)
{
    uint64_t mask = (uint64_t)v->slot_count - 1;

    for (uint64_t i = hash_key(k) & mask;; i = (i + 1) & mask) {
        key other;

        if (v->slots[i] == FSDP__NO_TOKEN)
            return &v->slots[i];
        other = key_of(v, v->slots[i]);
        if (other.count == k->count && other.literal == k->literal && memcmp(other.bytes, k->bytes, k->count) == 0)
            return &v->slots[i];
    }
}

static fsdp_status make_slots(fsdp__vocabulary *v)
{
    int64_t count = v->slot_count ? 2 * v->slot_count : FIRST_SLOTS;
    int32_t *slots;

    if (2 * (v->used + 1) <= v->slot_count)
        return FSDP_OK;
    FSDP__TRY_NEW(slots = fsdp__malloc((size_t)count * sizeof *slots));
    memset(slots, 0xff, (size_t)count * sizeof *slots); /* sets all to FSDP__NO_TOKEN */
    fsdp__free(v->slots);
    v->slots = slots;
    v->slot_count = count;
    for (int32_t id = 0; id < v->count; id++)
        if (v->tokens[id].present) {
            key k = key_of(v, id);

            *find_slot(v, &k) = id;
        }
    return FSDP_OK;
}

static int32_t find(const fsdp__vocabulary *v, const key *k)
{
    return v->slots ? *find_slot(v, k) : FSDP__NO_TOKEN;
}

int32_t fsdp__vocabulary_find_bytes(const fsdp__vocabulary *vocabulary, const char *bytes, size_t count)
{
    return find(vocabulary, &(key){.bytes = bytes, .count = count});
}

fsdp_status fsdp__vocabulary_find_text(const fsdp__vocabulary *vocabulary, const char *text, int32_t *out)
{
    size_t bytes = strlen(text);
    char small[256];
    FSDP__FREED char *large = bytes > sizeof small ? fsdp__malloc(bytes) : NULL;
    key k;

    *out = FSDP__NO_TOKEN;
    if (bytes > sizeof small && !large)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look for the token '%s'", FSDP__SHOWN_NAME(text));
    k = read_key(vocabulary, text, large ? large : small);
    *out = find(vocabulary, &k);
    return FSDP_OK;
}

/* ---- adding ---- */

static fsdp_status grow_ids(fsdp__vocabulary *v, int64_t id)
{
    int64_t old = v->count;

    if (id < old)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&v->tokens, id, &v->capacity, sizeof *v->tokens));
    memset(v->tokens + old, 0, (size_t)(id + 1 - old) * sizeof *v->tokens);
    v->count = id + 1;
    return FSDP_OK;
}

static fsdp_status insert(fsdp__vocabulary *v, const key *k, int32_t id)
{
    FSDP_TRY(make_slots(v));
    FSDP_TRY(grow_ids(v, id));
    *find_slot(v, k) = id;
    memmove(v->bytes + v->byte_count, k->bytes, k->count);
    v->tokens[id] =
        (fsdp__token){.at = (size_t)v->byte_count, .bytes = (uint32_t)k->count, .present = true, .literal = k->literal};
    v->byte_count += (int64_t)k->count;
    v->used++;
    return FSDP_OK;
}

fsdp_status fsdp__vocabulary_add(fsdp__vocabulary *vocabulary, const char *text, int64_t id)
{
    char *scratch = reserve(vocabulary, strlen(text));
    int32_t found;
    key k;

    FSDP__TRY_NEW(scratch);
    if (id < 0 || id >= IDS_MOST)
        return FSDP_FAIL(FSDP_FORMAT, "the id of token '%s' is %lld: ids are from 0 to %d", FSDP__SHOWN_NAME(text),
                         (long long)id, IDS_MOST - 1);
    k = read_key(vocabulary, text, scratch);
    found = find(vocabulary, &k);
    if (found == id)
        return FSDP_OK;
    if (found != FSDP__NO_TOKEN)
        return FSDP_FAIL(FSDP_FORMAT, "token '%s' has two ids, %d and %lld", FSDP__SHOWN_NAME(text), (int)found,
                         (long long)id);
    if (id < vocabulary->count && vocabulary->tokens[id].present)
        return FSDP_FAIL(FSDP_FORMAT, "token '%s' has id %lld, as another token has", FSDP__SHOWN_NAME(text),
                         (long long)id);
    return insert(vocabulary, &k, (int32_t)id);
}

bool fsdp__vocabulary_has(const fsdp__vocabulary *vocabulary, int64_t id)
{
    return id >= 0 && id < vocabulary->count && vocabulary->tokens[id].present;
}

const char *fsdp__vocabulary_bytes(const fsdp__vocabulary *vocabulary, int32_t token, size_t *count)
{
    *count = vocabulary->tokens[token].bytes;
    return vocabulary->bytes + vocabulary->tokens[token].at;
}

void fsdp__vocabulary_release(fsdp__vocabulary *vocabulary)
{
    FSDP__FREE_ALL(vocabulary->tokens, vocabulary->bytes, vocabulary->slots);
    *vocabulary = (fsdp__vocabulary){0};
}
