"""One attempt on its way: unpack, gate, its turn, Running, run.sh, collect, outcome.

Only what runs takes a turn. Others are unpacked and started up to their closed gates meanwhile, or
collected and written down: with short jobs that is most of the time, and most of it is waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar

import structlog

from client_agent.collect import result
from client_agent.payloads.payload import Outcome, Payload
from client_agent.run import outcome
from client_agent.run.context import House
from client_agent.run.unpack import DoesNotFit, unpack
from client_agent.sandbox.base import (
    Ended,
    Launch,
    Process,
    SandboxBroken,
    Workspace,
)
from client_agent.storage.shortage import SHORTAGE_ERRNOS
from shared.files.errors import BundleError
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import PayloadState, Reason

S = PayloadState
P = ParamSpec("P")
T = TypeVar("T")
log: structlog.stdlib.BoundLogger = structlog.get_logger()

RETRY_S: Final = 1.0
"""Between two tries where the database cannot take a change, or the agent is short of something."""
PACK_TRIES: Final = 30
"""So often a shortage may keep the agent from packing a result; then it is lost."""


class NotNow(Exception):
    """An attempt could not be started for a shortage: it stays Prepared, and is tried again."""


class Attempt:
    """One payload in one seat.

    Args:
        seat: no other attempt has it at the same time.

    Attributes:
        settled: set once its end is written down and none of its processes is alive; also when it
            turned out not to start.
    """

    def __init__(self, house: House, payload: Payload, seat: int) -> None:
        self.payload = payload
        self.settled = asyncio.Event()
        self._house, self._seat = house, seat
        self._workspace: Workspace | None = None
        self._process: Process | None = None
        self._dropped = self._launching = False
        self._readers = 0
        self._unread = asyncio.Event()
        self._unread.set()

    async def run(self) -> None:
        """From Prepared to ended; or it stays Prepared, because the agent shuts down.

        Raises:
            DatabaseUnavailable: it could not be written down as Running, and did not start.
            NotNow: it did not start.
        """
        house, payload = self._house, self.payload
        if not await self._room():
            return
        try:
            workspace = await house.sandbox.prepare(str(payload.id), self._seat, payload.limits)
        except (SandboxBroken, OSError) as problem:
            _check_shortage(problem)
            await self._broken(problem)
            return
        self._workspace = workspace
        try:
            if await self._unpacked(workspace):
                await self._launch(workspace)
        finally:
            self._workspace = None
            await self._unread.wait()
            await workspace.destroy()
            self.settled.set()

    # -- asked from outside

    def cancel(self) -> None:
        """Its user does not want it any more; await :attr:`settled` for the end."""
        if self._process is not None:
            self._process.stop(None, outcome.CANCELLED)

    def drop(self) -> bool:
        """It shall not start any more. True: a closed gate is there to be taken down, await
        :attr:`settled`."""
        self._dropped = True
        self._house.turns.drop(self.payload.id)
        return self._launching

    def leave(self, *, grace: bool) -> None:
        """The agent shuts down: end what runs, start nothing."""
        self.drop()
        if self._process is not None:
            self._process.stop(Reason.SHUTDOWN, outcome.STOPPED, grace=grace)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[int | None]:
        """Descriptor of its directory, which stays until the context ends; None: it has none."""
        if self._workspace is None:
            yield None
            return
        self._readers += 1
        self._unread.clear()
        try:
            yield self._workspace.fd
        finally:
            self._readers -= 1
            if self._readers == 0:
                self._unread.set()

    # -- the way

    async def _room(self) -> bool:
        """Wait for space on the disk: a full one is no reason to fail. False: dropped meanwhile."""
        house = self._house
        while not self._dropped and house.folders.free_bytes() < house.min_free:
            log.warning("payload.waits_for_space", payload=self.payload.id)
            await house.clock.sleep(RETRY_S)
        return not self._dropped

    async def _unpacked(self, workspace: Workspace) -> bool:
        house, payload = self._house, self.payload
        try:
            await house.in_thread(
                unpack, house.folders.bundle(payload.bundle_file), payload, workspace
            )
        except DoesNotFit as problem:
            await self._end(S.PREPARED, outcome.failed(Reason.DISK_LIMIT, str(problem)))
            return False
        except (BundleError, OSError) as problem:
            _check_shortage(problem)
            # It was whole when it was taken: this disk is to blame, not the bundle.
            message = f"the bundle could not be unpacked: {problem}"
            await self._end(S.PREPARED, outcome.failed(Reason.AGENT_ERROR, message))
            return False
        return not self._dropped

    async def _launch(self, workspace: Workspace) -> None:
        self._launching = True
        try:
            process = await workspace.start(self._order())
        except (SandboxBroken, OSError) as problem:
            _check_shortage(problem)
            await self._broken(problem)
            return
        self._process = process
        try:
            ended = await self._ran(workspace, process)
        finally:
            # After a normal end this does nothing; otherwise nothing may outlive this attempt.
            process.stop(None, outcome.CANCELLED, grace=False)
            await process.wait()
        if ended is None:
            return
        told = outcome.of(ended, self.payload.timeout_s, workspace.enforcement)
        told = replace(told, ended_at=self._house.clock.now())
        if ended.certain:
            told = await self._packed(workspace, told)
        await self._end(S.RUNNING, told)

    async def _ran(self, workspace: Workspace, process: Process) -> Ended | None:
        """How it ended; None: it was not to start."""
        house, payload = self._house, self.payload
        if self._dropped or not await house.turns.take(payload.id):
            return None
        try:
            running = await house.payloads.start(
                payload.id, process.pid, str(workspace.path), dict(workspace.enforcement)
            )
            if running is None or self._dropped:
                return None
            self.payload = running
            log.info("payload.started", payload=payload.id, key=payload.key)
            process.go()
            return await process.wait()
        finally:
            house.turns.give_back()

    async def _packed(self, workspace: Workspace, told: Outcome) -> Outcome:
        house = self._house
        tries = 0
        while True:
            try:
                return await house.in_thread(
                    result.pack, house.attempted(self.payload), told, house.folders, workspace.fd
                )
            except OSError as problem:
                log.warning("payload.not_packed", payload=self.payload.id, problem=str(problem))
                tries += 1
                if tries == PACK_TRIES or problem.errno not in SHORTAGE_ERRNOS:
                    return _not_stored(told, problem)
            await house.clock.sleep(RETRY_S)

    async def _broken(self, problem: SandboxBroken | OSError) -> None:
        if isinstance(problem, SandboxBroken):
            self._house.watch.mark_broken(problem)
        await self._end(S.PREPARED, outcome.failed(Reason.SANDBOX_ERROR, str(problem)))

    async def _end(self, before: PayloadState, told: Outcome) -> None:
        """Write it down, however long the database takes to recover; drop what is not needed."""
        house, payload_id = self._house, self.payload.id
        ended = await self._write_end(before, told)
        if ended is not None:
            self.payload = ended
            log.info(
                "payload.ended",
                payload=payload_id,
                key=ended.key,
                state=told.state,
                reason=told.reason,
                exit_code=told.exit_code,
            )
        self.settled.set()
        await house.folders.remove_run_files(payload_id, self.payload.bundle_file)

    async def _write_end(self, before: PayloadState, told: Outcome) -> Payload | None:
        house, payload_id = self._house, self.payload.id
        while True:
            try:
                return await house.payloads.end(payload_id, before, told)
            except DatabaseUnavailable as problem:
                log.warning("payload.end_not_stored", payload=payload_id, problem=str(problem))
                await house.clock.sleep(RETRY_S)

    def _order(self) -> Launch:
        payload, folders = self.payload, self._house.folders
        return Launch(
            argv=("bash", "run.sh"),
            env={
                "FERRYMAN_JOB_ID": str(payload.job_id),
                "FERRYMAN_ATTEMPT": str(payload.attempt),
                "FERRYMAN_SERVICE": payload.service,
                "FERRYMAN_CPUS": f"{payload.limits.cpus:g}",
                "FERRYMAN_MEMORY_BYTES": str(payload.limits.memory),
            },
            timeout_s=payload.timeout_s,
            grace_s=self._house.grace_s,
            stdout=folders.log(payload.id, "stdout"),
            stderr=folders.log(payload.id, "stderr"),
            grant=self._house.grants.for_service(payload.service),
        )


def _check_shortage(problem: Exception) -> None:
    """Raises NotNow for a shortage, which has nothing to do with the attempt."""
    if isinstance(problem, OSError) and problem.errno in SHORTAGE_ERRNOS:
        raise NotNow(str(problem)) from problem


def _not_stored(told: Outcome, problem: OSError) -> Outcome:
    """The attempt has ended, and what it left is lost."""
    message = f"the result could not be stored: {problem.strerror or problem}"
    if told.state is not S.COMPLETED:
        return replace(told, warnings=(*told.warnings, message))
    return replace(
        told, state=S.FAILED, reason=Reason.AGENT_ERROR, message=message, interrupted=True
    )
