/* plugin_none.c - a plug-in that has no table to give. */
#include "comm/transport/network/network.h"

__attribute__((visibility("default"))) const fsdp__network_ops *fsdp_network_plugin(void);
const fsdp__network_ops *fsdp_network_plugin(void)
{
    return NULL;
}
