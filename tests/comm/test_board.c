/* test_board.c - rows of the board while they are written, and after their writer has died. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/health/calls.h"
#include "comm/health/verdict.h"
#include "support/test.h"

enum {
    RANKS = 5,
    ROUNDS = 2000
};

/* All of it says `round`. */
static fsdp__said said_in(uint64_t round)
{
    fsdp__said said = {.beats = round, .doing = {.sequence = round}, .awaits = (int32_t)round, .left = round};

    memset(said.doing.group, (int)(round % 256), sizeof said.doing.group);
    memset(said.doing.label, (int)(round % 256), sizeof said.doing.label);
    return said;
}

/* A machine of one of the ranks. */
static fsdp__board *new_board(void)
{
    fsdp__board *board = aligned_alloc(64, fsdp__board_bytes(1, RANKS));

    memset(board, 0, fsdp__board_bytes(1, RANKS));
    fsdp__board_begin(board, 1, RANKS);
    return board;
}

TEST(what_is_written_is_read)
{
    fsdp__board *board = new_board();
    fsdp__said heard;

    for (int r = 0; r < RANKS; r++) {
        CHECK(fsdp__board_said(board, r, &heard));
        CHECK_EQ(heard.beats, 0);
    }
    for (int r = 0; r < RANKS; r++) {
        fsdp__said in = said_in((uint64_t)r + 7);

        fsdp__board_say(board, r, &in);
    }
    for (int r = 0; r < RANKS; r++) {
        fsdp__said in = said_in((uint64_t)r + 7);

        CHECK(fsdp__board_said(board, r, &heard));
        CHECK(memcmp(&heard, &in, sizeof in) == 0);
        CHECK_EQ(fsdp__board_beats(board, r), r + 7);
        CHECK(fsdp__board_left(board, r));
    }
    free(board);
}

typedef struct race {
    fsdp__board *board;
    _Atomic bool done;
    _Atomic int read;
    int torn;
} race;

static void *read_all(void *arg)
{
    race *r = arg;

    while (!atomic_load(&r->done))
        for (int rank = 0; rank < RANKS; rank++) {
            fsdp__said heard, whole;

            if (!fsdp__board_said(r->board, rank, &heard))
                continue;
            whole = said_in(heard.beats);
            r->torn += heard.beats > 0 && memcmp(&heard, &whole, sizeof whole) != 0;
            atomic_fetch_add(&r->read, 1);
        }
    return NULL;
}

TEST(nobody_reads_half_of_a_place)
{
    race first = {.board = new_board()}, second = {.board = first.board};
    pthread_t threads[2];

    CHECK_EQ(pthread_create(&threads[0], NULL, read_all, &first), 0);
    CHECK_EQ(pthread_create(&threads[1], NULL, read_all, &second), 0);
    for (uint64_t round = 1; round <= ROUNDS || atomic_load(&first.read) < ROUNDS || atomic_load(&second.read) < ROUNDS;
         round++)
        for (int r = 0; r < RANKS; r++) {
            fsdp__said in = said_in(round);

            fsdp__board_say(first.board, r, &in);
        }
    atomic_store(&first.done, true);
    atomic_store(&second.done, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(first.torn + second.torn, 0);
    free(first.board);
}

TEST(a_place_whose_writer_has_died_is_not_read)
{
    fsdp__board *board = new_board();
    fsdp__said heard = said_in(3);

    for (int r = 0; r < RANKS; r++)
        fsdp__board_say(board, r, &heard);
    atomic_fetch_add(&fsdp__row_of(board, 2)->said[0], 1); /* as it begins to write of rank 2 */
    for (int r = 0; r < RANKS; r++)
        CHECK_EQ(fsdp__board_said(board, r, &heard), r != 2);
    free(board);
}

TEST(a_call_that_cannot_be_read_whole_is_no_disagreement)
{
    enum {
        LOCALS = 2
    };
    fsdp__board *board = aligned_alloc(64, fsdp__board_bytes(LOCALS, LOCALS));

    memset(board, 0, fsdp__board_bytes(LOCALS, LOCALS));
    fsdp__board_begin(board, LOCALS, LOCALS);
    for (int r = 0; r < LOCALS; r++) {
        fsdp__doing doing;

        fsdp__doing_set(&doing, "world", 3, 1, r == 0 ? FSDP__CALL_BARRIER : FSDP__CALL_BROADCAST, (char[64]){""});
        fsdp__cell_write(fsdp__desk_at(board, 0, r)->doing, &doing, sizeof doing);
    }
    atomic_fetch_add(&fsdp__desk_at(board, 0, 1)->doing[0], 1); /* as it begins to write */
    fsdp__verdict_disagreement(board, 0, 0);
    fsdp__verdict_disagreement(board, 0, 1);
    CHECK(!fsdp__board_aborted(board));
    atomic_fetch_add(&fsdp__desk_at(board, 0, 1)->doing[0], 1);
    fsdp__verdict_disagreement(board, 0, 0);
    CHECK(fsdp__board_aborted(board));
    free(board);
}

TEST(what_a_rank_does_is_told_in_words)
{
    fsdp__doing doing = {0};
    char text[320];

    fsdp__doing_text(&doing, 0, text, sizeof text);
    CHECK_STRING(text, "before its first call");
    doing = (fsdp__doing){.sequence = 7, .group = "world", .name = FSDP__CALL_BARRIER};
    fsdp__doing_text(&doing, 1, text, sizeof text);
    CHECK_STRING(text, "in call 7 of group 'world' (barrier)");
    doing = (fsdp__doing){.sequence = 8, .group = "a", .label = "layers.1", .name = FSDP__CALL_BROADCAST};
    fsdp__doing_text(&doing, 0, text, sizeof text);
    CHECK_STRING(text, "after call 8 of group 'a' (broadcast for 'layers.1')");
}

static void check_failure(int rank, const char *why, int blamed, const char *expected)
{
    fsdp__board *board = new_board();

    fsdp__board_fail(board, FSDP_IO, rank, why);
    CHECK_ERROR(fsdp__board_failure(board), FSDP_IO, expected);
    CHECK_EQ(board->abort_rank, blamed);
    free(board);
}

TEST(a_rank_that_has_failed_is_named_once)
{
    char why[FSDP__ABORT_BYTES];

    check_failure(3, "out of memory", 3, "rank 3 failed: out of memory");
    check_failure(3, "rank 1: out of memory", 1, "rank 1 failed: out of memory"); /* ranks have agreed on that */
    memset(why, 'x', sizeof why);
    snprintf(why + sizeof why - 16, 16, ": call again"); /* what to do stands at the end of a message */
    check_failure(2, why, 2, ": call again");
}
