"""The real agent with the real sandbox, as an operator uses it, what it promises its server, and
that the grants of a service reach its jobs, and no others.

job-orchestrator's client, which it replaces, breaks most of these promises.
"""

import itertools
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.child import dead_within
from tests.kit.each import each
from tests.kit.forked_programs import run as run_program
from tests.processes.agent_process import (
    LIMITS,
    PATIENCE_S,
    AgentProcess,
    agent,
    environment,
    watched,
)

_JOBS = itertools.count(1)
HELLO = {"run.sh": b"echo hello\necho 42 > out.txt\n"}
SLEEP = {"run.sh": b"echo begun > begun.txt; echo begun\nsleep 1000 & wait\n"}
STUBBORN = {
    "run.sh": b"""
trap '' TERM
(trap '' TERM; setsid sh -c 'trap "" TERM; while :; do sleep 1000; done') &
echo begun; while :; do sleep 1000; done
"""
}


def key() -> str:
    """Of a job that no other test has."""
    return f"{next(_JOBS)}.1"


def test_more_files_than_a_jobs_disk_can_hold_end_it_by_its_limit(tmp_path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: that a bundle fits on a job's own disk is not proved")
    files = {"run.sh": b"true\n", **{f"many/{number}": b"x" for number in range(900)}}
    limits = LIMITS.model_copy(update={"disk": 8 << 20})
    with agent(tmp_path) as running:
        ended = running.ended(running.submit(key(), files, limits=limits)["id"])
    assert (ended["reason"], ended["interrupted"]) == ("disk_limit", False)
    assert "902 files and folders" in ended["message"]


def task(running: AgentProcess, index: int, script: bytes) -> dict[str, Any]:
    """Of an array; they share a sandbox start."""
    order = {"array": {"index": index}, "pack": {"batch": 7, "most": 20}}
    return running.submit(key(), {"run.sh": script}, **order)


# -- its own end


def test_sigterm_stops_what_runs_as_interrupted_and_exits_0(tmp_path) -> None:
    with agent(tmp_path, "--slots", "1") as running:
        payload = running.submit("1.1", SLEEP)
        started = running.until(payload["id"], "Running")
        waiting = running.submit("2.1", HELLO)
        running.call("GET", "/payloads", Authorization="Bearer very-secret")
        listening = [
            line.split()[1]
            for line in Path(f"/proc/{running.process.pid}/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A" and int(line.split()[1].split(":")[1], 16) == running.port
        ]
        assert listening == [f"0100007F:{running.port:04X}"], "on loopback only"
        with watched(started["pid"]) as init:
            assert running.terminate() == 0
            assert dead_within(init, 0)
        assert "very-secret" not in running.log()
    with agent(tmp_path) as running:
        ended = running.ended(payload["id"])
        assert (ended["status"], ended["reason"]) == ("Failed", "shutdown")
        assert ended["interrupted"]
        assert running.ended(waiting["id"])["status"] == "Completed"
        running.process.send_signal(signal.SIGUSR1)  # drained, it ends once all is fetched
        for one in (payload, waiting):
            running.forget(one["id"])
        assert running.process.wait(30) == 0


@each("grace, again", [("2s", False), ("1h", True)])
def test_what_ignores_sigterm_is_killed_in_time_or_at_once_by_a_second_signal(
    tmp_path, grace, again
) -> None:
    home = tmp_path / grace
    home.mkdir()
    given = {"FERRYMAN_AGENT__GRACE": "1h", "FERRYMAN_AGENT__SHUTDOWN_GRACE": grace}
    with agent(home, **given) as running:
        started = running.until(running.submit("1.1", STUBBORN)["id"], "Running")
        with watched(started["pid"]) as init:
            stopping(running)
            if again:
                running.process.terminate()
            assert running.process.wait(PATIENCE_S) == (128 + signal.SIGTERM if again else 0)
            assert dead_within(init, PATIENCE_S if again else 0)
    with agent(home) as running:
        assert running.ended(started["id"])["interrupted"]


def stopping(running: AgentProcess) -> None:
    running.process.terminate()
    assert running.process.stderr is not None
    assert any("agent.stopping" in line for line in running.process.stderr)


def test_sigterm_finishes_a_response_that_is_being_sent(tmp_path) -> None:
    with agent(tmp_path, FERRYMAN_AGENT__SHUTDOWN_GRACE="60s") as running:
        script = b"head -c 6000000 /dev/urandom > big\n"
        ended = running.ended(running.submit(key(), {"run.sh": script})["id"])
        assert ended["result"]["size"] > 6_000_000
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # most has to wait
            slow.connect(("127.0.0.1", running.port))
            head = f"GET /retrieve/{ended['id']} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            slow.sendall(head.encode())
            data = slow.recv(1024)
            stopping(running)
            while chunk := slow.recv(1 << 16):
                data += chunk
        assert running.process.wait(60) == 0
    answer, _, body = data.partition(b"\r\n\r\n")
    assert b" 200 " in answer
    assert len(body) == ended["result"]["size"]


def test_killed_the_job_dies_with_it_ends_are_kept_and_what_waits_runs_later(tmp_path) -> None:
    with agent(tmp_path, "--slots", "1") as running:
        done = [task(running, index, b"echo done\n") for index in range(3)]
        for one in done:
            running.ended(one["id"])
        started = running.until(task(running, 3, STUBBORN["run.sh"])["id"], "Running")
        waiting = [task(running, index, b"echo rest\n") for index in (4, 5, 6)]
        waiting.append(running.submit(key(), HELLO))
        with watched(started["pid"]) as init:
            running.process.kill()
            assert dead_within(init)
    with agent(tmp_path, "--slots", "1") as running:
        assert [running.files(one["id"])["stdout.log"] for one in done] == [b"done\n"] * 3
        ended = running.ended(started["id"])
        assert (ended["status"], ended["reason"]) == ("Failed", "agent_error")
        assert (ended["message"], ended["interrupted"]) == (
            "the agent was killed while it ran",
            True,
        )
        for payload in waiting:
            assert running.ended(payload["id"])["status"] == "Completed"
        assert running.files(waiting[0]["id"])["stdout.log"] == b"rest\n"
        assert running.terminate() == 0
    work = tmp_path / "agent" / "work"
    assert not work.exists() or not any(work.iterdir())


SCRIPT = b"""{ cat /trees/tool/version; touch /trees/tool/mine; touch /mine; } 2>&1
echo "A=$A LICENSE=$LICENSE SECRET=$SECRET"
df -B1 --output=size /tmp /dev/shm | tail -n +2
"""


class Granting:
    """An agent with grants for ``gromacs`` and ``gone``, and the network for ``fetch``."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)  # where the uids of a root agent's jobs can go
        self.tree, self.missing = folder / "tree", folder / "missing"
        self.tree.mkdir()
        (self.tree / "version").write_text("tool 1.2\n")
        self.home = folder / "home"
        self.home.mkdir()
        file = folder / "agent.toml"
        file.write_text(
            "[agent.sandboxing.services.gromacs]\n"
            f"read_only = ['{self.tree}:/trees/tool']\n"
            "env = { A = 'given', LICENSE = '27000@host' }\n"
            "allow = ['process_vm', 'numa']\n"
            "scratch = '8MiB'\n"
            "[agent.sandboxing.services.gone]\n"
            f"read_only = ['{self.missing}:/trees/tool']\n"
            "[agent.sandboxing.services.fetch]\n"
            "network = true\n"
        )
        self.settings: dict[str, Any] = {"FERRYMAN_CONFIG": str(file), "SECRET": "hidden"}
        self.agent: AgentProcess
        self._keys = itertools.count(1)

    def run(self, script: bytes, service: str, **order: Any) -> dict[str, Any]:
        """How a job ended, its output and its receipt."""
        key, bundle = f"{next(self._keys)}.1", {"run.sh": script}
        taken = self.agent.submit(key, bundle, service=service, **order)
        ended = self.agent.ended(int(taken["id"]))
        files = self.agent.files(ended["id"])
        receipt = json.loads(files["ferryman.json"])
        return ended | {"out": files["stdout.log"].decode(), "receipt": receipt}

    def health(self) -> dict[str, Any]:
        return dict(self.agent.call("GET", "/health")[1]["sandbox"])


@pytest.fixture(scope="module")
def granting() -> Iterator[Granting]:
    with tempfile.TemporaryDirectory(prefix="ferryman-grants-") as folder:
        granting = Granting(Path(folder))
        with agent(granting.home, **granting.settings) as granting.agent:
            yield granting


def test_the_jobs_of_a_service_get_its_grants_and_others_do_not(granting: Granting) -> None:
    own, other = granting.run(SCRIPT, "gromacs"), granting.run(SCRIPT, "example")
    version, *refused, variables, of_tmp, of_shm = own["out"].splitlines()
    assert version == "tool 1.2"
    assert [line.rpartition(": ")[2] for line in refused] == ["Read-only file system"] * 2
    assert variables == "A=given LICENSE=27000@host SECRET="
    assert [int(of_tmp), int(of_shm)] == [8 << 20, 8 << 20]
    sandbox = own["receipt"]["sandbox"]
    assert (sandbox["read_only"], sandbox["allow"]) == (["/trees/tool"], ["numa", "process_vm"])
    assert "No such file" in other["out"].splitlines()[0]
    assert "A= LICENSE= SECRET=\n" in other["out"]
    assert (other["receipt"]["sandbox"]["read_only"], other["warnings"]) == ([], [])
    health = granting.health()
    opened = health["opened"]["gromacs"]
    assert (opened["read_only"], opened["env"]) == (["/trees/tool"], ["A", "LICENSE"])
    assert "27000@host" not in json.dumps(health)


def test_the_hosts_network_needs_an_order_and_a_grant_and_is_reported(granting: Granting) -> None:
    wanted = LIMITS.model_copy(update={"network": True})
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        reach = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached\n:\n".encode()
        given = granting.run(reach, "fetch", limits=wanted)
        unasked = granting.run(reach, "fetch")
    with pytest.raises(AssertionError, match="does not give to it"):
        granting.run(reach, "gromacs", limits=wanted)
    assert (given["out"], given["enforcement"]["network"]) == ("reached\n", "none")
    assert given["warnings"] == ["network: the bundle could use the network of the agent's host"]
    assert (unasked["out"], unasked["enforcement"]["network"]) == ("", "hard")
    assert unasked["warnings"] == []
    assert granting.health()["warning"] == "jobs of fetch may use this host's network"


def test_the_check_tries_the_grants(granting: Granting) -> None:
    assert granting.health().get("check") is None
    words = ("--data-dir", str(granting.home / "agent"), "check", "--json")
    done = run_program("client_agent", words, environment(**granting.settings))
    rows = {row["limit"]: row for row in json.loads(done.stdout)["rows"]}
    shown = granting.health()["check"]
    assert (shown["passed"], {row["limit"]: row for row in shown["rows"]}) == (False, rows)
    assert rows["service gromacs"]["seen"] == "has /trees/tool, numa, process_vm"
    assert rows["service fetch"]["seen"] == "has the host's network"
    failed = [name for name, row in rows.items() if not row["passed"]]
    assert (done.returncode, failed) == (1, ["service gone"])
    assert str(granting.missing) in rows["service gone"]["seen"]
