/* Other numbers of ranks: lists of them, and what a config takes there. */
#include "compare/worlds.h"
#include "support/test.h"
#include "train/config.h"

static fsdp_train_config *configure(void)
{
    return test_config("model.preset=llama-1m model.n_layers=2 model.dim=32 model.ffn_dim=64 data.path=text.txt "
                       "training.seq_len=8 training.local_batch_size=1 parallelism.strategy=zero3");
}

TEST(lists_are_read)
{
    fsdp__worlds worlds;

    CHECK_OK(fsdp__worlds_read("1,4096", &worlds));
    CHECK_EQ(worlds.count, 2);
    CHECK_EQ(worlds.ranks[1], 4096);
    CHECK_STRING(worlds.labels[0], "1 rank");
    CHECK_STRING(worlds.labels[1], "4096 ranks");
    CHECK_OK(fsdp__worlds_read("", &worlds));
    CHECK_EQ(worlds.count, 0);
    CHECK_ERROR(fsdp__worlds_read("2,x", &worlds), FSDP_INVALID, "--worlds is 'x': expected an integer from 1");
    CHECK_ERROR(fsdp__worlds_read("0", &worlds), FSDP_INVALID, "--worlds is '0'");
    CHECK_ERROR(fsdp__worlds_read("1,2,3,4,5,6,7,8,9", &worlds), FSDP_INVALID, "more than 8 numbers");
}

/* Sharded over more ranks a rank holds less and sends more, with as many microbatches as before. */
TEST(more_ranks_hold_less_and_send_more)
{
    fsdp_train_config *config = configure();
    fsdp__elsewhere two, four;

    CHECK_OK(fsdp_train_config_set(config, "training.global_batch_size", "6")); /* 2 ranks: 3 microbatches */
    CHECK_OK(fsdp__elsewhere_find(config, 2, 2, &two));
    CHECK_OK(fsdp__elsewhere_find(config, 2, 4, &four));
    CHECK(four.peak_bytes < two.peak_bytes);
    CHECK(four.sent_bytes > two.sent_bytes);
    CHECK_EQ(four.step.calls[FSDP_REDUCE_SCATTER], 3 * 3);
    CHECK_EQ(four.step.calls[FSDP_REDUCE_SCATTER], two.step.calls[FSDP_REDUCE_SCATTER]);
    CHECK_EQ(config->training.global_batch_size, 6);
}

TEST(a_number_that_does_not_fit_has_no_figures)
{
    fsdp_train_config *config = configure();
    fsdp__elsewhere e;

    CHECK_OK(fsdp_train_config_set(config, "parallelism.data_parallel_replicate_degree", "2"));
    CHECK_OK(fsdp__elsewhere_find(config, 2, 3, &e));
    CHECK_EQ(e.peak_bytes, -1);
    CHECK_EQ(e.sent_bytes, -1);
    CHECK_OK(fsdp__elsewhere_find(config, 2, 6, &e));
    CHECK(e.peak_bytes > 0);
}
