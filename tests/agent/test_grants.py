"""The grants of a service reach its jobs, and no others."""

from __future__ import annotations

import itertools
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.forked_programs import run as run_program
from tests.processes.agent_process import LIMITS, AgentProcess, agent, environment

SCRIPT = b"""{ cat /trees/tool/version; touch /trees/tool/mine; } 2>&1
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
    version, refused, variables, *sizes = own["out"].splitlines()
    assert version == "tool 1.2"
    assert "Read-only file system" in refused
    assert variables == "A=given LICENSE=27000@host SECRET="
    assert [int(size) for size in sizes] == [8 << 20, 8 << 20]
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
