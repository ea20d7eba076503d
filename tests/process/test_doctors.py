"""``ferryman server doctor`` and ``ferryman agent doctor``, as programs."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from server.store.migrations import MIGRATIONS
from tests.support.dev_program import environment
from tests.support.programs import Program


def doctor(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by what they are about."""
    command = [sys.executable, "-P", "-m", *words, "--json"]
    done = subprocess.run(
        command, env=environment(uuid.uuid4().hex), capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, {one["about"]: one for one in json.loads(done.stdout)["findings"]}


def test_a_servers_finds_a_running_server_and_an_agent_that_is_away(tmp_path: Path) -> None:
    program = Program("server", tmp_path, uuid.uuid4().hex)
    file = tmp_path / "server.toml"
    file.write_text(
        f"[server]\nport = {program.port}\ndata_dir = '{program.data}'\n"
        "[agents.north]\nurl = 'http://127.0.0.1:1'\n"
    )
    words = ("server.maintenance", "doctor", "--config", str(file))
    program.start()
    assert program.process is not None
    code, found = doctor(*words)
    assert f"process {program.process.pid} works with it" in found["lock"]["text"]
    assert f"whole, schema {len(MIGRATIONS)}" in found["database"]["text"]
    assert found["port"]["level"] == "ok"
    assert (found["agent north"]["level"], code) == ("problem", 69)
    away = found["agent north"]["text"]
    assert away == "it cannot be reached: 127.0.0.1:1: Connection refused"
    assert program.kill() != 0
    database = program.data / "ferryman.sqlite"
    assert "folder and database" not in found
    database.rename(tmp_path / "away")
    code, found = doctor(*words)
    assert (code, found["folder and database"]["level"]) == (74, "problem")
    (tmp_path / "away").rename(database)
    database.write_bytes(b"nonsense " * 1000)
    for more in ("-wal", "-shm"):
        Path(f"{database}{more}").unlink(missing_ok=True)
    code, found = doctor(*words)
    assert (code, found["database"]["level"]) == (74, "problem")
    assert "restore" in found["database"]["hint"]
    assert found["lock"]["text"] == "nobody works with it now"


def test_an_agents_tests_its_sandbox(tmp_path: Path) -> None:
    more = ("--data-dir", str(tmp_path / "agent"), "--port", "0")
    code, found = doctor("client_agent", *more, "doctor")
    assert found["sandbox"]["text"].startswith("bubblewrap")
    assert found["port"]["level"] == "ok"
    assert code == 0
    assert not (tmp_path / "agent").exists()
