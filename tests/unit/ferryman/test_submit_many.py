"""Many bundles, and one bundle with many inputs."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

import pytest
from aiohttp import web

from ferryman import BadBundle, Client, JobState
from ferryman.follow import buffered, in_order
from shared.clock import yield_to_loop
from shared.wire import StatusBody
from tests.unit.ferryman.fake_server import Upload, answer, job, read_upload, serving

RUN = b"cat in.txt"


class Numbering:
    """Takes uploads; the number of a job is what its in.txt says. All of them completed."""

    def __init__(self) -> None:
        self.uploads: list[Upload] = []
        self.now = self.most = 0

    async def upload(self, request: web.Request) -> web.StreamResponse:
        self.now += 1
        self.most = max(self.most, self.now)
        upload = await read_upload(request)
        self.uploads.append(upload)
        for _ in range(20):  # the others begin meanwhile
            await yield_to_loop()
        self.now -= 1
        number = int({name: data for _, name, data in upload.files}["in.txt"])
        return answer(StatusBody(id=number, status="Queued", message="m"), 201)

    async def status(self, request: web.Request) -> web.StreamResponse:
        return answer(job(JobState.COMPLETED, id=int(request.match_info["id"])))

    def serving(self):
        return serving(("POST", "/upload", self.upload), ("GET", "/api/v1/jobs/{id}", self.status))


async def test_a_bundle_runs_with_each_input_side_by_side(tmp_path):
    (tmp_path / "run.sh").write_bytes(RUN)
    (tmp_path / "in.txt").write_bytes(b"0")
    server = Numbering()
    numbers = [3, 1, 2, *range(4, 21)]
    inputs = ({"in.txt": b"%d" % number} for number in numbers)
    async with server.serving() as url, Client(url, user="ada") as client:
        made = client.map(
            tmp_path, inputs, service="s", tags=iter(["a"]), idempotency_key="k", at_once=3
        )
        results = [one async for one in made]
    assert [one.id for one in results] == numbers
    assert all(one.status is JobState.COMPLETED for one in results)
    assert server.most == 3
    assert {one.key for one in server.uploads} == {f"k.{number}" for number in range(20)}
    for upload in server.uploads:
        assert upload.fields["tags"] == "a"
        assert [name for _, name, _ in upload.files] == ["in.txt", "run.sh"]


async def test_the_first_bundle_that_fails_is_raised_after_the_jobs_before_it():
    server = Numbering()
    inputs = [{"in.txt": b"1"}, {"../in.txt": b"2"}, {"in.txt": b"3"}]
    async with server.serving() as url, Client(url, user="ada") as client:
        made = client.map({"run.sh": RUN}, inputs, service="s", at_once=1)
        assert (await anext(made)).id == 1
        with pytest.raises(BadBundle, match=r"in\.txt"):
            await anext(made)
    assert len(server.uploads) == 1


async def test_what_cannot_be_sent_with_each_job_is_refused_at_once(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("run.sh", RUN)
    async with Client("http://127.0.0.1:9", user="ada") as client:
        with pytest.raises(BadBundle, match="cannot be sent with each job"):
            async for _ in client.map(tmp_path / "a.zip", [{}], service="s"):
                pass


def counting(started: list[int], gate: asyncio.Event) -> Iterator[Callable[[], Awaitable[int]]]:
    def work(number: int) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            started.append(number)
            await gate.wait()
            return number

        return run

    return (work(number) for number in range(1_000))


async def test_who_stops_early_ends_what_still_runs():
    started: list[int] = []
    gate = asyncio.Event()
    gate.set()
    results = in_order(counting(started, gate), 4)
    assert [await anext(results), await anext(results)] == [0, 1]
    gate.clear()
    await results.aclose()
    assert len(started) <= 6
    assert len(asyncio.all_tasks()) == 1


async def test_so_many_are_taken_before_they_are_asked_for():
    taken: list[int] = []

    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(100):
            taken.append(number)
            yield number

    items = buffered(numbers(), 5)
    assert await anext(items) == 0
    for _ in range(50):
        await yield_to_loop()
    assert len(taken) <= 7
    assert [item async for item in items] == list(range(1, 100))


async def test_an_error_comes_after_what_was_there_before_it():
    async def numbers() -> AsyncGenerator[int, None]:
        yield 1
        raise KeyError("no more")

    items = buffered(numbers(), 5)
    assert await anext(items) == 1
    with pytest.raises(KeyError, match="no more"):
        await anext(items)
