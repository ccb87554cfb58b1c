/* jinja_tests.c - what may stand behind `is`. */
#include <string.h>

#include "chat/jinja_call.h"
#include "chat/jinja_operators.h"
#include "chat/jinja_strings.h"

/* Gets the argument of a test that needs one. */
static fsdp_status only_argument(fsdp__render *r, fsdp__jinja_string name, const fsdp__arguments *arguments,
                                 const fsdp__jinja_value **out)
{
    if (arguments->count != 1 || arguments->named_count)
        return FSDP__RENDER_FAIL(r, "the test '%s' needs one argument", FSDP__JINJA_NAME(name));
    *out = &arguments->values[0];
    return FSDP_OK;
}

static const struct {
    const char *name, *sign;
} relations[] = {{"equalto", "=="}, {"eq", "=="}, {"ne", "!="}, {"lt", "<"},          {"le", "<="},
                 {"gt", ">"},       {"ge", ">="}, {"in", "in"}, {"greaterthan", ">"}, {"lessthan", "<"}};

static bool is_kind(const fsdp__jinja_value *of, const char *name, bool *known)
{
    const bool iterable =
        of->kind == FSDP__JINJA_VALUE_STRING || fsdp__jinja_value_is_list(of) || of->kind == FSDP__JINJA_VALUE_MAP;
    const bool whole = of->kind == FSDP__JINJA_VALUE_INTEGER || of->kind == FSDP__JINJA_VALUE_BIG;
    const bool truth = of->kind == FSDP__JINJA_VALUE_BOOL;
    const struct {
        const char *name;
        bool is;
    } kinds[] = {{"defined", of->kind != FSDP__JINJA_VALUE_UNDEFINED},
                 {"undefined", of->kind == FSDP__JINJA_VALUE_UNDEFINED},
                 {"none", of->kind == FSDP__JINJA_VALUE_NONE},
                 {"string", of->kind == FSDP__JINJA_VALUE_STRING},
                 {"mapping", of->kind == FSDP__JINJA_VALUE_MAP},
                 {"iterable", iterable || of->kind == FSDP__JINJA_VALUE_UNDEFINED},
                 {"sequence", iterable || of->kind == FSDP__JINJA_VALUE_UNDEFINED},
                 {"boolean", truth},
                 {"true", truth && of->truth},
                 {"false", truth && !of->truth},
                 {"integer", whole},
                 {"float", of->kind == FSDP__JINJA_VALUE_REAL},
                 {"number", whole || truth || of->kind == FSDP__JINJA_VALUE_REAL},
                 {"callable", of->kind >= FSDP__JINJA_VALUE_JOINER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0) {
            *known = true;
            return kinds[i].is;
        }
    *known = false;
    return false;
}

/* Finds out whether a number has this remainder, 0 or 1, of another: 1.5 is neither even nor odd. */
static fsdp_status leaves(fsdp__render *r, const fsdp__jinja_value *of, const fsdp__jinja_value *by, int remainder,
                          bool *out)
{
    fsdp__jinja_value left;

    FSDP_TRY(fsdp__jinja_value_operate(r, (fsdp__jinja_string){"%", 1}, of, by, &left));
    *out = fsdp__jinja_value_is_number(&left) && fsdp__jinja_value_real(&left) == remainder;
    return FSDP_OK;
}

static fsdp_status has_parity(fsdp__render *r, const fsdp__jinja_value *of, int remainder, bool *out)
{
    const fsdp__jinja_value two = fsdp__jinja_value_of_integer(2);

    if (of->kind != FSDP__JINJA_VALUE_BIG)
        return leaves(r, of, &two, remainder, out);
    *out = (of->string.at[of->string.bytes - 1] - '0') % 2 == remainder;
    return FSDP_OK;
}

static fsdp_status is_cased(fsdp__render *r, const fsdp__jinja_value *of, fsdp__case to, bool *out)
{
    fsdp__jinja_value same, other;

    *out = false;
    if (of->kind != FSDP__JINJA_VALUE_STRING)
        return FSDP_OK;
    FSDP_TRY(fsdp__jinja_string_case(r, of->string, to, &same));
    FSDP_TRY(
        fsdp__jinja_string_case(r, of->string, to == FSDP__CASE_UPPER ? FSDP__CASE_LOWER : FSDP__CASE_UPPER, &other));
    *out = fsdp__jinja_strings_equal(same.string, of->string) && !fsdp__jinja_strings_equal(other.string, of->string);
    return FSDP_OK;
}

fsdp_status fsdp__jinja_test(fsdp__render *r, fsdp__jinja_string name, const fsdp__jinja_value *of,
                             const fsdp__arguments *arguments, bool *out)
{
    char text[64];
    const fsdp__jinja_value *argument;
    bool known;

    fsdp__jinja_name(name, text, sizeof text);
    *out = is_kind(of, text, &known);
    if (known)
        return FSDP_OK;
    if (strcmp(text, "odd") == 0 || strcmp(text, "even") == 0) {
        return has_parity(r, of, text[0] == 'o', out);
    }
    if (strcmp(text, "upper") == 0 || strcmp(text, "lower") == 0)
        return is_cased(r, of, text[0] == 'u' ? FSDP__CASE_UPPER : FSDP__CASE_LOWER, out);
    for (size_t i = 0; i < FSDP__COUNT_OF(relations); i++)
        if (strcmp(relations[i].name, text) == 0) {
            FSDP_TRY(only_argument(r, name, arguments, &argument));
            return fsdp__jinja_value_relate(r, (fsdp__jinja_string){relations[i].sign, strlen(relations[i].sign)}, of,
                                            argument, out);
        }
    if (strcmp(text, "divisibleby") == 0) {
        FSDP_TRY(only_argument(r, name, arguments, &argument));
        return leaves(r, of, argument, 0, out);
    }
    return FSDP__RENDER_FAIL(r, "No test named '%s'.", text);
}
