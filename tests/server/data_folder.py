"""A server's data folder, without a server; and the commands that work on one."""

import asyncio
import atexit
import functools
import hashlib
import itertools
import os
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from server.domain.jobs import Bundle, FileKind, Job, NewJob, Result
from server.maintenance.__main__ import program
from server.storage.folder import Storage
from server.storage.scratch import Scratch
from server.store import identity
from server.store.data_folder import read_record
from server.store.migrations import MIGRATIONS
from shared.sql import Tx
from shared.sqlite.database import Database
from shared.wire import JobState, Limits
from tests.kit.dev_program import environment
from tests.kit.memory_folder import new_folder
from tests.kit.raw_archives import write_bundle, zipped
from tests.kit.store import Store, claim, end

_LARGE = bytes(range(256)) * 200
RESULT = zipped({"out.txt": b"1", "large": _LARGE}, zipfile.ZIP_STORED)
"""What the jobs left."""


class Folder:
    """A server's, and the storage that it has."""

    def __init__(self, path: Path) -> None:
        self.path, self.database_path = path, path / "ferryman.sqlite"
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
        numbers = itertools.count(len(list(path.iterdir())) * 1_000)  # above those of a copy
        self.scratch = Scratch(path / "staging", lambda: f"{next(numbers):032x}")
        self.storage = Storage(path, self.scratch, lambda: f"{next(numbers):032x}")

    async def add(self, jobs: Store, user: str, *, to: JobState = JobState.QUEUED) -> Job:
        """A job with its files, moved to the state."""
        async with self.storage.pending(FileKind.BUNDLE) as pending:
            files = {"run.sh": b"true", "of": user.encode(), "large": _LARGE}
            with self.scratch.file() as content:
                made = write_bundle(content.path, files)
                bundle = Bundle(await pending.put(content), made.size, made.digest)
            new = NewJob(user, "example", bundle, Limits(), 60.0, 10, tags=("t",))
            job, _ = await jobs.insert(new, "queued")
            pending.commit()
        if to is JobState.QUEUED:
            return job
        sent = await jobs.moved(claim(job, "local"))
        job = await jobs.to(sent, JobState.SUBMITTED, changes={"payload_id": 4})
        if to is JobState.SUBMITTED:
            return job
        async with self.storage.pending(FileKind.RESULT) as pending:
            digest = hashlib.sha256(RESULT).hexdigest()
            result = Result(await pending.put(RESULT), len(RESULT), digest)
            job = await jobs.moved(end(job, to, expires_at=10**18, result=result))
            pending.commit()
        return job

    async def add_small(self, jobs: Store, user: str) -> Job:
        """A job whose bundle and result are rows."""
        with self.scratch.file() as content:
            made = write_bundle(content.path, {"run.sh": b"true", "of": user.encode()})
            few = content.path.read_bytes()
        bundle = Bundle(f"{user:0>32}", made.size, made.digest, content=few)
        job, _ = await jobs.insert(NewJob(user, "example", bundle, Limits(), 60.0, 10), "queued")
        left = zipped({"out.txt": user.encode()})
        digest = hashlib.sha256(left).hexdigest()
        result = Result(f"{user:1>32}", len(left), digest, content=left)
        sent = await jobs.moved(claim(job, "local"))
        sent = await jobs.to(sent, JobState.SUBMITTED, changes={"payload_id": 5})
        return await jobs.moved(end(sent, JobState.COMPLETED, expires_at=10**18, result=result))

    def sql(self, text: str) -> None:
        """Change its database by hand."""
        with closing(sqlite3.connect(self.database_path)) as database, database:
            database.executescript(text)

    def marks(self) -> identity.Marks:
        with closing(sqlite3.connect(self.database_path)) as connection:
            return identity.marks(Tx(connection))


@functools.cache
def _template(bob: JobState) -> Path:
    folder = Folder(new_folder() / "data")
    atexit.register(shutil.rmtree, folder.path.parent)

    async def fill() -> None:
        database = await Database.open(folder.database_path, MIGRATIONS)
        folder.sql("INSERT INTO meta VALUES ('server', 'the-first')")
        users = {"ann": JobState.COMPLETED, "bob": bob, "cy": JobState.QUEUED}
        for user, state in users.items():
            await folder.add(Store(database, []), user, to=state)
        await database.close()

    asyncio.run(fill())
    return folder.path


def filled(path: Path, bob: JobState = JobState.SUBMITTED) -> Folder:
    """With a completed job of ann, one of bob that an agent has, and a queued one of cy."""
    shutil.copytree(_template(bob), path)
    return Folder(path)


def call(*words: object, code: int = 0) -> str:
    """What a command of the program for operators says."""
    given, gone = [*map(str, words)], dict.fromkeys(set(os.environ) - set(environment()))
    done = CliRunner().invoke(program, given, env=gone, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def record_of(folder: Path) -> identity.Marks:
    """What the folder says of its server."""
    found = read_record(folder)
    assert found is not None
    return found


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()
