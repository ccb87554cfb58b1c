/* fields.h - the arrays that make an item. */
#ifndef DATA_FIELDS_H
#define DATA_FIELDS_H

#include "fsdp/dataset.h"

/* Of one item. Of fields that were checked. */
size_t fsdp__field_bytes(const fsdp_data_field *field);
/* At least one; names, dtypes, and sizes that fit into memory. */
fsdp_status fsdp__fields_check(const fsdp_data_field *fields, int count);
/* With the names, in one block: fsdp__free it. */
fsdp_status fsdp__fields_copy(const fsdp_data_field *fields, int count, fsdp_data_field **out);

#endif
