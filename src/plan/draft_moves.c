/* draft_moves.c - changes drafts. */
#include "plan/draft_moves.h"

enum {
    CUT = FSDP__DRAFT_CUT,
    ROOT = FSDP__DRAFT_ROOT,
    STAYS = FSDP__DRAFT_STAYS
};

void fsdp__draft_tidy(const fsdp__atoms *atoms, fsdp__draft *draft)
{
    uint8_t *places = draft->places, stays = 0;

    for (int64_t i = 0; i < atoms->count; i++) {
        bool begins = fsdp__draft_begins(draft, i);

        if (places[i] & ROOT) {
            places[i] = ROOT;
            continue;
        }
        if (begins)
            stays = places[i] & STAYS;
        places[i] = (uint8_t)(stays | (begins ? CUT : 0));
    }
}

int64_t fsdp__draft_units(const fsdp__atoms *atoms, const fsdp__draft *draft)
{
    int64_t units = 0;

    for (int64_t i = 0; i < atoms->count; i++)
        units += fsdp__draft_begins(draft, i);
    return units;
}

void fsdp__draft_keep_last(const fsdp__atoms *atoms, fsdp__draft *draft, int64_t units)
{
    int64_t unit = -1, first = fsdp__draft_units(atoms, draft) - units;

    for (int64_t i = 0; i < atoms->count; i++) {
        unit += fsdp__draft_begins(draft, i);
        draft->places[i] = (uint8_t)((draft->places[i] & ~STAYS) | (unit >= first ? STAYS : 0));
    }
}

/* ---- one unit ---- */

/* Finds the atoms of a unit. */
static void find(const fsdp__atoms *atoms, const fsdp__draft *draft, int64_t unit, int64_t *first, int64_t *end)
{
    *first = -1;
    for (int64_t i = 0; i < atoms->count && unit >= 0; i++)
        if (fsdp__draft_begins(draft, i) && unit-- == 0)
            *first = i;
    for (*end = *first + 1; *end < atoms->count; ++*end)
        if ((draft->places[*end] & ROOT) || fsdp__draft_begins(draft, *end))
            break;
}

/* Returns the atom with which the second half of a unit's elements begins. */
static int64_t half_of(const fsdp__atoms *atoms, int64_t first, int64_t end)
{
    double all = 0, sum = 0;
    int64_t at = first;

    for (int64_t i = first; i < end; i++)
        all += atoms->items[i].numel;
    while (at < end - 1 && sum + atoms->items[at].numel / 2 < all / 2)
        sum += atoms->items[at++].numel;
    return at > first ? at : first + 1;
}

static bool take_from_root(const fsdp__atoms *atoms, fsdp__draft *draft, int64_t first, int64_t end)
{
    uint8_t *places = draft->places, stays = places[first] & STAYS;
    bool before = first > 0 && (places[first - 1] & ROOT), behind = end < atoms->count && (places[end] & ROOT);

    for (int64_t i = first; i-- > 0 && (places[i] & ROOT);)
        places[i] = stays;
    for (int64_t i = end; i < atoms->count && (places[i] & ROOT); i++)
        places[i] = stays;
    places[first] &= (uint8_t) ~(before ? CUT : 0);
    return before || behind;
}

static bool give_to_root(const fsdp__atoms *atoms, fsdp__draft *draft, int64_t first, int64_t end)
{
    bool outer = first == 0 || end == atoms->count || (draft->places[first - 1] & ROOT) || (draft->places[end] & ROOT);

    for (int64_t i = first; i < end && outer; i++)
        draft->places[i] = ROOT;
    return outer;
}

bool fsdp__draft_change(const fsdp__atoms *atoms, fsdp__draft *draft, int64_t unit, int move)
{
    uint8_t *places = draft->places;
    int64_t first, end;
    bool follows, is_followed;

    find(atoms, draft, unit, &first, &end);
    if (first < 0)
        return false;
    follows = first > 0 && !(places[first - 1] & ROOT);
    is_followed = end < atoms->count && !(places[end] & ROOT);
    switch (move) {
    case FSDP__DRAFT_MOVE_MERGE:
        places[is_followed ? end : first] &= (uint8_t) ~(is_followed ? CUT : 0);
        return is_followed;
    case FSDP__DRAFT_MOVE_HALVE:
        places[end - first > 1 ? half_of(atoms, first, end) : first] |= CUT;
        return end - first > 1;
    case FSDP__DRAFT_MOVE_FIRST:
        places[end - first > 2 ? first + 1 : first] |= CUT;
        return end - first > 2;
    case FSDP__DRAFT_MOVE_LAST:
        places[end - 1] |= CUT;
        return end - first > 2;
    case FSDP__DRAFT_MOVE_EARLIER:
        if (!follows || fsdp__draft_begins(draft, first - 1))
            return false;
        places[first - 1] = places[first] | CUT;
        places[first] &= (uint8_t)~CUT;
        return true;
    case FSDP__DRAFT_MOVE_LATER:
        if (!follows || end - first < 2)
            return false;
        places[first + 1] |= CUT;
        places[first] &= (uint8_t)~CUT;
        return true;
    case FSDP__DRAFT_MOVE_STAYS:
        places[first] ^= STAYS;
        return true;
    case FSDP__DRAFT_MOVE_ROOT:
        return give_to_root(atoms, draft, first, end);
    default:
        return take_from_root(atoms, draft, first, end);
    }
}

/* ---- all units ---- */

void fsdp__draft_change_all(const fsdp__atoms *atoms, fsdp__draft *draft, int move)
{
    int64_t units = fsdp__draft_units(atoms, draft);

    if (move == 2)
        for (int64_t i = 0; i < atoms->count; i++)
            if (draft->places[i] & ROOT)
                draft->places[i] = i == 0 || !(draft->places[i - 1] & ROOT) ? CUT : 0;
    /* from the end, so that the numbers of the units to come stay as they are */
    for (int64_t i = units - 1; i >= 0 && move < 2; i--)
        if (move == 1 || i % 2 == 0)
            (void)fsdp__draft_change(atoms, draft, i, move == 0 ? FSDP__DRAFT_MOVE_MERGE : FSDP__DRAFT_MOVE_HALVE);
}
