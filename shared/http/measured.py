"""Requests, counted: by route, by how they ended, and what they carried."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import hdrs, web
from prometheus_client.registry import Collector

from shared.http.request_log import ERROR_CODE
from shared.metrics import OTHER, ProgramMetrics, Series, Transfers, counter, known, seconds

WAITED: Final = web.RequestKey("waited", bool)
"""Whether a request waited for something to happen: its time says nothing about us."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MOST_CODES: Final = 500
_FORMS: Final = ("multipart/form-data", "application/octet-stream")
"""Media types of bodies that are files: a form, or several bundles at once."""
_FILES: Final = frozenset({("GET", "application/zip"), ("POST", "application/octet-stream")})
"""Methods and media types of answers that are files: one, or several results at once."""


METRICS: Final = web.AppKey("metrics", ProgramMetrics)


async def answer(request: web.Request, metrics: ProgramMetrics) -> web.Response:
    """The answer to a request for all metrics."""
    headers = request.headers
    made = await metrics.text(headers.get(hdrs.ACCEPT, ""), headers.get(hdrs.ACCEPT_ENCODING, ""))
    return web.Response(body=made.body, headers=made.headers)


class Requests:
    """Counts of all requests.

    Args:
        transfers: where forms that came and files that were sent are counted, too.
    """

    def __init__(self, transfers: Transfers) -> None:
        self.transfers = transfers
        self._count = counter(
            "ferryman_http_requests",
            "Requests that were answered; aborted: their callers left before.",
            "method",
            "route",
            "status",
        )
        self._seconds = seconds(
            "ferryman_http_request_seconds",
            "From a request's head to the end of its answer, without those that waited.",
            "method",
        )
        self._refusals = counter(
            "ferryman_http_refusals", "Requests that were refused, by the code of why.", "code"
        )
        self._codes: set[str] = set()
        self._counted, self._timed = Series(self._count), Series(self._seconds)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What a registry takes."""
        return self._count, self._seconds, self._refusals

    @staticmethod
    def now() -> float:
        """To measure with."""
        return asyncio.get_running_loop().time()

    def done(self, request: web.Request, answer: web.StreamResponse | None, since: float) -> None:
        """One has ended.

        Args:
            answer: None: its caller left before.
            since: when it began.
        """
        method = known(request.method, _METHODS)
        status = "aborted" if answer is None else f"{answer.status // 100}xx"
        self._counted(method, _route(request), status).inc()
        if answer is not None and not request.get(WAITED, False):
            self._timed(method).observe(self.now() - since)
        if code := request.get(ERROR_CODE):
            if len(self._codes) < _MOST_CODES:
                self._codes.add(code)
            self._refusals.labels(known(code, self._codes)).inc()
        self._count_transfer(request, answer)

    def _count_transfer(self, request: web.Request, answer: web.StreamResponse | None) -> None:
        outcome = "failed"
        if answer is not None and answer.status < 500:
            outcome = "ok" if answer.status < 400 else "refused"
        if request.method == hdrs.METH_POST and request.headers.get(
            hdrs.CONTENT_TYPE, ""
        ).lower().startswith(_FORMS):
            self.transfers.done("upload", outcome, request.content.total_bytes)
        if answer is not None and (request.method, answer.content_type) in _FILES:
            sent = answer.body_length if answer.prepared else answer.content_length
            self.transfers.done("download", outcome, sent or 0)


def _route(request: web.Request) -> str:
    """As the table of routes has it: a path of which anybody may make up a million is no label."""
    resource = request.match_info.route.resource
    return OTHER if resource is None else resource.canonical
