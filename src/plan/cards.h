/* cards.h - prices of a GPU that is not here: by its data sheet. */
#ifndef PLAN_CARDS_H
#define PLAN_CARDS_H

#include "device/links.h"
#include "plan/prices.h"

/* Gets the prices of a card by its name (device/known_cards.h). FSDP_NOT_FOUND, with the names that are near, when it
 * is not known. */
fsdp_status fsdp__prices_of_card(const char *name, fsdp__prices *out);
/* Returns the link of a card to those of its machine: that of its data sheet, unless `way` says that they have another
 * one there. Without bytes: it is not known, or they do not reach each other. */
fsdp__price_link fsdp__price_of_link(const char *name, fsdp__link way);

#endif
