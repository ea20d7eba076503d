"""Tickets and links: only what was signed here, whole, in time, by a token that is still good."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain.permits import Link, PermitRefused, Permits, Shows, Ticket
from shared.clock import SECOND
from shared.principals import Role, Scope

NOW = 1_000 * SECOND
PERMITS = Permits(b"k" * 32)
TICKET = Ticket(
    id="t1",
    issued_by="portal",
    user_id="ann",
    expires_at=NOW + SECOND,
    token_id="abc",
    max_bytes=10,
    fields={"tags": "ä,b"},
    return_to="https://portal.example.org/",
)
LINK = Link(
    issued_by="portal",
    job_id=7,
    shows=Shows.FILE,
    expires_at=NOW + SECOND,
    path="out/ä b.txt",
    issuer="user ann",
)


@pytest.mark.parametrize("permit", [TICKET, LINK], ids=["ticket", "link"])
def test_what_was_signed_is_read_again(permit) -> None:
    text = PERMITS.text(permit)
    assert set(text) <= set(string.ascii_letters + string.digits + "-_.")
    assert PERMITS.read(type(permit), text, NOW) == permit


@pytest.mark.parametrize("permit", [TICKET, LINK], ids=["ticket", "link"])
def test_a_permit_with_any_character_changed_is_refused(permit) -> None:
    text = PERMITS.text(permit)
    for at in range(len(text)):
        for other in {"A", "B", ".", "=", "\n", "é", ""} - {text[at]}:
            changed = text[:at] + other + text[at + 1 :]
            with pytest.raises(PermitRefused, match="not valid") as refused:
                PERMITS.read(type(permit), changed, NOW)
            assert refused.value.code.endswith("_invalid")


@settings(max_examples=25)
@given(st.text())
def test_any_other_text_is_refused(text) -> None:
    for one in (text, text + ".", "." + text, PERMITS.text(TICKET) + text + "."):
        with pytest.raises(PermitRefused):
            PERMITS.read(Ticket, one, NOW)
        with pytest.raises(PermitRefused):
            PERMITS.read(Link, one, NOW)


def test_a_ticket_is_no_link_and_another_server_is_not_believed() -> None:
    with pytest.raises(PermitRefused, match="not valid"):
        PERMITS.read(Link, PERMITS.text(TICKET), NOW)
    with pytest.raises(PermitRefused, match="not valid"):
        PERMITS.read(Ticket, PERMITS.text(LINK), NOW)
    with pytest.raises(PermitRefused, match="not valid"):
        PERMITS.read(Ticket, Permits(b"o" * 32).text(TICKET), NOW)


def test_it_ends_in_time_and_with_the_token_that_made_it() -> None:
    text = PERMITS.text(TICKET)
    PERMITS.read(Ticket, text, NOW + SECOND - 1)
    with pytest.raises(PermitRefused, match="expired at 1970-01-01T00:16:41") as refused:
        PERMITS.read(Ticket, text, NOW + SECOND)
    assert refused.value.code == "ticket_expired"
    revoked = Permits(b"k" * 32, {"abc"}.__contains__)
    with pytest.raises(PermitRefused, match="revoked") as refused:
        revoked.read(Ticket, text, NOW)
    assert refused.value.code == "ticket_revoked"
    assert revoked.read(Link, PERMITS.text(LINK), NOW) == LINK  # no token made it


def test_who_has_one_may_do_that_only() -> None:
    ticket, link = TICKET.principal(), LINK.principal()
    assert (link.name, link.caller) == ("portal (link to job 7)", "user ann")
    assert (ticket.name, ticket.role, ticket.acts_as) == ("portal", Role.TICKET, "ann")
    assert [scope for scope in Scope if ticket.may(scope)] == [Scope.SUBMIT]
    assert (link.role, link.job_id) == (Role.LINK, 7)
    assert [scope for scope in Scope if link.may(scope)] == [Scope.READ]
    of_old_servers = [replace(LINK, issuer="", job_id=job).principal() for job in (7, 8)]
    assert {one.caller for one in of_old_servers} == {"link portal"}
