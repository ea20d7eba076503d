"""Upload tickets and signed links."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_DOMAIN: Final = "server/domain/permits.py"
_ASKED: Final = "server/domain/permits.py"
_PERMITTED: Final = "server/http/permits.py"
_UNIT: Final = "tests/unit/server/domain/test_permits.py::test_"
_TICKETS: Final = "tests/contract/test_tickets.py::test_"
_LINKS: Final = "tests/contract/test_links.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("permits", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "what may not be read is no input",
        "server/domain/upload_fields.py",
        "            check_may_read(principal, name)  # its script can print what it gets\n",
        "",
        f"{_TICKETS}what_may_not_be_read_is_no_input_either",
        f"{_TICKETS}a_ticket_gives_no_more_to_read_than_the_token_that_made_it",
    ),
    _of(
        "a ticket that may not read waits for no other job",
        _ASKED,
        'if "after" in fields:',
        "if False:",
        f"{_TICKETS}a_ticket_gives_no_more_to_read_than_the_token_that_made_it",
    ),
    _of(
        "links are for the job that the ticket became",
        "server/api/upload.py",
        "(is_new or await context.jobs.ticket_used(ticket.id))",
        "True",
        f"{_TICKETS}a_ticket_gives_no_link_to_a_job_that_another_one_became",
    ),
    _of(
        "a signature counts",
        _DOMAIN,
        "if not hmac.compare_digest(",
        "if False and hmac.compare_digest(",
        f"{_UNIT}a_ticket_is_no_link_and_another_server_is_not_believed",
    ),
    _of(
        "a link is no ticket",
        _DOMAIN,
        '        text = f"{_WORDS[kind]}.{payload}"',
        '        text = f"{payload}"',
        f"{_UNIT}a_ticket_is_no_link_and_another_server_is_not_believed",
    ),
    _of(
        "a permit ends",
        _DOMAIN,
        "if now >= permit.expires_at:",
        "if False:",
        f"{_UNIT}it_ends_in_time_and_with_the_token_that_made_it",
    ),
    _of(
        "a permit ends with its token",
        "server/callers.py",
        "tokens.revoked)",
        "lambda _: False)",
        f"{_TICKETS}a_ticket_and_a_link_end_with_the_token_that_made_them",
    ),
    _of(
        "a ticket is used in the transaction that makes its job",
        "server/store/inserts.py",
        "if new.ticket is not None and not await use_ticket(tx, new.ticket):",
        "if new.ticket is not None and await use_ticket(tx, new.ticket) is None:",
        f"{_TICKETS}of_uploads_at_once_by_one_ticket_one_becomes_a_job",
    ),
    _of(
        "a ticket is good for uploads only",
        _PERMITTED,
        "        if not by_ticket:",
        "        if False:",
        f"{_TICKETS}a_ticket_is_good_for_no_other_route",
    ),
    _of(
        "a link is good for its routes only",
        _PERMITTED,
        "if link.shows not in by_link or",
        "if",
        f"{_LINKS}a_link_is_good_for_its_routes_and_for_no_other",
    ),
    _of(
        "a link is good for its job only",
        _PERMITTED,
        """ or path.get("id") != str(link.job_id)""",
        "",
        f"{_LINKS}a_link_is_good_for_its_routes_and_for_no_other",
    ),
    _of(
        "a link to a file is good for that file only",
        _PERMITTED,
        "or not same_file:",
        "or False:",
        f"{_LINKS}a_link_is_good_for_its_routes_and_for_no_other",
    ),
    _of(
        "what a ticket fixes cannot be changed",
        "server/api/upload.py",
        "if fixed.get(name, value) != value:",
        "if False:",
        f"{_TICKETS}what_a_ticket_fixes_cannot_be_changed",
    ),
    _of(
        "a portal makes tickets for its users only",
        _ASKED,
        '    check_field("user_id", user, services, principal)\n',
        "",
        f"{_TICKETS}users_and_strangers_make_no_tickets_and_portals_only_for_their_users",
    ),
    _of(
        "nobody is led to a page that is not allowed",
        _ASKED,
        "or origin not in origins:",
        "or False:",
        f"{_TICKETS}a_wrong_wish_for_a_ticket_is_said",
    ),
    _of(
        "what a page shows is text",
        "server/web/site.py",
        "autoescape=True",
        "autoescape=False",
        "tests/contract/test_links.py::test_the_page_of_a_job_shows_where_it_stands_and_leads_on",
    ),
)
