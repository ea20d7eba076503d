"""Tokens, tickets and links: only what was made here, whole, and for what it is good for.

That they end in time, and with the token that made them: tests/server/test_permits.py.
"""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain import tokens
from server.domain.permits import Link, PermitRefused, Permits, Shows, Ticket
from server.domain.tokens import ID_LENGTH, ID_LETTERS, LETTERS, SECRET_LENGTH, BadToken, text_of
from shared.clock import SECOND
from shared.principals import Role, Scope
from tests.kit.each import each

NOW = 1_000 * SECOND
PERMITS = Permits(b"k" * 32)
KINDS: tuple[Any, Any] = (Ticket, Link)
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


@each("permit", [TICKET, LINK])
def test_what_was_signed_is_read_again_and_refused_with_any_character_changed(permit) -> None:
    text = PERMITS.text(permit)
    assert set(text) <= set(string.ascii_letters + string.digits + "-_.")
    assert PERMITS.read(type(permit), text, NOW) == permit
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
        for kind in KINDS:
            with pytest.raises(PermitRefused):
                PERMITS.read(kind, one, NOW)


def test_a_ticket_is_no_link_and_another_server_is_not_believed() -> None:
    with pytest.raises(PermitRefused, match="not valid"):
        PERMITS.read(Link, PERMITS.text(TICKET), NOW)
    for text in (PERMITS.text(LINK), Permits(b"o" * 32).text(TICKET)):
        with pytest.raises(PermitRefused, match="not valid"):
            PERMITS.read(Ticket, text, NOW)


def test_who_has_one_may_do_that_only() -> None:
    ticket, link = TICKET.principal(), LINK.principal()
    assert (link.name, link.caller) == ("portal (link to job 7)", "user ann")
    assert (ticket.name, ticket.role, ticket.acts_as) == ("portal", Role.TICKET, "ann")
    assert [scope for scope in Scope if ticket.may(scope)] == [Scope.SUBMIT]
    assert (link.role, link.job_id) == (Role.LINK, 7)
    assert [scope for scope in Scope if link.may(scope)] == [Scope.READ]
    of_old_servers = [replace(LINK, issuer="", job_id=job).principal() for job in (7, 8)]
    assert {one.caller for one in of_old_servers} == {"link portal"}


# -- API tokens

IDS = st.text(ID_LETTERS, min_size=ID_LENGTH, max_size=ID_LENGTH)
SECRETS = st.text(LETTERS, min_size=SECRET_LENGTH, max_size=SECRET_LENGTH)
TOKEN = text_of("0123456789", "s" * SECRET_LENGTH)


@given(IDS, SECRETS, st.data())
def test_a_token_is_read_as_it_was_made_and_a_wrong_letter_is_noticed(
    token_id: str, secret: str, data: st.DataObject
) -> None:
    text = text_of(token_id, secret)
    assert text.startswith(f"ferryman_{token_id}_{secret}")
    assert tokens.read(text) == (token_id, secret)
    at = data.draw(st.integers(len("ferryman_"), len(text) - 1))
    other = data.draw(st.sampled_from(sorted(set(LETTERS) - {text[at]})))
    with pytest.raises(BadToken, match="it is mistyped"):
        tokens.read(text[:at] + other + text[at + 1 :])


@each("text", [TOKEN[:-1], TOKEN + "x", "ferryman_", TOKEN + "\n"])
def test_a_token_that_is_not_whole_is_said_to_be_that(text: str) -> None:
    assert TOKEN == "ferryman_0123456789_" + "s" * 32 + "274pok", "the checksum is of its letters"
    with pytest.raises(BadToken, match=f"has 58 characters, this one {len(text)}") as refusal:
        tokens.read(text)
    assert "sss" not in str(refusal.value)
