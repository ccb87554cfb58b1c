/* transports.c - the only list of them. */
#include "launch/transports.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "comm/shm/shm.h"
#include "launch/variables.h"

static fsdp_status join_shm(const fsdp_context_options *options, fsdp_context **out)
{
    int fd = -1;

    FSDP_TRY(fsdp__read_number(FSDP__SHM_VARIABLE, 0, INT_MAX, &fd));
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* programs that a rank starts have no business there */
    FSDP_TRY(fsdp__shm_join(fd, options, out));
    return FSDP_OK;
}

/* A transport of an optional folder stands here if FSDP_HAVE_... is defined (cmake/optional.cmake). The first whose
 * variable is set is taken. */
static const fsdp__transport transports[] = {
    {FSDP__SHM_VARIABLE, join_shm},
};

const fsdp__transport *fsdp__transport_wanted(void)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(transports); i++) {
        const char *value = getenv(transports[i].variable);

        if (value && *value)
            return &transports[i];
    }
    return NULL;
}

bool fsdp__is_transport_variable(const char *assignment)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(transports); i++) {
        size_t length = strlen(transports[i].variable);

        if (strncmp(assignment, transports[i].variable, length) == 0 && assignment[length] == '=')
            return true;
    }
    return false;
}
