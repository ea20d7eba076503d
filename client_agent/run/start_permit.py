"""What an attempt needs before its gate opens: a slot, and a row that says Running."""

from __future__ import annotations

import asyncio

from client_agent.payloads.payload import Payload
from client_agent.run.context import AgentContext
from client_agent.sandbox.base import Workspace


class StartPermit:
    """Both are taken while the sandbox comes up, if a slot is free then; else afterwards, once the
    sandbox is ready and a slot is free."""

    def __init__(self, context: AgentContext, payload: Payload, workspace: Workspace) -> None:
        self._context, self._payload, self._workspace = context, payload, workspace
        self._has_slot = self._prevented = False
        self._storing: asyncio.Task[Payload | None] | None = None

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
