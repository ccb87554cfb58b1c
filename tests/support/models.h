/* support/models.h - configs of small models. */
#ifndef TESTS_SUPPORT_MODELS_H
#define TESTS_SUPPORT_MODELS_H

#include "fsdp/models.h"

/* The fields that a test names, and the epsilon that all have. */
#define MODEL_CONFIG(...) ((fsdp_model_config){.norm_eps = 1e-5f, __VA_ARGS__})

#endif
