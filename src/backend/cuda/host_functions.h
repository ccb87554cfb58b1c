/* host_functions.h - what the library has given this plug-in. */
#pragma once

#include "device/plugin.h"

/* Takes the library's functions. Nothing else here may be called before. */
void fsdp__cuda_join(const fsdp__plugin_host *functions);
