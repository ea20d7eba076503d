"""SIGHUP: settings that change under load, an agent that goes and comes, certificates renewed.
Agents and server are stopped, drained and started again, one after the other, under load.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import signal
import ssl
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from client_agent import app
from client_agent.settings.agent import AgentSection
from client_agent.storage.remove_tree import remove_tree
from server import app as server_app
from server.settings.tables import ServerSettings
from shared.clock import RealClock
from shared.http.sockets import CannotListen
from tests.kit.certificates import Certificate, authority
from tests.kit.clock import SimClock
from tests.kit.fake_sandbox import FakeSandbox
from tests.kit.memory_folder import new_folder
from tests.kit.programs import PATIENCE_S, Pair, Program, until

FIRST, JOBS = 3, 8
RUNS = "[services.example]\nenv = {{ KEY = 'hunter{}' }}\nmax_runs = {}\nruns_per_user = {}\n"
AGENT = '[agent]\nslots = 4\nsandbox = "none"\n'


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that jobs may enter and write to, whoever they run as; pytest's own are not."""
    folder = new_folder()
    folder.chmod(0o777)
    yield folder
    remove_tree(folder)


def hang_up(config: Path, text: str, said: str, *programs: Program) -> None:
    """Let them read these settings, and wait until each has said so."""
    before = {one.name: one.log.count(said) for one in programs}
    config.write_text(text)
    for one in programs:
        one.send(signal.SIGHUP)
        until(
            lambda one=one: one.log.count(said) > before[one.name],
            f"{one.name} says nothing",
            lambda one=one: one.log[-3_000:],
        )


def test_nothing_is_lost_or_run_twice_and_a_changed_limit_holds(tmp_path, open_folder) -> None:
    trace, gate = open_folder / "trace", open_folder / "gate"
    trace.touch()
    trace.chmod(0o666)
    pair = Pair(tmp_path, RUNS.format(0, FIRST, FIRST) + AGENT)
    config, both = tmp_path / "ferryman.toml", (pair.server, pair.agent)

    def submit(number: int) -> int:
        wait = f"until [ -e '{gate}' ]; do sleep 0.02; done"
        script = f"echo b {number} >> '{trace}'\n{wait}\necho e {number} >> '{trace}'\n"
        return pair.submit(script)

    with pair.running(), ThreadPoolExecutor(1) as sender:
        jobs = [submit(number) for number in range(FIRST)]
        until(lambda: len(trace.read_text().splitlines()) == FIRST, "they do not run")
        more = sender.map(submit, range(FIRST, JOBS))
        for label in range(3):
            text = f"{RUNS.format(label, 1, 1)}{AGENT}services = ['example', 'other-{label}']\n"
            hang_up(config, text, '"settings.reloaded"', *both)
            assert pair.json("/services/example")["max_runs"] == 1
            wrong = RUNS.format(9, 9, 9) + "[agent]\nslots = 'many'\n[server]\nmax_files = 'x'\n"
            hang_up(config, wrong, '"settings.not_reloaded"', *both)
            assert pair.json("/services/example")["max_runs"] == 1
        assert '"services.example.env.KEY"' in pair.server.log
        assert "hunter" not in pair.server.log + pair.agent.log
        gate.touch()
        jobs += more
        for job_id in jobs:
            pair.until(job_id, "Completed")
    lines = trace.read_text().splitlines()
    assert sorted(lines) == sorted(f"{what} {one}" for what in "be" for one in range(JOBS))
    later = [line.split()[0] for line in lines if int(line.split()[1]) >= FIRST]
    assert later == ["b", "e"] * (JOBS - FIRST)  # one at a time, by the new limit
    assert lines.index(next(line for line in lines if int(line.split()[1]) >= FIRST)) == 2 * FIRST


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_a_hangup_makes_a_program_read_its_certificate_again(tmp_path: Path, name: str) -> None:
    used = Certificate(tmp_path / "used.pem", tmp_path / "used.key")
    table = "server" if name == "server" else "agent"
    file = tmp_path / "ferryman.toml"
    file.write_text(f'[{table}]\ntls_cert = "{used.cert}"\ntls_key = "{used.key}"\n')
    program = Program(name, tmp_path, uuid.uuid4().hex, "--config", str(file))

    def renew(folder: str) -> ssl.SSLContext:
        (tmp_path / folder).mkdir()
        ca = authority(tmp_path / folder)
        new = ca.issue("host")
        used.cert.write_bytes(new.cert.read_bytes())
        used.key.write_bytes(new.key.read_bytes())
        return ssl.create_default_context(cafile=ca.cert)

    def health(trusted: ssl.SSLContext) -> int:
        line = http.client.HTTPSConnection("127.0.0.1", program.port, timeout=20, context=trusted)
        with contextlib.closing(line):
            line.request("GET", "/")
            return line.getresponse().status

    first = renew("first")
    program.start()
    assert health(first) == 200
    second = renew("second")
    with pytest.raises(ssl.SSLCertVerificationError):
        health(second)
    program.send(signal.SIGHUP)
    until(lambda: '"tls.reloaded"' in program.log, "it says nothing", lambda: program.log)
    assert health(second) == 200
    until(lambda: '"settings.reloaded"' in program.log, "it says nothing", lambda: program.log)
    assert program.log.count("its content has changed") == 2
    assert "setting.not_applied" not in program.log
    assert '"https://127.0.0.1:' in program.log
    assert program.kill(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("module", "given"), [(server_app, ServerSettings()), (app, AgentSection(sandbox="none"))]
)
async def test_a_hangup_is_survived_before_anybody_can_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, given: Any
) -> None:
    seen: list[object] = []

    def listen(*_: object) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise CannotListen

    def open_sandbox(*_: object) -> Any:  # a real one would leave its mounts to this process
        return contextlib.nullcontext(FakeSandbox(SimClock(), tmp_path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "listen", listen)
    monkeypatch.setattr(app, "open_sandbox", open_sandbox)
    with pytest.raises(CannotListen):
        await (
            server_app.serve(given, lambda: given)
            if module is server_app
            else app.serve(given, RealClock(), print)
        )
    assert len(seen) == 1
    assert seen != [signal.SIG_DFL]


ROLLING = """
[services.example]
runs_per_user = 50
max_runs = 50
on_shutdown = "resubmit"
infra_retries = 0
[services.careful]
runs_per_user = 50
max_runs = 50
on_shutdown = "continue"
infra_retries = 0
[agent]
slots = 2
sandbox = "none"
grace = "1s"
"""


class Load:
    """Uploads jobs of both services until it is stopped. Each run writes down that it began, and
    that it ended."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.runs = folder / "runs"
        self.runs.touch()
        self.runs.chmod(0o666)  # jobs have uids of their own
        self.jobs: dict[int, str] = {}
        self._pair, self._stop = pair, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        said = f"echo $1 $FERRYMAN_SERVICE $FERRYMAN_JOB_ID >> {self.runs}"
        script = f"say() {{ {said}; }}\nsay began; sleep 0.3 && trap '' TERM && say ended\n"
        for number in itertools.count():
            service = ("example", "careful")[number % 2]
            with contextlib.suppress(OSError, AssertionError, ValueError):  # no server just now
                self.jobs[self._pair.submit(script, service=service)] = service
            if self._stop.wait(0.25):
                return

    def lines(self, what: str, service: str) -> list[int]:
        found = (line.split() for line in self.runs.read_text().splitlines())
        return sorted(int(one[2]) for one in found if one[:2] == [what, service])


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path, open_folder: Path) -> None:
    """No attempt that a shutdown ended is counted: no service would allow another here."""
    pair, config = Pair(tmp_path, ROLLING), tmp_path / "ferryman.toml"
    flags = ("--config", str(config))
    (tmp_path / "south").mkdir()
    south = Program("client_agent", tmp_path / "south", pair.agent.mark, *flags)
    tables = [
        f"[agents.{one}]\nurl = '{agent.url}'\n"
        for one, agent in (("north", pair.agent), ("south", south))
    ]
    config.write_text(ROLLING + "".join(tables))
    pair.server = Program("server", tmp_path, pair.agent.mark, *flags)
    with pair.running(), south.running():
        restart_under_load(pair, south, open_folder)


def restart_under_load(pair: Pair, south: Program, folder: Path) -> None:
    with Load(pair, folder) as load:
        steps = itertools.product((signal.SIGTERM, signal.SIGUSR1), (pair.agent, south))
        for number, agent in steps:
            ran = len(load.lines("ended", "example"))
            until(lambda ran=ran: len(load.lines("ended", "example")) > ran + 1, "nothing ends")
            assert agent.kill(number) == 0, agent.log[-3_000:]
            agent.start()
            assert pair.server.kill(signal.SIGTERM) == 0, pair.server.log[-3_000:]
            pair.server.start()
    for job_id in load.jobs:
        pair.until(job_id, "Completed")
    page = pair.json("/jobs?limit=500")
    assert {job["status"] for job in page["items"]} == {"Completed"}
    for service in ("example", "careful"):
        jobs = sorted(job["id"] for job in page["items"] if job["service"] == service)
        assert set(jobs) >= {one for one, of in load.jobs.items() if of == service}
        ended = load.lines("ended", service)  # a shutdown may still come behind the line
        again = [one for one in page["items"] if ended.count(one["id"]) > one["attempt"]]
        assert (sorted({*ended}), again) == (jobs, [])
    assert load.lines("began", "careful") == load.lines("ended", "careful"), "none was stopped"
