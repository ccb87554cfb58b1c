/* advice_list.c - collects advice. */
#include "report/advice_list.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/text.h"

fsdp_status fsdp__advise(fsdp__advices *all, const fsdp__recorded_run *run, const char *format, ...)
{
    fsdp__advice *advice;
    va_list arguments;
    int begun = 0;

    FSDP_TRY(fsdp__grow(&all->items, all->count + 1, &all->capacity, sizeof *all->items));
    advice = &all->items[all->count++];
    advice->run = run;
    if (all->of)
        begun = snprintf(advice->text, sizeof advice->text, "%s: ", FSDP__SHOWN_NAME(all->of));
    va_start(arguments, format);
    vsnprintf(advice->text + begun, sizeof advice->text - (size_t)begun, format, arguments);
    va_end(arguments);
    return FSDP_OK;
}

void fsdp__advices_free(fsdp__advices *advices)
{
    fsdp__free(advices->items);
}
