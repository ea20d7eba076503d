"""The parts of an agent, to be tested without a process."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from client_agent.intake.admission import Identity
from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.payload import ENDED, NewPayload, Payload
from client_agent.payloads.store import MIGRATIONS, Payloads
from client_agent.run.context import AgentContext, Measures, SlotQueue
from client_agent.run.retention import recover
from client_agent.run.runner import Runner
from client_agent.sandbox.base import Grant, Grants
from client_agent.sandbox.watch import SandboxWatch
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from shared.files.bundles.format import BundleSummary
from shared.files.bundles.writer import BundleWriter
from shared.sqlite.database import Database
from shared.wire import Limits
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeSandbox

SERVER = "server-one"
LIMITS = Limits(log=1 << 16, results=1 << 20, disk=1 << 20)


def numbered(prefix: str = "f"):
    """File names for :class:`Folders`, the same in every run."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


def new_payload(
    key: str | None = "1.1",
    *,
    server: str | None = SERVER,
    bundle: str = "b1",
    sealed: BundleSummary | None = None,
    service: str = "example",
    limits: Limits = LIMITS,
    timeout_s: float = 60.0,
    heartbeat_timeout_s: float = 0.0,
) -> NewPayload:
    """As intake would make it; ``key`` None: of a job-orchestrator server."""
    return NewPayload(
        server=None if key is None else server,
        key=key,
        service=service,
        user_id="ann",
        timeout_s=timeout_s,
        limits=limits,
        bundle_file=bundle,
        bundle_size=100 if sealed is None else sealed.size,
        bundle_digest="0" * 64 if sealed is None else sealed.digest,
        heartbeat_timeout_s=heartbeat_timeout_s,
    )


def write_bundle(path: Path, files: Mapping[str, bytes]) -> BundleSummary:
    """A sealed bundle at ``path``."""
    writer = BundleWriter(path, max_files=1000, max_bytes=1 << 30)
    for name, data in files.items():
        writer.add(name)
        writer.write(data)
        writer.end()
    return writer.finish()


def stored_bundle(folders: Folders, files: Mapping[str, bytes]) -> tuple[str, BundleSummary]:
    """A sealed bundle among the agent's; its name there."""
    staged = folders.staging()
    sealed = write_bundle(staged, files)
    return folders.seal_bundle(staged), sealed


def contents(path: Path) -> dict[str, bytes]:
    """Files of a ZIP."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class Rig:
    """Store, folders, runner and recovery of one agent, over a fake sandbox."""

    def __init__(self, home: Path, clock: SimClock, *, slots: int = 2, ahead: int = 1) -> None:
        self.home, self.clock, self.slots, self.ahead = home, clock, slots, ahead
        self.token = numbered()
        self.sandbox = FakeSandbox(clock, home)
        self.threads = ThreadPoolExecutor(slots + 1)
        self.database: Database | None = None
        self.opened = False
        self.grants = Grants(Grant(), {})

    async def open(self) -> None:
        """Start, as after any end of the previous run."""
        self.database = await self.open_database()
        self.folders = self.open_folders()
        self.payloads = await Payloads.open(self.database, self.clock)
        waiting = await recover(self.payloads, self.folders, self.sandbox)
        self.watch = SandboxWatch(self.sandbox, self.clock)
        await self.watch.self_test()
        self.bundles = SharedBundles(self.folders, self.clock)
        self.context = AgentContext(
            self.payloads,
            self.folders,
            self.bundles,
            self.sandbox,
            self.clock,
            self.threads,
            self.watch,
            Identity("agent-id", "node-1", "1.0", self.slots, {}, None, 0),
            5.0,
            SlotQueue(self.slots),
            self.grants,
            LiveOutputs(self.clock, self.payloads.wakeups),
            Measures(self.clock),
        )
        self.runner = Runner(self.context, self.slots + self.ahead)
        self.runner.start(waiting)
        self.opened = True

    async def open_database(self) -> Database:
        return await Database.open(self.home / "agent.sqlite", MIGRATIONS)

    def open_folders(self) -> Folders:
        return Folders(self.home, self.token)

    async def close(self) -> None:
        """Stop as SIGTERM does, without time for attempts."""
        await self.runner.stop(0.0)
        await self.shut()

    async def shut(self) -> None:
        """Close the files, as the end of a process does."""
        self.threads.shutdown(wait=True)
        if self.database is not None:
            await self.database.close()

    async def submit(self, key: str | None = "1.1", files=None, **more) -> Payload:
        """As intake does."""
        name, sealed = stored_bundle(self.folders, files or {"run.sh": b"exit 0\n"})
        payload, created = await self.payloads.add(
            new_payload(key, bundle=name, sealed=sealed, **more)
        )
        assert created
        self.runner.enqueue(payload)
        return payload

    async def ended(self, payload_id: int) -> Payload:
        """Wait until it has ended."""
        with self.payloads.wakeups.of(payload_id, end_only=True) as over:
            if (await self.payloads.get(payload_id)).state not in ENDED:
                await over.wait()
        return await self.payloads.get(payload_id)

    def result(self, payload_id: int) -> dict[str, bytes]:
        return contents(self.folders.result(payload_id))

    def receipt(self, payload_id: int) -> dict[str, Any]:
        receipt: dict[str, Any] = json.loads(self.result(payload_id)["ferryman.json"])
        return receipt
