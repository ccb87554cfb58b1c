/* cmd_repair.c - fsdp repair FOLDER: finishes a save that was interrupted while it replaced the files of a folder. */
#include <stdio.h>

#include "cli/cli.h"

static void usage(void)
{
    puts("fsdp repair FOLDER\n"
         "\n"
         "Finishes a save into a model folder that was interrupted while its files were\n"
         "being replaced; afterwards the folder holds the new model. The next export into\n"
         "the folder does the same. Nothing is moved if another user could have written\n"
         "the record of the save (unfinished-save.json).");
}

int fsdp__cmd_repair(int argc, char **argv)
{
    fsdp__args args = {.options = (fsdp__option[]){{0}}, .positional_most = 1};
    bool finished = false;
    int status;

    if (!fsdp__take_line(&args, "repair", usage, argc, argv, &status))
        return status;
    if (args.positional_count == 0)
        return fsdp__usage_error("repair: no model folder given; see 'fsdp repair --help'");
    if (fsdp_hub_repair(args.positional[0], &finished) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    printf(finished ? "%s: the save is finished, the new model is in place\n" : "%s: nothing to repair\n",
           FSDP__SHOWN_PATH(args.positional[0]));
    return 0;
}
