"""What ``ferryman doctor`` finds on the host of a server, and of an agent."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from server.store.migrations import MIGRATIONS
from tests.kit.command_line import fresh
from tests.kit.programs import Program


def doctor(url: str, file: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by what they are about."""
    said = fresh("doctor", "--url", url, "--config", file, "--json")
    assert said.out, said.err
    return said.code, {one["about"]: one for one in json.loads(said.out)["findings"]}


def test_of_a_server_that_runs_or_not(tmp_path: Path) -> None:
    program = Program("server", tmp_path, uuid.uuid4().hex)
    file = tmp_path / "server.toml"
    file.write_text(
        f"[server]\nport = {program.port}\ndata_dir = '{program.data}'\n"
        "[agents.north]\nurl = 'http://127.0.0.1:1'\n"
    )
    program.start()
    code, found = doctor(program.url, file)
    assert found["settings"]["text"].startswith(str(file))
    assert f"process {program.pid} works with it" in found["lock"]["text"]
    assert f"whole, schema {len(MIGRATIONS)}" in found["database"]["text"]
    assert found["port"]["level"] == "ok"
    assert (found["agent north"]["level"], code) == ("problem", 1)
    away = found["agent north"]["text"]
    assert away == "it cannot be reached: 127.0.0.1:1: Connection refused"
    assert program.kill() != 0
    database = program.data / "ferryman.sqlite"
    assert "folder and database" not in found
    database.rename(tmp_path / "away")
    code, found = doctor(program.url, file)
    assert (code, found["server"]["exit_code"]) == (69, 69)
    assert found["folder and database"]["exit_code"] == 74
    (tmp_path / "away").rename(database)
    database.write_bytes(b"nonsense " * 1000)
    for more in ("-wal", "-shm"):
        Path(f"{database}{more}").unlink(missing_ok=True)
    _, found = doctor(program.url, file)
    assert (found["database"]["level"], found["database"]["exit_code"]) == ("problem", 74)
    assert "restore" in found["database"]["hint"]
    assert found["lock"]["text"] == "nobody works with it now"


def test_of_an_agent_its_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"[agent]\ndata_dir = '{tmp_path / 'agent'}'\n")
    _, found = doctor("http://127.0.0.1:1", file)
    assert found["sandbox"]["text"].startswith("bubblewrap")
    assert not [one for about, one in found.items() if about != "server" and one["exit_code"]]
    assert not (tmp_path / "agent").exists()
