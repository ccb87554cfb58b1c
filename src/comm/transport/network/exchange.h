/* exchange.h - sends bytes to and receives bytes from the ranks of a group's column, all at once.
 *
 * What goes to a rank is cut into pieces, of which several are on their way at a time, so that both directions of the
 * wire are in use from the first piece to the last. A thread that waits first polls without a pause for as long as a
 * small message takes, and then sleeps in between, for at most a tenth of a millisecond: kernels that run meanwhile
 * keep the cores. */
#pragma once

#include "comm/transport/network/network_group.h"
#include "comm/transport/network/shape.h"
#include "comm/transport/network/tags.h"

/* Holds what goes to a rank, or comes from it. Without bytes nothing travels. */
typedef struct fsdp__leg {
    int rank; /* global */
    const fsdp__segment *segments;
    int count;
    bool shorter; /* fewer bytes may come; only for a leg of one piece */
} fsdp__leg;

size_t fsdp__leg_bytes(const fsdp__leg *leg);

typedef struct fsdp__exchange {
    fsdp__network_group *group;
    int tag;
    int64_t sent, received;   /* bytes to and from other machines */
    int64_t messages;         /* messages sent to other machines */
    struct fsdp__flow *flows; /* in one allocation with what follows */
    int count, request_count;
    fsdp__network_request *requests; /* of all flows, one after the other */
    fsdp__segment *scratch;
} fsdp__exchange;

enum {
    FSDP__PIECES = 32 /* pieces of one leg that are on their way at a time */
};

/* Begins an exchange and puts the first pieces on their way. When two exchanges of the same group and kind
 * (FSDP__TAG_HEADER, _DATA) are begun one after the other, the legs of the first must have at most FSDP__PIECES pieces.
 * The legs' segments must stay until the end. */
fsdp_status fsdp__exchange_begin(fsdp__exchange *exchange, fsdp__network_group *group, int kind, const fsdp__leg *sends,
                                 int send_count, const fsdp__leg *receives, int receive_count);
/* Puts the legs of an exchange that is begun on their way: what a world that is not on paper does. */
fsdp_status fsdp__exchange_carry(fsdp__exchange *exchange, const fsdp__leg *sends, int send_count,
                                 const fsdp__leg *receives, int receive_count);
/* Waits until everything has arrived; the exchange then counts, even if some rank has failed since. Ends the exchange,
 * whatever the result. */
fsdp_status fsdp__exchange_end(fsdp__exchange *exchange, fsdp__traffic *traffic);
/* Begins and ends an exchange, as headers: `rows` has a row of `bytes` for each place of the column; this rank's row
 * goes to all others. */
fsdp_status fsdp__exchange_rows(fsdp__network_group *group, uint8_t *rows, size_t bytes, fsdp__traffic *traffic);
/* Ends an exchange that is not to be waited for, since something has failed, and breaks the world with the last error,
 * unless it is broken already. In a zeroed exchange nothing was begun. */
void fsdp__exchange_give_up(fsdp__exchange *exchange);
