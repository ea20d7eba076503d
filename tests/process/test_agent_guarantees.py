"""What an agent promises its server: the real agent, with the real sandbox.

job-orchestrator's client, which it replaces, breaks each of these promises.
"""

from __future__ import annotations

import io
import itertools
import socket
import zipfile
from pathlib import Path

import pytest

from tests.kit.agent_process import agent, alive, watched

_JOBS = itertools.count(1)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One agent, with one slot, for those that leave it as it was."""
    with agent(tmp_path_factory.mktemp("agent"), "--slots", "1") as started:
        yield started


def key() -> str:
    """Of a job that no other test has."""
    return f"{next(_JOBS)}.1"


def run(running, script, **files):
    """Submit, wait, and give what retrieve_partial has of it."""
    bundle = {"run.sh": script} | {name.replace("__", "/"): data for name, data in files.items()}
    payload_id = running.submit(key(), bundle)["id"]
    ended = running.ended(payload_id)
    status, data = running.call("GET", f"/retrieve_partial/{payload_id}")
    assert status == 200
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return ended, {name: archive.read(name) for name in archive.namelist()}


def test_a_run_that_is_killed_or_takes_too_long_ends(running):
    ended, _ = run(running, b"kill -9 $$\n")
    assert (ended["status"], ended["exit_code"]) == ("Failed", 137)
    assert ended["reason"] == "exit_code"
    payload = running.submit(key(), {"run.sh": b"sleep 1000\n"}, timeout_s=0.2)
    assert running.ended(payload["id"])["reason"] == "timeout"


def test_killing_what_is_completed_leaves_its_result(running):
    ended, _ = run(running, b"echo 42 > out\n")
    assert running.call("POST", f"/kill/{ended['id']}")[1]["status"] == "Completed"
    assert running.call("GET", f"/retrieve/{ended['id']}")[0] == 200


def test_a_prepared_payload_that_was_killed_does_not_start(running):
    blocking = running.submit(key(), {"run.sh": b"sleep 1000\n"})
    running.until(blocking["id"], "Running")
    waiting = running.submit(key(), {"run.sh": b"true\n"})
    assert running.call("POST", f"/kill/{waiting['id']}")[1]["status"] == "Killed"
    running.call("POST", f"/kill/{blocking['id']}")
    last = running.submit(key(), {"run.sh": b"true\n"})
    running.ended(last["id"])
    killed = running.call("GET", f"/retrieve/{waiting['id']}")[1]
    assert (killed["status"], killed["started_at"]) == ("Killed", None)


def test_killing_reaches_the_whole_tree_even_what_ignores_sigterm(tmp_path):
    script = b"""
    trap '' TERM
    (trap '' TERM; setsid sh -c 'trap "" TERM; touch deep; while :; do sleep 1000; done') &
    while :; do sleep 1000; done
    """
    with agent(tmp_path, FERRYMAN_AGENT__GRACE="0.2s") as running:
        payload = running.submit(key(), {"run.sh": script})
        pid = running.until(payload["id"], "Running")["pid"]
        with watched(pid) as init:
            assert running.call("POST", f"/kill/{payload['id']}")[1]["status"] == "Killed"
            assert not alive(init)  # the namespace's init: with it every process inside


def test_no_zombies_are_left(running):
    for _ in range(3):
        run(running, b"(sleep 0 &) ; true\n")
    path = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
    children = [Path(f"/proc/{pid}/stat") for pid in path.read_text().split()]
    states = [stat.read_text().rsplit(")", 1)[1].split()[0] for stat in children if stat.exists()]
    assert "Z" not in states


def test_a_users_own_output_zip_is_a_file_like_others(running):
    ended, files = run(running, b"echo mine > output.zip\n")
    assert ended["status"] == "Completed"
    assert files["output.zip"] == b"mine\n"
    assert not [name for name in files if name.endswith(".zip") and name != "output.zip"]


def test_symlinks_that_dangle_or_lead_out_cost_nothing_but_themselves(running):
    ended, files = run(running, b"ln -s nowhere a; ln -s /etc/passwd b; ln -s / c; echo 42 > out\n")
    assert ended["status"] == "Completed"
    assert files["out"] == b"42\n"
    assert not {"a", "b", "c"} & set(files)
    assert b'"path": "b"' in files["ferryman.json"]


def test_folders_are_kept_and_equal_base_names_do_not_collide(running):
    script = b"mkdir -p x/y; cat a/in.txt > x/in.txt; cat b/in.txt > x/y/in.txt\n"
    _, files = run(running, script, a__in=b"", **{"a__in.txt": b"A", "b__in.txt": b"B"})
    assert (files["a/in.txt"], files["b/in.txt"]) == (b"A", b"B")
    assert (files["x/in.txt"], files["x/y/in.txt"]) == (b"A", b"B")


def test_a_failed_run_keeps_its_output_its_logs_and_its_reason(running):
    ended, files = run(running, b"echo o; echo e >&2; echo half > out; exit 4\n")
    assert (ended["status"], ended["reason"], ended["exit_code"]) == ("Failed", "exit_code", 4)
    assert (files["out"], files["stdout.log"], files["stderr.log"]) == (b"half\n", b"o\n", b"e\n")


def test_no_more_run_at_once_than_there_are_slots(running):
    first = running.submit(key(), {"run.sh": b"sleep 1000\n"})
    running.until(first["id"], "Running")
    second = running.submit(key(), {"run.sh": b"true\n"})
    assert running.call("GET", "/health")[1]["running"] == 1
    assert running.call("GET", f"/retrieve/{second['id']}")[1]["status"] == "Prepared"
    running.call("POST", f"/kill/{first['id']}")
    assert running.ended(second["id"])["status"] == "Completed"


def test_it_listens_on_loopback_only_and_logs_no_headers(tmp_path):
    with agent(tmp_path) as running:
        running.call("GET", "/payloads", Authorization="Bearer very-secret")
        listening = [
            line.split()[1]
            for line in Path(f"/proc/{running.process.pid}/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A" and int(line.split()[1].split(":")[1], 16) == running.port
        ]
        assert listening == [f"0100007F:{running.port:04X}"]
        assert running.terminate() == 0
        assert "very-secret" not in running.log()


def test_a_harmless_chmod_is_allowed_and_the_agents_environment_is_not_inherited(tmp_path):
    with agent(tmp_path, AWS_SECRET_ACCESS_KEY="LEAK") as running:
        _, files = run(running, b"chmod 755 run.sh; env; cat /proc/*/environ 2>/dev/null\n")
        assert b"LEAK" not in files["stdout.log"]


def test_sigterm_finishes_a_response_that_is_being_sent(tmp_path):
    with agent(tmp_path, FERRYMAN_AGENT__SHUTDOWN_GRACE="60s") as running:
        ended, files = run(running, b"head -c 6000000 /dev/urandom > big\n")
        assert len(files["big"]) == 6_000_000
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # most has to wait
            slow.connect(("127.0.0.1", running.port))
            slow.sendall(
                f"GET /retrieve/{ended['id']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            data = slow.recv(1024)
            running.process.terminate()
            assert running.process.stderr is not None
            assert any("agent.stopping" in line for line in running.process.stderr)
            while chunk := slow.recv(1 << 16):
                data += chunk
        assert running.process.wait(60) == 0
    head, _, body = data.partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert len(body) == ended["result"]["size"]
