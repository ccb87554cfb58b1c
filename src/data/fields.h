/* fields.h - the arrays that make up an item. */
#pragma once

#include "fsdp/dataset.h"

/* Returns the bytes of the field in one item. The field must have passed fsdp__fields_check. */
size_t fsdp__field_bytes(const fsdp_data_field *field);
/* Checks that there is at least one field, that names and dtypes are valid, and that sizes fit into memory. */
fsdp_status fsdp__fields_check(const fsdp_data_field *fields, int count);
/* Copies the fields together with their names, in one block; fsdp__free it. */
fsdp_status fsdp__fields_copy(const fsdp_data_field *fields, int count, fsdp_data_field **out);
