"""Uploads: what is on the wire, and what a broken connection does to them."""

import asyncio
import json
import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from ferryman import BadArgument, FileChanged, NotAllowed, TryLater
from ferryman.errors import Unreachable
from ferryman.upload import BATCH, EARLY, JobOptions, upload_fields
from server.domain.upload_fields import OPTIONAL
from tests.client import fake_server
from tests.client.fake_server import SCRIPT, FakeServer, accepted, doc, hang_up, jobs, page, problem
from tests.kit.each import each

UPLOAD = "POST /upload"


async def test_names_fields_and_contents_arrive_as_they_are(fake, tmp_path):
    big = bytes(range(256)) * 8192  # 2 MiB: several pieces
    (tmp_path / "big").write_bytes(big)
    fake.on(UPLOAD, accepted())
    progress: list[tuple[int, int]] = []
    files = {**SCRIPT, "data/é “x”.pdb": b"ATOM\r\n", 'q"uote': b"", "big": tmp_path / "big"}
    given: dict[str, Any] = {"timeout": 90, "memory": "64MiB", "cpus": 0.5, "pids": 32}
    given |= {"disk": 8 << 20, "service": "example", "name": "my job", "tags": ["a", "b"]}
    async with fake.client() as client:
        given |= {"progress": lambda done, total: progress.append((done, total))}
        made = await client.submit(files, **given)
    (upload,) = fake.uploads
    assert (made.id, made.status) == (17, "Queued")
    early = {"user_id": "ada", "service": "example", "timeout": "90s", "memory": "64MiB"}
    early |= {"cpus": "0.5", "pids": "32", "disk": "8388608"}
    assert upload.fields == early | {"name": "my job", "tags": "a,b"}
    assert upload.query == early
    assert upload.files == [
        ("file", "big", big),
        ("file", "data/é “x”.pdb", b"ATOM\r\n"),
        ("file", 'q"uote', b""),
        ("file", "run.sh", b"echo hi\n"),
    ]
    assert "Transfer-Encoding" not in upload.headers
    assert upload.headers["Expect"] == "100-continue"
    assert {total for _, total in progress} == {int(upload.headers["Content-Length"])}
    assert progress[-1][0] == progress[-1][1]
    assert len(progress) >= 3


async def test_small_uploads_need_no_leave_and_each_has_a_key_of_its_own_unless_one_is_given(fake):
    fake.on(UPLOAD, accepted())
    async with fake.client() as client:
        for key in (None, None, "mine"):
            await client.submit(SCRIPT, service="example", idempotency_key=key)
        await client.submit(SCRIPT, service="example", tags="abc", timeout=1e7, cpus=1e-5)
    async with fake.client(user=None) as client:
        with pytest.raises(BadArgument, match="whose job"):
            await client.submit(SCRIPT, service="example")
    first, second, third, _ = (one.headers["Idempotency-Key"] for one in fake.uploads)
    assert len({first, second, third}) == 3
    assert third == "mine"
    assert re.fullmatch(r"[\w-]{20,}", first)
    fields = fake.uploads[-1].fields
    assert [fields[name] for name in ("tags", "timeout", "cpus")] == ["abc", "10000000s", "0.00001"]
    assert not any("Expect" in one.headers for one in fake.uploads)


@each(
    ("option", "value", "text"),
    [
        ("timeout", 90, "90s"),
        ("queue_timeout", 0.25, "0.25s"),
        ("heartbeat_timeout", "5m", "5m"),
        ("retry_delays", [1, "5m", 0.5], "1s,5m,0.5s"),
        ("retry_on", ["timeout", "exit:3"], "timeout,exit:3"),
        ("priority", -5, "-5"),
        ("memory", 1 << 30, "1073741824"),
        ("not_before", datetime(2030, 1, 31, 9, tzinfo=UTC), "2030-01-31T09:00:00+00:00"),
        ("not_before", "in 2h", "in 2h"),
        ("array", range(100), "0-99:1"),
        ("array", range(5, 20, 10), "5-15:10"),
        ("array", "0-9,20", "0-9,20"),
        ("after", [17, 18], "17,18"),
        ("inputs_from", 17, "17"),
        ("outputs", ["out/*.csv", "best.pdb"], "out/*.csv,best.pdb"),
        ("result_files", "changed", "changed"),
        ("meta", {"a": [1, "ü"]}, {"a": [1, "ü"]}),
        ("not_before", datetime(2030, 1, 31, 9), BadArgument("without a time zone")),  # noqa: DTZ001
        ("array", range(0), BadArgument("no indices")),
        ("array", range(9, 0, -1), BadArgument("no indices that ascend")),
        ("time_out", 1, TypeError(r"no argument 'time_out'; did you mean timeout\?")),
    ],
)
def test_an_option_is_written_as_the_server_reads_it(option, value, text) -> None:
    options: JobOptions = {option: value}  # type: ignore[misc]
    if isinstance(text, Exception):
        with pytest.raises(type(text), match=str(text)):
            upload_fields("s", "ann", None, (), options)
    else:
        ((name, written),) = upload_fields("s", "ann", None, (), options)[2:]
        assert (name, json.loads(written) if option == "meta" else written) == (option, text)


def test_every_optional_field_of_an_upload_is_an_option() -> None:
    assert set(OPTIONAL) - {"name", "tags"} == set(JobOptions.__annotations__)
    assert set(JobOptions.__annotations__) >= EARLY


LOOK_UP, ONE = "GET /api/v1/jobs", fake_server.job()
FAILURES: dict[str, fake_server.Answer] = {
    "no answer": fake_server.never,
    "reset": hang_up,
    "503": page("gave up", 503),
    "504": page("gave up", 504),
}


@each(
    ("how", "known_after", "options", "end", "counts"),
    [
        *((how, 0, {}, "Running", (1, 1)) for how in FAILURES),
        *((how, 3, {}, "Running", (1, 4)) for how in ("no answer", "504")),
        *((how, None, {}, "Queued", (2, None)) for how in ("no answer", "reset")),
        # a key that the caller chose may be another bundle's, so the server compares
        ("reset", 0, {"idempotency_key": "mine"}, "Queued", (2, 0)),
        ("reset", 0, {"retry_for": 0}, Unreachable, (1, 0)),
        ("503", 0, {"retry_for": 0}, TryLater, (1, 0)),
    ],
)
async def test_a_job_of_a_lost_answer_is_sought(fake, how, known_after, options, end, counts):
    """A server that may still be at work is given time: ``known_after`` look-ups find the job."""
    failure = FAILURES[how]
    # several pauses fit into a time-out that tests can wait for
    fake.clock = fake_server.InstantClock(slower=100 if known_after == 3 else 1)
    async with fake.client(retry_for=options.pop("retry_for", 15)) as client:
        transport = client._transport
        usual = transport.timeout
        transport.timeout = 0.2 if how == "no answer" else usual

        async def fail(request: web.Request) -> web.StreamResponse:
            transport.timeout = usual  # nothing else comes too late, however slow this machine is
            return (
                failure.response()
                if isinstance(failure, fake_server.Reply)
                else await failure(request)
            )

        found = [jobs()] if known_after is None else [*[jobs()] * known_after, jobs(ONE)]
        fake.on(UPLOAD, fail, accepted()).on(LOOK_UP, *found)
        if isinstance(end, type):
            with pytest.raises(end) as caught:
                await client.submit(SCRIPT, service="example", **options)
            assert "there may be a job" in caught.value.__notes__[0]
        else:
            made = await client.submit(SCRIPT, service="example", **options)
            assert (made.id, made.status) == (17, end)
            keys = {one.headers["Idempotency-Key"] for one in fake.uploads}
            keys |= {one.query["idempotency_key"] for one in fake.asked[LOOK_UP]}
            assert keys == {made.idempotency_key}
            assert {one.query["user"] for one in fake.asked[LOOK_UP]} <= {"ada"}
    looked_up = len(fake.asked[LOOK_UP])
    assert (len(fake.uploads), looked_up if counts[1] is not None else None) == counts
    assert looked_up or counts[1] is not None


async def test_tries_end_after_retry_for_and_where_nothing_arrived_nothing_is_said_of_a_job(fake):
    fake.on(UPLOAD, hang_up)
    async with fake.client(retry_for=5) as client:
        with pytest.raises(Unreachable) as caught:
            await client.submit(SCRIPT, service="example")
    assert caught.value.url.startswith(fake.url)
    assert 3 < fake.clock.at <= 5
    async with FakeServer().serving() as gone:
        pass
    async with gone.client(retry_for=0) as client:
        refused = r"cannot reach http://127.0.0.1:\d+.*: Connection refused"
        with pytest.raises(Unreachable, match=refused) as caught:
            await client.submit(SCRIPT, service="example")
    assert not hasattr(caught.value, "__notes__")


@each(
    ("status", "code", "retry_after", "pauses"),
    [(503, "starting", 2, [2.0, 2.0]), (429, "too_many_uploads", 1, [1.0, 2.0])],
)
async def test_a_refusal_that_passes_by_itself_is_tried_again(status, code, retry_after, pauses):
    refusal = problem(status, code, "not yet", Retry_After=str(retry_after))
    fake = FakeServer().on(UPLOAD, refusal, refusal, accepted())
    async with fake.serving(), fake.client() as client:
        assert (await client.submit(SCRIPT, service="example")).id == 17
    assert fake.clock.slept == pauses


async def test_refusals_carry_what_was_said_and_a_limit_of_requests_is_waited_for(fake):
    """But not for longer than asked."""
    fake.on(UPLOAD, problem(403, "some_code", "This will not do.", Retry_After="7"))
    async with fake.client() as client:
        with pytest.raises(NotAllowed, match=r"^This will not do\.$") as caught:
            await client.submit(SCRIPT, service="example")
    error = caught.value
    assert (error.status, error.code, error.request_id) == (403, "some_code", "r-1")
    assert error.retry_after == 7
    again, later = (problem(429, "rate_limited", "slower", Retry_After=s) for s in ("2", "60"))
    fake.on("GET /health", again, again, doc({"status": "ok"}), later)
    async with fake.client() as client:
        assert (await client.health()).status == "ok"
        with pytest.raises(TryLater, match="slower") as late:
            await client.health()
    assert (late.value.retry_after, fake.clock.slept) == (60, [2, 2])


@each("grows", [True, False])
async def test_a_file_that_changes_while_it_is_sent_is_an_error(fake, tmp_path, grows):
    (tmp_path / "run.sh").touch()
    big = tmp_path / "big"
    big.write_bytes(bytes(4 * BATCH))

    def change(_done: int, _total: int) -> None:
        with big.open("ab" if grows else "r+b") as file:
            file.write(b"more") if grows else file.truncate(BATCH)

    fake.on(UPLOAD, accepted())
    async with fake.client() as client:
        with pytest.raises(FileChanged, match="big changed while it was being sent"):
            await client.submit(tmp_path, service="example", progress=change)
    assert len(fake.uploads) <= 1


SIZE = 128 << 20
MOST_GROWTH = 32 << 20

CLIENT = """
import io, re, sys
from ferryman import SyncClient

class Nowhere(io.RawIOBase):
    def writable(self): return True
    def write(self, data): return len(data)

def peak():  # not ru_maxrss, which begins with that of the process that started this one
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s*([0-9]+) kB", status.read())[1]) * 1024

url, big = sys.argv[1:]
with SyncClient(url, user="ada") as client:
    client.submit({"run.sh": b"x"}, service="example")
    client.download(1, Nowhere())
    before = peak()
    client.submit({"run.sh": b"x", "big": big}, service="example")
    client.download(17, Nowhere())
print(peak() - before)
"""


async def take(request: web.Request) -> web.StreamResponse:
    async for _ in request.content.iter_any():
        pass
    return accepted().response()


async def send(request: web.Request) -> web.StreamResponse:
    size = SIZE if "/17/" in request.path else 1
    response = web.StreamResponse()
    response.content_type, response.content_length = "application/zip", size
    await response.prepare(request)
    for start in range(0, size, 1 << 20):
        await response.write(bytes(min(1 << 20, size - start)))
    await response.write_eof()
    return response


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc: flat memory is not proved")
async def test_large_bundles_and_results_pass_through_in_pieces(fake, tmp_path):
    """Memory stays flat, however large they are."""
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(SIZE)
    (tmp_path / "client.py").write_text(CLIENT)
    fake.parses = False
    fake.on("POST /upload", take).on("GET /api/v1/jobs/{id}/result", send)
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, str(tmp_path / "client.py"), fake.url, str(big)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await client.communicate()
    assert client.returncode == 0
    assert int(out) < MOST_GROWTH
