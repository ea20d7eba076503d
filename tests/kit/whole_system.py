"""The real server, a real agent as root or as another user, and bundles through both."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from client_agent import app
from client_agent.collect.contents import Receipt
from client_agent.sandbox.base import Ended, SelfTestReport
from client_agent.settings.agent import load
from ferryman.sync import SyncClient
from shared.clock import RealClock
from shared.wire import JobDoc, Limits
from tests.kit.dev_program import of_jobs, outside
from tests.kit.programs import Program, announced, until
from tests.kit.real_sandbox import (
    MIB,
    SETTINGS,
    Job,
    Outcome,
    Who,
    become,
    contents,
    unprivileged_uid,
)

GRACE_S = 0.5


class Agent:
    """An agent in a child of the test, which can be another user than the test."""

    def __init__(self, home: Path, who: Who, settings: str) -> None:
        self.home = home
        self._uid = unprivileged_uid() if os.geteuid() == 0 and who == "user" else None
        self._file = home / "agent.toml"
        self._file.write_text(settings)
        if self._uid is not None:
            os.chown(home, self._uid, self._uid)
        self.pid = self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on the port that it had before; wait until it listens."""
        given = {"data_dir": self.home / "data", "port": self.port}
        section = load(self._file, given)

        def begin(tell: int) -> None:
            self.pid = os.fork()
            if self.pid == 0:
                self._be(section, tell)

        _, port = announced(begin)
        assert port, f"the agent did not start: {self.log}"
        self.port = int(port)

    def _be(self, section: Any, tell: int) -> None:
        code = 1

        def ready(port: int) -> None:
            os.write(tell, f"{port}\n".encode())

        try:
            log = os.open(self.home / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            become(self._uid)
            asyncio.run(app.serve(section, RealClock(), ready))
            code = 0
        except BaseException:  # noqa: BLE001  # the test finds it in the log
            traceback.print_exc()
        finally:
            os._exit(code)

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it, wait for its end; its exit code, negative where a signal ended it."""
        pid, self.pid = self.pid, 0
        os.kill(pid, number)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


class WholeSystem:
    """Server, agent, and a user who calls the server with the SDK.

    Args:
        services: TOML of the server's services.
        agent: TOML of the agent.
    """

    def __init__(self, folder: Path, who: Who, services: str, agent: str) -> None:
        home = folder / "agent"
        home.mkdir()
        self.folder = folder
        self.agent = Agent(home, who, agent)
        self._services = services

    @contextmanager
    def running(self) -> Iterator[WholeSystem]:
        """Both, until the end; then they must stop well and leave nothing behind."""
        self.agent.start()
        config = self.folder / "server.toml"
        config.write_text(f"{self._services}\n[agents.only]\nurl = '{self.agent.url}'\n")
        self.server = Program("server", self.folder, uuid.uuid4().hex, "--config", str(config))
        try:
            self.server.start()
            with SyncClient(self.server.url) as self.user:
                yield self
            until(lambda: of_jobs(self.agent.pid) == {}, "processes are left")
            assert self.agent.stop() == 0, self.agent.log[-3000:]
            assert self.left() == []
            assert self.server.kill(signal.SIGTERM) == 0, self.server.log[-3000:]
        finally:
            if self.agent.pid:
                self.agent.stop(signal.SIGKILL)
            if self.server.runs:
                self.server.kill()

    def left(self) -> list[str]:
        """What stopped agents must not leave: folders of attempts, mounts, cgroups."""
        data = self.agent.home / "data"
        found = [str(path) for place in ("work", "quarantine") for path in (data / place).glob("*")]
        return found + outside(data)

    def result(self, job: JobDoc, to: Path) -> tuple[zipfile.ZipFile, Receipt]:
        got = self.user.download(job.id, to, partial=job.status != "Completed")
        archive = zipfile.ZipFile(got.path)
        assert archive.testzip() is None
        return archive, Receipt.model_validate_json(archive.read("ferryman.json"))

    def outcome(self, job: JobDoc, to: Path) -> Outcome:
        """What came of an ended job, as the tests of the bare sandbox see it."""
        archive, receipt = self.result(job, to)
        with archive:
            assert receipt.logs is not None
            assert (receipt.reason, receipt.exit_code) == (job.reason, job.exit_code)
            assert receipt.enforcement == job.enforcement
            texts = {
                name: archive.read(name).decode(errors="replace")
                for name in (receipt.logs.stdout, receipt.logs.stderr)
            }
            files = {name: archive.open(name).read(MIB) for name in archive.namelist()}
            size = archive.getinfo(receipt.logs.stdout).file_size
        too_much = receipt.reason == "results_limit"
        assert receipt.usage is not None
        reason, warnings = None if too_much else receipt.reason, tuple(receipt.warnings)
        box = receipt.sandbox
        return Outcome(
            Ended(receipt.exit_code, reason, receipt.message, receipt.usage, warnings),
            SelfTestReport(box.backend, box.version, receipt.enforcement),
            stdout=texts[receipt.logs.stdout],
            stderr=texts[receipt.logs.stderr],
            stdout_bytes=size,
            files=files,
            skipped=receipt.skipped,
            results_limit=receipt.message if too_much else None,
            enforcement=receipt.enforcement,
        )


def service(name: str, limits: Limits, **more: Any) -> str:
    """TOML of a service without retries and with room for everybody."""
    settings = {"runs_per_user": 8, "max_runs": 16, "timeout": 90, "infra_retries": 0, **more}
    lines = [f"{key} = {value!r}" for key, value in settings.items()]
    inner = ", ".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in limits.model_dump().items()
    )
    return "\n".join([f"[services.{name}]", *lines, f"limits = {{ {inner} }}", ""])


def sandboxing(slots: int) -> str:
    """TOML of an agent whose sandbox is that of the tests of the bare sandbox."""
    return (
        f"[agent]\nslots = {slots}\ngrace = {GRACE_S}\nlog_format = 'json'\n"
        f"[agent.sandboxing]\nscratch = {SETTINGS.scratch}\n"
    )


def submit(system: WholeSystem, job: Job, kind: str, **fields: Any) -> int:
    texts = contents(job.bundle).items()
    files = {name: text.encode() if isinstance(text, str) else text for name, text in texts}
    given = {"service": kind, "user": "ann", "timeout": job.timeout_s, **fields}
    return system.user.submit(files, **given).id
