/* Any bytes as JSON: what is taken has a strict text, which jansson takes; a string that is found can be unescaped into
 * the room of its own. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"
#include "tokenizer/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Checks the strict text. Numbers that it keeps take up to seven times the bytes. */
static void check_strict(const char *text, size_t bytes, bool must, bool keeps_numbers)
{
    char *strict = NULL;
    size_t strict_bytes = 0;
    json_error_t error;
    json_t *value;

    if (fsdp__json_to_strict("x.json", text, bytes, keeps_numbers, &strict, &strict_bytes) != FSDP_OK) {
        if (must)
            abort();
        return;
    }
    if (strict_bytes > (keeps_numbers ? 7 : 2) * bytes || strict[strict_bytes] != '\0')
        abort();
    value = json_loadb(strict, strict_bytes, JSON_DECODE_ANY | (keeps_numbers ? JSON_ALLOW_NUL : 0), &error);
    if (!value && json_error_code(&error) != json_error_stack_overflow && fsdp__utf8_prefix(text, bytes) == bytes)
        abort();
    json_decref(value);
    fsdp__free(strict);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data;
    fsdp__json_member member;
    fsdp__json_fault fault;
    bool taken = fsdp__json_find(text, bytes, "a", &member, &fault) == FSDP_OK;

    if (!taken && (!fault.what || fault.offset > bytes))
        abort();
    if (taken && member.is_string) {
        char *plain = malloc(member.bytes + !member.bytes);
        int64_t halves;

        if (fsdp__json_unescape(member.text, member.bytes, plain, &halves) > member.bytes || halves < 0)
            abort();
        free(plain);
    }
    check_strict(text, bytes, taken, false);
    check_strict(text, bytes, taken, true);
    return 0;
}
