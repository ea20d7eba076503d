"""What it costs that every request has a principal."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from server.stages.tokens import NewToken
from shared.http.authentication import Tokens
from shared.principals import Role
from tests.bench.table import Row, median, percentile
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

_MOST_US: Final = 50.0
_AT_ONCE: Final = 100


async def tokens(folder: Path, count: int, checks: int, requests: int) -> list[Row]:
    """Checks alone, and requests over HTTP, with ``count`` tokens and without any."""
    with capture_logs():
        return await _measured(folder, count, checks, requests)


async def _measured(folder: Path, count: int, checks: int, requests: int) -> list[Row]:
    async with driving(folder, FakeOrchestrator(), auth="none") as client:
        issued = client.server.context.tokens
        texts: list[str] = []
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count))
            made = (
                issued.create(NewToken(f"u{n}", Role.USER, f"u{n}", (), None, None), "bench")
                for n in numbers
            )
            texts += [text for _, text in await asyncio.gather(*made)]
        chosen = random.choices(texts, k=checks)
        known = _checks(Tokens({}, issued, needed=True), chosen)
        none = _checks(Tokens({}), [""] * checks)
        with_token, without = [], []
        for _ in range(3):
            without.append(await _request_us(client, requests, None))
            with_token.append(await _request_us(client, requests, texts[-1]))
    return [
        Row(
            f"a token's check, of {count:,} tokens",
            f"{median(known):.1f} µs, p99 {percentile(known, 0.99):.1f} µs",
            f"where none is needed: {median(none):.1f} µs",
            None,
            f"≤ {_MOST_US:.0f} µs",
            median(known) <= _MOST_US,
        ),
        Row(
            "GET /api/v1/whoami with a token, client included",
            f"{median(with_token):.0f} µs",
            f"without: {median(without):.0f} µs",
            median(with_token) / median(without),
            "≤ 1.1",
            median(with_token) <= 1.1 * median(without),
        ),
    ]


def _checks(known: Tokens, texts: list[str]) -> list[float]:
    """Microseconds of each check."""
    found = []
    for text in texts:
        headers = {"Authorization": f"Bearer {text}"} if text else {}
        request = make_mocked_request("GET", "/", headers=headers)
        start = time.perf_counter()
        principal = known.principal(request, "127.0.0.1")
        found.append((time.perf_counter() - start) * 1e6)
        assert principal.authenticated
    return found


async def _request_us(client: ServerClient, requests: int, token: str | None) -> float:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        start = time.perf_counter()
        for _ in range(requests):
            async with session.get(f"{client.url}/api/v1/whoami") as answer:
                assert answer.status == 200
                await answer.read()
        return (time.perf_counter() - start) / requests * 1e6
