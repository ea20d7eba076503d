"""A server that is killed while it forgets a user, and the command that goes on afterwards."""

from __future__ import annotations

import signal
import sqlite3
import threading
import uuid
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.kit.command_line import ferryman
from tests.kit.programs import Program, call, until

USER = "wilhelmina"
JOBS = 60
JSON = {"Content-Type": "application/json"}
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="user_id"\r\n\r\n%s\r\n'
    b'--b\r\nContent-Disposition: form-data; name="service"\r\n\r\nexample\r\n'
    b'--b\r\nContent-Disposition: form-data; name="f"; filename="run.sh"\r\n\r\n%s\r\n--b--\r\n'
)


def upload(server: Program, user: str, script: str) -> None:
    form = FORM % (user.encode(), script.encode())
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert call(server.url, "POST", "/upload", form, kind)[0] == 201


def jobs(database: Path, user: str) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        sql = "SELECT count(*) FROM jobs WHERE user_id = ?"
        return int(connection.execute(sql, (user,)).fetchone()[0])


@pytest.mark.slow
async def test_a_server_killed_while_it_forgets_a_user_goes_on_when_asked_again(
    tmp_path: Path,
) -> None:
    # An agent that is not there: jobs stay queued.
    server = Program("server", tmp_path, uuid.uuid4().hex, "--agent-url", "http://127.0.0.1:9")
    with server.running():
        for number in range(JOBS):
            upload(server, USER, f"echo the-planted-words {number}")
        upload(server, "otto", "echo other")
        database = server.data / "ferryman.sqlite"

        def forget() -> None:
            body = f'{{"user": "{USER}"}}'.encode()
            with suppress(OSError, HTTPException):
                call(server.url, "POST", "/api/v1/forget-user", body, JSON)

        asking = threading.Thread(target=forget)
        asking.start()
        until(lambda: jobs(database, USER) < JOBS, "no job is deleted")
        server.kill(signal.SIGKILL)
        asking.join(60)
        server.start()
        words = ("admin", "forget-user", USER, "--yes")
        code, _, said = await ferryman(*words, FERRYMAN_URL=server.url)
        assert code == 0, said
        assert (jobs(database, USER), jobs(database, "otto")) == (0, 1)
        for path in server.data.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert USER.encode() not in content, path
            assert b"the-planted-words" not in content, path
