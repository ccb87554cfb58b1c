/* Numbers of pointers, against a plain array. */
#include "base/pointer_table.h"
#include "check/fault.h"
#include "support/test.h"

enum {
    MANY = 5000
};

TEST(each_pointer_keeps_its_number)
{
    static char bytes[MANY];
    fsdp__pointer_table table = {0};

    CHECK_EQ(fsdp__pointer_table_find(&table, bytes), 0);
    for (int64_t i = 0; i < MANY; i++) {
        int64_t *number = CHECK_PTR(fsdp__pointer_table_at(&table, &bytes[i]));
        CHECK_EQ(*number, 0);
        *number = i + 1;
    }
    CHECK_EQ(table.count, MANY);
    for (int64_t i = MANY - 1; i >= 0; i--) {
        CHECK_EQ(*(int64_t *)CHECK_PTR(fsdp__pointer_table_at(&table, &bytes[i])), i + 1);
        CHECK_EQ(fsdp__pointer_table_find(&table, &bytes[i]), i + 1);
    }
    CHECK_EQ(fsdp__pointer_table_find(&table, &table), 0);
    CHECK_EQ(table.count, MANY);
    fsdp__pointer_table_release(&table);
    CHECK_EQ(table.count, 0);
    CHECK_NULL(table.entries);
}

TEST(without_memory_nothing_changes)
{
    char bytes[9];
    fsdp__pointer_table table = {0};

    for (int i = 0; i < 8; i++)
        *(int64_t *)CHECK_PTR(fsdp__pointer_table_at(&table, &bytes[i])) = i;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    CHECK_NULL(fsdp__pointer_table_at(&table, &bytes[8]));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_EQ(fsdp_last_status(), FSDP_NO_MEMORY);
    CHECK_EQ(table.count, 8);
    CHECK_EQ(*(int64_t *)CHECK_PTR(fsdp__pointer_table_at(&table, &bytes[7])), 7);
    fsdp__pointer_table_release(&table);
}
