"""Answers in memory that nobody reads are counted, and there is a bound."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from shared.http.authentication import CALLER
from shared.http.protocol import RELEASE, UnreadAnswers
from shared.http.refusals import Denied

MIB = 1 << 20


def asked(method: str = "GET") -> web.Request:
    return make_mocked_request(method, "/")


def hold(unread: UnreadAnswers, caller: str, size: int, method: str = "GET") -> web.Request:
    CALLER.set(caller)
    request = asked(method)
    unread.hold(request, web.Response(body=bytes(size)))
    return request


def refused(unread: UnreadAnswers, caller: str, size: int) -> tuple[int, str]:
    with pytest.raises(Denied) as caught:
        hold(unread, caller, size)
    assert caught.value.headers["Retry-After"]
    return caught.value.status, caught.value.code


def test_a_caller_gets_no_more_than_it_may_leave_unread() -> None:
    unread = UnreadAnswers(of_one=3 * MIB, of_all=100 * MIB)
    held = [hold(unread, "ann", MIB) for _ in range(3)]
    assert refused(unread, "ann", MIB) == (429, "unread_answers")
    hold(unread, "bob", MIB)
    held[0][RELEASE]()
    hold(unread, "ann", MIB)


def test_all_together_get_one_answer_each_above_what_they_may_leave_unread() -> None:
    unread = UnreadAnswers(of_one=3 * MIB, of_all=4 * MIB)
    for name in ("ann", "bob"):
        hold(unread, name, 2 * MIB)
    cid = hold(unread, "cid", MIB)
    for name in ("ann", "bob", "cid"):
        assert refused(unread, name, MIB) == (503, "unread_answers")
    cid[RELEASE]()
    hold(unread, "cid", MIB)


def test_one_large_answer_is_always_sent() -> None:
    unread = UnreadAnswers(of_one=MIB, of_all=MIB)
    hold(unread, "ann", 5 * MIB)[RELEASE]()
    hold(unread, "bob", 5 * MIB)


def test_what_was_done_is_always_answered_and_little_is_not_counted() -> None:
    unread = UnreadAnswers(of_one=MIB, of_all=MIB)
    hold(unread, "ann", MIB)
    hold(unread, "ann", MIB, "POST")
    assert RELEASE not in hold(unread, "ann", 60_000)
    request = asked()
    unread.hold(request, web.StreamResponse())
    assert RELEASE not in request
