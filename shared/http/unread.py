"""Answers that are whole in memory, and that their peers have not read yet."""

from __future__ import annotations

from collections import Counter
from functools import partial
from http import HTTPStatus
from typing import Final

from aiohttp import web

from shared.http.authentication import CALLER
from shared.http.origins import SAFE_METHODS
from shared.http.refusals import Denied

RELEASE: Final = web.RequestKey("release", partial)
"""To be called when the answer to a request has been sent, or never will be."""
_SMALL: Final = 64 << 10
"""Bytes of an answer that is not counted: a connection buffers as much of any answer."""
_OF_ONE: Final = 16 << 20
_OF_ALL: Final = 64 << 20


class UnreadAnswers:
    """Their bytes, of each caller and in all. Who has read all of its own gets any answer: a few
    who read nothing keep nobody else from reading.
    """

    def __init__(self, of_one: int = _OF_ONE, of_all: int = _OF_ALL) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._of: Counter[str] = Counter()

    def hold(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Count an answer until it is sent.

        Raises:
            Denied: with those that are not read yet it would be too much. Never for a request that
                has changed something: whoever sent it would send it again.
        """
        body = answer.body if isinstance(answer, web.Response) else None
        if not isinstance(body, bytes) or len(body) <= _SMALL:
            return
        size, caller = len(body), CALLER.get()
        if request.method in SAFE_METHODS:
            self._check(caller, size)
        self._of[caller] += size
        request[RELEASE] = partial(self._release, caller, size)

    def _check(self, caller: str, size: int) -> None:
        mine = self._of.get(caller, 0)
        if not mine:
            return
        if mine + size > self._of_one:
            status, whose = HTTPStatus.TOO_MANY_REQUESTS, "of yours"
        elif self._of.total() + size > self._of_all:
            status, whose = HTTPStatus.SERVICE_UNAVAILABLE, "of all callers"
        else:
            return
        raise Denied(
            status,
            "unread_answers",
            f"too many bytes of answers {whose} are sent and not read yet: read them, ask for less "
            "at once, or try again in a moment",
            {"Retry-After": "5"},
        )

    def _release(self, caller: str, size: int) -> None:
        self._of[caller] -= size
        if not self._of[caller]:
            del self._of[caller]
