"""What every attempt on this agent has in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from client_agent.collect.result import ReceiptSource
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.run.slots import Turns
from client_agent.sandbox.base import Sandbox
from client_agent.sandbox.grants import Grants
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage.folders import Folders
from shared.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class House:
    """What every attempt on this agent has in common."""

    payloads: Payloads
    folders: Folders
    sandbox: Sandbox
    clock: Clock
    threads: ThreadPoolExecutor
    """For unpacking and collecting, so that they never starve HTTP of threads."""
    watch: SandboxWatch
    agent: str
    """Its name."""
    version: str
    grace_s: float
    """From SIGTERM to SIGKILL."""
    turns: Turns
    min_free: int
    """Bytes of the disk; with fewer nothing is started."""
    grants: Grants

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work; it is over when this returns, whatever happens to the caller."""
        return await asyncio.get_running_loop().run_in_executor(
            self.threads, lambda: work(*args, **kwargs)
        )

    def attempted(self, payload: Payload) -> ReceiptSource:
        """What a receipt tells of it."""
        return ReceiptSource(
            payload,
            payload.outcome,
            self.agent,
            self.version,
            self.watch.report,
            self.grants.for_service(payload.service),
        )
