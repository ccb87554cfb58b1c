/* failure.c - a context's world breaks at most once, and stays broken. */
#include "comm/health/failure.h"

#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/lock.h"
#include "base/probe.h"

void fsdp__comm_break(fsdp__comm *comm, fsdp_status status, const char *text)
{
    bool first;

    pthread_mutex_lock(&comm->mutex);
    first = !atomic_load_explicit(&comm->broken, memory_order_relaxed);
    if (first) {
        comm->broken_status = status;
        snprintf(comm->broken_text, sizeof comm->broken_text, "%s", text);
        atomic_store_explicit(&comm->broken, true, memory_order_release);
    }
    pthread_mutex_unlock(&comm->mutex);
    if (!first)
        return;
    fsdp__context_note_end(comm->context);
    if (comm->transport) /* here the reason stands without this rank's number; peers are told whose failure it is */
        comm->ops->abort(comm->transport, text);
    FSDP__TELL(WORLD_BROKEN, .context = comm->context, .kind = (int)status, .name = comm->broken_text);
}

fsdp_status fsdp__comm_fail_broken(fsdp_process_group *group)
{
    fsdp__comm *comm = group->comm;
    fsdp_status status;
    char text[sizeof comm->broken_text];

    FSDP__HELD(&comm->mutex);
    status = comm->broken_status;
    memcpy(text, comm->broken_text, sizeof text);
    return FSDP_FAIL(status, "group '%s' is broken: %s", group->name, text);
}

bool fsdp__comm_is_broken(const fsdp_process_group *group)
{
    return atomic_load_explicit(&group->comm->broken, memory_order_acquire);
}

void fsdp_abort(fsdp_context *context, const char *why)
{
    fsdp__comm *comm = context ? fsdp__context_get(context, FSDP__SLOT_COMM) : NULL;
    const char *last = fsdp_last_error();

    if (!comm)
        return;
    if (!why || !*why)
        why = *last ? last : "aborted";
    fsdp__comm_break(comm, FSDP_COMM, why);
}
