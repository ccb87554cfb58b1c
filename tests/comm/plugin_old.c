/* plugin_old.c - a plug-in that was compiled for another form of the table. */
#include "comm/transport/network/network.h"

static const fsdp__network_ops ops = {.version = FSDP__NETWORK_VERSION - 1};

__attribute__((visibility("default"))) const fsdp__network_ops *fsdp_network_plugin(void);
const fsdp__network_ops *fsdp_network_plugin(void)
{
    return &ops;
}
