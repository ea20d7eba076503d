"""The grants of a service reach its jobs, and no others."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.agent_process import LIMITS, AgentProcess, agent, command, environment

SCRIPT = b"""{ cat /trees/tool/version; touch /trees/tool/mine; } 2>&1
echo "A=$A LICENSE=$LICENSE SECRET=$SECRET"
df -B1 --output=size /tmp /dev/shm | tail -n +2
"""


@pytest.fixture
def tree() -> Iterator[Path]:
    """Where the uids of a root agent's jobs can go, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory(prefix="ferryman-tree-") as folder:
        Path(folder).chmod(0o755)
        tree = Path(folder) / "tree"
        tree.mkdir()
        (tree / "version").write_text("tool 1.2\n")
        yield tree


def configured(tmp_path: Path, tree: Path) -> dict[str, Any]:
    """Variables of an agent with grants for ``gromacs``, and the network for ``fetch``."""
    file = tmp_path / "agent.toml"
    file.write_text(
        "[agent.sandboxing.services.gromacs]\n"
        f"read_only = ['{tree}:/trees/tool']\n"
        "env = { A = 'given', LICENSE = '27000@host' }\n"
        "allow = ['process_vm', 'numa']\n"
        "scratch = '8MiB'\n"
        "[agent.sandboxing.services.fetch]\n"
        "network = true\n"
    )
    return {"FERRYMAN_CONFIG": str(file), "SECRET": "hidden"}


def run(running: AgentProcess, key: str, script: bytes, **order: Any) -> dict[str, Any]:
    payload = running.submit(key, {"run.sh": script}, **order)
    ended = running.ended(payload["id"])
    _, data = running.call("GET", f"/retrieve/{payload['id']}")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        ended["out"] = archive.read("stdout.log").decode()
        ended["receipt"] = json.loads(archive.read("ferryman.json"))
    return ended


def test_the_jobs_of_a_service_get_its_grants_and_others_do_not(tmp_path, tree):
    with agent(tmp_path, **configured(tmp_path, tree)) as running:
        own = run(running, "1.1", SCRIPT, service="gromacs")
        other = run(running, "2.1", SCRIPT, service="example")
        _, health = running.call("GET", "/health")
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
    opened = health["sandbox"]["opened"]["gromacs"]
    assert (opened["read_only"], opened["env"]) == (["/trees/tool"], ["A", "LICENSE"])
    assert "27000@host" not in json.dumps(health)


def test_the_hosts_network_needs_an_order_and_a_grant_and_is_reported(tmp_path, tree):
    host = socket.create_server(("127.0.0.1", 0))
    port = host.getsockname()[1]
    reach = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached\n:\n".encode()
    wanted = LIMITS.model_copy(update={"network": True})
    with host, agent(tmp_path, **configured(tmp_path, tree)) as running:
        given = run(running, "1.1", reach, service="fetch", limits=wanted)
        unasked = run(running, "2.1", reach, service="fetch")
        with pytest.raises(AssertionError, match="does not give to it"):
            running.submit("3.1", {"run.sh": reach}, service="gromacs", limits=wanted)
        _, health = running.call("GET", "/health")
    assert (given["out"], given["enforcement"]["network"]) == ("reached\n", "none")
    assert given["warnings"] == ["network: the bundle could use the network of the agent's host"]
    assert (unasked["out"], unasked["enforcement"]["network"]) == ("", "hard")
    assert unasked["warnings"] == []
    assert health["sandbox"]["warning"] == "jobs of fetch may use this host's network"


def test_a_missing_tree_refuses_only_its_own_service(tmp_path, tree):
    settings = configured(tmp_path, tree)
    away = tree.rename(tree.with_name("away"))
    with agent(tmp_path, **settings) as running:
        with pytest.raises(AssertionError, match="which the jobs of 'gromacs' need"):
            running.submit("1.1", {"run.sh": SCRIPT}, service="gromacs")
        assert run(running, "2.1", b"true\n", service="example")["status"] == "Completed"
        away.rename(tree)
        assert run(running, "1.1", SCRIPT, service="gromacs")["out"].startswith("tool 1.2\n")


def test_the_check_tries_the_grants(tmp_path, tree):
    settings = configured(tmp_path, tree)

    def check() -> tuple[int, dict[str, dict[str, Any]]]:
        done = subprocess.run(
            command("--data-dir", str(tmp_path / "agent"), "check", "--json"),
            env=environment(**settings),
            capture_output=True,
            check=False,
        )
        return done.returncode, {row["limit"]: row for row in json.loads(done.stdout)["rows"]}

    with agent(tmp_path, **settings) as running:
        assert running.call("GET", "/health")[1]["sandbox"].get("check") is None
        code, rows = check()
        shown = running.call("GET", "/health")[1]["sandbox"]["check"]
    assert (shown["passed"], {row["limit"]: row for row in shown["rows"]}) == (True, rows)
    assert (code, [row for row in rows.values() if not row["passed"]]) == (0, [])
    assert rows["service gromacs"]["seen"] == "has /trees/tool, numa, process_vm"
    assert rows["service fetch"]["seen"] == "has the host's network"
    (tree / "version").unlink()
    tree.rmdir()
    code, rows = check()
    assert (code, rows["service gromacs"]["passed"]) == (1, False)
    assert str(tree) in rows["service gromacs"]["seen"]
