/* pack_rows.c - packs rows as the config says, and says what came of it. */

#include "base/text.h"
#include "train/evaluate.h"
#include "train/run_config.h"
#include "train/run_start.h"

static fsdp_status check_answers(const fsdp_train_run *run, const char *key, const fsdp__rows *rows)
{
    if (rows->learned > 0 || run->config->data.train_on == FSDP_TRAIN_ON_ALL)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_INVALID,
        "%s: no token of '%s' is an answer, so there is nothing to learn: answers are what the role assistant "
        "says in messages, and gpt in conversations; data.train_on: all learns all tokens",
        key, fsdp__rows_text(rows));
}

fsdp_status fsdp__train_pack(const fsdp_train_run *run, const char *key, const fsdp__rows *rows, int64_t first,
                             int64_t count, fsdp__packed **out)
{
    const fsdp_train_config *c = run->config;
    fsdp__packing_options options = {
        .seq_len = c->training.seq_len,
        .packing = c->data.packing < 0 ? FSDP_PACKING_NEXT_FIT : (fsdp_packing)c->data.packing,
        .long_row = (fsdp_long_row)c->data.long_row,
        .all = c->data.train_on == FSDP_TRAIN_ON_ALL,
        .first_row = first,
        .row_count = count,
    };

    if (fsdp__train_is_dpo(c)) {
        options.packing = FSDP_PACKING_PAIRS;
        options.row_most = run->model_config.max_seq_len;
    }
    FSDP_TRY(check_answers(run, key, rows));
    return fsdp_fail_prefix(fsdp__pack(rows, &options, out), "%s", key);
}

/* Says what became of rows that are too long. */
static void tell_long(const fsdp_train_run *run, const fsdp__run_source *source)
{
    static const char *const what[] = {"", "truncated", "split", "left out"};
    const fsdp__packed *p = source->packed;

    if (p->long_rows > 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "%s: %s row%s of more than training.seq_len %lld tokens %s %s (data.on_long_row): %s tokens are not "
                 "used",
                 source->key, FSDP__THOUSANDS(p->long_rows), fsdp__plural(p->long_rows), (long long)p->options.seq_len,
                 p->long_rows == 1 ? "is" : "are", what[p->options.long_row], FSDP__THOUSANDS(p->left_out));
}

/* Says how many rows teach nothing: a role may be misspelled. */
static void tell_unlearned(const fsdp_train_run *run, const fsdp__run_source *source)
{
    const fsdp__packed *p = source->packed;
    int64_t count = 0, first = 0, learned = 1;

    for (int64_t r = p->options.first_row; r < fsdp__packed_end(p) && !p->options.all; r++) {
        if (fsdp__rows_learned(p->rows, r, 0, fsdp__rows_length(p->rows, r), &learned) != FSDP_OK)
            return; /* whoever needs the row says so */
        first = count == 0 && learned == 0 ? r : first;
        count += learned == 0;
    }
    if (count > 0)
        fsdp_log(run->context, FSDP_LOG_INFO,
                 "%s: %s row%s no answer, of which nothing is learned; the first is row %lld of '%s'", source->key,
                 FSDP__THOUSANDS(count), count == 1 ? " has" : "s have", (long long)first + 1,
                 fsdp__rows_text(p->rows));
}

void fsdp__train_tell_rows(const fsdp_train_run *run, const fsdp__run_source *source)
{
    const fsdp__packed *p = source->packed;
    double full = 100 * (double)p->tokens / ((double)p->windows * (double)p->options.seq_len);
    int64_t answers;

    if (fsdp_context_rank(run->context) != 0)
        return;
    answers = fsdp__evaluate_answers(p, 0);
    fsdp_log(run->context, FSDP_LOG_INFO,
             "%s: %s %s of %s tokens, of which %s are learned (%s), in %s windows of %lld, which are %.1f%% full (%s)",
             source->key, FSDP__THOUSANDS(p->row_count / (p->rows->pairs ? 2 : 1)), p->rows->pairs ? "pairs" : "rows",
             FSDP__THOUSANDS(p->tokens), FSDP__THOUSANDS(answers),
             p->options.all ? "data.train_on: all" : "the answers", FSDP__THOUSANDS(p->windows),
             (long long)p->options.seq_len, full,
             p->options.packing == FSDP_PACKING_PAD        ? "a row in each"
             : p->options.packing == FSDP_PACKING_PAIRS    ? "a pair in each"
             : p->options.packing == FSDP_PACKING_BEST_FIT ? "packed by best fit"
                                                           : "packed");
    tell_unlearned(run, source);
    tell_long(run, source);
}
