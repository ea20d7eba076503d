"""The HTTP client of webhooks, which reaches only machines that it may.

The address is checked when a socket is made for it, so what is checked is what is connected to: a
name that leads elsewhere a moment later is of no use. Answers are not kept: whoever can name an
address here must not read what is behind it.
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from importlib import metadata
from ipaddress import ip_address
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from server.domain.webhooks import AllowedTargets, Delivery, Try, WebhookTarget
from shared.clock import SECOND, Clock, Micros

_CONNECT_S: Final = 5.0
_TOTAL_S: Final = 15.0
_MOST_READ: Final = 64 << 10
"""Bytes of an answer's body, which nobody looks at; so that its connection ends in order."""
_LOOKUPS: Final = 8
"""Names that are looked up at once, in threads of their own: a name server that hangs keeps nobody
else waiting."""
_LOOKUP_S: Final = 2.0
"""How long an upload waits for the look-up of its address."""

Lookup = Callable[[str, int], list[tuple[Any, ...]]]
"""What ``socket.getaddrinfo`` gives, for a name and a port. Blocking."""


class HttpWebhookClient(AbstractResolver):
    """Delivers webhooks over HTTP; aiohttp asks it what a name leads to."""

    def __init__(self, allowed: AllowedTargets, clock: Clock) -> None:
        self._allowed, self._clock = allowed, clock
        self._lookup: Lookup = functools.partial(socket.getaddrinfo, type=socket.SOCK_STREAM)
        self._threads = ThreadPoolExecutor(_LOOKUPS, "webhook-names")
        self._tls = ssl.create_default_context()
        self._agent = f"ferryman/{metadata.version('ferryman')}"

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def refusal(self, target: WebhookTarget) -> str | None:
        """Why nothing may be sent to a machine, as far as is known soon; None: it may."""
        if target.address is not None:
            return self._allowed.refusal(target, None)
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = await self.resolve(target.host, target.port)
        except (OSError, TimeoutError):
            return None  # it may be there later
        refusals = [self._allowed.refusal(target, ip_address(one["host"])) for one in found]
        return refusals[0] if refusals and all(refusals) else None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """What the name leads to now. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.run_in_executor(self._threads, self._lookup, host, port)
        except UnicodeError:  # an empty or over-long label
            raise OSError(f"{host} is no host name") from None
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=address[1],
                family=found,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for found, _, protocol, _, address in infos
        ]

    async def post(self, delivery: Delivery, signature: str, webhook_id: str, at_s: int) -> Try:
        """Try once; whatever goes wrong is in the answer."""
        begun_at, tried = self._clock.monotonic(), Try(delivery.tries, self._clock.now(), 0.0)
        looked_at: list[str | None] = []
        headers = {
            "Content-Type": "application/json",
            "User-Agent": self._agent,
            "webhook-id": webhook_id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": signature,
        }
        try:
            tried = await self._send(tried, delivery, headers, looked_at)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            is_final = bool(looked_at) and all(looked_at)
            problem = looked_at[0] if is_final else _describe(error)
            tried = replace(tried, problem=problem, is_final=is_final)
        return replace(tried, seconds=round(self._clock.monotonic() - begun_at, 3))

    async def _send(
        self, tried: Try, delivery: Delivery, headers: dict[str, str], looked_at: list[str | None]
    ) -> Try:
        """With what was answered. ``looked_at`` gets for each address that is tried why it may not
        be reached; None: it may.
        """

        def reachable(info: tuple[Any, ...]) -> socket.socket:
            """The socket for an address, as aiohttp asks for it, if the address may be reached."""
            family, kind, protocol, _, address = info
            refusal = self._allowed.refusal(delivery.target, ip_address(address[0]))
            looked_at.append(refusal)
            if refusal is not None:
                raise OSError(refusal)
            return socket.socket(family, kind, protocol)

        connector = aiohttp.TCPConnector(
            resolver=self,
            use_dns_cache=False,
            force_close=True,
            ssl=self._tls,
            socket_factory=reachable,
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=_TOTAL_S, sock_connect=_CONNECT_S),
            ) as session,
            session.post(
                delivery.url, data=delivery.body.encode(), headers=headers, allow_redirects=False
            ) as answer,
        ):
            await answer.content.read(_MOST_READ)
            return replace(
                tried,
                status=answer.status,
                problem=_problem_of(answer.status),
                retry_after_s=_seconds(answer.headers.get("Retry-After"), self._clock.now()),
                is_final=answer.status == HTTPStatus.GONE,
            )


def _problem_of(status: int) -> str | None:
    """Why an answer does not say that the webhook has arrived."""
    if 200 <= status < 300:
        return None
    phrase = next((one.phrase for one in HTTPStatus if one == status), "")
    why = f"answered {status} {phrase}".rstrip()
    if 300 <= status < 400:
        return f"{why}: redirects are not followed"
    if status == HTTPStatus.GONE:
        return f"{why}: the receiver wants no more"
    return why


def _describe(error: Exception) -> str:
    """What went wrong, without what the peer said."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {_CONNECT_S:g} s"
        case TimeoutError():
            return f"no answer within {_TOTAL_S:g} s"
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            return "the name is not known"
        case aiohttp.ClientConnectorCertificateError():
            return f"its TLS certificate is not valid: {error.certificate_error}"[:300]
        case aiohttp.ClientSSLError():
            return "TLS could not be started"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            return f"could not connect: {os.strerror(number) if number else 'no way there'}"
        case aiohttp.ClientConnectionError():
            return "the connection was cut off"
        case _:
            return "what was answered is not HTTP"


def _seconds(text: str | None, now: Micros) -> float | None:
    """What the header ``Retry-After`` asks for: seconds, or a date."""
    if text is None:
        return None
    text = text.strip()
    if text.isdecimal() and len(text) <= 9:
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now / SECOND)
    except (TypeError, ValueError, OverflowError):
        return None
