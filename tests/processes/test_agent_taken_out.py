"""An agent is taken out of the settings while it runs a job: its process is not forgotten."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.kit.programs import Pair, until
from tests.processes.sleeping import Sleep

SETTINGS = """
[services.example]
[agent]
slots = 1
sandbox = "none"
grace = "1s"
[agents.elsewhere]
url = "http://[::1]:9"
"""


def reload(pair: Pair, config: Path, settings: str) -> None:
    config.write_text(settings)
    assert pair.server.process is not None
    pair.server.process.send_signal(signal.SIGHUP)


def test_a_cancel_is_confirmed_only_when_the_agent_is_back_and_the_process_is_dead(
    tmp_path: Path,
) -> None:
    pair, config = Pair(tmp_path, SETTINGS), tmp_path / "ferryman.toml"
    pair.server._flags = ("--config", str(config))  # the agent is in the file only
    table = f"[agents.north]\nurl = '{pair.agent.url}'\n"
    config.write_text(SETTINGS + table)
    with pair.running():
        sleep = Sleep()
        job_id = pair.submit(f"{sleep}\n")
        until(sleep.pids, "the job does not run")
        pair.until(job_id, "Running")
        (pid,) = sleep.pids()
        reload(pair, config, SETTINGS)
        pair.until(job_id, "Unknown")
        words = ["-m", "ferryman", "cancel", str(job_id), "--url", pair.server.url]
        with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE) as cancelling:
            assert cancelling.stderr is not None
            asked = f"/api/v1/jobs/{job_id}"
            until(lambda: json.loads(pair.get(asked))["cancel_requested_at"], "it is not asked for")
            assert sleep.pids() == [pid]
            assert pair.status(job_id) == "Unknown"
            reload(pair, config, SETTINGS + table)
            pair.until(job_id, "Cancelled")
            assert sleep.pids() == []
            assert "is cancelled" in cancelling.stderr.read().decode()
        until(lambda: not sleep.pids(), "a process is left")
