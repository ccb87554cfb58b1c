/* link.c - calls of the network, and their end. */
#include "comm/transport/network/link.h"

#include <stdio.h>
#include <unistd.h>

#include "comm/transport/network/tags.h"

enum {
    PAUSE_US = 1000,
    MOST_PAUSES = 2000 /* for which a caller waits until the other machines are told */
};

/* Returns whether the network may be called; if so `leave` must be called afterwards. */
static bool enter(fsdp__link *link)
{
    atomic_fetch_add(&link->inside, 1);
    if (!atomic_load(&link->silent))
        return true;
    atomic_fetch_sub(&link->inside, 1);
    return false;
}

static void leave(fsdp__link *link)
{
    atomic_fetch_sub(&link->inside, 1);
}

/* Breaks the world. A failure of the carrier is final, so this rank can tell nobody. */
static void break_world(fsdp__link *link, const char *text)
{
    char all[FSDP__NETWORK_TEXT + 64];

    snprintf(all, sizeof all, "rank %d: %s", link->places.rank, text);
    fsdp__board_abort(link->board, FSDP_COMM, link->places.rank, all);
    atomic_store(&link->silent, true);
}

static fsdp_status end(fsdp__link *link, bool done, const char *text)
{
    if (!done)
        break_world(link, text);
    leave(link);
    return done ? FSDP_OK : fsdp__board_failure(link->board);
}

static fsdp_status begin_in_any(fsdp__link *link)
{
    if (enter(link))
        return FSDP_OK;
    return fsdp__board_aborted(link->board) ? fsdp__board_failure(link->board)
                                            : FSDP_FAIL(FSDP_COMM, "the network is closed");
}

static fsdp_status begin(fsdp__link *link)
{
    return fsdp__board_aborted(link->board) ? fsdp__board_failure(link->board) : begin_in_any(link);
}

fsdp_status fsdp__link_send(fsdp__link *link, int to, int tag, const fsdp__segment *segments, int count,
                            fsdp__network_request *out)
{
    char text[FSDP__NETWORK_TEXT] = "";

    FSDP_TRY(begin(link));
    return end(link, link->ops->send(link->network, link->places.carriers[to], tag, segments, count, out, text), text);
}

fsdp_status fsdp__link_receive(fsdp__link *link, int from, int tag, const fsdp__segment *segments, int count,
                               bool shorter, fsdp__network_request *out)
{
    char text[FSDP__NETWORK_TEXT] = "";

    FSDP_TRY(begin(link));
    return end(link,
               link->ops->receive(link->network, link->places.carriers[from], tag, segments, count, shorter, out, text),
               text);
}

fsdp_status fsdp__link_test(fsdp__link *link, fsdp__network_request *requests, int count)
{
    char text[FSDP__NETWORK_TEXT] = "";

    FSDP_TRY(begin_in_any(link));
    return end(link, link->ops->test(link->network, requests, count, text), text);
}

bool fsdp__link_tell(fsdp__link *link, int to, void *data, size_t bytes, fsdp__network_request *out)
{
    char text[FSDP__NETWORK_TEXT] = "";
    fsdp__segment all = {data, bytes};

    return enter(link) &&
           end(link, link->ops->send(link->network, link->places.carriers[to], FSDP__TAG_NEWS, &all, 1, out, text),
               text) == FSDP_OK;
}

bool fsdp__link_settle(fsdp__link *link, fsdp__network_request *request)
{
    char text[FSDP__NETWORK_TEXT] = "";

    return enter(link) && end(link, link->ops->test(link->network, request, 1, text), text) == FSDP_OK;
}

bool fsdp__link_poll(fsdp__link *link, void *data, size_t bytes, int *from, size_t *got)
{
    char text[FSDP__NETWORK_TEXT] = "";
    int carrier = -1;

    *from = -1;
    if (!enter(link) ||
        end(link, link->ops->poll(link->network, FSDP__TAG_NEWS, data, bytes, &carrier, got, text), text) != FSDP_OK)
        return false;
    if (carrier >= 0 && carrier < link->places.ranks)
        *from = link->places.of_carrier[carrier];
    return true;
}

void fsdp__link_fail(fsdp__link *link)
{
    if (link->board)
        fsdp__board_fail(link->board, FSDP_COMM, link->places.rank, fsdp_last_error());
}

void fsdp__link_silence(fsdp__link *link)
{
    atomic_store(&link->silent, true);
    while (atomic_load(&link->inside) > 0)
        (void)usleep(PAUSE_US);
}

void fsdp__link_give_up(fsdp__link *link)
{
    for (int i = 0; link->board && i < MOST_PAUSES && !atomic_load(&link->told) && !atomic_load(&link->silent); i++)
        (void)usleep(PAUSE_US);
    fsdp__link_silence(link);
}
