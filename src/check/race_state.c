/* race_state.c - the actors, texts and channels of ranks that are checked against each other. */
#include "check/race_state.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "check/fault.h"
#include "check/races.h"

enum {
    POSTS_KEPT = 8 /* for each rank and key: nobody is ever further behind */
};

typedef struct post {
    int rank;
    uint64_t number;
    fsdp__instant *instant;
} post;

/* Holds what was posted under a key, oldest first. */
typedef struct fsdp__channel {
    struct fsdp__channel *next;
    const void *key;
    post *posts;
    int64_t count, capacity;
} channel;

/* ---- life ---- */

static void races_unref(fsdp__races *races)
{
    bool last;

    pthread_mutex_lock(&races->mutex);
    last = --races->refs == 0;
    pthread_mutex_unlock(&races->mutex);
    if (!last)
        return;
    while (races->channels) {
        channel *c = races->channels;

        races->channels = c->next;
        for (int64_t i = 0; i < c->count; i++)
            fsdp__instant_unref(c->posts[i].instant);
        FSDP__FREE_ALL(c->posts, c);
    }
    for (int64_t i = 0; i < races->actor_count; i++)
        fsdp__actor_free(races->actors[i]);
    for (int64_t i = 0; i < races->text_count; i++)
        fsdp__free(races->texts[i]);
    FSDP__FREE_ALL(races->actors, races->texts);
    fsdp__shadow_free(races->shadow);
    pthread_mutex_destroy(&races->mutex);
    fsdp__free(races);
}

static void rank_free(void *state)
{
    fsdp__race_rank *rank = state;

    races_unref(rank->all);
    fsdp__free(rank);
}

static fsdp__races *races_create(void)
{
    fsdp__races *races = fsdp__calloc(1, sizeof *races);

    if (!races)
        return NULL;
    races->shadow = fsdp__shadow_create();
    if (!races->shadow) {
        fsdp__free(races);
        return NULL;
    }
    pthread_mutex_init(&races->mutex, NULL);
    return races;
}

fsdp_status fsdp__races_check(fsdp_context *context, const fsdp_context *with)
{
    const fsdp__race_rank *other = with ? fsdp__context_get(with, FSDP__SLOT_WATCHER) : NULL;
    fsdp__race_rank *rank;
    fsdp__races *races;

    if (fsdp__context_get(context, FSDP__SLOT_DEVICES) || fsdp__context_get(context, FSDP__SLOT_WATCHER))
        return FSDP_FAIL(FSDP_STATE, "cannot check rank %d for races: it has opened a device, or is checked already",
                         fsdp_context_rank(context));
    if (with && !other)
        return FSDP_FAIL(FSDP_STATE, "cannot check rank %d for races with a rank that is not checked",
                         fsdp_context_rank(context));
    rank = fsdp__calloc(1, sizeof *rank);
    FSDP__TRY_NEW(rank);
    races = other ? other->all : races_create();
    if (!races) {
        fsdp__free(rank);
        return FSDP_NO_MEMORY;
    }
    pthread_mutex_lock(&races->mutex);
    races->refs++;
    *rank = (fsdp__race_rank){races, fsdp__races_add_actor(races, fsdp_context_rank(context), false),
                              fsdp_context_rank(context)};
    pthread_mutex_unlock(&races->mutex);
    if (!rank->host) {
        rank_free(rank);
        return FSDP_NO_MEMORY;
    }
    fsdp__context_attach(context, FSDP__SLOT_WATCHER, rank, rank_free);
    return FSDP_OK;
}

bool fsdp__races_found(const fsdp_context *context, char *text, size_t bytes)
{
    const fsdp__race_rank *rank = fsdp__context_get(context, FSDP__SLOT_WATCHER);
    bool found = false;

    snprintf(text, bytes, "%s", "");
    if (!rank)
        return false;
    pthread_mutex_lock(&rank->all->mutex);
    found = rank->all->report[0] || rank->all->lost;
    snprintf(text, bytes, "%s", rank->all->lost ? "the check for races has run out of memory" : rank->all->report);
    pthread_mutex_unlock(&rank->all->mutex);
    return found;
}

void fsdp__races_lock(const fsdp__race_rank *rank)
{
    fsdp__fault_rest(true);
    pthread_mutex_lock(&rank->all->mutex);
}

void fsdp__races_unlock(fsdp__races *races)
{
    pthread_mutex_unlock(&races->mutex);
    fsdp__fault_rest(false);
}

/* ---- actors ---- */

static int streams_of(const fsdp__races *races, int rank)
{
    int count = 0;

    for (int64_t i = 0; i < races->actor_count; i++)
        count += races->actors[i]->rank == rank && races->actors[i]->has_thread;
    return count;
}

fsdp__actor *fsdp__races_add_actor(fsdp__races *races, int rank, bool has_thread)
{
    fsdp__actor *actor;

    /* Reuse the place of a stream that is gone: its host came after all that it did, and all that is done with the
     * place from now on comes after that. */
    for (int64_t i = 0; i < races->actor_count && has_thread; i++) {
        actor = races->actors[i];
        if (actor->rank != rank || actor->live)
            continue;
        actor->live = true;
        actor->queued = actor->done = 0;
        return actor;
    }
    if (fsdp__grow(&races->actors, races->actor_count, &races->actor_capacity, sizeof(fsdp__actor *)) != 0)
        return NULL;
    actor = fsdp__actor_create((int)races->actor_count, rank, has_thread);
    if (!actor)
        return NULL;
    if (has_thread)
        snprintf(actor->name, sizeof actor->name, "stream %d", streams_of(races, rank));
    else
        snprintf(actor->name, sizeof actor->name, "the host");
    races->actors[races->actor_count++] = actor;
    return actor;
}

/* ---- texts ---- */

const char *fsdp__races_text(fsdp__races *races, const char *text)
{
    char *copy;

    for (int64_t i = 0; i < races->text_count; i++)
        if (strcmp(races->texts[i], text) == 0)
            return races->texts[i];
    if (fsdp__grow(&races->texts, races->text_count, &races->text_capacity, sizeof(char *)) != 0)
        return NULL;
    copy = fsdp__strdup(text);
    if (copy)
        races->texts[races->text_count++] = copy;
    return copy;
}

/* ---- channels ---- */

static channel *channel_of(fsdp__races *races, const void *key)
{
    channel *c = races->channels;

    while (c && c->key != key)
        c = c->next;
    return c;
}

static channel *channel_make(fsdp__races *races, const void *key)
{
    channel *c = channel_of(races, key);

    if (c)
        return c;
    c = fsdp__calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->key = key;
    c->next = races->channels;
    races->channels = c;
    return c;
}

/* Returns how many posts the rank has there, and which is its oldest. */
static int posts_of(const channel *c, int rank, int64_t *oldest)
{
    int count = 0;

    for (int64_t i = c->count - 1; i >= 0; i--)
        if (c->posts[i].rank == rank) {
            *oldest = i;
            count++;
        }
    return count;
}

void fsdp__races_post(fsdp__races *races, fsdp__actor *actor, const void *key, uint64_t number)
{
    channel *c = channel_make(races, key);
    fsdp__instant *now = c ? fsdp__actor_now(actor) : NULL;
    int64_t oldest = 0;

    if (!now || fsdp__grow(&c->posts, c->count, &c->capacity, sizeof *c->posts) != 0) {
        fsdp__instant_unref(now);
        races->lost = true;
        return;
    }
    if (posts_of(c, actor->rank, &oldest) == POSTS_KEPT) {
        fsdp__instant_unref(c->posts[oldest].instant);
        c->count--;
        memmove(c->posts + oldest, c->posts + oldest + 1, (size_t)(c->count - oldest) * sizeof *c->posts);
    }
    c->posts[c->count++] = (post){actor->rank, number, now};
}

void fsdp__races_collect(fsdp__races *races, fsdp__actor *actor, const void *key, uint64_t number)
{
    const channel *c = channel_of(races, key);

    for (int64_t i = 0; c && i < c->count; i++) {
        const post *p = &c->posts[i];
        int64_t oldest = 0;

        /* If older posts have been dropped, the oldest one stands for them. */
        if (p->number <= number || (posts_of(c, p->rank, &oldest) == POSTS_KEPT && oldest == i))
            races->lost = !fsdp__actor_join(actor, p->instant) || races->lost;
    }
}
