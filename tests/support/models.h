/* support/models.h - configs of small models. */
#pragma once

#include "fsdp/models.h"

/* The fields that a test names, and the epsilon that all have. */
#define MODEL_CONFIG(...) ((fsdp_model_config){.norm_eps = 1e-5f, __VA_ARGS__})
