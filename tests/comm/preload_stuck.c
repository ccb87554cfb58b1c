/* preload_stuck.c - a library for LD_PRELOAD in which one function of MPI does not come back on one rank. Compiled for
 * each MPI.
 *
 *     STUCK_IN=FUNCTION   MPI_Init_thread, MPI_Comm_split_type, MPI_Isend, MPI_Testsome, MPI_Finalize
 *     STUCK_RANK=N        as the variables of mpirun have it
 *     STUCK_FROM=FILE     from when on: once there is such a file
 *
 * Or:
 *     STUCK_APART=1       nobody has a socket by the name of an abstract one, as in a network namespace of one's own
 */
#include <dlfcn.h>
#include <errno.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static bool is(const char *variable, const char *value)
{
    const char *own = getenv(variable);

    return own && value && strcmp(own, value) == 0;
}

static void come(const char *function)
{
    const char *from = getenv("STUCK_FROM"), *rank = getenv("STUCK_RANK");

    while (is("STUCK_IN", function) && (is("OMPI_COMM_WORLD_RANK", rank) || is("PMI_RANK", rank)) && from &&
           access(from, F_OK) == 0)
        (void)usleep(10000);
}

int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    union {
        void *found;
        int (*connect)(int, const struct sockaddr *, socklen_t);
    } next = {.found = dlsym(RTLD_NEXT, "connect")};

    if (is("STUCK_APART", "1") && address->sa_family == AF_UNIX &&
        !((const struct sockaddr_un *)address)->sun_path[0]) {
        errno = ECONNREFUSED;
        return -1;
    }
    return next.connect(fd, address, bytes);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    come("MPI_Init_thread");
    return PMPI_Init_thread(argc, argv, required, provided);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out)
{
    come("MPI_Comm_split_type");
    return PMPI_Comm_split_type(comm, type, key, info, out);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    come("MPI_Isend");
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
    come("MPI_Testsome");
    return PMPI_Testsome(count, requests, done, indices, statuses);
}

int MPI_Finalize(void)
{
    come("MPI_Finalize");
    return PMPI_Finalize();
}
