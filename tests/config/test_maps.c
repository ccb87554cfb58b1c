/* A list of maps: read from a file and from the command line, printed, copied and refused. */
#include <math.h>

#include "config/pool.h"
#include "config/yaml.h"
#include "support/test.h"

static fsdp_status apply(pool *p, const char *text)
{
    CHECK_OK(fsdp__config_default(&pool_table, p));
    return fsdp__yaml_apply(&pool_table, p, "c", text, strlen(text));
}

static void refuses(const char *text, const char *expected)
{
    pool p = {0};

    CHECK(apply(&p, text) != FSDP_OK);
    CHECK_STRING(fsdp_last_error(), expected);
    CHECK_EQ(p.ticket_count, 0);
    fsdp__config_release(&pool_table, &p);
}

static void refuses_value(const char *value, const char *expected)
{
    pool p = {0};

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK(fsdp__config_set(&pool_table, &p, "people.tickets", value) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), expected);
    CHECK_NULL(p.tickets);
    fsdp__config_release(&pool_table, &p);
}

static char *printed(const pool *p)
{
    FILE *out = test_begin_text();

    CHECK_OK(fsdp__config_print(&pool_table, p, out));
    return test_end_text(out);
}

static void check_tickets(const pool *p)
{
    CHECK_EQ(p->ticket_count, 2);
    CHECK_STRING(p->tickets[0].name, "a day");
    CHECK_NEAR(p->tickets[0].price, 7.5, 0);
    CHECK_EQ(p->tickets[0].hours, 24);
    CHECK_STRING(p->tickets[1].name, "*.child");
    CHECK(isnan(p->tickets[1].price));
    CHECK_EQ(p->tickets[1].hours, 2);
}

TEST(a_list_of_maps_has_one_meaning_in_all_styles)
{
    static const char *const same[] = {
        "people:\n  tickets:\n    - name: a day\n      price: 7.5\n      hours: 24\n    - {name: '*.child'}\n",
        "people: {tickets: [{hours: 24, price: 7.5, name: a day}, {name: '*.child', price: ~}]}\n"};

    for (int i = 0; i < 2; i++) {
        pool p = {0}, again = {0}, copy = {0};
        char *text;

        CHECK_OK(apply(&p, same[i]));
        check_tickets(&p);
        text = printed(&p);
        CHECK_CONTAINS(text, "  tickets: [{name: 'a day', price: 7.5, hours: 24}, {name: '*.child', hours: 2}]\n");
        CHECK_OK(apply(&again, text));
        check_tickets(&again);
        CHECK_OK(fsdp__config_default(&pool_table, &copy));
        CHECK_OK(fsdp__config_copy(&pool_table, &p, &copy));
        fsdp__config_release(&pool_table, &p);
        check_tickets(&copy);
        fsdp__config_release(&pool_table, &again);
        fsdp__config_release(&pool_table, &copy);
        CHECK_NULL(copy.tickets);
    }
}

TEST(a_command_line_sets_and_adds_maps)
{
    pool p = {0};
    char *text;

    CHECK_OK(fsdp__config_default(&pool_table, &p));
    CHECK_OK(fsdp__config_add(&pool_table, &p, "people.tickets", "{name: a day, price: 7.5, hours: 24}"));
    CHECK_OK(fsdp__config_add(&pool_table, &p, "people.tickets", "[{name: '*.child'}]"));
    check_tickets(&p);
    CHECK_OK(fsdp__config_add(&pool_table, &p, "people.tickets", "[]"));
    check_tickets(&p);
    CHECK_OK(fsdp__config_set(&pool_table, &p, "people.tickets", "[{name: x}]"));
    CHECK_EQ(p.ticket_count, 1);
    CHECK_OK(fsdp__config_set(&pool_table, &p, "people.tickets", ""));
    CHECK_EQ(p.ticket_count, 0);
    text = printed(&p);
    CHECK_CONTAINS(text, "  # tickets:\n");
    fsdp__config_release(&pool_table, &p);
}

TEST(a_wrong_map_is_refused_where_it_stands)
{
    refuses("people:\n  tickets:\n    - name: a\n    - price: 3\n",
            "c:4: an entry of people.tickets has no name, which each must have");
    refuses("people:\n  tickets:\n    - name: a\n      prize: 3\n",
            "c:4: people.tickets.prize is not a key of people.tickets; did you mean 'price'?");
    refuses("people:\n  tickets:\n    - name: a\n\n      price: 101\n",
            "c:5: people.tickets.price is '101': expected a number from 0 to 100");
    refuses("people:\n  tickets: [{name: a}, {name: b,\n name: c}]\n",
            "c:3: people.tickets.name is given twice in one entry");
    refuses("people:\n  tickets: [{name: [a]}]\n", "c:2: people.tickets.name is a list: expected a text");
    refuses("people:\n  tickets: [a]\n", "c:2: people.tickets holds a single value: expected maps, such as {name: ..}");
    refuses("people:\n  tickets: [{name: a}, [b]]\n",
            "c:2: people.tickets holds a list: expected maps, such as {name: ..}");
    refuses("people:\n  tickets: a\n",
            "c:2: people.tickets is 'a': expected a list of maps {name: .., price: .., hours: ..}");
    refuses("people:\n  tickets: [{name: a}, {name: &x b}]\n",
            "c:2: an anchor, '&x': a config cannot have one, so leave it out");
    refuses_value("[{name: a, hours: 0}]", "people.tickets is '[{name: a, hours: 0}]': people.tickets.hours is '0'");
    refuses_value("[{name: a}", "people.tickets is '[{name: a}': not YAML from here on (column ");
    refuses_value("a", "people.tickets is 'a': it is neither a list nor a map");
    refuses_value("[{name: a}] b", "people.tickets is '[{name: a}] b'");
    refuses_value("[{name: a}]\n---\n[]", "people.tickets is '[{name: a}]\\x0a---\\x0a[]': it continues after its end");
}

TEST(help_has_what_a_map_may_hold)
{
    FILE *out = test_begin_text();
    char *text;

    CHECK_OK(fsdp__config_help(&pool_table, "people", out));
    text = test_end_text(out);
    CHECK_CONTAINS(text, "  tickets                     a list of maps {name: ..");
    CHECK_CONTAINS(text, "  tickets[].name              a text; must be given\n      printed on it\n");
    CHECK_CONTAINS(text, "  tickets[].hours             an integer from 1 to 24; default 2\n");
}
