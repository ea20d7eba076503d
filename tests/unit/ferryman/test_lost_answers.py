"""Uploads whose answer does not come: the job is asked for before the bundle is sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ferryman import Client, TryLater, Unreachable
from shared.wire import JobPage, StatusBody
from tests.unit.ferryman.fake_server import (
    InstantClock,
    Upload,
    answer,
    hang_up,
    job,
    read_upload,
    serving,
)

QUEUED = StatusBody(id=17, status="Queued", message="Job successfully uploaded")
SCRIPT = {"run.sh": b"echo hi\n"}


class FineClock(InstantClock):
    """A hundred times as slow: several pauses fit into a time-out that tests can wait for."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 100)


class SlowServer:
    """A server that takes each upload whole, and fails to answer the first."""

    def __init__(self, how: str, *, known_after: int | None = 0) -> None:
        self.how = how
        self.known_after = known_after
        """So many look-ups find nothing yet; None: none ever finds a job."""
        self.uploads: list[Upload] = []
        self.looked_up: list[dict[str, str]] = []
        self.over = asyncio.Event()
        self.came: Callable[[], None] = lambda: None

    async def upload(self, request: web.Request) -> web.StreamResponse:
        self.uploads.append(await read_upload(request))
        self.came()  # what follows is answered, however slow this machine is
        if len(self.uploads) == 1:
            if self.how == "no answer":
                await self.over.wait()
            elif self.how == "reset":
                hang_up(request)
            else:
                return web.Response(status=int(self.how), text="the proxy gave up")
        return answer(QUEUED, 201)

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        self.looked_up.append(dict(request.query))
        known = self.known_after is not None and len(self.looked_up) > self.known_after
        return answer(JobPage(items=[job()] if known else [], next=None))

    @asynccontextmanager
    async def client(self, clock: InstantClock, retry_for: float = 15) -> AsyncIterator[Client]:
        routes = (("POST", "/upload", self.upload), ("GET", "/api/v1/jobs", self.jobs))
        async with (
            serving(*routes) as url,
            Client(url, user="ada", retry_for=retry_for, clock=clock) as client,
        ):
            patience = client._transport.timeout
            if self.how == "no answer":
                client._transport.timeout = 0.2
            self.came = lambda: setattr(client._transport, "timeout", patience)
            yield client
            self.over.set()


@pytest.mark.parametrize("how", ["no answer", "504", "503", "reset"])
async def test_a_job_that_is_there_is_found_and_the_bundle_is_sent_once(how):
    slow = SlowServer(how)
    async with slow.client(InstantClock()) as client:
        accepted = await client.submit(SCRIPT, service="example")
    assert (accepted.id, accepted.status) == (17, "Running")
    assert len(slow.uploads) == 1
    assert slow.looked_up == [{"user": "ada", "idempotency_key": accepted.idempotency_key}]


@pytest.mark.parametrize("how", ["no answer", "504"])
async def test_a_server_that_is_still_at_work_is_given_time(how):
    slow = SlowServer(how, known_after=3)
    async with slow.client(FineClock()) as client:
        accepted = await client.submit(SCRIPT, service="example")
    assert accepted.id == 17
    assert (len(slow.uploads), len(slow.looked_up)) == (1, 4)


@pytest.mark.parametrize("how", ["no answer", "reset"])
async def test_a_bundle_that_got_lost_is_sent_again_under_its_key(how):
    slow = SlowServer(how, known_after=None)
    async with slow.client(InstantClock()) as client:
        accepted = await client.submit(SCRIPT, service="example")
    assert (accepted.id, accepted.status) == (17, "Queued")
    assert [upload.key for upload in slow.uploads] == [accepted.idempotency_key] * 2
    assert slow.looked_up


async def test_a_key_that_the_caller_chose_may_be_another_bundles_so_the_server_compares():
    slow = SlowServer("reset")
    async with slow.client(InstantClock()) as client:
        await client.submit(SCRIPT, service="example", idempotency_key="mine")
    assert (len(slow.uploads), slow.looked_up) == (2, [])


async def test_without_retries_the_first_failure_is_raised_and_says_that_there_may_be_a_job():
    for how, kind in (("reset", Unreachable), ("503", TryLater)):
        slow = SlowServer(how)
        async with slow.client(InstantClock(), retry_for=0) as client:
            with pytest.raises(kind) as caught:
                await client.submit(SCRIPT, service="example")
        assert slow.looked_up == []
        assert "there may be a job" in caught.value.__notes__[0]


async def test_nothing_is_said_of_a_job_where_nothing_has_arrived():
    async with serving() as url:
        pass
    async with Client(url, user="ada", retry_for=0) as client:
        with pytest.raises(Unreachable) as caught:
            await client.submit(SCRIPT, service="example")
    assert not hasattr(caught.value, "__notes__")
