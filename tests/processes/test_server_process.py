"""The real server program: how it ends, what it says when the machine is short of something, and
what ``ferryman doctor`` finds on its host, and on an agent's.
"""

import io
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from server.store.migrations import MIGRATIONS
from tests.kit import programs
from tests.kit.command_line import fresh
from tests.kit.disks import fill, mounted
from tests.kit.programs import Pair, Program, form, until
from tests.kit.raw_archives import FORM
from tests.processes.sleeping import Sleep

LARGE = form({"run.sh": b"true\n", "big": bytes(3 << 20)})
"""An upload with a part too large to be kept in memory."""


def program(folder: Path, *flags: str) -> Program:
    # An agent that is not there: jobs stay queued.
    return Program("server", folder, uuid.uuid4().hex, "--agent-url", "http://127.0.0.1:9", *flags)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Program]:
    found = program(tmp_path)
    yield found
    if found.runs:
        found.kill()


def get(server: Program, path: str) -> tuple[int, dict[str, Any]]:
    status, answer = programs.call(server.url, "GET", path)
    return status, json.loads(answer)


def upload(server: Program, padding: int = 0) -> tuple[int, dict[str, Any]]:
    more = {"big": os.urandom(padding)} if padding else {}
    return programs.upload(server.url, {"run.sh": b"true\n"} | more)


def begun(server: Program, length: int = len(LARGE)) -> socket.socket:
    """An upload of so many bytes that has begun: all but the last 100 of a large one were sent."""
    sending = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    before = len(files(server))
    sending.sendall(f"{head}Content-Type: {FORM}\r\n\r\n".encode() + LARGE[:-100])
    until(lambda: len(files(server)) > before, "the upload has not begun")
    return sending


def files(server: Program) -> list[Path]:
    kinds = ("staging", "bundles", "results")
    return [p for kind in kinds for p in (server.data / kind).rglob("*") if p.is_file()]


def asking(server: Program, path: str) -> socket.socket:
    """A connection that asks for that, and takes little at a time."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    line.connect(("127.0.0.1", server.port))
    line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return line


def test_sigterm_finishes_what_is_sent_either_way_and_ends_waits(server: Program) -> None:
    server.start()
    assert upload(server, 16 << 20)[0] == 201  # more than the kernel holds on the way
    assert [oct(file.stat().st_mode & 0o777) for file in files(server)] == ["0o600"]
    path = "/api/v1/jobs/1/bundle"
    with (
        asking(server, "/download/1?wait=100") as waiting,
        asking(server, path) as reading,
        begun(server) as sending,
    ):
        answer = HTTPResponse(reading)
        answer.begin()
        server.send(signal.SIGTERM)
        assert b" 200 " in waiting.recv(4096)  # answered at once with its state
        until(lambda: not programs.listens(server.port), "it still takes calls")
        sending.sendall(LARGE[-100:])
        assert b" 201 " in sending.recv(4096)
        assert server.runs
        body = answer.read()  # fails where bytes are missing
    assert zipfile.ZipFile(io.BytesIO(body)).testzip() is None
    assert server.wait() == 0
    server.start()
    assert get(server, "/api/v1/jobs/2")[1]["status"] == "Queued"


def test_what_does_not_end_within_the_shutdown_grace_is_broken_off_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    config = tmp_path / "ferryman.toml"
    config.write_text('[server]\nshutdown_grace = "0.3s"\n')
    server = program(tmp_path, "--config", str(config))
    server.start()
    with begun(server, 99_999_999) as sending:
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert "server.cut_off" in server.log
        with suppress(ConnectionResetError):
            assert b" 201 " not in sending.recv(4096)
    assert files(server) == []


def test_kill_9_in_the_middle_of_an_upload_leaves_nothing(server: Program) -> None:
    server.start()
    with begun(server, 9_000_000):
        server.kill()
    server.start()
    until(lambda: files(server) == [], "half an upload is left")
    assert get(server, "/api/v1/jobs")[1]["items"] == []


def test_a_full_disk_is_507_and_loses_nothing(tmp_path: Path) -> None:
    config = tmp_path / "f.toml"
    config.write_text('[server]\nmin_free = "1MiB"\ncleaner_interval = "0.2s"\n')
    server = program(tmp_path, "--config", str(config))
    with mounted(server.data, "-t", "tmpfs", "-o", "size=8m", "tmpfs"), server.running():
        assert upload(server)[0] == 201
        kept = set(files(server))
        status, reply = upload(server, 16 << 20)
        assert (status, reply["code"]) == (507, "disk_full")
        filler = fill(server.data)
        status, reply = upload(server)
        assert status == 507, reply
        assert set(files(server)) == kept
        status, reply = get(server, "/health")
        assert status == 503
        assert "the disk is full" in reply["message"]
        assert get(server, "/api/v1/jobs/1")[1]["status"] == "Queued"
        filler.unlink()
        assert upload(server)[0] == 201
        until(lambda: get(server, "/health")[0] == 200, "health remembers")


def test_small_contents_for_which_the_database_has_no_room_are_refused_or_wait(tmp_path: Path):
    """Also where no space is kept free, so that only the write of the row finds the disk full."""
    settings = '[server]\nmin_free = "0B"\ncleaner_interval = "0.2s"\n'
    pair, sleep = Pair(tmp_path, settings), Sleep()

    def contents(names: str) -> set[str]:
        with closing(sqlite3.connect(pair.server.data / "ferryman.sqlite")) as database:
            return {name for (name,) in database.execute(names) if name}

    with mounted(pair.server.data, "-t", "tmpfs", "-o", "size=16m", "tmpfs"), pair.running():
        job_id = pair.submit(f"head -c 20000 /dev/urandom > out\n{sleep}\ntrue\n")
        pair.until(job_id, "Running")
        filler, accepted = fill(pair.server.data), {job_id}
        while (answer := upload(pair.server, 20_000))[0] == 201:
            accepted.add(answer[1]["id"])  # into room that the database had already
        assert answer[0] == 507, answer
        sleep.end()
        failed = "payload.failed", "payload.not_fetched"
        until(lambda: any(event in pair.server.log for event in failed), "its result has room")
        assert pair.status(job_id) != "Completed"
        filler.unlink()
        for accepted_id in accepted:
            pair.until(accepted_id, "Completed")
            assert pair.result(accepted_id).testzip() is None
        assert {job["id"] for job in pair.json("/jobs?limit=500")["items"]} == accepted
        named = "SELECT file FROM bundles UNION SELECT result_file FROM attempts"
        assert contents("SELECT name FROM contents") == contents(named)


def test_health_answers_while_the_disk_does_not(tmp_path: Path) -> None:
    """The disk is real, and goes on only once ``/health`` has answered."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(4 << 30)  # sparse
    server = program(tmp_path)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=False, capture_output=True)
    if made.returncode or shutil.which("fsfreeze") is None:
        pytest.skip("no mkfs.ext4 or fsfreeze: a disk that does not answer is not proved")
    with (
        mounted(server.data, "-o", "loop", str(image)),
        server.running(),
        ThreadPoolExecutor(4) as threads,
    ):
        assert upload(server)[0] == 201
        subprocess.run(["fsfreeze", "-f", str(server.data)], check=True)
        try:
            stuck = [threads.submit(upload, server, size) for size in (10, 1 << 20, 4 << 20)]
            until(lambda: get(server, "/health")[0] == 503, "the disk's silence is not said")
            assert "does not answer" in get(server, "/health")[1]["message"]
            assert not any(one.done() for one in stuck)
        finally:
            subprocess.run(["fsfreeze", "-u", str(server.data)], check=True)
        assert [one.result()[0] for one in stuck] == [201] * 3
        until(lambda: get(server, "/health")[0] == 200, "health remembers")


def test_too_many_open_files_are_survived(server: Program) -> None:
    server.start()
    assert upload(server)[0] == 201
    used = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 12, hard))
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
    until(lambda: "Too many open files" in server.log, "it has enough files")
    for line in idle:
        line.close()
    until(lambda: upload(server)[0] == 201, "it does not recover")
    assert get(server, "/api/v1/jobs/1")[1]["status"] == "Queued"


def test_a_server_whose_database_is_away_says_so_and_begins_afresh_if_told(server: Program) -> None:
    server.start()
    assert upload(server)[0] == 201
    server.kill(signal.SIGKILL)
    for path in server.data.glob("ferryman.sqlite*"):
        path.unlink()
    stored = files(server)
    server.begin()
    assert server.wait() == 74
    assert "is missing (is its disk mounted?)" in server.log
    assert files(server) == stored
    server._flags += ("--new-database",)
    server.start()
    assert upload(server)[1]["id"] > 1_000_000
    assert server.kill(signal.SIGTERM) == 0


USER = "wilhelmina"


@pytest.mark.slow
def test_a_server_killed_while_it_forgets_a_user_goes_on_when_asked_again(server: Program) -> None:
    def jobs(user: str) -> int:
        database = f"file:{server.data / 'ferryman.sqlite'}?mode=ro"
        with closing(sqlite3.connect(database, uri=True)) as connection:
            sql = "SELECT count(*) FROM jobs WHERE user_id = ?"
            return int(connection.execute(sql, (user,)).fetchone()[0])

    def forget() -> None:
        kind = {"Content-Type": "application/json"}
        with suppress(OSError, HTTPException):
            body = json.dumps({"user": USER}).encode()
            programs.call(server.url, "POST", "/api/v1/forget-user", body, kind)

    with server.running():
        for number, user in enumerate([USER] * 60 + ["otto"]):
            said = "the-planted-words" if user == USER else "other"
            script = {"run.sh": f"echo {said} {number}"}
            assert programs.upload(server.url, script, user_id=user)[0] == 201
        asking = threading.Thread(target=forget)
        asking.start()
        until(lambda: jobs(USER) < 60, "no job is deleted")
        server.kill()
        asking.join(60)
        server.start()
        done = fresh("admin", "forget-user", USER, "--yes", FERRYMAN_URL=server.url)
        assert done.code == 0, done.err
        assert (jobs(USER), jobs("otto")) == (0, 1)
        for path in server.data.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert USER.encode() not in content, path
            assert b"the-planted-words" not in content, path


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
    database.write_bytes(b"nonsense " * 1000)
    for more in ("-wal", "-shm"):
        Path(f"{database}{more}").unlink(missing_ok=True)
    code, found = doctor(program.url, file)
    assert (code, found["server"]["exit_code"]) == (69, 69)
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
