/* fit_text.h - prints which settings fit. */
#ifndef PLAN_FIT_TEXT_H
#define PLAN_FIT_TEXT_H

#include <stdio.h>

#include "plan/fit.h"

/* Prints the rows as a table, and the lines of the first one for a config. */
fsdp_status fsdp__fit_print(const fsdp__fit *fit, const fsdp__plan_options *options, FILE *out);
fsdp_status fsdp__fit_json(const fsdp__fit *fit, FILE *out);
/* Fails with what would at least be needed, where nothing fits. */
fsdp_status fsdp__fit_check(const fsdp__fit *fit);

#endif
