/* match.c - names of modules and what they are matched with, as peft matches them. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/text.h"

bool fsdp__adapter_ends(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);

    return length >= tail && strcmp(name + length - tail, end) == 0 &&
           (length == tail || name[length - tail - 1] == '.');
}

static fsdp_status fail_regex(const char *regex, int code)
{
    PCRE2_UCHAR text[160];

    (void)pcre2_get_error_message(code, text, sizeof text);
    return FSDP_FAIL(FSDP_INVALID, "'%s' is not a regular expression for names of modules: %s", FSDP__SHOWN_NAME(regex),
                     (const char *)text);
}

static fsdp_status match(const pcre2_code *code, const char *regex, const char *name, bool *out)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
    int found;

    FSDP__TRY_NEW(data);
    found = pcre2_match(code, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, NULL);
    pcre2_match_data_free(data);
    *out = found >= 0;
    return found >= 0 || found == PCRE2_ERROR_NOMATCH ? FSDP_OK : fail_regex(regex, found);
}

fsdp_status fsdp__adapter_regex(const char *regex, const char *name, bool end, bool *out)
{
    FSDP__FREED char *whole = fsdp__sprintf(end ? "\\A(?:.*\\.)?(?:%s)\\z" : "\\A(?:%s)\\z", regex);
    pcre2_code *code;
    PCRE2_SIZE at;
    fsdp_status status;
    int error;

    *out = false;
    FSDP__TRY_NEW(whole);
    code = pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
    if (!code)
        return fail_regex(regex, error);
    status = match(code, regex, name, out);
    pcre2_code_free(code);
    return status;
}
