/* descriptors.c - keeps file descriptors 0 to 2 in use. */
#include "launch/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

fsdp_status fsdp__take_standard_descriptors(unsigned *taken)
{
    *taken = 0;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        int opened;

        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        opened = open("/dev/null", O_RDONLY); /* gets the lowest free number */
        if (opened < 0) {
            int error = errno;

            fsdp__give_standard_descriptors(*taken);
            *taken = 0;
            return FSDP_FAIL(FSDP_IO, "file descriptor %d is closed, and '/dev/null' cannot be opened in its place: %s",
                             fd, strerror(error));
        }
        if (opened == fd)
            *taken |= 1u << fd;
        else
            (void)close(opened); /* another thread was faster: the number is in use */
    }
    return FSDP_OK;
}

void fsdp__give_standard_descriptors(unsigned taken)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (taken & 1u << fd)
            (void)close(fd);
}
