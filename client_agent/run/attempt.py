"""One attempt: unpack, launch to the closed gate, get a slot, run, pack, store the outcome.

An attempt holds a slot only while run.sh runs. Before that it is unpacked and launched up to its
closed gate, after that it is packed and stored. With short jobs these steps take most of the time,
and most of it is waiting: so they happen while other attempts run. If a slot is free already while
the sandbox comes up, it is stored as Running meanwhile; the gate opens only when both are done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import structlog

from client_agent.collect import result
from client_agent.collect.selection import Given
from client_agent.output.live import LiveOutput, run_watched
from client_agent.payloads.payload import Outcome, Payload
from client_agent.run import outcomes
from client_agent.run.context import RETRY_S, AgentContext
from client_agent.run.sandboxes import Sandboxes, launch_argv, variables
from client_agent.run.unpack import CannotStart, DoesNotFit, Unpacked, unpack
from client_agent.sandbox.base import Ended, Launch, Process, SandboxBroken, Workspace
from client_agent.storage.open_beneath import SHORTAGE_ERRNOS
from shared.files.names import BundleError
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import PayloadState, Reason


class StartPermit:
    """Both are taken while the sandbox comes up, if a slot is free then; else afterwards, once the
    sandbox is ready and a slot is free."""

    def __init__(self, context: AgentContext, payload: Payload, workspace: Workspace) -> None:
        self._context, self._payload, self._workspace = context, payload, workspace
        self._has_slot = self._prevented = False
        self._storing: asyncio.Task[Payload | None] | None = None

    @property
    def has_slot(self) -> bool:
        """Whether it runs from now on: its row says Running, or will in a moment."""
        return self._has_slot

    def prevent(self) -> None:
        """Take nothing that is not taken yet."""
        self._prevented = True
        self._context.slots.withdraw(self._payload.id)

    def begin(self, pid: int) -> None:
        """The sandbox comes up.

        Args:
            pid: of its init.
        """
        if not self._prevented and self._context.slots.acquire_free():
            self._has_slot = True
            self._context.measures.took("slot", 0.0)
            self._storing = asyncio.create_task(self._store(pid))

    async def begun(self) -> Payload | None:
        """The Running payload, if it was stored already. Raises DatabaseUnavailable."""
        return None if self._storing is None else await self._storing

    async def get(self, pid: int) -> Payload | None:
        """The sandbox is ready: the Running payload; None: it must not start. Raises
        DatabaseUnavailable."""
        if self._storing is not None:
            return await self._storing
        if self._prevented:
            return None
        with self._context.measures.phase("slot"):
            self._has_slot = await self._context.slots.acquire(self._payload.id)
        return await self._store(pid) if self._has_slot else None

    def release(self) -> None:
        """Give the slot back."""
        if self._has_slot:
            self._has_slot = False
            self._context.slots.release()
        if self._storing is not None:
            self._storing.cancel()

    async def _store(self, pid: int) -> Payload | None:
        """None: it was no longer Prepared."""
        workspace = self._workspace
        return await self._context.payloads.start(
            self._payload.id, pid, str(workspace.path), dict(workspace.enforcement)
        )


log: structlog.stdlib.BoundLogger = structlog.get_logger()

PACK_TRIES: Final = 30
"""Tries during a shortage; then the result is lost."""


async def packed(
    context: AgentContext, payload: Payload, given: Given, workspace: Workspace, outcome: Outcome
) -> tuple[Outcome, bytes | None]:
    """The outcome with its result, and that itself if it is small; without it where it could not be
    stored."""
    source, tries = context.receipt_source(payload, given), 0
    while True:
        try:
            with context.measures.phase("pack"):
                return await context.in_thread(
                    result.pack, source, outcome, context.folders, workspace.fd
                )
        except OSError as problem:
            log.warning("payload.not_packed", payload_id=payload.id, error=str(problem))
            tries += 1
            if tries == PACK_TRIES or problem.errno not in SHORTAGE_ERRNOS:
                return _without_result(outcome, problem), None
        await context.clock.sleep(RETRY_S)


def _without_result(outcome: Outcome, problem: OSError) -> Outcome:
    """The outcome of an attempt whose result is lost."""
    message = f"the result could not be stored: {problem.strerror or problem}"
    if outcome.state is not PayloadState.COMPLETED:
        return replace(outcome, warnings=(*outcome.warnings, message))
    return replace(
        outcome,
        state=PayloadState.FAILED,
        reason=Reason.AGENT_ERROR,
        message=message,
        interrupted=True,
    )


class StartDeferred(Exception):
    """The agent was short of something: the attempt stays Prepared and is started later."""


class Attempt:
    """One payload, handled by one worker.

    Args:
        sandboxes: of the worker.

    Attributes:
        finished: set once the end is stored and no process is alive; also when it did not start.
        start_prevented: it must not start any more.
    """

    def __init__(self, context: AgentContext, payload: Payload, sandboxes: Sandboxes) -> None:
        self.payload = payload
        self.finished = asyncio.Event()
        self._context, self._sandboxes = context, sandboxes
        self._workspace: Workspace | None = None
        self._process: Process | None = None
        self._unpacked = Unpacked()
        self._cancelled = False
        self.start_prevented = False
        self._permit: StartPermit | None = None
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()

    async def run(self) -> None:
        """From Prepared to its end; or it stays Prepared, because the agent shuts down. Raises
        DatabaseUnavailable if it could not be stored as Running, or StartDeferred: then it did
        not start."""
        context = self._context
        if not await self._wait_for_space():
            return
        try:
            with context.measures.phase("sandbox"):
                workspace = await self._sandboxes.prepare(self.payload)
        except (SandboxBroken, OSError) as problem:
            await self._sandbox_failed(problem)
            return
        self._workspace = workspace
        try:
            if await self._unpack(workspace):
                await self._launch(workspace)
        finally:
            self._workspace = None
            await self._no_readers.wait()
            await workspace.destroy()
            self.finished.set()

    @property
    def continues(self) -> bool:
        """Whether it runs, and a stopping agent is to wait for it. It runs once it has a slot: its
        row may say Running then before its sandbox is up."""
        runs = self._permit is not None and self._permit.has_slot and not self.finished.is_set()
        return runs and self.payload.on_shutdown == "continue"

    @property
    def given(self) -> Given:
        """Files that its result refers to where they are as they were."""
        return self._unpacked.given

    # -- called by the runner

    def cancel(self) -> None:
        """Stop what runs, as cancelled by its user; await :attr:`finished` for the end."""
        self._cancelled = True  # it may be Running before its sandbox is up
        if self._process is not None:
            self._process.stop(None, outcomes.CANCELLED)

    def prevent_start(self) -> bool:
        """Do not start it any more. True: it was launched already, up to its closed gate; await
        :attr:`finished` for the end of that."""
        self.start_prevented = True
        if self._permit is None:
            return False
        self._permit.prevent()
        return True

    def shut_down(self, *, grace: bool) -> None:
        """The agent shuts down: stop what runs, start nothing."""
        self.prevent_start()
        if self._process is not None:
            self._process.stop(Reason.SHUTDOWN, outcomes.STOPPED, grace=grace)

    @contextlib.asynccontextmanager
    async def directory(self) -> AsyncIterator[int | None]:
        """Descriptor of its directory, which is kept until the context ends; None: it has none."""
        if self._workspace is None:
            yield None
            return
        self._readers += 1
        self._no_readers.clear()
        try:
            yield self._workspace.fd
        finally:
            self._readers -= 1
            if self._readers == 0:
                self._no_readers.set()

    # -- steps

    async def _wait_for_space(self) -> bool:
        """Wait until the disk has space: a full one does not fail attempts. False: prevented."""
        context, min_free = self._context, self._context.identity.min_free
        while not self.start_prevented and context.folders.free_bytes() < min_free:
            log.warning("payload.waits_for_space", payload_id=self.payload.id)
            await context.clock.sleep(RETRY_S)
        return not self.start_prevented

    async def _unpack(self, workspace: Workspace) -> bool:
        context, payload = self._context, self.payload
        try:
            with context.measures.phase("unpack"):
                self._unpacked = await context.in_thread(
                    unpack, context.folders, payload, workspace
                )
        except CannotStart as problem:
            invalid = Outcome(
                PayloadState.INVALID, reason=Reason.INVALID_BUNDLE, message=str(problem)
            )
            await self._end(PayloadState.PREPARED, invalid)
            return False
        except DoesNotFit as problem:
            failed = outcomes.failed(Reason.DISK_LIMIT, str(problem))
            await self._end(PayloadState.PREPARED, failed)
            return False
        except (BundleError, OSError) as problem:
            _check_shortage(problem)
            # The bundle was complete when it was accepted: this disk is to blame, not the bundle.
            context.bundles.forget(payload.bundle_file)
            message = f"the bundle could not be unpacked: {problem}"
            await self._end(PayloadState.PREPARED, outcomes.failed(Reason.AGENT_ERROR, message))
            return False
        return not self.start_prevented

    async def _launch(self, workspace: Workspace) -> None:
        permit = self._permit = StartPermit(self._context, self.payload, workspace)
        with self._context.outputs.open(self.payload.id) as output:
            try:
                ended = await self._start_and_run(workspace, permit, output)
            finally:
                permit.release()
            if ended is not None:
                await self._collect(workspace, output, ended)

    async def _collect(self, workspace: Workspace, output: LiveOutput, ended: Ended) -> None:
        output.end()
        outcome = outcomes.of(
            ended, self.payload.timeout_s, workspace.enforcement, self.payload.entry
        )
        outcome = outcomes.with_output(outcome, output)
        warnings = (*self._unpacked.warnings, *outcome.warnings)
        outcome = replace(outcome, ended_at=self._context.clock.now(), warnings=warnings)
        content = None
        if ended.certain:
            how = self.payload, self.given, workspace, outcome
            outcome, content = await packed(self._context, *how)
        await self._end(PayloadState.RUNNING, outcome, content)

    async def _start_and_run(
        self, workspace: Workspace, permit: StartPermit, output: LiveOutput
    ) -> Ended | None:
        """None: run.sh did not start."""
        try:
            with self._context.measures.phase("start"):
                process = await workspace.start(self._launch_spec(workspace, permit, output))
        except (SandboxBroken, OSError) as problem:
            running = await permit.begun()
            if running is not None:
                self.payload = running
            await self._sandbox_failed(problem)
            return None
        self._process = process
        try:
            return await self._run(process, workspace, permit, output)
        finally:
            # After a normal end this does nothing. After anything else it ends the processes.
            process.stop(None, outcomes.CANCELLED, grace=False)
            await process.wait()

    async def _run(
        self, process: Process, workspace: Workspace, permit: StartPermit, output: LiveOutput
    ) -> Ended | None:
        """Run it once it has a slot and its row says Running. None: its start was prevented."""
        running = await permit.get(process.pid)
        if running is None:
            return None
        self.payload = running
        if self.start_prevented:  # its row says Running, so it needs an end
            process.stop(Reason.SHUTDOWN, outcomes.STOPPED, grace=False)
        elif self._cancelled:
            process.stop(None, outcomes.CANCELLED, grace=False)
        else:
            log.info("payload.started", payload_id=running.id, key=running.key)
            context = self._context
            self.given.begin(workspace.fd)
            with context.outputs.running(running), context.measures.phase("run"):
                return await run_watched(
                    process, output, running.heartbeat_timeout_s, context.clock
                )
        return await process.wait()

    async def _sandbox_failed(self, problem: SandboxBroken | OSError) -> None:
        """It ends; after a shortage it stays Prepared, if its row does not say Running."""
        before = self.payload.state
        if before is PayloadState.PREPARED:
            _check_shortage(problem)
        if isinstance(problem, SandboxBroken):
            self._context.watch.mark_broken(problem)
        await self._end(before, outcomes.failed(Reason.SANDBOX_ERROR, str(problem)))

    async def _end(
        self, before: PayloadState, outcome: Outcome, content: bytes | None = None
    ) -> None:
        """Store the outcome and a small result, then remove the files that are not needed any
        more."""
        ended = await self._store_end(before, outcome, content)
        if ended is not None:
            self.payload = ended
            log.info(
                "payload.ended",
                payload_id=ended.id,
                key=ended.key,
                state=outcome.state,
                reason=outcome.reason,
                exit_code=outcome.exit_code,
            )
        self.finished.set()
        await self._context.remove_run_files(self.payload)

    async def _store_end(
        self, before: PayloadState, outcome: Outcome, content: bytes | None
    ) -> Payload | None:
        """Try until the database takes it, however long it takes to recover."""
        context, payload_id = self._context, self.payload.id
        while True:
            try:
                return await context.payloads.end(payload_id, before, outcome, content)
            except DatabaseUnavailable as problem:
                log.warning("payload.end_not_stored", payload_id=payload_id, error=str(problem))
                await context.clock.sleep(RETRY_S)

    def _launch_spec(self, workspace: Workspace, permit: StartPermit, output: LiveOutput) -> Launch:
        payload, context = self.payload, self._context
        grant = context.grants.for_service(payload.service)
        return Launch(
            argv=launch_argv(payload),
            env=variables(payload, grant, workspace.seen_as),
            timeout_s=payload.timeout_s,
            grace_s=context.grace_s,
            stdout=context.folders.log(payload.id, "stdout"),
            stderr=context.folders.log(payload.id, "stderr"),
            grant=grant,
            listener=output,
            on_init=permit.begin,
        )


def _check_shortage(problem: Exception) -> None:
    """Raises StartDeferred for a shortage, which has nothing to do with the attempt."""
    if isinstance(problem, OSError) and problem.errno in SHORTAGE_ERRNOS:
        raise StartDeferred(str(problem)) from problem
