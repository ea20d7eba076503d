"""The real agent with the real sandbox, as an operator uses it."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import zipfile

import pytest

from tests.kit.agent_process import LIMITS, agent, alive, died, refused, watched

HELLO = {"run.sh": b"echo hello\necho 42 > out.txt\n"}
SLEEP = {"run.sh": b"echo begun > begun.txt; echo begun\nsleep 1000 & wait\n"}
STUBBORN = {"run.sh": b"trap '' TERM\necho begun > begun.txt\nwhile :; do sleep 1000; done\n"}


def unzipped(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_bundle_runs_through_the_real_agent_and_its_result_comes_back(tmp_path):
    with agent(tmp_path) as running:
        payload = running.submit("17.2", HELLO)
        ended = running.ended(payload["id"])
        assert (ended["status"], ended["exit_code"]) == ("Completed", 0)
        status, data = running.call("GET", f"/retrieve/{payload['id']}")
        assert (status, len(data)) == (200, ended["result"]["size"])
        files = unzipped(data)
        assert (files["out.txt"], files["stdout.log"]) == (b"42\n", b"hello\n")
        receipt = json.loads(files["ferryman.json"])
        assert (receipt["job"], receipt["attempt"]) == (17, 2)
        assert receipt["sandbox"]["backend"] == "bubblewrap"
        assert running.call("DELETE", f"/payloads/{payload['id']}")[0] == 204
        assert running.terminate() == 0
    left = [path for path in (tmp_path / "agent").rglob("*.zip") if path.is_file()]
    assert left == []


def test_run_sh_has_the_documented_environment_and_no_more(tmp_path):
    with agent(tmp_path, FERRYMAN_AGENT__TOKENS="", SECRET_OF_THE_AGENT="x") as running:
        payload = running.submit("17.2", {"run.sh": b"env | sort > env.txt; pwd > pwd.txt\n"})
        assert running.ended(payload["id"])["status"] == "Completed"
        files = unzipped(running.call("GET", f"/retrieve/{payload['id']}")[1])
    env = dict(line.split("=", 1) for line in files["env.txt"].decode().splitlines())
    assert {name: env[name] for name in env if name.startswith("FERRYMAN_")} == {
        "FERRYMAN_JOB_ID": "17",
        "FERRYMAN_ATTEMPT": "2",
        "FERRYMAN_SERVICE": "example",
        "FERRYMAN_CPUS": "1",
        "FERRYMAN_MEMORY_BYTES": str(256 << 20),
    }
    assert {"HOME", "TMPDIR", "PATH", "LANG"} <= set(env)
    assert "SECRET_OF_THE_AGENT" not in env
    assert files["pwd.txt"].decode().strip() == env["HOME"]


def test_a_failure_has_its_code_and_its_last_lines(tmp_path):
    script = b"echo half > partial.txt; echo 'cannot read in.pdb' >&2; exit 3\n"
    with agent(tmp_path) as running:
        payload = running.submit("1.1", {"run.sh": script})
        ended = running.ended(payload["id"])
        assert (ended["reason"], ended["exit_code"]) == ("exit_code", 3)
        assert ended["message"] == "run.sh ended with exit code 3"
        assert ended["stderr_tail"] == "cannot read in.pdb"
        files = unzipped(running.call("GET", f"/retrieve_partial/{payload['id']}")[1])
        assert files["partial.txt"] == b"half\n"


def test_kill_replies_when_the_process_tree_is_dead(tmp_path):
    with agent(tmp_path) as running:
        payload = running.submit("1.1", SLEEP)
        started = running.until(payload["id"], "Running")
        with watched(started["pid"]) as init:
            status, killed = running.call("POST", f"/kill/{payload['id']}")
            assert not alive(init)
        assert (status, killed["status"]) == (200, "Killed")


def test_sigterm_stops_what_runs_as_interrupted_and_exits_0(tmp_path):
    with agent(tmp_path, "--slots", "1") as running:
        payload = running.submit("1.1", SLEEP)
        started = running.until(payload["id"], "Running")
        waiting = running.submit("2.1", HELLO)
        with watched(started["pid"]) as init:
            assert running.terminate() == 0
            assert not alive(init)
    with agent(tmp_path) as running:
        ended = running.ended(payload["id"])
        assert (ended["status"], ended["reason"]) == ("Failed", "shutdown")
        assert ended["interrupted"]
        assert "result" in ended
        assert running.ended(waiting["id"])["status"] == "Completed"


def test_sigterm_kills_in_time_what_ignores_it(tmp_path):
    with agent(
        tmp_path, FERRYMAN_AGENT__SHUTDOWN_GRACE="2s", FERRYMAN_AGENT__GRACE="1h"
    ) as running:
        payload = running.submit("1.1", STUBBORN)
        started = running.until(payload["id"], "Running")
        with watched(started["pid"]) as init:
            assert running.terminate() == 0
            assert not alive(init)
    with agent(tmp_path) as running:
        assert running.ended(payload["id"])["interrupted"]


def test_a_second_signal_ends_it_at_once_and_what_ran_with_it(tmp_path):
    with agent(
        tmp_path, FERRYMAN_AGENT__SHUTDOWN_GRACE="1h", FERRYMAN_AGENT__GRACE="1h"
    ) as running:
        payload = running.submit("1.1", STUBBORN)
        started = running.until(payload["id"], "Running")
        with watched(started["pid"]) as init:
            running.process.send_signal(signal.SIGTERM)
            assert running.process.stderr is not None
            assert any("agent.stopping" in line for line in running.process.stderr)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(30) == 128 + signal.SIGTERM
            assert died(init)


def test_a_drained_agent_ends_when_all_is_done_and_fetched(tmp_path):
    with agent(tmp_path) as running:
        payload = running.submit("1.1", {"run.sh": b"sleep 1; echo done > out.txt"})
        running.until(payload["id"], "Running")
        running.process.send_signal(signal.SIGUSR1)
        assert running.ended(payload["id"])["status"] == "Completed"
        running.call("DELETE", f"/payloads/{payload['id']}")
        assert running.process.wait(30) == 0


def test_killed_while_a_job_runs_the_job_dies_with_it_as_interrupted(tmp_path):
    with agent(tmp_path) as running:
        payload = running.submit("1.1", STUBBORN)
        started = running.until(payload["id"], "Running")
        with watched(started["pid"]) as init:
            running.kill()
            assert died(init)
    with agent(tmp_path) as running:
        ended = running.ended(payload["id"])
        assert (ended["status"], ended["reason"]) == ("Failed", "agent_error")
        assert ended["message"] == "the agent was killed while it ran"
        assert ended["interrupted"]
        again = running.submit("1.2", HELLO)
        assert running.ended(again["id"])["status"] == "Completed"
        assert running.terminate() == 0
    work = tmp_path / "agent" / "work"
    assert not work.exists() or not any(work.iterdir())


def test_killed_with_payloads_waiting_it_runs_each_of_them_once_after_its_restart(tmp_path):
    with agent(tmp_path, "--slots", "1") as running:
        blocked = running.submit("1.1", SLEEP)
        running.until(blocked["id"], "Running")
        waiting = [running.submit(f"{job}.1", HELLO) for job in (2, 3, 4)]
        running.kill()
    with agent(tmp_path) as running:
        for payload in waiting:
            assert running.ended(payload["id"])["status"] == "Completed"


def test_health_replies_while_jobs_keep_every_slot_busy(tmp_path):
    spin = {"run.sh": b"while :; do :; done\n"}
    with agent(tmp_path) as running:
        for job in (1, 2):
            payload = running.submit(f"{job}.1", spin)
            running.until(payload["id"], "Running")
        status, health = running.call("GET", "/health")
        assert (status, health["status"]) == (200, "ok")
        assert health["running"] >= 1


# -- not starting


def test_a_port_in_use_is_an_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, text = refused("--port", str(port), "--data-dir", str(tmp_path))
    assert code == 69
    assert "another program listens there" in text
    assert str(port) in text


def test_a_data_folder_in_use_is_an_error_with_the_pid_that_uses_it(tmp_path):
    with agent(tmp_path) as running:
        code, text = refused("--port", "0", "--data-dir", str(tmp_path / "agent"))
        assert code == 73
        assert f"pid {running.process.pid}" in text
        assert running.call("GET", "/health")[0] == 200


def test_a_data_folder_that_cannot_be_made_is_an_error():
    code, text = refused("--port", "0", "--data-dir", "/dev/null/agent")
    assert code == 73
    assert "/dev/null/agent" in text


def test_a_damaged_database_is_an_error_and_not_changed(tmp_path):
    (tmp_path / "agent.sqlite").write_bytes(b"SQLite format 3\0" + b"garbage" * 1000)
    before = (tmp_path / "agent.sqlite").read_bytes()
    code, text = refused("--port", "0", "--data-dir", str(tmp_path))
    assert code == 74
    assert "database" in text
    assert (tmp_path / "agent.sqlite").read_bytes() == before


def test_a_database_of_a_newer_version_is_an_error_and_not_changed(tmp_path):
    with sqlite3.connect(tmp_path / "agent.sqlite") as database:
        database.execute("CREATE TABLE schema_version (version INTEGER NOT NULL) STRICT")
        database.execute("INSERT INTO schema_version VALUES (99)")
    database.close()
    code, text = refused("--port", "0", "--data-dir", str(tmp_path))
    assert code == 74
    assert "newer version" in text


def test_listening_for_others_needs_a_token(tmp_path):
    code, text = refused("--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path))
    assert code == 69
    assert "agent.tokens" in text


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"PORT": "http"}, "PORT: 'http' is not a whole number"),
        ({"MAX_AGE": "1d"}, "MAX_AGE: '1d' is not a whole number"),
        ({"FERRYMAN_AGENT__SLOTZ": "2"}, "did you mean slots?"),
        ({"FERRYMAN_AGENT__GRACE": "soon"}, "agent.grace"),
        ({"FERRYMAN_AGENT__SANDBOX": "docker"}, "agent.sandbox"),
    ],
)
def test_a_bad_setting_is_an_error_with_its_name(tmp_path, env, message):
    code, text = refused("--data-dir", str(tmp_path), **env)
    assert code == 2
    assert message in text
    assert "Traceback" not in text


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: starting without bwrap is not proved")
def test_without_bubblewrap_it_does_not_listen_and_says_how_to_fix_that(tmp_path):
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    probe = subprocess.run(["unshare", "-m", "true"], check=False)
    if probe.returncode != 0:
        pytest.skip("no mount namespace here: starting without bwrap is not proved")
    hide = f"mount -t tmpfs none /mnt && mount --bind /mnt {bwrap!r} 2>/dev/null || "
    hide += f"mount --bind /dev/null {bwrap!r}"
    code, text = refused(
        "--port",
        "0",
        "--data-dir",
        str(tmp_path),
        wrap=("unshare", "-m", "sh", "-c", f'{hide}; exec "$@"', "sh"),
    )
    assert code == 69
    assert "apt install bubblewrap" in text
    assert "agent.listening" not in text


def test_more_files_than_a_jobs_disk_can_hold_end_it_by_its_limit(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("not root: that a bundle fits on a job's own disk is not proved")
    with agent(tmp_path) as running:
        files = {"run.sh": b"true\n", **{f"many/{number}": b"x" for number in range(900)}}
        ended = running.ended(
            running.submit("1.1", files, limits=LIMITS.model_copy(update={"disk": 8 << 20}))["id"]
        )
        assert (ended["status"], ended["reason"]) == ("Failed", "disk_limit"), ended
        assert not ended["interrupted"]
        assert "902 files and folders" in ended["message"]
