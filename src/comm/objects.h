/* objects.h - agreement between hosts, for comm/ itself. */
#ifndef COMM_OBJECTS_H
#define COMM_OBJECTS_H

#include "comm/comm.h"

/* fsdp_agree under another name. */
fsdp_status fsdp__comm_agree(fsdp_process_group *group, fsdp__call_name name, fsdp_status mine);

#endif
