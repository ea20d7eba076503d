"""Hostile bundles and attacks on what lies around the sandbox, from upload to download: queue,
retries, receipts, cancelling, and everybody else's work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import traceback
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from client_agent import app
from client_agent.collect.contents import Receipt
from client_agent.sandbox.base import Ended
from client_agent.settings.agent import load
from client_agent.storage.remove_tree import remove_tree
from ferryman import AlreadyEnded
from ferryman.sync import SyncClient
from shared.clock import RealClock
from shared.wire import JobDoc, Limits
from tests.kit.child import Child, Who, unprivileged_uid
from tests.kit.dev_program import of_jobs, outside
from tests.kit.memory_folder import new_folder
from tests.kit.programs import Program, until
from tests.sandbox.hostile_bundles import EXPECT, LOUD
from tests.sandbox.kernel_features import offers
from tests.sandbox.real_sandbox import MIB, SETTINGS, SMALL, Job, Outcome, bash, contents


class Agent:
    """An agent in a child of the test, which can be another user than the test."""

    def __init__(self, home: Path, who: Who) -> None:
        file, self._log, self.data = home / "agent.toml", home / "log", home / "data"
        file.write_text(AGENT)
        section = load(file, {"data_dir": self.data, "port": 0})

        def be(child: Child) -> None:
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                asyncio.run(app.serve(section, RealClock(), child.line.send))
            except BaseException:
                traceback.print_exc()
                raise

        child = Child(be, unprivileged_uid(who), home)
        self.pid = child.pid
        try:
            assert child.line.poll(PATIENCE_S), "the agent neither listens nor ends"
            self.url = f"http://127.0.0.1:{child.line.recv()}"
        except EOFError:
            raise AssertionError(f"the agent did not start: {self.log}") from None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self, number: signal.Signals) -> int:
        """Signal it, wait for its end; its exit code, negative where a signal ended it."""
        pid, self.pid = self.pid, 0
        os.kill(pid, number)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def left(self) -> list[str]:
        """What one that has stopped must not leave: folders of attempts, mounts, cgroups."""
        places = (self.data / place for place in ("work", "quarantine"))
        return [*(str(path) for place in places for path in place.glob("*")), *outside(self.data)]


@dataclass
class WholeSystem:
    """Server, agent, and a user who calls the server with the SDK."""

    server: Program
    agent: Agent
    user: SyncClient

    def outcome(self, job: JobDoc, to: Path) -> Outcome:
        """What came of an ended job, as the tests of the bare sandbox see it."""
        got = self.user.download(job.id, to, partial=job.status != "Completed")
        with zipfile.ZipFile(got.path) as archive:
            assert archive.testzip() is None
            receipt = Receipt.model_validate_json(archive.read("ferryman.json"))
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
        return Outcome(
            Ended(receipt.exit_code, reason, receipt.message, receipt.usage, warnings),
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


def submit(system: WholeSystem, job: Job, kind: str, **fields: Any) -> int:
    texts = contents(job.bundle).items()
    files = {name: text.encode() if isinstance(text, str) else text for name, text in texts}
    given = {"service": kind, "user": "ann", "timeout": job.timeout_s, **fields}
    return system.user.submit(files, **given).id


SERVICES = (
    service("small", SMALL)
    + service("loud", LOUD)
    + service("again", SMALL, retries=1, retry_delays=[0], retry_on=["exit:3"])
)
AGENT = (
    f"[agent]\nslots = 3\ngrace = 0.5\nlog_format = 'json'\n"
    f"[agent.sandboxing]\nscratch = {SETTINGS.scratch}\n"
)
"""Its sandbox is that of the tests of the bare sandbox."""
PATIENCE_S = 60
ENDS = (
    *("spoof-status", "daemon-double-fork", "root-replace", "exit-137", "log-binary", "res-names"),
    *("mem-bomb", "disk-bomb", "log-flood", "wall-sleep", "res-sparse"),
)
"""One for each way in which an end, a result or a limit is reported."""
BOMBS = ("fork-bomb", "thread-bomb", "tmpfs-bomb", "inode-bomb", "cpu-spin")


@pytest.fixture(scope="module")
def system(who: Who) -> Iterator[WholeSystem]:
    """Both programs; they must stop well and leave nothing behind."""
    folder = new_folder()
    folder.chmod(0o755)
    (folder / "agent").mkdir()
    agent = Agent(folder / "agent", who)
    config = folder / "server.toml"
    config.write_text(f"{SERVICES}\n[agents.only]\nurl = '{agent.url}'\n")
    server = Program("server", folder, uuid.uuid4().hex, "--config", str(config))
    try:
        with server.running(), SyncClient(server.url) as user:
            yield WholeSystem(server, agent, user)
            until(lambda: of_jobs(agent.pid) == {}, "processes are left")
            assert agent.stop(signal.SIGTERM) == 0, agent.log[-3000:]
            assert agent.left() == []
    finally:
        if agent.pid:
            agent.stop(signal.SIGKILL)
    remove_tree(folder)


class Asking(threading.Thread):
    """Asks both for their health, one question after the other, until it is stopped.

    Attributes:
        answers: how many came.
        trouble: the first that did not, or was not 200.
    """

    def __init__(self, *urls: str) -> None:
        super().__init__(daemon=True)
        self._urls, self._stop_requested = urls, threading.Event()
        self.answers = 0
        self.trouble: str | None = None

    def run(self) -> None:
        while not self._stop_requested.is_set() and self.trouble is None:
            for url in self._urls:
                try:
                    with urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
                        assert json.load(answer)["status"] == "ok"
                except Exception as problem:  # noqa: BLE001  # whatever it is, it is reported
                    self.trouble = f"{url}: {problem!r}"
                else:
                    self.answers += 1

    def stop(self) -> None:
        self._stop_requested.set()
        self.join()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_hostile_bundles_end_as_expected_and_everybody_else_is_served(
    system: WholeSystem, who: Who, every: bool, tmp_path: Path
) -> None:
    """Server and agent answer, and another user's jobs are done. Unprivileged, one by one, the
    bombs go off in test_attacks.py."""
    names = tuple(EXPECT) if every else (*ENDS, *(BOMBS if who == "root" else ()))
    wrong, goes_on, before = list[Exception](), True, system.agent.peak_bytes()
    asking = Asking(system.server.url, system.agent.url)
    asking.start()
    ids = {
        name: submit(
            system, job, "loud" if job.limits is LOUD else "small", name=name, user="mallory"
        )
        for name, (job, _) in EXPECT.items()
        if name in names
    }
    while goes_on:
        heard = asking.answers
        job = system.user.wait(submit(system, bash("echo hello\n"), "small"), PATIENCE_S)
        assert (job.status, asking.trouble) == ("Completed", None)
        until(lambda heard=heard: asking.answers > heard, "nobody answers")
        goes_on = any(not system.user.status(job_id).ended for job_id in ids.values())
    asking.stop()
    assert asking.trouble is None
    for name, job_id in ids.items():
        job = system.user.wait(job_id, PATIENCE_S)
        try:
            outcome = system.outcome(job, tmp_path / f"{name}.zip")
            assert [line for line in outcome.lines if "LEAK" in line] == []
            assert outcome.ended.reason not in ("agent_error", "sandbox_error"), job.message
            assert (outcome.enforcement["disk"] == "hard") == offers(who, "disk")
            EXPECT[name][1](outcome, who)
        except Exception as problem:  # noqa: BLE001  # all are reported together
            problem.add_note(f"{name}: {job.status} {job.reason} {job.message}")
            wrong.append(problem)
    assert system.agent.peak_bytes() - before < 64 * MIB
    if wrong:
        raise ExceptionGroup(f"{len(wrong)} of {len(ids)} bundles", wrong)


FORGED = """
cat >ferryman.json <<'X'
{"format": 1, "status": "Completed", "reason": null, "exit_code": 0, "job": 999}
X
echo '{"payload": {"id": 1, "status": "Completed"}}'
echo '::notice::done'; echo '{ "exit-code": 0 }'
echo 'agent.stopping' >&2
mkdir -p stdout.log stderr.log; echo mine >stdout.log/x
printf 'PK\\003\\004forged' >result.zip
exit 9
"""
CHANGES_ITSELF = """
if [ -e second ]; then echo 'LEAK: files of the first attempt'; fi
touch second
printf 'echo LEAK: the changed one; exit 0\\n' >run.sh.new; mv run.sh.new run.sh
chmod 777 run.sh; echo "attempt $FERRYMAN_ATTEMPT"
exit 3
"""


def test_a_job_cannot_forge_how_it_ended(system: WholeSystem, tmp_path: Path) -> None:
    forging = submit(system, bash(FORGED), "small")
    changing = submit(system, bash(CHANGES_ITSELF), "again")
    job = system.user.wait(forging, PATIENCE_S)
    assert (job.status, job.reason, job.exit_code) == ("Failed", "exit_code", 9)
    got = system.user.download(job.id, tmp_path / "forged.zip", partial=True)
    with zipfile.ZipFile(got.path) as archive:
        names = archive.namelist()
        receipts = [name for name in names if "ferryman" in name and name.endswith(".json")]
        texts = [json.loads(archive.read(name)) for name in receipts]
    (receipt,) = [one for one in texts if "enforcement" in one]
    assert (receipt["job"], receipt["exit_code"], receipt["status"]) == (job.id, 9, "Failed")
    # what the job made is there, under its own names, and ours beside it
    assert {"ferryman.json", "stdout.log/x", "result.zip"} <= set(names)
    assert len(names) == len({name.casefold() for name in names})

    again = system.user.wait(changing, PATIENCE_S)
    assert (again.status, again.attempt, again.exit_code) == ("Failed", 2, 3)
    assert system.outcome(again, tmp_path / "again.zip").stdout == "attempt 2\n"


def test_cancels_that_race_with_every_step_leave_nothing(system: WholeSystem) -> None:
    script = "trap 'echo no' TERM; (trap '' TERM; sleep 0.3 & wait) & sleep 0.2; wait\n"
    ends = set()
    for _ in range(12):
        job_id = submit(system, bash(script), "small", user="mallory")
        with contextlib.suppress(AlreadyEnded):  # on a slow machine
            system.user.cancel(job_id)
        ends.add(system.user.wait(job_id, PATIENCE_S).status)
    assert ends <= {"Cancelled", "Completed"}
    until(lambda: of_jobs(system.agent.pid) == {}, "processes are left")
    hello = submit(system, bash("echo hello\n"), "small")
    assert system.user.wait(hello, PATIENCE_S).status == "Completed"
