/* pool.c - the table. */
#include "config/pool.h"

static const fsdp__choice bools[] = {{"true", 1}, {"false", 0}, {NULL, 0}};
static const fsdp__choice shapes[] = {{"round", 5}, {"square", 7}, {NULL, 0}};
static const fsdp__choice slides[] = {{"none", 0}, {"some", -1}, {NULL, 0}};
static const fsdp__key keys[] = {
    {"water", "length", FSDP__KEY_INTEGER, offsetof(pool, water.length), 1, 50, 0, NULL, "25", "of a lane", NULL},
    {"water", "depth", FSDP__KEY_NUMBER, offsetof(pool, water.depth), 0, 5, FSDP__ABOVE, NULL, NULL, "at its end",
     NULL},
    {"water", "heated", FSDP__KEY_BOOL, offsetof(pool, water.heated), 0, 0, 0, bools, "true", "in winter", NULL},
    {"water", "shape", FSDP__KEY_CHOICE, offsetof(pool, water.shape), 0, 0, 0, shapes, "square", "from above", NULL},
    {"water", "slide", FSDP__KEY_CHOICE, offsetof(pool, water.slide), 2, 30, FSDP__OR_INTEGER, slides, "none", "metres",
     NULL},
    {"water", "name", FSDP__KEY_TEXT, offsetof(pool, water.name), 0, 0, 0, NULL, NULL, "on the door", NULL},
    {"water", "lanes", FSDP__KEY_PATHS, offsetof(pool, water.lanes), 0, 0, 0, NULL, NULL, "their names", NULL},
    {"people", "attendants", FSDP__KEY_INTEGER, offsetof(pool, attendants), 0, FSDP__KEY_LARGE, FSDP__OR_MINUS, NULL,
     "-1", "-1: as many as come", NULL},
    {"people", "bar.seats", FSDP__KEY_INTEGER, offsetof(pool, bar.seats), 0, 90, 0, NULL, "8", "high ones", NULL},
    {"people", "bar.name", FSDP__KEY_TEXT, offsetof(pool, bar.name), 0, 0, 0, NULL, NULL, "over it", NULL},
    {"people", "photos", FSDP__KEY_SIZE, offsetof(pool, photos), 1000, FSDP__KEY_LARGE, 0, NULL, "2MB", "to be taken",
     NULL},
};
static const char *const sections[] = {"water", "people", NULL};
const fsdp__key_table pool_table = {
    .keys = keys, .count = (int)(sizeof keys / sizeof keys[0]), .sections = sections, .example = "water.depth"};
