/* quantities.c - the lists of quantities that a step and a validation report. metrics.jsonl has them in this order. */
#include "train/quantities.h"

#include "base/compiler.h"

#define OF_STEP(field) offsetof(fsdp_train_report, field)
#define OF_VALIDATION(field) offsetof(fsdp_train_validation, field)
#define INTEGER FSDP__QUANTITY_INTEGER
#define BYTES FSDP__QUANTITY_BYTES
#define NUMBER FSDP__QUANTITY_NUMBER
#define ALWAYS FSDP__QUANTITY_ALWAYS
#define NOT_ZERO FSDP__QUANTITY_NOT_ZERO
#define LEARNED FSDP__QUANTITY_LEARNED
#define NETWORK FSDP__QUANTITY_NETWORK
#define WAITS FSDP__QUANTITY_WAITS
#define MORE FSDP__QUANTITY_MORE
#define PAIRS FSDP__QUANTITY_PAIRS
#define VALIDATED_PAIRS FSDP__QUANTITY_VALIDATED_PAIRS
#define LIVE(kind, text)                             \
    {"memory_live_bytes_of",                         \
     text,                                           \
     "memory",                                       \
     "bytes",                                        \
     "live on rank 0's device after the step",       \
     BYTES,                                          \
     OF_STEP(memory.live_bytes[FSDP_MEMORY_##kind]), \
     MORE},
#define PEAK(kind, text)                             \
    {"memory_peak_bytes_of",                         \
     text,                                           \
     "memory",                                       \
     "bytes",                                        \
     "most on rank 0's device within the step",      \
     BYTES,                                          \
     OF_STEP(memory.peak_bytes[FSDP_MEMORY_##kind]), \
     ALWAYS},

/* clang-format off */
static const fsdp__quantity of_step[] = {
    {"loss", NULL, "train", "", "mean loss of the step", NUMBER, OF_STEP(loss), LEARNED},
    {"grad_norm", NULL, "train", "", "norm of all gradients before clipping", NUMBER, OF_STEP(grad_norm), LEARNED},
    {"lr", NULL, "train", "", "learning rate", NUMBER, OF_STEP(lr), ALWAYS},
    {"epoch", NULL, "train", "", "times that the data was read to its end", INTEGER, OF_STEP(epoch), ALWAYS},
    {"tokens", NULL, "train", "tokens", "seen so far by all ranks", INTEGER, OF_STEP(tokens), ALWAYS},
    {"left_out", NULL, "train", "", "whether the step is left out: no token of it is an answer", FSDP__QUANTITY_BOOL, OF_STEP(left_out), NOT_ZERO},
    {"skipped", NULL, "train", "steps", "skipped or left out so far", INTEGER, OF_STEP(skipped), ALWAYS},
    {"loss_scale", NULL, "train", "", "scale of the loss in float16", NUMBER, OF_STEP(loss_scale), NOT_ZERO},
    {"tokens_per_second", NULL, "speed", "tokens/s", "of all ranks", NUMBER, OF_STEP(tokens_per_second), LEARNED},
    {"step_ms", NULL, "speed", "ms", "time of the step", NUMBER, OF_STEP(step_ms), ALWAYS},
    {"memory_live_bytes", NULL, "memory", "bytes", "live on rank 0's device after the step", BYTES, OF_STEP(memory_live_bytes), ALWAYS},
    {"memory_peak_bytes", NULL, "memory", "bytes", "most on rank 0's device within the step", BYTES, OF_STEP(memory_peak_bytes), ALWAYS},
    {"memory_reserved_bytes", NULL, "memory", "bytes", "taken from the system by rank 0's device after the step, for live blocks and later ones", BYTES, OF_STEP(memory.reserved_bytes), ALWAYS},
    {"all_gather", NULL, "communication", "calls", "all-gathers of rank 0 in the step", INTEGER, OF_STEP(all_gather), ALWAYS},
    {"reduce_scatter", NULL, "communication", "calls", "reduce-scatters of rank 0 in the step", INTEGER, OF_STEP(reduce_scatter), ALWAYS},
    {"all_reduce", NULL, "communication", "calls", "all-reduces of rank 0 in the step", INTEGER, OF_STEP(all_reduce), ALWAYS},
    {"broadcast", NULL, "communication", "calls", "broadcasts of rank 0 in the step", INTEGER, OF_STEP(broadcast), ALWAYS},
    {"all_to_all", NULL, "communication", "calls", "all-to-alls of rank 0 in the step", INTEGER, OF_STEP(all_to_all), ALWAYS},
    {"bytes_sent", NULL, "communication", "bytes", "sent by rank 0 in the step, as a ring algorithm counts", INTEGER, OF_STEP(bytes_sent), ALWAYS},
    {"team_bytes_sent", NULL, "communication", "bytes", "of these, within a tensor parallel team", INTEGER, OF_STEP(team_bytes_sent), NOT_ZERO},
    {"network_sent", NULL, "communication", "bytes", "sent by rank 0 to other machines in the step", INTEGER, OF_STEP(network_sent), NETWORK},
    {"network_received", NULL, "communication", "bytes", "received by rank 0 from other machines in the step", INTEGER, OF_STEP(network_received), NETWORK},
    {"gather_ms", NULL, "communication", "ms", "waited by rank 0 for gathers in the step", NUMBER, OF_STEP(gather_ms), WAITS},
    {"reduce_ms", NULL, "communication", "ms", "waited by rank 0 for reductions in the step", NUMBER, OF_STEP(reduce_ms), WAITS},
    {"mfu", NULL, "speed", "", "model FLOPs utilization: a share of the devices' peak, from 0 to 1", NUMBER, OF_STEP(mfu), NOT_ZERO},
    {"answer_tokens", NULL, "train", "tokens", "learned in the step by all ranks, of rows", INTEGER, OF_STEP(answer_tokens), NOT_ZERO},
    {"padded_tokens_per_second", NULL, "speed", "tokens/s", "of all ranks, with the padding of rows", NUMBER, OF_STEP(padded_tokens_per_second), NOT_ZERO},
    {"reward_chosen", NULL, "dpo", "", "mean reward of the chosen answers: beta times what their log-probability has grown by", NUMBER, OF_STEP(reward_chosen), PAIRS},
    {"reward_rejected", NULL, "dpo", "", "mean reward of the rejected answers", NUMBER, OF_STEP(reward_rejected), PAIRS},
    {"reward_margin", NULL, "dpo", "", "reward_chosen - reward_rejected", NUMBER, OF_STEP(reward_margin), PAIRS},
    {"reward_accuracy", NULL, "dpo", "", "share of pairs whose chosen answer has the greater reward", NUMBER, OF_STEP(reward_accuracy), PAIRS},
    FSDP_MEMORY_MAP(LIVE)
    FSDP_MEMORY_MAP(PEAK)
};

static const fsdp__quantity of_validation[] = {
    {"loss", NULL, "validation", "", "mean loss of the tokens", NUMBER, OF_VALIDATION(loss), ALWAYS},
    {"perplexity", NULL, "validation", "", "exp(loss)", NUMBER, OF_VALIDATION(perplexity), NOT_ZERO},
    {"tokens", NULL, "validation", "tokens", "predicted by all ranks", INTEGER, OF_VALIDATION(tokens), ALWAYS},
    {"best", NULL, "validation", "", "whether it is the best so far", FSDP__QUANTITY_BOOL, OF_VALIDATION(best), ALWAYS},
    {"best_loss", NULL, "validation", "", "lowest loss so far", NUMBER, OF_VALIDATION(best_loss), ALWAYS},
    {"best_step", NULL, "validation", "", "step of the best so far", INTEGER, OF_VALIDATION(best_step), ALWAYS},
    {"without_improvement", NULL, "validation", "validations", "in a row without an improvement", INTEGER, OF_VALIDATION(without_improvement), ALWAYS},
    {"tokens_per_second", NULL, "validation", "tokens/s", "of all ranks", NUMBER, OF_VALIDATION(tokens_per_second), ALWAYS},
    {"ms", NULL, "validation", "ms", "time of the validation", NUMBER, OF_VALIDATION(ms), ALWAYS},
    {"pairs", NULL, "validation", "pairs", "compared by all ranks", INTEGER, OF_VALIDATION(pairs), VALIDATED_PAIRS},
    {"reward_chosen", NULL, "validation", "", "mean reward of the chosen answers", NUMBER, OF_VALIDATION(reward_chosen), VALIDATED_PAIRS},
    {"reward_rejected", NULL, "validation", "", "mean reward of the rejected answers", NUMBER, OF_VALIDATION(reward_rejected), VALIDATED_PAIRS},
    {"reward_margin", NULL, "validation", "", "reward_chosen - reward_rejected", NUMBER, OF_VALIDATION(reward_margin), VALIDATED_PAIRS},
    {"reward_accuracy", NULL, "validation", "", "share of pairs whose chosen answer has the greater reward", NUMBER, OF_VALIDATION(reward_accuracy), VALIDATED_PAIRS},
};
/* clang-format on */

const fsdp__quantities fsdp__step_quantities = {of_step, FSDP__COUNT_OF(of_step)};
const fsdp__quantities fsdp__validation_quantities = {of_validation, FSDP__COUNT_OF(of_validation)};

static const void *place_of(const fsdp__quantity *quantity, const void *report)
{
    return (const char *)report + quantity->offset;
}

double fsdp__quantity_value(const fsdp__quantity *quantity, const void *report)
{
    const void *place = place_of(quantity, report);

    switch (quantity->type) {
    case FSDP__QUANTITY_INTEGER:
        return (double)*(const int64_t *)place;
    case FSDP__QUANTITY_BYTES:
        return (double)*(const size_t *)place;
    case FSDP__QUANTITY_BOOL:
        return *(const bool *)place;
    default:
        return *(const double *)place;
    }
}

bool fsdp__quantity_is_there(const fsdp__quantity *quantity, const void *report)
{
    if (quantity->when == FSDP__QUANTITY_PAIRS)
        return ((const fsdp_train_report *)report)->pairs > 0;
    if (quantity->when == FSDP__QUANTITY_LEARNED)
        return !((const fsdp_train_report *)report)->left_out;
    if (quantity->when == FSDP__QUANTITY_VALIDATED_PAIRS)
        return ((const fsdp_train_validation *)report)->pairs > 0;
    return quantity->when != FSDP__QUANTITY_NOT_ZERO || fsdp__quantity_value(quantity, report) != 0;
}

void fsdp__quantity_print(const fsdp__quantity *quantity, const void *report, FILE *out)
{
    const void *place = place_of(quantity, report);

    if (quantity->type == FSDP__QUANTITY_INTEGER)
        fprintf(out, "%lld", (long long)*(const int64_t *)place);
    else if (quantity->type == FSDP__QUANTITY_BYTES)
        fprintf(out, "%zu", *(const size_t *)place);
    else
        fprintf(out, "%.9g", fsdp__quantity_value(quantity, report));
}
