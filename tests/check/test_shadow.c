/* The spans of the shadow say what a list of all uses of each single byte says. */
#include "check/shadow.h"

#include "base/rng.h"
#include "check/actor.h"
#include "support/test.h"

enum {
    BYTES = 120,
    ACTORS = 4,
    USES = 3000
};

/* By byte: the last write, and the last read of each actor since. */
typedef struct plain_byte {
    int writer;
    uint64_t write, reads[ACTORS];
} plain_byte;

/* Whether some byte has a use that `clock` does not cover. Keeps the new one. */
static bool plain_use(plain_byte *bytes, int start, int end, const fsdp__use *use, const fsdp__vector_clock *clock)
{
    bool conflict = false;

    for (int i = start; i < end; i++) {
        plain_byte *b = &bytes[i];

        conflict = conflict || b->write > fsdp__vector_clock_at(clock, b->writer);
        for (int a = 0; a < ACTORS && use->writes; a++)
            conflict = conflict || b->reads[a] > fsdp__vector_clock_at(clock, a);
        if (use->writes)
            *b = (plain_byte){.writer = use->actor, .write = use->step};
        else
            b->reads[use->actor] = use->step;
    }
    return conflict;
}

static void join(fsdp__actor *actor, fsdp__actor *other)
{
    fsdp__instant *now = fsdp__actor_now(other);

    CHECK(fsdp__actor_join(actor, now));
    fsdp__instant_unref(now);
}

TEST(spans_say_what_bytes_say)
{
    int conflicts = 0;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        static unsigned char memory[BYTES];
        plain_byte plain[BYTES] = {{0}};
        fsdp__shadow *shadow = CHECK_PTR(fsdp__shadow_create());
        fsdp__actor *actors[ACTORS];

        CHECK(fsdp__shadow_watch(shadow, memory, BYTES, -1));
        for (int i = 0; i < ACTORS; i++)
            actors[i] = CHECK_PTR(fsdp__actor_create(i, 0, false));
        for (uint64_t n = 0; n < USES; n++) {
            uint32_t draw[4];
            fsdp__actor *actor;
            int start, end;
            fsdp__conflict conflict;
            fsdp__use use = {0};

            fsdp__philox(seed, n, draw);
            actor = actors[draw[0] % ACTORS];
            start = (int)(draw[1] % BYTES);
            end = start + 1 + (int)(draw[2] % (uint32_t)(BYTES - start));
            if (draw[3] % 8 < 6)
                join(actor, actors[draw[3] / 8 % ACTORS]);
            use = (fsdp__use){.step = fsdp__actor_step(actor), .actor = actor->id, .writes = draw[0] / 8 % 3 == 0};
            if (fsdp__shadow_use(shadow, memory + start, (size_t)(end - start), &use, &actor->clock, &conflict) ==
                FSDP__SHADOW_CONFLICT) {
                CHECK(plain_use(plain, start, end, &use, &actor->clock));
                CHECK(conflict.start >= (uintptr_t)(memory + start) && conflict.end <= (uintptr_t)(memory + end));
                conflicts++;
            } else {
                CHECK(!plain_use(plain, start, end, &use, &actor->clock));
            }
        }
        for (int i = 0; i < ACTORS; i++)
            fsdp__actor_free(actors[i]);
        fsdp__shadow_free(shadow);
    }
    CHECK(conflicts > 100 && conflicts < 19 * USES); /* both happen */
}

TEST(only_what_is_watched_is_remembered)
{
    static unsigned char memory[64];
    fsdp__vector_clock none = {0};
    const fsdp__use first = {.step = 1, .actor = 0, .writes = true}, second = {.step = 1, .actor = 1, .writes = true};
    fsdp__shadow *shadow = CHECK_PTR(fsdp__shadow_create());
    fsdp__conflict conflict;

    CHECK(fsdp__shadow_watch(shadow, memory + 16, 16, -1));
    CHECK(fsdp__shadow_watch(shadow, memory + 16, 16, -1)); /* again: nothing */
    CHECK(fsdp__shadow_watches(shadow, memory + 31));
    CHECK(!fsdp__shadow_watches(shadow, memory + 32));
    /* The actors know nothing of each other, nor of themselves. */
    CHECK_EQ(fsdp__shadow_use(shadow, memory, 16, &first, &none, &conflict), FSDP__SHADOW_ORDERED);
    CHECK_EQ(fsdp__shadow_use(shadow, memory, 16, &second, &none, &conflict), FSDP__SHADOW_ORDERED);
    CHECK_EQ(fsdp__shadow_use(shadow, memory + 20, 40, &first, &none, &conflict), FSDP__SHADOW_ORDERED);
    CHECK_EQ(fsdp__shadow_use(shadow, memory + 16, 5, &second, &none, &conflict), FSDP__SHADOW_CONFLICT);
    CHECK(conflict.start == (uintptr_t)(memory + 20) && conflict.end == (uintptr_t)(memory + 21));
    CHECK_EQ(conflict.earlier.actor, 0);
    fsdp__shadow_forget(shadow, memory + 16);
    CHECK(fsdp__shadow_watch(shadow, memory + 16, 16, -1));
    CHECK_EQ(fsdp__shadow_use(shadow, memory + 16, 16, &second, &none, &conflict), FSDP__SHADOW_ORDERED);
    fsdp__shadow_free(shadow);
    fsdp__shadow_free(NULL);
}

TEST(memory_has_owners_until_it_has_others)
{
    static unsigned char memory[64];
    fsdp__shadow *shadow = CHECK_PTR(fsdp__shadow_create());
    uintptr_t at = (uintptr_t)memory;

    CHECK(fsdp__shadow_own(shadow, memory, 64, "kind", NULL)); /* nobody watches */
    CHECK_NULL(fsdp__shadow_owner(shadow, at).kind);
    CHECK(fsdp__shadow_watch(shadow, memory, 64, -1));
    CHECK(fsdp__shadow_own(shadow, memory, 32, "gradient", NULL));
    CHECK(fsdp__shadow_own(shadow, memory + 8, 8, "gradient", "weight"));
    CHECK_STRING(fsdp__shadow_owner(shadow, at + 7).kind, "gradient");
    CHECK_NULL(fsdp__shadow_owner(shadow, at + 7).name);
    CHECK_STRING(fsdp__shadow_owner(shadow, at + 15).name, "weight");
    CHECK(fsdp__shadow_owner(shadow, at + 15).start == at + 8);
    CHECK_NULL(fsdp__shadow_owner(shadow, at + 40).kind);
    CHECK(fsdp__shadow_own(shadow, memory + 12, 8, "gradient", "bias")); /* in the place of the other */
    CHECK_NULL(fsdp__shadow_owner(shadow, at + 8).name);
    CHECK(fsdp__shadow_own(shadow, memory, 64, "activation", NULL));
    CHECK_NULL(fsdp__shadow_owner(shadow, at + 12).name);
    CHECK_STRING(fsdp__shadow_owner(shadow, at + 63).kind, "activation");
    fsdp__shadow_free(shadow);
}
