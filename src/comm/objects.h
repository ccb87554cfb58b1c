/* objects.h - agreement between the ranks' hosts, for comm/ itself. */
#pragma once

#include "comm/comm.h"

/* Does what fsdp_agree does, under another call's name. */
fsdp_status fsdp__comm_agree(fsdp_process_group *group, fsdp__call_name name, fsdp_status mine);
