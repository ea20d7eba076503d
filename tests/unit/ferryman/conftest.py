"""The command line, run in this process, and a host that answers it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from ferryman import JobState, cli
from ferryman.cli import options
from shared.wire import EventDoc, EventPage, JobDoc, JobPage, QueueInfo, StatusBody
from tests.unit.ferryman.fake_server import Upload, answer, job, read_upload, repr_digest, serving

ZIP = b"PK\x05\x06" + bytes(18)


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


Call = Callable[..., Awaitable[CommandResult]]


@pytest.fixture
def ferryman(capfd, monkeypatch, tmp_path) -> Call:
    """Runs a command line in a thread of this process; the loop here serves."""
    for name in list(os.environ):
        if name.startswith("FERRYMAN_") and not name.startswith("FERRYMAN_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "RETRY_FOR_S", 0.0)

    async def call(*words: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["ferryman", *map(str, words)])

        def run() -> int:
            try:
                cli.main()
            except SystemExit as ending:
                return int(ending.code or 0)
            raise AssertionError("main() returned")

        code = await asyncio.to_thread(run)
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return call


class Host:
    """A server with one job."""

    def __init__(self, final: JobDoc) -> None:
        self.final = final
        self.uploads: list[Upload] = []
        self.headers: list[str | None] = []
        self.listed = [final, job(JobState.QUEUED, id=16, name="a\tb")]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        self.uploads.append(await read_upload(request))
        self.headers.append(request.headers.get("Authorization"))
        said = list(self.final.warnings) or None
        body = StatusBody(
            id=17, status="Queued", message="Job successfully uploaded", warnings=said
        )
        return answer(body, 201)

    async def status(self, request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["id"])
        if number == 17:
            return answer(self.final)
        why = QueueInfo(position=1, reason=f"no agent for job {number}")
        return answer(job(JobState.QUEUED, id=number, queue=why))

    async def events(self, request: web.Request) -> web.StreamResponse:
        states = (JobState.QUEUED, JobState.RUNNING, self.final.status)
        items = [
            EventDoc(
                seq=n + 1,
                at=datetime(2026, 11, 20, 10, 0, n, 500_000, UTC),
                attempt=1,
                before=None,
                status=state,
                message=f"step {n}",
            )
            for n, state in enumerate(states)
        ]
        after = int(request.query["after"])
        return answer(EventPage(items=[item for item in items if item.seq > after]))

    async def result(self, _: web.Request) -> web.StreamResponse:
        return web.Response(
            body=ZIP, content_type="application/zip", headers={"Repr-Digest": repr_digest(ZIP)}
        )

    async def cancel(self, _: web.Request) -> web.StreamResponse:
        return answer(self.final)

    async def list(self, request: web.Request) -> web.StreamResponse:
        items = self.listed[: int(request.query.get("limit", 50))]
        return answer(JobPage(items=items, next=None))

    def serving(self):
        return serving(
            ("POST", "/upload", self.upload),
            ("GET", "/api/v1/jobs", self.list),
            ("GET", "/api/v1/jobs/{id}", self.status),
            ("GET", "/api/v1/jobs/17/events", self.events),
            ("GET", "/api/v1/jobs/17/result", self.result),
            ("GET", "/download_partial/17", self.result),
            ("POST", "/api/v1/jobs/17/cancel", self.cancel),
        )


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "run.sh").write_text("echo hi\n")
    return folder
