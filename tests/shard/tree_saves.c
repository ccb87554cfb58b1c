/* tree_saves.c - calls that save and load parameters: in memory, and in checkpoints that are written meanwhile. */
#include "fsdp/checkpoint.h"
#include "shard/tree_calls.h"
#include "support/ranks.h"

/* ---- in memory ---- */

int tree_param_of_entry(const char *name)
{
    return atoi(strrchr(name, 'p') + 1);
}

void tree_play_save(tree_player *player, const tree_call *call)
{
    (void)call;
    if (player->windows)
        return;
    fsdp_state_dict_free(player->state);
    player->state = NULL;
    CHECK_OK(fsdp_state_dict_from_module(tree_root(player), &player->state));
    for (int64_t i = 0; i < player->state->count; i++) {
        const fsdp_tensor *tensor = player->state->entries[i].tensor;
        int p = tree_param_of_entry(player->state->entries[i].name);

        free(player->saved[i]);
        player->saved[i] = tree_read(tensor);
        if (player->params[p])
            tree_log_part(player, "saved parameter", p, tensor);
    }
}

void tree_play_load(tree_player *player, const tree_call *call)
{
    (void)call;
    if (!player->state || !tree_can_write(player))
        return;
    for (int64_t i = 0; i < player->state->count; i++)
        CHECK_OK(fsdp_tensor_write(player->state->entries[i].tensor, FSDP_F32, player->saved[i]));
    tree_shard_again(player, UINT32_MAX);
}

void tree_play_load_full(tree_player *player, const tree_call *call)
{
    const fsdp_full_state_options options = {.cpu_offload = true, .broadcast_from_rank0 = true};
    fsdp_state_dict *full;

    (void)call;
    if (!player->state || !tree_can_write(player))
        return;
    CHECK_OK(fsdp_state_dict_gather(player->state, &options, &full));
    CHECK_OK(fsdp_state_dict_load_full(player->state, full, &options));
    fsdp_state_dict_free(full);
    tree_shard_again(player, UINT32_MAX);
}

/* ---- checkpoints ---- */

enum {
    WHOLE,
    UNDER_WAY
};

static void make_whole(tree_player *player)
{
    if (player->checkpoints[UNDER_WAY].step == 0)
        return;
    tree_drop_checkpoint(&player->checkpoints[WHOLE]);
    player->checkpoints[WHOLE] = player->checkpoints[UNDER_WAY];
    player->checkpoints[UNDER_WAY] = (tree_checkpoint){0};
}

static void folder_of(const tree_player *player, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s/%d-%d", player->run->directory, (int)(player->run->residence - residences), player->model);
}

static void save_checkpoint(tree_player *player, int64_t step, fsdp_state_dict *state)
{
    const fsdp_checkpoint_saver_options options = {.keep_latest_k = 2, .async = true};
    const fsdp_checkpoint_section section = {.name = "model", .state = state};
    const fsdp_checkpoint_content content = {.step = step, .sections = &section, .section_count = 1};
    char folder[512];

    folder_of(player, folder, sizeof folder);
    if (!player->saver)
        CHECK_OK(fsdp_checkpoint_saver_create(folder, &options, fsdp_world(player->context), &player->saver));
    CHECK_OK(fsdp_checkpoint_saver_save(player->saver, &content));
}

/* It waits for the one before, and is written while other calls are made. */
void tree_play_checkpoint(tree_player *player, const tree_call *call)
{
    tree_checkpoint *checkpoint = &player->checkpoints[UNDER_WAY];
    fsdp_state_dict *state;

    (void)call;
    if (player->windows || !player->run->directory)
        return;
    make_whole(player);
    CHECK_OK(fsdp_state_dict_from_module(tree_root(player), &state));
    checkpoint->step = player->at + 1;
    for (int64_t i = 0; i < state->count && player->plain; i++)
        checkpoint->values[i] = tree_read(state->entries[i].tensor);
    if (!player->plain)
        save_checkpoint(player, checkpoint->step, state);
    fsdp_state_dict_free(state);
}

void tree_play_checkpoint_wait(tree_player *player, const tree_call *call)
{
    bool waits = call->kind == TREE_CHECKPOINT_WAIT;

    if (player->saver)
        CHECK_OK((waits ? fsdp_checkpoint_saver_wait : fsdp_checkpoint_saver_poll)(player->saver, NULL));
    if (waits)
        make_whole(player);
}

static void load_checkpoint(const tree_player *player, int64_t step, fsdp_state_dict *state)
{
    fsdp_checkpoint_reader *reader;
    char folder[512], *path;

    folder_of(player, folder, sizeof folder);
    CHECK_OK(fsdp_checkpoint_find(folder, step, &path));
    CHECK_OK(fsdp_checkpoint_open(path, &reader));
    CHECK_OK(fsdp_checkpoint_load(reader, "model", state, NULL));
    fsdp_checkpoint_close(reader);
    free(path);
}

/* Another may be under way. */
void tree_play_checkpoint_load(tree_player *player, const tree_call *call)
{
    const tree_checkpoint *checkpoint = &player->checkpoints[WHOLE];
    fsdp_state_dict *state;

    (void)call;
    if (player->windows || checkpoint->step == 0 || !tree_can_write(player))
        return;
    CHECK_OK(fsdp_state_dict_from_module(tree_root(player), &state));
    for (int64_t i = 0; i < state->count && player->plain; i++)
        CHECK_OK(fsdp_tensor_write(state->entries[i].tensor, FSDP_F32, checkpoint->values[i]));
    if (!player->plain)
        load_checkpoint(player, checkpoint->step, state);
    fsdp_state_dict_free(state);
    tree_shard_again(player, UINT32_MAX);
    tree_observe(player);
}
