/* exchange.h - bytes to and from ranks of a group's column, all at once.
 *
 * What goes to a rank is cut into pieces, of which some are on their way at a time, so that both directions of the
 * wire are in use from the first piece to the last. Who waits tries again at once for as long as a small message takes,
 * and then sleeps between, for a tenth of a millisecond at most: kernels that run meanwhile keep the cores. */
#ifndef COMM_MACHINES_EXCHANGE_H
#define COMM_MACHINES_EXCHANGE_H

#include "comm/machines/group.h"
#include "comm/machines/shape.h"
#include "comm/machines/tags.h"

/* What goes to, or comes from, a rank. Nothing travels where there are no bytes. */
typedef struct fsdp__leg {
    int rank; /* global */
    const fsdp__segment *segments;
    int count;
    bool shorter; /* fewer bytes may come: only of one piece */
} fsdp__leg;

size_t fsdp__leg_bytes(const fsdp__leg *leg);

typedef struct fsdp__exchange {
    fsdp__machines_group *group;
    int tag;
    int64_t sent, received;   /* bytes, to and from other machines */
    int64_t messages;         /* sent to them */
    struct fsdp__flow *flows; /* with what follows, in one allocation */
    int count, request_count;
    fsdp__network_request *requests; /* of the flows, one after the other */
    fsdp__segment *scratch;
} fsdp__exchange;

enum {
    FSDP__PIECES = 32 /* of one leg, on their way at a time */
};

/* Begins: the first pieces are on their way. Of two exchanges of a group and kind (FSDP__TAG_HEADER, _DATA) that are
 * begun one after the other the first has legs of at most FSDP__PIECES pieces. The legs' segments stay until the end.
 */
fsdp_status fsdp__exchange_begin(fsdp__exchange *exchange, fsdp__machines_group *group, int kind,
                                 const fsdp__leg *sends, int send_count, const fsdp__leg *receives, int receive_count);
/* Waits until all of it is there; then that counts, even if somebody has failed since. Ends the exchange, whatever
 * comes of it. */
fsdp_status fsdp__exchange_end(fsdp__exchange *exchange, fsdp__traffic *traffic);
/* All in one, as headers: `rows` has one of `bytes` for each place of the column, of which this rank's goes to all
 * others. */
fsdp_status fsdp__exchange_rows(fsdp__machines_group *group, uint8_t *rows, size_t bytes, fsdp__traffic *traffic);
/* Ends one that is not to be waited for, since something has failed, with the last error: breaks the world, where it is
 * not broken. NULL bytes: nothing was begun. */
void fsdp__exchange_give_up(fsdp__exchange *exchange);

#endif
