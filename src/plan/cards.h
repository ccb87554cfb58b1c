/* cards.h - prices of a GPU that is not here: by its data sheet. */
#ifndef PLAN_CARDS_H
#define PLAN_CARDS_H

#include "plan/prices.h"

/* Gets the prices of a card by its name (device/known_cards.h). FSDP_NOT_FOUND, with the names that are near, when it
 * is not known. */
fsdp_status fsdp__prices_of_card(const char *name, fsdp__prices *out);

#endif
