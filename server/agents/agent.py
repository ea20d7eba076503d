"""What Ferryman agents and job-orchestrator clients have in common: state, and calls over HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from server.agents import answers
from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.domain.jobs import Job
from server.domain.service import Service
from server.measures import Measures
from server.storage.contents import Contents
from server.storage.scratch import ScratchFile
from shared.clock import Clock, Micros
from shared.http.authentication import NONCE, PROOF, check_proof, new_nonce
from shared.http.tls import TlsFiles, say_failure
from shared.wire import AgentHealth, AgentState, PayloadDoc, ResultInfo

LONG_CALL: Final = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
SHORT_CALL: Final = aiohttp.ClientTimeout(total=15, sock_connect=5)
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=5)
"""For a large body, whose answer comes when it is stored."""
_STALLED_S: Final = 120.0
"""Without taking a chunk of a bundle, until an agent counts as stuck."""
SMALL: Final = 256 << 10
"""Bytes of a body that is sent at once; and of a bundle, and inputs, that go with others."""


def say_connection(problem: BaseException | str, ca_key: str) -> str:
    """What went wrong, and where. ``ca_key``: the setting that names the CAs to trust."""
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        why = say_failure(problem.certificate_error)
        return f"{problem.host}:{problem.port}: {why} ({ca_key} names the CAs to trust)"
    if isinstance(problem, aiohttp.ClientConnectorSSLError):
        return f"{problem.host}:{problem.port}: no TLS: {say_failure(problem.os_error)}"
    if isinstance(problem, aiohttp.ClientConnectorError):
        error = problem.os_error  # asyncio says "Connect call failed" in the place of its text
        number = error.errno or 0
        text = os.strerror(number) if number > 0 else error.strerror or str(error)
        return f"{problem.host}:{problem.port}: {text}"
    if isinstance(problem, TimeoutError):
        return str(problem) or "no answer in time"
    return str(problem) or type(problem).__name__


class Body:
    """Of a request that brings an agent bundles; large ones are sent chunk by chunk.

    Attributes:
        size: bytes of the whole body.
        bundles: how many are in it.
        sent: it has taken the last chunk; before that no agent can have accepted it.
        why: it was given up; empty: it was not.
        patience: around the request that brings it.
    """

    def __init__(
        self, content_type: str, size: int, source: AsyncIterator[bytes], bundles: int = 1
    ) -> None:
        self.content_type, self.size, self.bundles = content_type, size, bundles
        self.sent, self.why = False, ""
        self.patience = asyncio.Timeout(None)
        self._source = source

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.size <= SMALL:
            body = b"".join([chunk async for chunk in self._source])
            self.sent = True
            self._wait(None)
            yield body
            return
        chunk = await anext(self._source, None)
        while chunk is not None:
            following = await anext(self._source, None)
            self.sent = following is None
            self._wait(None if self.sent else _STALLED_S)
            yield chunk
            chunk = following

    def give_up(self, why: str) -> None:
        """Wait for its answer no more."""
        self.why = self.why or why
        self._wait(0.0)

    def _wait(self, seconds: float | None) -> None:
        if self.why:
            seconds = 0.0
        when = None if seconds is None else asyncio.get_running_loop().time() + seconds
        with suppress(RuntimeError):  # it has come, or was given up
            self.patience.reschedule(when)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Connections for what must not wait, and for bundles and results."""

    control: aiohttp.ClientSession
    transfers: aiohttp.ClientSession
    contents: Contents
    """Where the bundles are."""
    measures: Measures = field(default_factory=Measures)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A ZIP of other jobs' files, which an attempt gets beside its bundle."""

    size: int
    sha256: str
    file: ScratchFile


class Agent:
    """One agent, and what is known of it.

    Args:
        base: its address, without a slash at the end.
        services: what the operator says it offers; empty: what it says itself.
        tls: what it is called with over https; None: as the system has it.
        identity: the secret by which its answers prove that they are its own; None: they need not.

    Attributes:
        agent_id: of its record, by which it is the same agent under another name.
        health: what it said of itself last.
        clock_ahead_s: how far its clock was ahead of ours then, at least; negative: behind.
        heard_at: when it said something last.
        heartbeat_at: when its last heartbeat came (monotonic); None: no further one would be
            noticed, or none has come since.
        unreachable: why it cannot be reached; empty: it can.
        unhealthy: why it cannot take new work, though it can be reached.
        contacts: how often it has become reachable.
        operator_state: what its operator wants of it.
        state_changed: set when that has become another.
        prefetch: how many jobs it may get beyond its slots.
        supports_events: it is a Ferryman agent, with keys and events, as the settings say. A
            job-orchestrator client is polled.
        max_runs: service -> most jobs of it that it may have at once; missing: any number.
        taken_over: it has seen a later start of this server, or of a copy.
    """

    supports_events: bool
    agent_id: str | None = None
    health: AgentHealth | None = None
    clock_ahead_s: float | None = None
    heard_at: Micros | None = None
    heartbeat_at: float | None = None

    def __init__(
        self,
        name: str,
        base: str,
        sessions: Sessions,
        clock: Clock,
        *,
        token: str | None = None,
        services: frozenset[str] = frozenset(),
        tls: TlsFiles | None = None,
        identity: str | None = None,
    ) -> None:
        self.name, self.base, self.services = name, base, services
        self.tls, self._identity = tls, identity
        self._sessions, self._clock = sessions, clock
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.unreachable = self.not_reached_yet
        self.unhealthy = ""
        self.contacts = 0
        self.operator_state = AgentState.ACTIVE
        self.state_changed = asyncio.Event()
        self.prefetch = 0
        self.max_runs: Mapping[str, int] = {}
        self._posts: set[Body] = set()
        self.taken_over = False

    @property
    def not_reached_yet(self) -> str:
        return f"agent {self.name} has not been reached yet"

    @property
    def reachable(self) -> bool:
        """Whether it can be talked to: it hands over results, kills, settles."""
        return not self.unreachable

    @property
    def accepts_work(self) -> bool:
        """Whether it may get new jobs."""
        return not self.trouble

    @property
    def excluded(self) -> str:
        """Why this server must not contact it, in a sentence; empty: it may."""
        if self.operator_state is AgentState.RETIRED:
            return f"agent {self.name} is retired"
        if self.taken_over:
            return (
                f"agent {self.name} was taken over by another server, or by a copy of this data "
                "folder: stop that one, then start this one again"
            )
        return ""

    @property
    def trouble(self) -> str:
        """Why it does not accept work, in a sentence; empty: it does."""
        drained = ""
        if self.operator_state is AgentState.DRAINING:
            drained = f"agent {self.name} gets no new jobs: it is draining"
        return self.excluded or self.unreachable or drained or self.unhealthy

    @property
    def slots(self) -> int | None:
        """How many jobs it runs at once; None: it does not say."""
        return self.health.slots if self.health else None

    @property
    def packs(self) -> bool:
        return self.health is not None and self.health.packs

    async def ask_health(self) -> AgentHealth:
        """Its health document; also when it is unhealthy. Raises AgentError: no health document
        came.
        """
        asked_at = self._clock.now()
        async with self._call(
            "GET", f"{self.base}/health", timeout=SHORT_CALL, accepted=frozenset({200, 503})
        ) as answer:
            self.clock_ahead_s = answers.clock_ahead_s(answer, asked_at, self._clock.now())
            health = await answers.document(answer, AgentHealth)
            well = answer.status == 200 and health.status == "ok"
            return health if well else health.model_copy(update={"status": "error"})

    # -- what an agent does; each raises Unreachable or RefusedByAgent

    async def submit(self, job: Job, service: Service, inputs: Inputs | None = None) -> PayloadDoc:
        """Send the current attempt and its bundle. With a Ferryman agent a repeat is harmless.
        ``inputs``: for Ferryman agents only. Raises OSError: the stored bundle cannot be read.
        """
        raise NotImplementedError

    async def settle(self, job: Job, *, kill: bool = False) -> PayloadDoc | None:
        """The payload under the key of the current attempt, or None and the promise that there will
        be none. Ferryman agents only.

        With ``kill`` its processes are dead when this returns. The payload may be of another
        bundle, see :func:`server.domain.outcome.is_of`.
        """
        raise NotImplementedError

    async def fetch(self, payload_id: int, to: ScratchFile, most: int | None = None) -> ResultInfo:
        """Download what an attempt left, ended or running, and check its digest. Raises
        NoSuchPayload. ``most``: bytes that it is said to have; more are refused.
        """
        raise NotImplementedError

    async def partial(self, job: Job, to: ScratchFile) -> ResultInfo:
        """Download what there is of the job's current attempt, and of no other. Raises
        NoSuchPayload.
        """
        raise NotImplementedError

    async def kill(self, payload_id: int, key: str | None = None) -> PayloadDoc | None:
        """Return once its processes are dead: the payload as it is then (None: the agent does not
        say). Raises NoSuchPayload. ``key``: that the payload must have; None: none is known.
        """
        raise NotImplementedError

    async def acknowledge(self, payload_id: int, key: str | None = None) -> None:
        """The agent may delete it, if it has the key. Repeats are harmless."""
        raise NotImplementedError

    # -- calls

    async def _download(self, url: str, to: ScratchFile, most: int | None = None) -> ResultInfo:
        with self._counted("result") as moved:
            async with self._call("GET", url, transfer=True) as answer:
                if answer.content_type != "application/zip":
                    raise ValueError(f"{answer.content_type} in place of a ZIP")
                fetched = await answers.store(answer, to, self._clock, most)
                moved(fetched.size)
            return fetched

    async def _post(self, url: str, body: Body) -> bytes:
        """Post bundles, and wait for the answer as long as the agent lives. Raises AgentError."""
        headers = {"Content-Type": body.content_type, "Content-Length": str(body.size)}
        patient = body.size > SMALL or not self.supports_events
        body.patience = asyncio.timeout(_STALLED_S)  # for a connection, then for each chunk
        self._posts.add(body)
        try:
            with self._counted("bundle", body.bundles) as moved:
                async with (
                    body.patience,
                    self._call(
                        "POST",
                        url,
                        data=body.chunks(),
                        headers=headers,
                        timeout=_NO_TIMEOUT if patient else LONG_CALL,
                        transfer=True,
                    ) as answer,
                ):
                    moved(body.size)
                    return await answers.read(answer)
        except TimeoutError:
            why = body.why or "it stopped taking the bundle"
            raise Unreachable(self._say(why), sent=body.sent) from None
        except Unreachable as problem:
            # A body that was not sent to its end cannot have been accepted.
            raise Unreachable(str(problem), sent=problem.sent and body.sent) from problem
        finally:
            self._posts.discard(body)

    def contact(self, unreachable: str = "") -> None:
        """It can be talked to, or cannot and why. What it got before it was away it does not answer
        any more.
        """
        if unreachable or not self.reachable:
            self.contacts += 0 if unreachable else 1
            self.cut_off("it went away before it answered", sent_only=True)
        self.unreachable = unreachable

    def cut_off(self, why: str, *, sent_only: bool = False) -> None:
        """End the transfer of all bundles to it, or wait no more for answers to those it has."""
        for body in self._posts:
            if body.sent or not sent_only:
                body.give_up(why)

    @contextmanager
    def _counted(self, kind: str, number: int = 1) -> Iterator[Callable[[int], None]]:
        """Around a transfer of some files: call what it gives with the bytes that came over."""
        sizes, outcome = [0], "failed"
        try:
            yield sizes.append
            outcome = "ok"
        except (RefusedByAgent, NoSuchPayload):
            outcome = "refused"
            raise
        finally:
            if number:
                self.count(kind, outcome, sum(sizes), number)

    def count(self, kind: str, outcome: str, size: int, number: int = 1) -> None:
        self._sessions.measures.transfers.done(kind, outcome, size, number)

    # -- one call

    @asynccontextmanager
    async def _call(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        timeout: aiohttp.ClientTimeout = LONG_CALL,
        transfer: bool = False,
        accepted: frozenset[int] = answers.OK,
        with_token: bool = True,
        **how: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session = self._sessions.transfers if transfer else self._sessions.control
        nonce = new_nonce() if self._identity is not None else ""
        own = self._headers if with_token else {}
        if nonce:
            own = own | {NONCE: nonce}
        try:
            async with session.request(
                method,
                url,
                headers=own | (headers or {}),
                timeout=timeout,
                allow_redirects=False,
                ssl=True if self.tls is None else self.tls.context,
                **how,
            ) as answer:
                if self._identity is not None:
                    check_proof(self._identity, nonce, answer.status, answer.headers.get(PROOF))
                if answer.status not in accepted:
                    raise await self._refusal(answer)
                yield answer
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as problem:
            raise Unreachable(self._say(problem), sent=False) from problem
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as problem:
            raise Unreachable(self._say(problem), sent=True) from problem

    async def _refusal(self, answer: aiohttp.ClientResponse) -> AgentError:
        """Raises ValueError: not an agent's words."""
        return await answers.refusal(answer)

    def _say(self, problem: BaseException | str) -> str:
        why = say_connection(problem, f"agents.{self.name}.ca_file")
        return f"agent {self.name} cannot be reached: {why}"
