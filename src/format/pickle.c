/* pickle.c - the stack machine of pickle.h. */
#include "format/pickle.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"

enum {
    MAX_VALUES = 4 << 20, /* a tensor takes about 25 of them */
    MAX_STACK = 1 << 20,
    MAX_MARKS = 64, /* how deep values are nested while they are being made */
    MAX_NAME = 100  /* bytes of a module and a name */
};

static const struct {
    const char *module, *name;
} names[] = {
#define NAME(identifier, module, name) {module, name},
    FSDP__PICKLE_NAMES(NAME)
#undef NAME
};

typedef struct machine {
    const char *path;
    const unsigned char *data;
    size_t bytes, at; /* the next byte */
    size_t begin;     /* where the running opcode begins */
    fsdp__pickle made;
    int32_t *stack, *memo; /* numbers of values; -1: nothing is stored there */
    int64_t stack_count, stack_capacity, memo_count, memo_capacity, remembered;
    int64_t marks[MAX_MARKS]; /* heights of the stack */
    int mark_count;
    bool stopped;
} machine;

#define BAD(m, format, ...) \
    FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': byte %zu of data.pkl: " format, (m)->path, (m)->begin, __VA_ARGS__)

const char *fsdp__pickle_name_text(fsdp__pickle_name name)
{
    return names[name].name;
}

static fsdp_status out_of_memory(const machine *m)
{
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", m->path);
}

/* ---- bytes ---- */

static fsdp_status take(machine *m, size_t bytes, const unsigned char **out)
{
    if (bytes > m->bytes - m->at)
        return BAD(m, "it ends inside of opcode 0x%02x", m->data[m->begin]);
    *out = m->data + m->at;
    m->at += bytes;
    return FSDP_OK;
}

/* Takes a little-endian number of up to 8 bytes. */
static fsdp_status take_number(machine *m, size_t bytes, uint64_t *out)
{
    const unsigned char *from = NULL;

    FSDP_TRY(take(m, bytes, &from));
    *out = 0;
    for (size_t i = 0; i < bytes; i++)
        *out |= (uint64_t)from[i] << (8 * i);
    return FSDP_OK;
}

/* ---- values, and the stack ---- */

static fsdp_status push(machine *m, int32_t value)
{
    if (m->stack_count == MAX_STACK)
        return BAD(m, "over %d values on its stack", MAX_STACK);
    if (fsdp__grow(&m->stack, m->stack_count, &m->stack_capacity, sizeof *m->stack) != 0)
        return out_of_memory(m);
    m->stack[m->stack_count++] = value;
    return FSDP_OK;
}

/* Returns the height above the last mark: what is below it belongs to a value that is being made outside. */
static int64_t height(const machine *m)
{
    return m->stack_count - (m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0);
}

static fsdp_status need(machine *m, int64_t values)
{
    if (height(m) < values)
        return BAD(m, "opcode 0x%02x needs %lld values, but %lld are there", m->data[m->begin], (long long)values,
                   (long long)height(m));
    return FSDP_OK;
}

/* Returns the value `depth` below the top; values move when others are made. */
static fsdp__pickle_value *top(const machine *m, int64_t depth)
{
    return &m->made.values[m->stack[m->stack_count - 1 - depth]];
}

static fsdp_status make(machine *m, fsdp__pickle_kind kind, int64_t integer)
{
    fsdp__pickle *p = &m->made;

    if (p->value_count == MAX_VALUES)
        return BAD(m, "over %d values: more than the files of any model have", MAX_VALUES);
    if (fsdp__grow(&p->values, p->value_count, &p->value_capacity, sizeof *p->values) != 0)
        return out_of_memory(m);
    p->values[p->value_count] =
        (fsdp__pickle_value){.kind = kind, .at = m->begin, .integer = integer, .first = -1, .last = -1};
    return push(m, (int32_t)p->value_count++);
}

static fsdp_status append(machine *m, int32_t to, int32_t item)
{
    fsdp__pickle *p = &m->made;
    fsdp__pickle_value *value = &p->values[to];
    int32_t link = (int32_t)p->link_count;

    if (p->link_count == 2 * (int64_t)MAX_VALUES)
        return BAD(m, "over %d items: more than the files of any model have", 2 * MAX_VALUES);
    if (fsdp__grow(&p->links, p->link_count, &p->link_capacity, sizeof *p->links) != 0)
        return out_of_memory(m);
    p->links[p->link_count++] = (fsdp__pickle_link){.value = item, .next = -1};
    if (value->last >= 0)
        p->links[value->last].next = link;
    else
        value->first = link;
    value->last = link;
    value->integer++;
    return FSDP_OK;
}

/* Makes the topmost `count` values items of `to`, in the order in which they were pushed. */
static fsdp_status append_top(machine *m, int32_t to, int64_t count)
{
    for (int64_t i = m->stack_count - count; i < m->stack_count; i++)
        FSDP_TRY(append(m, to, m->stack[i]));
    m->stack_count -= count;
    return FSDP_OK;
}

/* Makes a value of the topmost `count` values, and puts it in their place. */
static fsdp_status make_of(machine *m, fsdp__pickle_kind kind, int64_t count)
{
    int32_t made = (int32_t)m->made.value_count;

    FSDP_TRY(need(m, count));
    FSDP_TRY(make(m, kind, 0));
    m->stack_count--;
    FSDP_TRY(append_top(m, made, count));
    return push(m, made);
}

/* Counts the values above the last mark, and removes the mark. */
static fsdp_status pop_mark(machine *m, int64_t *out_count)
{
    if (m->mark_count == 0)
        return BAD(m, "opcode 0x%02x without a mark", m->data[m->begin]);
    *out_count = height(m);
    m->mark_count--;
    return FSDP_OK;
}

/* ---- opcodes: numbers and texts ---- */

static fsdp_status op_proto(machine *m)
{
    uint64_t version = 0;

    FSDP_TRY(take_number(m, 1, &version));
    if (version < 2 || version > 5)
        return BAD(m, "protocol %llu is not supported, only 2 to 5", (unsigned long long)version);
    return FSDP_OK;
}

static fsdp_status op_frame(machine *m) /* a hint about how much to read ahead */
{
    uint64_t bytes = 0;

    return take_number(m, 8, &bytes);
}

/* Reads an integer of `bytes` bytes; only one of 4 has a sign. */
static fsdp_status make_integer(machine *m, fsdp__pickle_kind kind, int64_t bytes)
{
    uint64_t value = 0;

    FSDP_TRY(take_number(m, (size_t)bytes, &value));
    return make(m, kind, bytes == 4 ? (int32_t)(uint32_t)value : (int64_t)value);
}

/* Reads an integer of any size, with its sign, of which it gets the bytes. */
static fsdp_status op_long1(machine *m)
{
    uint64_t bytes = 0, value = 0;

    FSDP_TRY(take_number(m, 1, &bytes));
    if (bytes > 8)
        return BAD(m, "an integer of %llu bytes: at most 8 are supported", (unsigned long long)bytes);
    FSDP_TRY(take_number(m, (size_t)bytes, &value));
    if (bytes > 0 && bytes < 8 && value >> (8 * bytes - 1))
        value |= UINT64_MAX << (8 * bytes);
    return make(m, FSDP__PICKLE_INTEGER, (int64_t)value);
}

static fsdp_status op_binfloat(machine *m)
{
    uint64_t bits = 0;

    FSDP_TRY(take_number(m, 8, &bits));
    return make(m, FSDP__PICKLE_REAL, 0);
}

static fsdp_status make_text(machine *m, fsdp__pickle_kind kind, int64_t length_bytes)
{
    const unsigned char *text = NULL;
    uint64_t length = 0;

    FSDP_TRY(take_number(m, (size_t)length_bytes, &length));
    if (length > m->bytes - m->at)
        return BAD(m, "a text of %llu bytes goes beyond its end", (unsigned long long)length);
    FSDP_TRY(take(m, (size_t)length, &text));
    FSDP_TRY(make(m, kind, (int64_t)length));
    top(m, 0)->text = (const char *)text;
    return FSDP_OK;
}

/* ---- opcodes: names ---- */

static fsdp_status find_name(machine *m, const char *module, size_t module_bytes, const char *name, size_t name_bytes)
{
    char text[2 * MAX_NAME + 2];

    for (int i = 0; i < FSDP__PICKLE_NAME_COUNT; i++)
        if (strlen(names[i].module) == module_bytes && memcmp(names[i].module, module, module_bytes) == 0 &&
            strlen(names[i].name) == name_bytes && memcmp(names[i].name, name, name_bytes) == 0)
            return make(m, FSDP__PICKLE_GLOBAL, i);
    snprintf(text, sizeof text, "%.*s.%.*s", (int)FSDP__MIN(module_bytes, (size_t)MAX_NAME), module,
             (int)FSDP__MIN(name_bytes, (size_t)MAX_NAME), name);
    return FSDP_FAIL(FSDP_UNSUPPORTED,
                     "cannot read '%s': byte %zu of data.pkl: it asks for '%s': only the tensors of a state dict are "
                     "read from a pickle, and nothing in it is executed: save model.state_dict(), or convert it to "
                     "safetensors",
                     m->path, m->begin, FSDP__SHOWN_NAME(text));
}

/* Takes the bytes up to the end of the line. */
static fsdp_status take_line(machine *m, const char **out, size_t *out_bytes)
{
    const unsigned char *from = m->data + m->at, *end = memchr(from, '\n', m->bytes - m->at);

    if (!end)
        return BAD(m, "it ends inside of opcode 0x%02x", m->data[m->begin]);
    *out = (const char *)from;
    *out_bytes = (size_t)(end - from);
    m->at += *out_bytes + 1;
    return FSDP_OK;
}

static fsdp_status op_global(machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_bytes = 0, name_bytes = 0;

    FSDP_TRY(take_line(m, &module, &module_bytes));
    FSDP_TRY(take_line(m, &name, &name_bytes));
    return find_name(m, module, module_bytes, name, name_bytes);
}

static fsdp_status op_stack_global(machine *m)
{
    const fsdp__pickle_value *module, *name;

    FSDP_TRY(need(m, 2));
    name = top(m, 0);
    module = top(m, 1);
    if (name->kind != FSDP__PICKLE_TEXT || module->kind != FSDP__PICKLE_TEXT)
        return BAD(m, "%s", "it asks for a name that is not text");
    m->stack_count -= 2;
    return find_name(m, module->text, (size_t)module->integer, name->text, (size_t)name->integer);
}

/* ---- opcodes: containers ---- */

static fsdp_status op_mark(machine *m)
{
    if (m->mark_count == MAX_MARKS)
        return BAD(m, "values nested over %d deep", MAX_MARKS);
    m->marks[m->mark_count++] = m->stack_count;
    return FSDP_OK;
}

static fsdp_status op_tuple(machine *m)
{
    int64_t count = 0;

    FSDP_TRY(pop_mark(m, &count));
    return make_of(m, FSDP__PICKLE_TUPLE, count);
}

/* Puts the topmost `count` values into the list or dict below them, which stays. */
static fsdp_status extend(machine *m, fsdp__pickle_kind kind, int64_t count)
{
    FSDP_TRY(need(m, count + 1));
    if (top(m, count)->kind != kind)
        return BAD(m, "items for something that is not a %s", kind == FSDP__PICKLE_LIST ? "list" : "dict");
    return append_top(m, m->stack[m->stack_count - 1 - count], count);
}

static fsdp_status op_appends(machine *m)
{
    int64_t count = 0;

    FSDP_TRY(pop_mark(m, &count));
    return extend(m, FSDP__PICKLE_LIST, count);
}

static fsdp_status op_setitems(machine *m)
{
    int64_t count = 0;

    FSDP_TRY(pop_mark(m, &count));
    if (count % 2 != 0)
        return BAD(m, "%s", "a key without a value");
    return extend(m, FSDP__PICKLE_DICT, count);
}

/* ---- opcodes: what was made before ---- */

static fsdp_status remember(machine *m, uint64_t index)
{
    FSDP_TRY(need(m, 1));
    if (index >= MAX_VALUES)
        return BAD(m, "it remembers a value as number %llu: at most %d are supported", (unsigned long long)index,
                   MAX_VALUES);
    while (m->memo_count <= (int64_t)index) {
        if (fsdp__grow(&m->memo, m->memo_count, &m->memo_capacity, sizeof *m->memo) != 0)
            return out_of_memory(m);
        m->memo[m->memo_count++] = -1;
    }
    m->remembered += m->memo[index] < 0;
    m->memo[index] = m->stack[m->stack_count - 1];
    return FSDP_OK;
}

static fsdp_status op_binput(machine *m)
{
    uint64_t index = 0;

    FSDP_TRY(take_number(m, 1, &index));
    return remember(m, index);
}

static fsdp_status op_long_binput(machine *m)
{
    uint64_t index = 0;

    FSDP_TRY(take_number(m, 4, &index));
    return remember(m, index);
}

static fsdp_status op_memoize(machine *m)
{
    return remember(m, (uint64_t)m->remembered);
}

static fsdp_status recall(machine *m, size_t index_bytes)
{
    uint64_t index = 0;

    FSDP_TRY(take_number(m, index_bytes, &index));
    if ((int64_t)index >= m->memo_count || m->memo[index] < 0)
        return BAD(m, "it asks for value %llu, which it has not remembered", (unsigned long long)index);
    return push(m, m->memo[index]);
}

static fsdp_status op_binget(machine *m)
{
    return recall(m, 1);
}

static fsdp_status op_long_binget(machine *m)
{
    return recall(m, 4);
}

/* ---- opcodes: what would be executed ---- */

static fsdp_status op_reduce(machine *m)
{
    FSDP_TRY(need(m, 2));
    if (top(m, 1)->kind != FSDP__PICKLE_GLOBAL || top(m, 0)->kind != FSDP__PICKLE_TUPLE)
        return BAD(m, "%s", "a call of something that is not a name, or with something that is not a tuple");
    if (top(m, 1)->integer != FSDP__PICKLE_ORDERED_DICT)
        return make_of(m, FSDP__PICKLE_CALL, 2);
    if (top(m, 0)->integer != 0)
        return BAD(m, "%s", "OrderedDict with arguments is not supported");
    m->stack_count -= 2;
    return make(m, FSDP__PICKLE_DICT, 0);
}

/* Ignores what an ordered dict has beside its items (_metadata): it says nothing about tensors. */
static fsdp_status op_build(machine *m)
{
    FSDP_TRY(need(m, 2));
    if (top(m, 1)->kind != FSDP__PICKLE_DICT || top(m, 0)->kind != FSDP__PICKLE_DICT)
        return BAD(m, "%s", "only dicts can be given attributes");
    m->stack_count--;
    return FSDP_OK;
}

static fsdp_status op_stop(machine *m)
{
    FSDP_TRY(need(m, 1));
    m->made.result = top(m, 0);
    m->stopped = true;
    return FSDP_OK;
}

/* ---- the machine ---- */

/* Holds what an opcode does: one of two functions. */
typedef struct opcode {
    fsdp_status (*run)(machine *m);
    fsdp_status (*make)(machine *m, fsdp__pickle_kind kind, int64_t number);
    fsdp__pickle_kind kind; /* of the value that `make` makes or extends */
    int64_t number;         /* as `make` takes it: its value, how many values it takes, or bytes of what it reads */
} opcode;

#define MAKE(how, kind, number)                \
    {                                          \
        NULL, how, FSDP__PICKLE_##kind, number \
    }

static const opcode opcodes[256] = {
    [0x80] = {.run = op_proto},
    [0x95] = {.run = op_frame},
    ['N'] = MAKE(make, NONE, 0),
    [0x88] = MAKE(make, BOOL, 1),
    [0x89] = MAKE(make, BOOL, 0),
    ['J'] = MAKE(make_integer, INTEGER, 4),
    ['K'] = MAKE(make_integer, INTEGER, 1),
    ['M'] = MAKE(make_integer, INTEGER, 2),
    [0x8a] = {.run = op_long1},
    ['G'] = {.run = op_binfloat},
    [0x8c] = MAKE(make_text, TEXT, 1),
    ['X'] = MAKE(make_text, TEXT, 4),
    [0x8d] = MAKE(make_text, TEXT, 8),
    ['c'] = {.run = op_global},
    [0x93] = {.run = op_stack_global},
    ['('] = {.run = op_mark},
    [')'] = MAKE(make, TUPLE, 0),
    [']'] = MAKE(make, LIST, 0),
    ['}'] = MAKE(make, DICT, 0),
    [0x85] = MAKE(make_of, TUPLE, 1),
    [0x86] = MAKE(make_of, TUPLE, 2),
    [0x87] = MAKE(make_of, TUPLE, 3),
    ['t'] = {.run = op_tuple},
    ['a'] = MAKE(extend, LIST, 1),
    ['e'] = {.run = op_appends},
    ['s'] = MAKE(extend, DICT, 2),
    ['u'] = {.run = op_setitems},
    ['q'] = {.run = op_binput},
    ['r'] = {.run = op_long_binput},
    [0x94] = {.run = op_memoize},
    ['h'] = {.run = op_binget},
    ['j'] = {.run = op_long_binget},
    ['Q'] = MAKE(make_of, PERSISTENT, 1),
    ['R'] = {.run = op_reduce},
    ['b'] = {.run = op_build},
    ['.'] = {.run = op_stop},
};

static fsdp_status run(machine *m)
{
    while (!m->stopped) {
        const opcode *op;

        m->begin = m->at;
        if (m->at == m->bytes)
            return BAD(m, "%s", "it ends without a result");
        op = &opcodes[m->data[m->at]];
        if (!op->run && !op->make)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot read '%s': byte %zu of data.pkl: opcode 0x%02x is not one that a state dict needs",
                             m->path, m->at, m->data[m->at]);
        m->at++;
        FSDP_TRY(op->run ? op->run(m) : op->make(m, op->kind, op->number));
    }
    return FSDP_OK;
}

fsdp_status fsdp__pickle_parse(const char *path, const void *data, size_t bytes, fsdp__pickle *out)
{
    machine m = {.path = path, .data = data, .bytes = bytes};
    fsdp_status status = run(&m);

    FSDP__FREE_ALL(m.stack, m.memo);
    if (status == FSDP_OK)
        *out = m.made;
    else
        fsdp__pickle_release(&m.made);
    return status;
}

void fsdp__pickle_release(fsdp__pickle *pickle)
{
    FSDP__FREE_ALL(pickle->values, pickle->links);
    *pickle = (fsdp__pickle){.values = NULL};
}

const fsdp__pickle_value *fsdp__pickle_item(const fsdp__pickle *pickle, const fsdp__pickle_value *value, int64_t index)
{
    int32_t link = value->first;

    while (link >= 0 && index-- > 0)
        link = pickle->links[link].next;
    return link >= 0 ? &pickle->values[pickle->links[link].value] : NULL;
}
