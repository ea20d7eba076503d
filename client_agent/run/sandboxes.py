"""Which sandbox an attempt gets: one of its own, or one that it shares with others of its array.

Attempts of a pack run one after the other, in a sandbox that starts once. No attempt is bound to a
pack before it starts: a worker that has finished one takes the next that fits from the queue. So
slots are never idle because of packs, and a payload that waits can be cancelled as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from client_agent.payloads.payload import Payload
from client_agent.run.context import AgentContext
from client_agent.sandbox.base import Ahead, Grant, Pack, Workspace
from client_agent.sandbox.pack.pack import UNSAFE
from shared.files.bundles.format import META


def launch_argv(payload: Payload) -> tuple[str, ...]:
    """The command inside the sandbox."""
    return ("bash", payload.entry)


def variables(payload: Payload, grant: Grant, folder: str) -> dict[str, str]:
    """Those that the server's operator declared, and the agent's own, which have priority. What
    the agent's operator declared is left to the grant: it knows the host's paths.

    Args:
        folder: its directory, as it sees it.
    """
    declared = {name: value for name, value in payload.env.items() if name not in grant.env}
    own = {
        "FERRYMAN_JOB_ID": str(payload.job_id),
        "FERRYMAN_ATTEMPT": str(payload.try_number or payload.attempt),
        "FERRYMAN_SERVICE": payload.service,
        "FERRYMAN_CPUS": f"{payload.limits.cpus:g}",
        "FERRYMAN_MEMORY_BYTES": str(payload.limits.memory),
    }
    if payload.array is not None:
        own["FERRYMAN_ARRAY_INDEX"] = str(payload.array.index)
        if payload.array.line is not None:
            own["FERRYMAN_ARRAY_LINE"] = payload.array.line
    if payload.meta:
        own["FERRYMAN_META"] = f"{folder}/{META}"
    return declared | own


PASS_S: Final = 1.0
"""So long a worker goes on with its pack although others wait for longer. So packs of several users
do not end each other, and nobody waits for long attempts of others."""
LINGER_S: Final = 0.2
"""So long it keeps a sandbox for an attempt that may come."""
_LOOK_AT: Final = 500
"""Waiting payloads, at most, to find one that fits."""


class Sandboxes:
    """The sandboxes of one worker, for an attempt and those that follow it in its pack.

    Args:
        first: the attempt with which it begins.
        worker: number of the worker.
    """

    def __init__(self, context: AgentContext, first: Payload, worker: int) -> None:
        self._context, self._worker = context, worker
        self._kind = _kind(context, first)
        self._most = 1 if first.pack is None or self._kind is None else first.pack.most
        self._began_at = context.clock.monotonic()
        self._used = 0
        """Attempts that the pack has had."""
        self._pack: Pack | None = None

    async def prepare(self, payload: Payload) -> Workspace:
        """The directory of the attempt. Raises SandboxBroken or OSError."""
        sandbox, name = self._context.sandbox, str(payload.id)
        if self._kind is None:
            return await self._alone(payload)
        if self._pack is None or not self._pack.usable or self._used >= self._most:
            await self.close()
            self._pack = await sandbox.pack(f"pack-{name}", self._worker, payload.limits)
            self._used = 0
            if self._pack is None:
                self._kind = None
                return await self._alone(payload)
        self._used += 1
        return self._pack.workspace()

    async def _alone(self, payload: Payload) -> Workspace:
        grant = self._context.grants.for_service(payload.service)
        name = str(payload.id)
        ahead = Ahead(launch_argv(payload), payload.timeout_s, grant)
        return await self._context.sandbox.prepare(name, self._worker, payload.limits, ahead)

    @property
    def open(self) -> bool:
        """Whether a sandbox waits for another attempt."""
        return self._pack is not None and self._pack.usable and self._used < self._most

    def choose(self, queue: Mapping[int, Payload]) -> int | None:
        """The payload to go on with; None: it is others' turn, or there is none."""
        if not self.open:
            return None
        passes = self._context.clock.monotonic() - self._began_at < PASS_S
        for payload in islice(queue.values(), _LOOK_AT if passes else 1):
            if payload.pack is not None and _kind(self._context, payload) == self._kind:
                return payload.id
        return None

    async def close(self) -> None:
        """Remove what is left."""
        pack, self._pack = self._pack, None
        if pack is not None:
            await pack.close()


def _kind(context: AgentContext, payload: Payload) -> tuple[object, ...] | None:
    """Payloads of one kind may share a sandbox; None: it may with none."""
    grant = context.grants.for_service(payload.service)
    if payload.pack is None or payload.array is None or grant.allow & UNSAFE:
        return None
    return (
        payload.server,
        payload.pack.batch,
        payload.user_id,
        payload.service,
        payload.bundle_digest,
        payload.folder,
        payload.entry,
        payload.limits,
        payload.timeout_s,
        payload.env,
        grant,
    )
