/* Pickles: the values of each opcode, and what is refused, with the byte of it. Nothing that they ask for is done. */
#include "base/compiler.h"
#include "format/pickle.h"
#include "format/pickler.h"
#include "support/test.h"

static fsdp__pickle parse(const void *data, size_t bytes)
{
    fsdp__pickle p = {.values = NULL};

    CHECK_OK(fsdp__pickle_parse("x.bin", data, bytes, &p));
    return p;
}

#define PARSE(text) parse(text, sizeof(text) - 1)

TEST(integers_of_every_size_have_their_values)
{
    static const struct {
        const char *text;
        size_t bytes;
        int64_t value;
    } cases[] = {
        {"K\xff.", 3, 255},
        {"M\x01\x80.", 4, 0x8001},
        {"J\xff\xff\xff\xff.", 6, -1},
        {"J\0\0\0\x80.", 6, INT32_MIN},
        {"\x8a\0.", 3, 0},
        {"\x8a\x01\x80.", 4, -128},
        {"\x8a\x02\x80\0.", 5, 128},
        {"\x8a\x05\0\0\0\0\x01.", 8, (int64_t)1 << 32},
        {"\x8a\x08\0\0\0\0\0\0\0\x80.", 11, INT64_MIN},
        {"\x88.", 2, 1},
        {"\x89.", 2, 0},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp__pickle p = parse(cases[i].text, cases[i].bytes);

        CHECK_EQ(p.result->integer, cases[i].value);
        fsdp__pickle_release(&p);
    }
}

TEST(values_hold_values)
{
    /* {"a": [1, (2, 2)], 3: None}, with 2 remembered; of a protocol 4 as of 2 */
    fsdp__pickle p = PARSE("\x80\x04\x95\0\0\0\0\0\0\0\0}(\x8c\x01"
                           "a](K\x01K\x02\x94h\0\x86"
                           "eK\x03Nu.");
    const fsdp__pickle_value *list, *tuple;

    CHECK_EQ(p.result->kind, FSDP__PICKLE_DICT);
    CHECK_EQ(p.result->integer, 4);
    CHECK_EQ(fsdp__pickle_item(&p, p.result, 0)->kind, FSDP__PICKLE_TEXT);
    list = fsdp__pickle_item(&p, p.result, 1);
    CHECK_EQ(list->kind, FSDP__PICKLE_LIST);
    CHECK_EQ(fsdp__pickle_item(&p, list, 0)->integer, 1);
    tuple = fsdp__pickle_item(&p, list, 1);
    CHECK_EQ(tuple->kind, FSDP__PICKLE_TUPLE);
    CHECK(fsdp__pickle_item(&p, tuple, 0) == fsdp__pickle_item(&p, tuple, 1));
    CHECK_EQ(fsdp__pickle_item(&p, p.result, 3)->kind, FSDP__PICKLE_NONE);
    CHECK_NULL(fsdp__pickle_item(&p, p.result, 4));
    fsdp__pickle_release(&p);
}

TEST(a_call_is_a_value)
{
    fsdp__pickle p = PARSE("\x80\x02"
                           "ctorch._utils\n_rebuild_parameter\nK\x07\x85R.");
    const fsdp__pickle_value *name = fsdp__pickle_item(&p, p.result, 0);

    CHECK_EQ(p.result->kind, FSDP__PICKLE_CALL);
    CHECK_STRING(fsdp__pickle_name_text((fsdp__pickle_name)name->integer), "_rebuild_parameter");
    CHECK_EQ(fsdp__pickle_item(&p, fsdp__pickle_item(&p, p.result, 1), 0)->integer, 7);
    fsdp__pickle_release(&p);
    p = PARSE("\x8c\x0b"
              "collections\x8c\x0bOrderedDict\x93)R.");
    CHECK_EQ(p.result->kind, FSDP__PICKLE_DICT);
    fsdp__pickle_release(&p);
    p = PARSE("]q\0h\0a."); /* a list that holds itself */
    CHECK(fsdp__pickle_item(&p, p.result, 0) == p.result);
    fsdp__pickle_release(&p);
}

#define TEN(text) text text text text text text text text text text

#define CASE(text, status, part)             \
    {                                        \
        text, sizeof(text) - 1, status, part \
    }
static const struct {
    const char *text;
    size_t bytes;
    fsdp_status status;
    const char *part;
} refused[] = {
    CASE("", FSDP_FORMAT, "'x.bin': byte 0 of data.pkl: it ends without a result"),
    CASE("K\x01", FSDP_FORMAT, "byte 2 of data.pkl: it ends without a result"),
    CASE(".", FSDP_FORMAT, "opcode 0x2e needs 1 values, but 0 are there"),
    CASE("\x80\x01.", FSDP_FORMAT, "protocol 1 is not supported, only 2 to 5"),
    CASE("\x80", FSDP_FORMAT, "it ends inside of opcode 0x80"),
    CASE("cos\nsystem\n", FSDP_UNSUPPORTED, "byte 0 of data.pkl: it asks for 'os.system'"),
    CASE("NcOS\nsys\x1btem\n", FSDP_UNSUPPORTED, "byte 1 of data.pkl: it asks for 'OS.sys\\x1btem'"),
    CASE("cbuiltins\neval\n(X\1\0\0\0xtR.", FSDP_UNSUPPORTED, "'builtins.eval': only the tensors of a state dict"),
    CASE("\x8c\x05posix\x8c\x06system\x93", FSDP_UNSUPPORTED, "'posix.system'"),
    CASE("ctorch\nFloatStorag\n", FSDP_UNSUPPORTED, "'torch.FloatStorag'"),
    CASE("ctorch\nFloatStorage", FSDP_FORMAT, "it ends inside of opcode 0x63"),
    CASE("c" TEN(TEN("long")) "\n" TEN(TEN("long")) "\n", FSDP_UNSUPPORTED, "it asks for 'longlong"),
    CASE("NN\x93", FSDP_FORMAT, "it asks for a name that is not text"),
    CASE("ios\nsystem\n", FSDP_UNSUPPORTED, "byte 0 of data.pkl: opcode 0x69 is not one that a state dict needs"),
    CASE("NNo", FSDP_UNSUPPORTED, "byte 2 of data.pkl: opcode 0x6f"),
    CASE("S'x'\n", FSDP_UNSUPPORTED, "opcode 0x53"),
    CASE("NN\x81", FSDP_UNSUPPORTED, "opcode 0x81"),
    CASE("\x82\x01", FSDP_UNSUPPORTED, "opcode 0x82"),
    CASE("N)R.", FSDP_FORMAT, "a call of something that is not a name"),
    CASE("ctorch\nFloatStorage\nNR.", FSDP_FORMAT, "or with something that is not a tuple"),
    CASE("ccollections\nOrderedDict\nN\x85R.", FSDP_FORMAT, "OrderedDict with arguments"),
    CASE("ctorch\nFloatStorage\n}b.", FSDP_FORMAT, "only dicts can be given attributes"),
    CASE("}Nb.", FSDP_FORMAT, "only dicts can be given attributes"),
    CASE("t", FSDP_FORMAT, "opcode 0x74 without a mark"),
    CASE("N(\x85", FSDP_FORMAT, "opcode 0x85 needs 1 values, but 0 are there"),
    CASE("(u", FSDP_FORMAT, "opcode 0x75 needs 1 values"),
    CASE("}(Nu", FSDP_FORMAT, "a key without a value"),
    CASE("](NNu", FSDP_FORMAT, "items for something that is not a dict"),
    CASE("}Na", FSDP_FORMAT, "items for something that is not a list"),
    CASE(")Na", FSDP_FORMAT, "items for something that is not a list"),
    CASE("h\0", FSDP_FORMAT, "it asks for value 0, which it has not remembered"),
    CASE("Nq\x03h\x02", FSDP_FORMAT, "it asks for value 2, which"),
    CASE("Nr\xff\xff\xff\xff", FSDP_FORMAT, "it remembers a value as number 4294967295: at most 4194304"),
    CASE("X\xff\xff\xff\xffx", FSDP_FORMAT, "a text of 4294967295 bytes goes beyond its end"),
    CASE("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", FSDP_FORMAT, "goes beyond its end"),
    CASE("\x8c", FSDP_FORMAT, "it ends inside of opcode 0x8c"),
    CASE("\x8c\x05x", FSDP_FORMAT, "a text of 5 bytes goes beyond its end"),
    CASE("\x8a\x09\0\0\0\0\0\0\0\0\0.", FSDP_FORMAT, "an integer of 9 bytes: at most 8"),
    CASE(TEN("((((((("), FSDP_FORMAT, "values nested over 64 deep"),
};
#undef CASE

TEST(what_is_refused_is_named_with_its_byte)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(refused); i++) {
        fsdp__pickle p;

        CHECK_ERROR(fsdp__pickle_parse("x.bin", refused[i].text, refused[i].bytes, &p), refused[i].status,
                    refused[i].part);
    }
}

TEST(a_pickle_without_end_takes_no_memory_without_end)
{
    size_t bytes = (size_t)5 << 20;
    char *data = malloc(bytes);
    fsdp__pickle p;

    memset(data, 'N', bytes);
    CHECK_ERROR(fsdp__pickle_parse("x.bin", data, bytes, &p), FSDP_FORMAT, "over 1048576 values on its stack");
    for (size_t i = 0; i + 1 < bytes; i += 2)
        memcpy(data + i, i ? "Na" : "]]", 2);
    CHECK_ERROR(fsdp__pickle_parse("x.bin", data, bytes, &p), FSDP_FORMAT, "it ends without a result");
    free(data);
}

TEST(a_failed_allocation_leaves_nothing)
{
    pickler made = {.bytes = 0};
    pickled_view view = {"weight", "FloatStorage", "0", 6, 0, 2, {2, 3}, {3, 1}};

    pickle_state_dict(&made, &view, 1);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__pickle p = {.values = NULL};

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__pickle_parse("x.bin", made.data, made.bytes, &p));
        fsdp__pickle_release(&p);
    }
}
