"""Uploads: what is on the wire, and what a broken connection does to them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from ferryman import BadArgument, BadBundle, FileChanged, NotAllowed, Refused, TryLater
from ferryman.errors import NotUnderstood, Unreachable
from ferryman.upload import BATCH, EARLY, JobOptions, upload_fields
from server.domain.upload_fields import OPTIONAL
from tests.client.fake_server import (
    SCRIPT,
    Answer,
    FakeServer,
    Handler,
    InstantClock,
    Reply,
    accepted,
    doc,
    hang_up,
    job,
    jobs,
    never,
    page,
    problem,
)
from tests.kit.each import each

UPLOAD = "POST /upload"


async def test_names_fields_and_contents_arrive_as_they_are(fake, tmp_path):
    big = bytes(range(256)) * 8192  # 2 MiB: several pieces
    (tmp_path / "big").write_bytes(big)
    fake.on(UPLOAD, accepted())
    progress: list[tuple[int, int]] = []
    files = {**SCRIPT, "data/é “x”.pdb": b"ATOM\r\n", 'q"uote': b"", "big": tmp_path / "big"}
    given = {"timeout": 90, "memory": "64MiB", "cpus": 0.5, "pids": 32, "disk": 8 << 20}
    async with fake.client() as client:
        made = await client.submit(
            files,
            service="example",
            name="my job",
            tags=["a", "b"],
            progress=lambda done, total: progress.append((done, total)),
            **given,
        )
    (upload,) = fake.uploads
    assert (made.id, made.status) == (17, "Queued")
    early = {
        "user_id": "ada",
        "service": "example",
        "timeout": "90s",
        "memory": "64MiB",
        "cpus": "0.5",
        "pids": "32",
        "disk": "8388608",
    }
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


# ------------------------------------------------------------------ answers that do not come


async def test_a_lost_answer_is_asked_for_again_under_the_same_key(fake):
    fake.on(UPLOAD, hang_up, hang_up, accepted())
    async with fake.client() as client:
        made = await client.submit(SCRIPT, service="example")
    assert made.id == 17
    assert [one.headers["Idempotency-Key"] for one in fake.uploads] == [made.idempotency_key] * 3
    assert len(fake.clock.slept) == 2
    assert fake.clock.slept == sorted(fake.clock.slept)


class Slow(FakeServer):
    """Takes each upload whole, and fails to answer the first; ``known_after`` look-ups find a job.

    Nothing is answered too late but that one, however slow this machine is.
    """

    def __init__(self, how: str, known_after: int | None = 0, slower: float = 1.0) -> None:
        super().__init__()
        self.how, self.clock = how, InstantClock(slower)
        failure: Answer = {"no answer": never, "reset": hang_up}.get(
            how, page("gave up", _status(how))
        )
        self.on(UPLOAD, self.first(failure), accepted())
        found = [jobs()] * known_after + [jobs(job())] if known_after is not None else [jobs()]
        self.on("GET /api/v1/jobs", *found)

    def first(self, failure: Answer) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            self.patience(self.default)
            return failure.response() if isinstance(failure, Reply) else await failure(request)

        return answer

    async def submit(self, *, retry_for: float = 15, **options):
        async with self.serving(), self.client(retry_for=retry_for) as client:
            transport = client._transport
            self.default, self.patience = (
                transport.timeout,
                lambda s: setattr(transport, "timeout", s),
            )
            if self.how == "no answer":
                self.patience(0.2)
            return await client.submit(SCRIPT, service="example", **options)

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.uploads), len(self.asked["GET /api/v1/jobs"])


def _status(how: str) -> int:
    return int(how) if how.isdigit() else 500


@each("how", ["no answer", "504", "503", "reset"])
async def test_a_job_that_is_there_is_found_and_the_bundle_is_sent_once(how):
    slow = Slow(how)
    made = await slow.submit()
    assert (made.id, made.status, slow.counts) == (17, "Running", (1, 1))
    (looked_up,) = slow.asked["GET /api/v1/jobs"]
    assert looked_up.query == {"user": "ada", "idempotency_key": made.idempotency_key}


@each("how", ["no answer", "504"])
async def test_a_server_that_is_still_at_work_is_given_time(how):
    slow = Slow(how, 3, slower=100)  # several pauses fit into a time-out that tests can wait for
    assert (await slow.submit()).id == 17
    assert slow.counts == (1, 4)


@each("how", ["no answer", "reset"])
async def test_a_bundle_that_got_lost_is_sent_again_under_its_key(how):
    slow = Slow(how, None)
    made = await slow.submit()
    assert (made.id, made.status) == (17, "Queued")
    assert [one.headers["Idempotency-Key"] for one in slow.uploads] == [made.idempotency_key] * 2
    assert slow.counts[1] > 0


async def test_a_key_that_the_caller_chose_may_be_another_bundles_so_the_server_compares():
    slow = Slow("reset")
    await slow.submit(idempotency_key="mine")
    assert slow.counts == (2, 0)


@each(("how", "kind"), [("reset", Unreachable), ("503", TryLater)])
async def test_without_retries_the_first_failure_says_that_there_may_be_a_job(how, kind):
    slow = Slow(how)
    with pytest.raises(kind) as caught:
        await slow.submit(retry_for=0)
    assert slow.counts == (1, 0)
    assert "there may be a job" in caught.value.__notes__[0]


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
        with pytest.raises(
            Unreachable, match=r"cannot reach http://127.0.0.1:\d+.*: Con"
        ) as caught:
            await client.submit(SCRIPT, service="example")
    assert "Connection refused" in str(caught.value)
    assert not hasattr(caught.value, "__notes__")


# ------------------------------------------------------------------ refusals


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


@each(("status", "kind"), [(403, NotAllowed), (429, TryLater), (507, TryLater), (422, Refused)])
async def test_refusals_carry_what_the_server_said(fake, status, kind):
    fake.on(UPLOAD, problem(status, "some_code", "This will not do.", Retry_After="7"))
    async with fake.client() as client:
        with pytest.raises(kind, match=r"^This will not do\.$") as caught:
            await client.submit(SCRIPT, service="example")
    error = caught.value
    assert (error.status, error.code, error.request_id) == (status, "some_code", "r-1")
    assert error.retry_after == 7


async def test_a_limit_of_requests_is_waited_for_but_not_for_longer_than_asked(fake):
    again, later = (problem(429, "rate_limited", "slower", Retry_After=s) for s in ("2", "60"))
    fake.on("GET /health", again, again, doc({"status": "ok"}), later)
    async with fake.client() as client:
        assert (await client.health()).status == "ok"
        with pytest.raises(TryLater, match="slower") as caught:
            await client.health()
    assert (caught.value.retry_after, fake.clock.slept) == (60, [2, 2])


async def test_other_shapes_of_a_refusal(fake):
    reference = {"id": 0, "status": "Unknown", "message": "Invalid service"}
    fake.on(UPLOAD, doc(reference, 400), page("<h1>Welcome to nginx</h1>"))
    async with fake.client() as client:
        with pytest.raises(Refused, match=r"^Invalid service$"):
            await client.submit(SCRIPT, service="example")
        with pytest.raises(NotUnderstood, match="does not answer like a Ferryman server"):
            await client.submit(SCRIPT, service="example")


async def test_a_refusal_before_the_body_saves_sending_it(fake, tmp_path):
    (tmp_path / "run.sh").touch()
    (tmp_path / "big").write_bytes(bytes(8 * BATCH))
    fake.early = problem(413, "too_large", "at most 1 MiB")
    sent: list[int] = []
    async with fake.client() as client:
        with pytest.raises(Refused, match="at most 1 MiB"):
            await client.submit(tmp_path, service="s", progress=lambda done, _: sent.append(done))
    assert sent == []


@each("grows", [True, False])
async def test_a_file_that_changes_while_it_is_sent_is_an_error_and_not_sent_again(
    fake, tmp_path, grows
):
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


async def test_wrong_arguments_are_refused_before_anything_is_sent(fake):
    fake.on("**", page())
    async with fake.client(user=None) as client:
        with pytest.raises(ValueError, match="whose job"):
            await client.submit(SCRIPT, service="example")
        with pytest.raises(ValueError, match="comma"):
            await client.submit(SCRIPT, service="example", user="ada", tags=["a,b"])
        with pytest.raises(BadBundle):
            await client.submit(Path("/nonexistent"), service="example", user="ada")
    assert fake.asked["**"] == []
