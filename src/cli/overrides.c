/* overrides.c - sets keys of a config from the command line. */
#include "cli/overrides.h"

#include <math.h>
#include <string.h>

#include "base/compiler.h"

fsdp_status fsdp__override_skip(void *arg, const char *key, const char *value)
{
    (void)arg;
    (void)key;
    (void)value;
    return FSDP_OK;
}

/* Sets a key. A list that the command line names replaces the file's; all its entries on the command line form one
 * list. */
fsdp_status fsdp__override_set(void *arg, const char *key, const char *value)
{
    static const char *const lists[] = {"data.path",
                                        "model.frozen",
                                        "parallelism.wrap_classes",
                                        "validation.path",
                                        "checkpoint.exclude_from_loading",
                                        "adapter.targets",
                                        "adapter.exclude",
                                        "adapter.rank_pattern",
                                        "adapter.alpha_pattern",
                                        "adapter.modules_to_save",
                                        "optimizer.groups"};
    fsdp__overrides *overrides = arg;
    bool adds = false;
    fsdp_status status;

    for (size_t i = 0; i < FSDP__COUNT_OF(lists); i++)
        if (strcmp(key, lists[i]) == 0) {
            adds = overrides->has_lists[i];
            overrides->has_lists[i] = true;
        }
    status = (adds ? fsdp_train_config_add : fsdp_train_config_set)(overrides->config, key, value);
    return status == FSDP_OK ? status : fsdp_fail_prefix(status, "--%s", key);
}

bool fsdp__override_is_given(int argc, char **argv, const char *key)
{
    size_t length = strlen(key);

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strncmp(argv[i], "--", 2) == 0 && strncmp(argv[i] + 2, key, length) == 0 &&
            (argv[i][2 + length] == '=' || argv[i][2 + length] == '\0'))
            return true;
    return false;
}

fsdp_status fsdp__override_check(const fsdp_train_config *config, int argc, char **argv)
{
    if (isnan(config->training.epochs) || !fsdp__override_is_given(argc, argv, "training.steps"))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "train: --training.steps is given, but training.epochs, which is %g, takes its place: leave one "
                     "of them out (--training.epochs= unsets it)",
                     config->training.epochs);
}
