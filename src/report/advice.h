/* advice.h - finds what stands out. */
#pragma once

#include "report/advice_list.h"
#include "report/sources.h"

/* Lists what stands out: what has failed, what ranks wait for, then run by run, the gravest first. What is advised is
 * planned by `planner`; NULL: it has no price. Free the list, also after a failure. */
fsdp_status fsdp__advices_of(const fsdp__sources *sources, const fsdp__advice_planner *planner, fsdp__advices *out);
