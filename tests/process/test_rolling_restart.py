"""Agent and server are stopped, drained and started again, one after the other, under load."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

from tests.support.program_pair import PATIENCE_S, Pair
from tests.support.programs import until

CHILDREN, SINGLES = 24, 6
SETTINGS = """
[services.example]
runs_per_user = 50
max_runs = 50
on_shutdown = "resubmit"
infra_retries = 0
[agent]
slots = 3
sandbox = "none"
grace = "1s"
"""
SCRIPT = "sleep 0.5; echo $FERRYMAN_JOB_ID $FERRYMAN_ARRAY_INDEX > out.txt\n"


def upload_array(pair: Pair) -> int:
    fields = {"user_id": "ann", "service": "example", "array": f"0-{CHILDREN - 1}"}
    parts = [f'name="{name}"\r\n\r\n{value}' for name, value in fields.items()]
    parts.append(f'name="f"; filename="run.sh"\r\n\r\n{SCRIPT}')
    body = "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
    head = "POST /upload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
    head += f"{len(body) + 7}\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
    with socket.create_connection((pair.server.host, pair.server.port), PATIENCE_S) as line:
        line.sendall(f"{head}{body}--b--\r\n".encode())
        answer = b"".join(iter(lambda: line.recv(4096), b""))
    assert b" 201 " in answer.partition(b"\r\n")[0], answer
    return int(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    """No attempt that a shutdown ended is counted: no service would allow another here."""
    pair = Pair(tmp_path, SETTINGS)
    with pair.running():
        parent = upload_array(pair)
        singles = [pair.submit(SCRIPT) for _ in range(SINGLES)]

        def completed() -> int:
            page = json.loads(pair.get(f"/api/v1/batches/{parent}/children?limit=100"))
            return sum(child["status"] == "Completed" for child in page["items"])

        for done, number in enumerate((signal.SIGTERM, signal.SIGUSR1), 1):
            until(lambda at_least=4 * done: completed() >= at_least, "no child completes")
            assert pair.agent.kill(number) == 0, pair.agent.log[-3_000:]
            pair.agent.start()
            assert pair.server.kill(signal.SIGTERM) == 0, pair.server.log[-3_000:]
            pair.server.start()
        for job_id in (*singles, parent):
            pair.until(job_id, "Completed")
        for job_id in singles:
            assert pair.result(job_id).read("out.txt").split() == [str(job_id).encode()]
        page = json.loads(pair.get(f"/api/v1/batches/{parent}/children?limit=100"))
        indices = set()
        for child in page["items"]:
            assert child["status"] == "Completed"
            own, index = pair.result(child["id"]).read("out.txt").split()
            assert int(own) == child["id"]
            indices.add(int(index))
        assert indices == set(range(CHILDREN))
