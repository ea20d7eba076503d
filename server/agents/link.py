"""HTTP calls to one agent: one of ours, or a job-orchestrator client."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from server.agents import forms
from server.domain.jobs import Job
from server.ports import Fetched, NoSuchPayload, RefusedByAgent, Unreachable
from shared.wire import (
    AgentEvent,
    AgentHealth,
    Order,
    PayloadDoc,
    PayloadList,
    PayloadState,
    Settled,
)

_CHUNK: Final = 1 << 20
_PATIENT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
_STREAM: Final = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=45)
"""An event stream of ours says something every 15 s."""
_BRIEF: Final = aiohttp.ClientTimeout(total=15, sock_connect=5)


@dataclass(frozen=True, slots=True)
class Address:
    """Where an agent is. ``{id}`` is appended to download and terminate."""

    base: str
    upload: str
    download: str
    terminate: str

    @property
    def partial(self) -> str:
        return f"{self.download.rsplit('/', 1)[0]}/retrieve_partial"

    @classmethod
    def of(cls, base: str) -> Address:
        """The usual routes below ``base``."""
        base = base.rstrip("/")
        return cls(base, f"{base}/submit", f"{base}/retrieve", f"{base}/kill")

    @classmethod
    def separate(cls, upload: str, download: str, terminate: str) -> Address:
        """As job-orchestrator's variables give it."""
        return cls(
            upload.rstrip("/").rsplit("/", 1)[0],
            upload,
            download.rstrip("/"),
            terminate.rstrip("/"),
        )


class Link:
    """``ports.Agent`` over HTTP.

    Args:
        server: identity of our database, scopes our keys.
        services: what the operator says it offers; empty: what it says itself.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        session: aiohttp.ClientSession,
        server: str,
        *,
        token: str | None = None,
        services: frozenset[str] = frozenset(),
    ) -> None:
        self.name, self.address, self._session, self._server = name, address, session, server
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.services = services
        self.health: AgentHealth | None = None
        """What it said of itself last."""
        self.up = False
        self.tells = False
        self.trouble = "it has not been reached yet"

    # -- ours and theirs

    async def submit(self, job: Job, bundle: Path) -> PayloadDoc:
        if self.tells:
            order = Order(
                server=self._server,
                key=str(job.key),
                service=job.service,
                user_id=job.user_id,
                timeout_s=job.timeout_s,
                limits=job.limits,
                bundle_digest=job.bundle.digest if job.bundle else "",
                bundle_size=job.bundle.size if job.bundle else 0,
            )
            form = await asyncio.to_thread(
                forms.sealed, order.model_dump_json(), bundle, secrets.token_hex(16)
            )
        else:
            form = await asyncio.to_thread(forms.plain, bundle, secrets.token_hex(16))
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.size)}
        try:
            async with self._call(
                "POST", self.address.upload, data=form.chunks(), headers=headers
            ) as answer:
                return _payload(await answer.read())
        except Unreachable as problem:
            # A body that was not handed over to the end cannot have been accepted.
            raise Unreachable(str(problem), sent=problem.sent and form.handed_over) from problem

    async def look(self, payload_id: int, to: Path) -> tuple[PayloadDoc | None, Fetched | None]:
        async with self._call("GET", f"{self.address.download}/{payload_id}") as answer:
            if answer.content_type == "application/zip":
                fetched = await _store(answer, to)
                return PayloadDoc(id=payload_id, status=PayloadState.COMPLETED), fetched
            body = json.loads(await answer.read())
            if body.get("status") not in set(PayloadState):
                return None, None  # "Locked" or "Unknown": says nothing
            return PayloadDoc.model_validate(body), None

    async def fetch(self, payload_id: int, to: Path) -> Fetched:
        async with self._call("GET", f"{self.address.partial}/{payload_id}") as answer:
            return await _store(answer, to)

    async def kill(self, payload_id: int) -> PayloadDoc | None:
        async with self._call("POST", f"{self.address.terminate}/{payload_id}") as answer:
            body = await answer.read()
            return _payload(body) if body else None

    async def ask_health(self) -> AgentHealth:
        """Its ``/health``, also when it is not well."""
        try:
            async with self._session.get(
                f"{self.address.base}/health", headers=self._headers, timeout=_BRIEF
            ) as answer:
                return AgentHealth.model_validate_json(await answer.read())
        except ValidationError:
            return AgentHealth(status="ok")  # not one of ours, but it answers
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise Unreachable(self._say(problem), sent=False) from problem

    # -- ours only

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        url = f"{self.address.base}/keys/{self._server}/{job.key}/settle"
        async with self._call("POST", url, params={"kill": "1"} if kill else {}) as answer:
            return Settled.model_validate_json(await answer.read()).payload

    async def acknowledge(self, payload_id: int) -> None:
        try:
            async with self._call("DELETE", f"{self.address.base}/payloads/{payload_id}"):
                pass
        except NoSuchPayload:
            pass

    async def payloads(self) -> PayloadList:
        """All that it holds for this server."""
        async with self._call(
            "GET", f"{self.address.base}/payloads", params={"server": self._server}
        ) as answer:
            return PayloadList.model_validate_json(await answer.read())

    async def events(self, after: int) -> AsyncIterator[AgentEvent]:
        """Changes of payloads as they happen; ends, or raises Unreachable, when the connection
        does.
        """
        async with self._call(
            "GET",
            f"{self.address.base}/events",
            params={"after": str(after), "server": self._server},
            timeout=_STREAM,
        ) as answer:
            while line := await answer.content.readline():
                if line.strip():
                    yield AgentEvent.model_validate_json(line)

    # -- one call

    @asynccontextmanager
    async def _call(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        timeout: aiohttp.ClientTimeout = _PATIENT,
        **how: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(
                method, url, headers=self._headers | (headers or {}), timeout=timeout, **how
            ) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise await _refusal(answer)
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as problem:
            raise Unreachable(self._say(problem), sent=False) from problem
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as problem:
            raise Unreachable(self._say(problem), sent=True) from problem
        except ValidationError as problem:
            raise RefusedByAgent(
                "bad_answer", f"an answer that makes no sense: {problem}", final=False
            ) from problem

    def _say(self, problem: BaseException) -> str:
        if isinstance(problem, aiohttp.ClientConnectorError):
            why = f"{problem.host}:{problem.port}: {problem.os_error.strerror or problem.os_error}"
        elif isinstance(problem, TimeoutError):
            why = "no answer in time"
        else:
            why = str(problem) or type(problem).__name__
        return f"agent {self.name} cannot be reached: {why}"


def _payload(body: bytes) -> PayloadDoc:
    return PayloadDoc.model_validate_json(body)


async def _refusal(answer: aiohttp.ClientResponse) -> Exception:
    text = (await answer.content.read(64 << 10)).decode(errors="replace")
    try:
        body = json.loads(text)
        code, message = str(body.get("code", "")), str(body.get("message", "")) or text
    except (ValueError, AttributeError):
        code, message = "", text.strip()[:500]
    message = message or f"HTTP {answer.status}"
    if answer.status == HTTPStatus.NOT_FOUND and code in ("", "payload_not_found"):
        return NoSuchPayload(message)
    try:
        retry_after = float(answer.headers.get("Retry-After", ""))
    except ValueError:
        retry_after = None
    if code in ("stale_attempt", "key_refused"):
        retry_after = 0.0  # another attempt is needed, and is free
    elif answer.status == HTTPStatus.INSUFFICIENT_STORAGE and retry_after is None:
        retry_after = 30.0
    passing = retry_after is not None or answer.status in (
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
    )
    final = answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and not passing
    return RefusedByAgent(code, message, final=final, retry_after_s=retry_after)


async def _store(answer: aiohttp.ClientResponse, to: Path) -> Fetched:
    """The body to a file, durable; checked against ``Repr-Digest`` and ``Content-Length`` where
    given.
    """
    digest, size = hashlib.sha256(), 0
    with await asyncio.to_thread(to.open, "wb") as file:
        while chunk := await answer.content.readany():
            if size + len(chunk) > _CHUNK:
                await asyncio.to_thread(_write, file, digest, chunk)
            else:
                _write(file, digest, chunk)  # small: a thread would cost more than it saves
            size += len(chunk)
    announced = answer.headers.get("Repr-Digest", "")
    if announced.startswith("sha-256=:"):
        expected = base64.b64decode(announced.removeprefix("sha-256=:").rstrip(":"))
        if expected != digest.digest():
            raise Unreachable("the result arrived damaged: wrong digest", sent=True)
    return Fetched(size, digest.hexdigest())


def _write(file: Any, digest: Any, chunk: bytes) -> None:
    digest.update(chunk)
    file.write(chunk)
