/* pool.c - the table. */
#include "config/pool.h"

static const fsdp__choice bools[] = {{"true", 1}, {"false", 0}, {NULL, 0}};
static const fsdp__choice shapes[] = {{"round", 5}, {"square", 7}, {NULL, 0}};
static const fsdp__choice slides[] = {{"none", 0}, {"some", -1}, {NULL, 0}};
static const fsdp__key ticket_keys[] = {
    {"people.tickets", "name", FSDP__KEY_TEXT, offsetof(pool_ticket, name), 0, 0, FSDP__REQUIRED, NULL, NULL,
     "printed on it", NULL, NULL},
    {"people.tickets", "price", FSDP__KEY_NUMBER, offsetof(pool_ticket, price), 0, 100, 0, NULL, NULL, "in coins", NULL,
     NULL},
    {"people.tickets", "hours", FSDP__KEY_INTEGER, offsetof(pool_ticket, hours), 1, 24, 0, NULL, "2", "it holds", NULL,
     NULL},
};
static const char *const ticket_sections[] = {"people.tickets", NULL};
static const fsdp__key_items tickets = {
    .table = {.keys = ticket_keys, .count = 3, .sections = ticket_sections, .example = "people.tickets.name"},
    .bytes = sizeof(pool_ticket)};
static const fsdp__key keys[] = {
    {"water", "length", FSDP__KEY_INTEGER, offsetof(pool, water.length), 1, 50, 0, NULL, "25", "of a lane", NULL, NULL},
    {"water", "depth", FSDP__KEY_NUMBER, offsetof(pool, water.depth), 0, 5, FSDP__ABOVE, NULL, NULL, "at its end", NULL,
     NULL},
    {"water", "heated", FSDP__KEY_BOOL, offsetof(pool, water.heated), 0, 0, 0, bools, "true", "in winter", NULL, NULL},
    {"water", "shape", FSDP__KEY_CHOICE, offsetof(pool, water.shape), 0, 0, 0, shapes, "square", "from above", NULL,
     NULL},
    {"water", "slide", FSDP__KEY_CHOICE, offsetof(pool, water.slide), 2, 30, FSDP__OR_INTEGER, slides, "none", "metres",
     NULL, NULL},
    {"water", "name", FSDP__KEY_TEXT, offsetof(pool, water.name), 0, 0, 0, NULL, NULL, "on the door", NULL, NULL},
    {"water", "lanes", FSDP__KEY_PATHS, offsetof(pool, water.lanes), 0, 0, 0, NULL, NULL, "their names", NULL, NULL},
    {"people", "attendants", FSDP__KEY_INTEGER, offsetof(pool, attendants), 0, FSDP__KEY_LARGE, FSDP__OR_MINUS, NULL,
     "-1", "-1: as many as come", NULL, NULL},
    {"people", "bar.seats", FSDP__KEY_INTEGER, offsetof(pool, bar.seats), 0, 90, 0, NULL, "8", "high ones", NULL, NULL},
    {"people", "bar.name", FSDP__KEY_TEXT, offsetof(pool, bar.name), 0, 0, 0, NULL, NULL, "over it", NULL, NULL},
    {"people", "photos", FSDP__KEY_SIZE, offsetof(pool, photos), 1000, FSDP__KEY_LARGE, 0, NULL, "2MB", "to be taken",
     NULL, NULL},
    {"people", "tickets", FSDP__KEY_MAPS, offsetof(pool, tickets), 0, 0, 0, NULL, NULL, "what is sold", NULL, &tickets},
};
static const char *const sections[] = {"water", "people", NULL};
const fsdp__key_table pool_table = {
    .keys = keys, .count = (int)(sizeof keys / sizeof keys[0]), .sections = sections, .example = "water.depth"};
