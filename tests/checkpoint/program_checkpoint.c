/* program_checkpoint FOLDER ASYNC RANK KIND ACT NTH - a rank process that saves step 2 into a folder, in which RANK is
 * killed at its NTH use of a file or folder (KIND). Run by test_processes.c under fsdp_launch. Links: launch */
#include "checkpoint/scene.h"
#include "fsdp/launch.h"

static fsdp_status save(fsdp_context *context, char **argv)
{
    const fsdp_checkpoint_saver_options options = {.async = atoi(argv[2]), .keep_latest_k = 1};
    fsdp_checkpoint_saver *saver = NULL;
    fsdp_status status;
    scene_content c;

    scene_content_create(&c, context, SCENE_ROWS, 2, 2);
    FSDP_TRY(fsdp_checkpoint_saver_create(argv[1], &options, fsdp_world(context), &saver));
    if (fsdp_context_rank(context) == atoi(argv[3])) {
        fsdp__fault_set_act((fsdp__fault_act)atoi(argv[5]), 0);
        fsdp__fault_arm((fsdp__fault_kind)atoi(argv[4]), atol(argv[6]));
    }
    status = fsdp_checkpoint_saver_save(saver, &c.content);
    if (status == FSDP_OK)
        status = fsdp_checkpoint_saver_wait(saver, NULL);
    fsdp_checkpoint_saver_free(saver);
    scene_content_free(&c);
    return status;
}

int main(int argc, char **argv)
{
    fsdp_context *context = NULL;
    fsdp_status status = argc == 7 ? fsdp_context_from_env(&context) : FSDP_INVALID;

    if (status == FSDP_OK)
        status = save(context, argv);
    fsdp_context_free(context);
    return status == FSDP_OK ? 0 : 3;
}
