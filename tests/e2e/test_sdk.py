"""The SDK, both kinds, against real server and agent."""

from __future__ import annotations

import asyncio
import zipfile

import pytest

from ferryman import (
    AlreadyEnded,
    Client,
    JobState,
    NoResult,
    NotFound,
    NotReady,
    Refused,
    SyncClient,
    WaitedTooLong,
)
from tests.kit.dev_program import DevProgram, descendants, of_jobs


def test_the_synchronous_client_does_it_all(system: DevProgram, tmp_path):
    with SyncClient(system.url, user="ada") as client:
        assert client.health().status == "ok"
        assert "example" in [service.name for service in client.services()]
        job = client.submit({"run.sh": b"echo hi > hi.txt"}, service="example", name="sync")
        assert client.wait(job.id, timeout=60).status is JobState.COMPLETED
        assert [agent.up for agent in client.agents()] == [True]  # not before its first contact
        states = [event.status for event in client.events(job.id)]
        assert states == [
            JobState.QUEUED,
            JobState.PROCESSING,
            JobState.SUBMITTED,
            JobState.RUNNING,
            JobState.COMPLETED,
        ]
        assert job.id in [one.id for one in client.jobs(user="ada")]
        done = client.download(job.id, tmp_path / "r.zip")
    with zipfile.ZipFile(done.path) as archive:
        assert archive.read("hi.txt") == b"hi\n"


async def test_many_jobs_at_once_each_get_their_own_result(system: DevProgram, tmp_path):
    async with Client(system.url, user="grace") as client:

        async def one(number: int) -> bytes:
            script = f"echo {number} > number.txt".encode()
            job = await client.submit({"run.sh": script}, service="example")
            assert (await client.wait(job.id, timeout=60)).status is JobState.COMPLETED
            done = await client.download(job.id, tmp_path / f"{number}.zip")
            with zipfile.ZipFile(done.path) as archive:
                return archive.read("number.txt")

        results = await asyncio.gather(*(one(number) for number in range(12)))
    assert results == [b"%d\n" % number for number in range(12)]


def test_one_bundle_runs_with_many_inputs_and_each_result_is_saved(system: DevProgram, tmp_path):
    bundle = {"run.sh": b"tr a-z A-Z < in.txt > out.txt\n"}
    inputs = [{"in.txt": word.encode()} for word in ("one", "two", "three")]
    with SyncClient(system.url, user="ada") as client:
        results = list(client.map(bundle, inputs, service="example"))
        assert [one.status for one in results] == [JobState.COMPLETED] * 3
        for result, word in zip(results, ("ONE", "TWO", "THREE"), strict=True):
            folder = result.save(tmp_path / word)
            assert (folder / "out.txt").read_text() == word
            assert "out.txt" in [file.path for file in result.files()]


async def test_what_a_failed_job_left_is_saved_where_that_is_asked_for(system, tmp_path):
    script = b"echo so far > so-far.txt; echo broken >&2; exit 3"
    async with Client(system.url, user="ada") as client:
        job = await client.submit({"run.sh": script}, service="example")
        result = await client.wait(job.id, timeout=60)
        assert (result.status, result.exit_code) == (JobState.FAILED, 3)
        with pytest.raises(NoResult, match="exit code 3"):
            await result.save(tmp_path / "none")
        saved = await result.save(tmp_path / "some", partial=True)
    assert (saved / "so-far.txt").read_text() == "so far\n"
    assert list(tmp_path.iterdir()) == [saved]


async def test_what_a_running_job_has_so_far_can_be_fetched(system: DevProgram, tmp_path):
    async with Client(system.url, user="ada") as client:
        job = await client.submit(
            {"run.sh": b"echo so far > so-far.txt; sleep 600"}, service="example"
        )
        async for event in client.events(job.id):
            if event.status is JobState.RUNNING:
                break
        with pytest.raises(NotReady):
            await client.download(job.id, tmp_path)
        with pytest.raises(WaitedTooLong) as caught:
            await client.wait(job.id, timeout=0.01)
        assert caught.value.job.status is JobState.RUNNING
        done = await client.download(job.id, tmp_path, partial=True)
        with zipfile.ZipFile(done.path) as archive:
            assert {"run.sh", "ferryman.json"} <= set(archive.namelist())
        await client.cancel(job.id)


async def test_a_cancelled_jobs_processes_are_dead_when_the_answer_comes(
    system: DevProgram, tmp_path
):
    script = b"trap '' TERM; (sleep 601 &) ; setsid sleep 602 & sleep 603"
    async with Client(system.url, user="ada") as client:
        before = descendants(system.process.pid)
        job = await client.submit({"run.sh": script}, service="example")
        async for event in client.events(job.id):
            if event.status is JobState.RUNNING:
                break
        during = descendants(system.process.pid)
        assert len(during) > len(before)
        cancelled = await client.cancel(job.id)
        assert cancelled.status is JobState.CANCELLED
        new = during.keys() - before.keys()
        assert not new & of_jobs(system.process.pid).keys()
        assert (await client.cancel(job.id)).status is JobState.CANCELLED
        with pytest.raises(NoResult):
            await client.download(job.id, tmp_path)


async def test_what_ended_cannot_be_cancelled(system: DevProgram):
    async with Client(system.url, user="ada") as client:
        job = await client.submit({"run.sh": b"true"}, service="example")
        await client.wait(job.id, timeout=60)
        with pytest.raises(AlreadyEnded, match="Completed"):
            await client.cancel(job.id)


async def test_refusals_carry_codes(system: DevProgram):
    async with Client(system.url, user="ada") as client:
        with pytest.raises(NotFound) as missing:
            await client.status(10**12)
        assert missing.value.code == "job_not_found"
        with pytest.raises(Refused) as refused:
            await client.submit({"run.sh": b""}, service="nonsense")
        assert refused.value.status == 400
        with pytest.raises(NotFound):
            async for _ in client.events(10**12):
                pass
        job = await client.submit({"run.sh": b"true"}, service="example", idempotency_key="e2e-k1")
        again = await client.submit(
            {"run.sh": b"true"}, service="example", idempotency_key="e2e-k1"
        )
        assert job.id == again.id
        with pytest.raises(Refused) as reused:
            await client.submit({"run.sh": b"false"}, service="example", idempotency_key="e2e-k1")
        assert reused.value.status == 422


async def test_a_bundle_larger_than_every_buffer_arrives_whole(system: DevProgram, tmp_path):
    block = bytes(range(256)) * 4096  # 1 MiB
    big = tmp_path / "big.bin"
    with big.open("wb") as file:
        for _ in range(24):
            file.write(block)
    script = b"sha256sum < data/big.bin > sum.txt; cp data/big.bin copy.bin"
    percents: list[int] = []
    async with Client(system.url, user="ada") as client:
        job = await client.submit(
            {"run.sh": script, "data/big.bin": big},
            service="example",
            progress=lambda done, total: percents.append(done * 100 // total),
        )
        ended = await client.wait(job.id, timeout=60)
        assert ended.status is JobState.COMPLETED, ended.message
        done = await client.download(job.id, tmp_path / "r.zip")
    assert percents[-1] == 100
    with zipfile.ZipFile(done.path) as archive:
        assert archive.read("copy.bin") == big.read_bytes()
