"""What keeps the programs from starting: each ends with its code and a sentence, and what it found
is as it was.
"""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from client_agent.__main__ import cli as agent
from client_agent.payloads.store import MIGRATIONS as OF_AGENT
from server.__main__ import program as server
from server.domain.tokens import TokenRecord
from server.maintenance.__main__ import program as maintenance
from server.store import tokens
from server.store.migrations import MIGRATIONS
from shared.command_line import run_command
from shared.principals import Role
from shared.sqlite.database import Database
from shared.sqlite.files import migrate
from tests.kit.dev_program import ROOT, ended
from tests.kit.disks import mounted
from tests.kit.each import each
from tests.kit.programs import Program, call, free_port

both = pytest.mark.parametrize("name", ["server", "client_agent"])
DATABASES: dict[str, tuple[str, Any]] = {
    "server": ("ferryman.sqlite", MIGRATIONS),
    "client_agent": ("agent.sqlite", OF_AGENT),
}


def made(name: str, folder: Path, *flags: str) -> Program:
    folder.mkdir(exist_ok=True)
    return Program(name, folder, uuid.uuid4().hex, *flags)


def refused(program: Program, code: int, *said: str) -> None:
    program.begin()
    try:
        assert program.wait() == code, program.log
    finally:
        if program.runs:
            program.kill()
    assert [words for words in (*said, "Traceback") if words not in program.log] == ["Traceback"]


@both
def test_a_port_or_a_folder_in_use(tmp_path: Path, name: str) -> None:
    first, other = made(name, tmp_path / "first"), made(name, tmp_path / "other")
    with first.running():
        other.port = first.port
        refused(other, 69, "another program listens there", str(first.port))
        for port in (first.port, free_port()):
            again = made(name, tmp_path / "first")
            again.port = port
            refused(again, 73, "in use by another process", f"pid {first.pid}")
        assert call(first.url, "GET", "/health")[0] == 200


@both
@pytest.mark.parametrize("newer", [False, True])
def test_a_database_that_is_damaged_or_of_a_newer_version_is_left_alone(
    tmp_path: Path, name: str, newer: bool
) -> None:
    program, (file, steps) = made(name, tmp_path), DATABASES[name]
    program.data.mkdir(mode=0o700)
    path = program.data / file
    if newer:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            migrate(database, path, steps)
            database.execute(f"INSERT INTO schema_version VALUES ({len(steps) + 50})")
    else:
        path.write_bytes(b"SQLite format 3\0" + b"garbage" * 1_000)
    before = path.read_bytes()
    refused(program, 74, "written by a newer version" if newer else "database")
    # The head of a damaged one says how it was opened.
    assert path.read_bytes()[0 if newer else 100 :] == before[0 if newer else 100 :]


@each(
    "name, words, code, said",
    [
        ("server", "--host 0.0.0.0", 69, "without a token"),
        ("server", "--agent-url no-address", 2, "--agent-url: 'no-address'"),
        ("server", "--agent-url ftp://x", 2, "--agent-url: 'ftp://x'"),
        ("client_agent", "--host 0.0.0.0", 69, "agent.tokens"),
        ("client_agent", "--data-dir /dev/null/agent", 73, "/dev/null/agent"),
        ("client_agent", "--slots 0", 2, "agent.slots: "),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, name, words, code, said) -> None:
    refused(made(name, tmp_path / uuid.uuid4().hex, *words.split()), code, said)


async def test_a_server_that_asks_for_tokens_starts_if_there_is_one_for_an_operator(
    tmp_path: Path,
) -> None:
    config = tmp_path / "f.toml"
    config.write_text('[server]\nauth = "token"\n')
    program = made("server", tmp_path, "--config", str(config))
    refused(program, 69, "nobody could use it. Set server.tokens")
    database = await Database.open(program.data / "ferryman.sqlite", MIGRATIONS)
    token = TokenRecord("i", "digest", "boss", Role.OPERATOR, None, (), None, 1, "test")
    await database.write(tokens.insert, token, lambda _: None)
    await database.close()
    with program.running():
        pass


def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    program = made("server", tmp_path)
    with mounted(program.data, "-t", "tmpfs", "-o", "size=8m,ro", "tmpfs"):
        refused(program, 73, "Read-only file system")


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: starting without bwrap is not proved")
def test_without_bubblewrap_an_agent_does_not_listen_and_says_how_to_fix_that(tmp_path) -> None:
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("no mount namespace here: starting without bwrap is not proved")
    hide = f"mount -t tmpfs none /mnt && mount --bind /mnt {bwrap!r} 2>/dev/null || "
    hide += f"mount --bind /dev/null {bwrap!r}"
    program, check = made("client_agent", tmp_path), made("client_agent", tmp_path / "c", "check")
    for one in (program, check):
        one.prefix = ("unshare", "-m", "sh", "-c", f'{hide}; exec "$@"', "sh")
        refused(one, 69, "apt install bubblewrap")
    assert "agent.listening" not in program.log
    assert "The sandbox cannot be used." in check.log


@both
def test_a_defect_at_the_start_shows_where_it_is(tmp_path: Path, name: str) -> None:
    """A ValueError of ours is no mistake in the settings."""
    where = {"server": "server.app", "client_agent": "client_agent.app"}[name]
    code = (
        f"import sys, runpy, {where} as module\n"
        "async def broken(*_, **__): raise ValueError('a defect')\n"
        "module.serve = broken\n"
        f"sys.argv = ['{name}', '--data-dir', '{tmp_path}']\n"
        f"runpy.run_module('{name}', run_name='__main__')\n"
    )
    done = ended(sys.executable, "-P", "-c", code, status=1, cwd=ROOT)
    assert "Traceback" in done.stderr
    assert "ValueError: a defect" in done.stderr


BEGUN = """
import gc, json, sys
from shared import interpreter
interpreter.starting()
import {name}.__main__
without = [gc.isenabled(), "rich" in sys.modules]
interpreter.ready()
import rich.console
now = [gc.isenabled(), gc.get_freeze_count() > 50_000, sys.getswitchinterval()]
print(json.dumps([*without, *now]))
"""


@both
def test_a_start_loads_no_rich_and_looks_for_no_garbage_and_then_turns_are_short(name: str) -> None:
    done = ended(sys.executable, "-P", "-c", BEGUN.format(name=name), cwd=ROOT)
    assert json.loads(done.stdout) == [False, False, True, True, 0.0005]


@each(
    "program, name, words, message, help_of",
    [
        (server, "ferryman server", "--prt 3", "no such option: --prt; did you mean --port?", ""),
        (server, "ferryman server", "--port x", "invalid value for '--port': should be a ", ""),
        (agent, "ferryman agent", "--slots x", "invalid value for '--slots': should be a ", ""),
        (agent, "ferryman agent", "cheque", "no such command 'cheque'", ""),
        (maintenance, "ferryman", "backup", "missing argument 'TARGET'", " backup"),
        (maintenance, "ferryman", "restore b --skip-ids x", "invalid value for", " restore"),
    ],
)
def test_wrong_words_are_said_as_the_command_line_says_them(
    program, name, words, message, help_of, capsys
):
    with pytest.raises(SystemExit) as end:
        run_command(program, name, words.split())
    assert end.value.code == 2
    said, hint = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{name}: {message}")
    assert hint == f"what it takes: {name}{help_of} -h"

    with pytest.raises(SystemExit) as end:
        run_command(program, name, [*help_of.split(), "-h"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"Usage: {name}{help_of} ")


@both
def test_it_listens_on_version_6_and_says_where(tmp_path: Path, name: str) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))  # else listening on IPv6 is not proved
    program = Program(name, tmp_path, uuid.uuid4().hex, host="::1")
    with program.running():
        assert program.url in program.log
        status, answer = call(program.url, "GET", "/health")
        assert (status, json.loads(answer)["status"]) == (200, "ok")
