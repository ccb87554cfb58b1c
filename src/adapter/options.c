/* options.c - what an adapter is asked for: defaults, checks, and copies that own their strings. */
#include <math.h>

#include "adapter/options.h"
#include "base/alloc.h"

typedef struct owned {
    fsdp_lora_options options; /* first: what callers hold */
    void **blocks;             /* what it points to */
    int64_t count, capacity;
} owned;

void fsdp_lora_options_free(fsdp_lora_options *options)
{
    owned *o = (owned *)options;

    if (!o)
        return;
    for (int64_t i = 0; i < o->count; i++)
        fsdp__free(o->blocks[i]);
    FSDP__FREE_ALL(o->blocks, o);
}

fsdp_lora_options *fsdp__lora_options_create(void)
{
    owned *o = fsdp__calloc(1, sizeof *o);

    return o ? &o->options : NULL;
}

/* Takes over a block, also on failure. */
static fsdp_status own(fsdp_lora_options *options, void *block)
{
    owned *o = (owned *)options;
    fsdp_status status = block ? fsdp__grow(&o->blocks, o->count, &o->capacity, sizeof *o->blocks) : FSDP_NO_MEMORY;

    if (status == FSDP_OK)
        o->blocks[o->count++] = block;
    else
        fsdp__free(block);
    return status;
}

fsdp_status fsdp__lora_options_text(fsdp_lora_options *options, const char *text, const char **out)
{
    char *copy = text ? fsdp__strdup(text) : NULL;

    *out = NULL;
    if (!text)
        return FSDP_OK;
    FSDP_TRY(own(options, copy));
    *out = copy;
    return FSDP_OK;
}

fsdp_status fsdp__lora_options_texts(fsdp_lora_options *options, const char *const *texts, int64_t count,
                                     const char *const **out, int64_t *out_count)
{
    const char **list = fsdp__calloc((size_t)count + 1, sizeof *list);

    FSDP_TRY(own(options, (void *)list));
    for (int64_t i = 0; i < count; i++)
        FSDP_TRY(fsdp__lora_options_text(options, texts[i], &list[i]));
    *out = list;
    *out_count = count;
    return FSDP_OK;
}

fsdp_status fsdp__lora_options_patterns(fsdp_lora_options *options, const fsdp_lora_pattern *patterns, int64_t count,
                                        const fsdp_lora_pattern **out, int64_t *out_count)
{
    fsdp_lora_pattern *list = fsdp__calloc((size_t)count + 1, sizeof *list);

    FSDP_TRY(own(options, list));
    for (int64_t i = 0; i < count; i++) {
        list[i].value = patterns[i].value;
        FSDP_TRY(fsdp__lora_options_text(options, patterns[i].key, &list[i].key));
    }
    *out = list;
    *out_count = count;
    return FSDP_OK;
}

/* ---- checks ---- */

enum {
    MAX_RANK = 1 << 20 /* of a layer; far beyond what is of use, so that sizes can be multiplied */
};

/* Checks that a list has as many texts as its count says. */
static fsdp_status check_list(const char *what, const char *const *list, int64_t count)
{
    if (count < 0 || (count > 0 && !list))
        return FSDP_FAIL(FSDP_INVALID, "an adapter's %s: their number is %lld, but no list of them is given", what,
                         (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (!list[i] || !*list[i])
            return FSDP_FAIL(FSDP_INVALID, "an adapter's %s: number %lld of %lld is empty", what, (long long)i,
                             (long long)count);
    return FSDP_OK;
}

static fsdp_status check_keys(const char *what, const fsdp_lora_pattern *patterns, int64_t count)
{
    if (count < 0 || (count > 0 && !patterns))
        return FSDP_FAIL(FSDP_INVALID, "an adapter's %s: their number is %lld, but no list of them is given", what,
                         (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (!patterns[i].key)
            return FSDP_FAIL(FSDP_INVALID, "an adapter's %s: number %lld of %lld has no key", what, (long long)i,
                             (long long)count);
    return FSDP_OK;
}

static bool is_rank(double value)
{
    return value >= 1 && value <= MAX_RANK && value == (double)(int64_t)value;
}

static fsdp_status check_patterns(const fsdp_lora_options *o)
{
    FSDP_TRY(check_keys("rank patterns", o->rank_patterns, o->rank_pattern_count));
    FSDP_TRY(check_keys("alpha patterns", o->alpha_patterns, o->alpha_pattern_count));
    for (int64_t i = 0; i < o->rank_pattern_count; i++)
        if (!is_rank(o->rank_patterns[i].value))
            return FSDP_FAIL(FSDP_INVALID, "an adapter's rank of '%s' is %g: it must be a whole number from 1 to %d",
                             o->rank_patterns[i].key, o->rank_patterns[i].value, MAX_RANK);
    for (int64_t i = 0; i < o->alpha_pattern_count; i++)
        if (!(o->alpha_patterns[i].value > 0 && isfinite(o->alpha_patterns[i].value)))
            return FSDP_FAIL(FSDP_INVALID, "an adapter's alpha of '%s' is %g: it must be above 0 and finite",
                             o->alpha_patterns[i].key, o->alpha_patterns[i].value);
    return FSDP_OK;
}

static fsdp_status check(const fsdp_lora_options *o)
{
    if (o->rank < 0 || o->rank > MAX_RANK)
        return FSDP_FAIL(FSDP_INVALID, "an adapter's rank is %lld: it must be from 0 (the default) to %d",
                         (long long)o->rank, MAX_RANK);
    if (!(o->alpha >= 0 && isfinite(o->alpha)))
        return FSDP_FAIL(FSDP_INVALID, "an adapter's alpha is %g: it must be finite and not negative", o->alpha);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return FSDP_FAIL(FSDP_INVALID, "an adapter's dropout is %g: it must be in [0, 1)", o->dropout);
    FSDP_TRY(check_list("targets", o->targets, o->target_count));
    FSDP_TRY(check_list("excluded layers", o->exclude, o->exclude_count));
    FSDP_TRY(check_list("modules_to_save", o->saved, o->saved_count));
    if (o->target_count == 0 && !o->target_regex)
        return FSDP_FAIL(FSDP_INVALID, "an adapter needs targets: names of layers (q_proj, v_proj), or all-linear");
    if (o->target_count > 0 && o->target_regex)
        return FSDP_FAIL(FSDP_INVALID, "an adapter's targets are a list of names or a regular expression, not both");
    return check_patterns(o);
}

fsdp_status fsdp__lora_options_copy(const fsdp_lora_options *from, fsdp_lora_options **out)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *o = NULL;

    if (!from)
        return FSDP_FAIL(FSDP_INVALID, "an adapter needs options");
    FSDP_TRY(check(from));
    FSDP__TRY_NEW(o = fsdp__lora_options_create());
    *o = *from;
    o->rank = from->rank > 0 ? from->rank : FSDP__LORA_RANK;
    o->alpha = from->alpha > 0 ? from->alpha : FSDP__LORA_ALPHA;
    FSDP_TRY(fsdp__lora_options_texts(o, from->targets, from->target_count, &o->targets, &o->target_count));
    FSDP_TRY(fsdp__lora_options_text(o, from->target_regex, &o->target_regex));
    FSDP_TRY(fsdp__lora_options_texts(o, from->exclude, from->exclude_count, &o->exclude, &o->exclude_count));
    FSDP_TRY(fsdp__lora_options_text(o, from->exclude_regex, &o->exclude_regex));
    FSDP_TRY(fsdp__lora_options_texts(o, from->saved, from->saved_count, &o->saved, &o->saved_count));
    FSDP_TRY(fsdp__lora_options_patterns(o, from->rank_patterns, from->rank_pattern_count, &o->rank_patterns,
                                         &o->rank_pattern_count));
    FSDP_TRY(fsdp__lora_options_patterns(o, from->alpha_patterns, from->alpha_pattern_count, &o->alpha_patterns,
                                         &o->alpha_pattern_count));
    *out = fsdp__take(&o);
    return FSDP_OK;
}
