"""What uploads may use: places, time, threads, space. The real server over real sockets."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from server.http import reads
from server.stages import get, poll
from server.storage.scratch import FolderScratch, FolderScratchFile
from shared.files.bundles.expand import expand
from tests.contract.test_upload_http import HEAD, bundle, field, form, left, part, post, zipped
from tests.kit.clock import SimClock
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

MIB = 1 << 20


class Sender:
    """An upload whose sender stops in the middle."""

    def __init__(self, caller: ServerClient, head: bytes = HEAD, query: str = "") -> None:
        self._caller, self._head, self._query = caller, head, query

    async def __aenter__(self) -> Sender:
        host, port = self._caller.url.removeprefix("http://").split(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        self.writer.write(
            f"POST /upload{self._query} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            "Transfer-Encoding: chunked\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode()
        )
        await self.send(self._head)
        return self

    async def send(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, Any]]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split(b" ")[1]), json.loads(await self.reader.readexactly(length))

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()


def scratch_of(caller: ServerClient) -> FolderScratch:
    scratch = caller.server.context.scratch
    assert isinstance(scratch, FolderScratch)
    return scratch


def open_file(name: str = "run.sh") -> bytes:
    return part(name, b"")[:-2]


async def under_way(caller: ServerClient, count: int) -> None:
    """Until so many half uploads have been begun on the disk."""
    folder = scratch_of(caller)._folder
    while len(list(folder.iterdir())) < count:
        await asyncio.get_running_loop().run_in_executor(None, int)


async def test_only_so_many_uploads_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(reads, "AT_ONCE", 3)
    async with driving(tmp_path, FakeOrchestrator(then="Running"), uploads_per_user=2) as caller:
        big = open_file() + bytes(MIB)
        other = field("user_id", "8") + field("service", "my_service")
        async with Sender(caller, HEAD + big), Sender(caller, HEAD + big):
            await under_way(caller, 2)
            status, headers, reply = await post(caller, form(part("run.sh")))
            assert (status, reply["code"], headers["Retry-After"]) == (429, "too_many_uploads", "1")
            assert "user 7 has 2 uploads" in str(reply["message"])
            status, _, reply = await post(caller, b"", "/upload?user_id=7")
            assert (status, reply["code"]) == (429, "too_many_uploads")
            assert (await post(caller, form(part("run.sh"), head=other)))[0] == 201
            async with Sender(caller, other + big):
                await under_way(caller, 3)
                status, _, reply = await post(caller, form(part("run.sh"), head=other))
                assert (status, reply["code"]) == (429, "too_many_uploads")
                assert "3 uploads are under way" in str(reply["message"])
        await until_left(tmp_path, 1)
        assert (await post(caller, form(part("run.sh"))))[0] == 201


async def until_left(tmp_path: Path, count: int) -> None:
    while len(left(tmp_path)) != count:
        await asyncio.get_running_loop().run_in_executor(None, int)


async def test_an_upload_that_stalls_is_cut_off_and_leaves_nothing(tmp_path):
    clock = SimClock()
    async with driving(tmp_path, FakeOrchestrator(then="Running"), machine=clock) as caller:
        async with Sender(caller, HEAD + open_file() + bytes(MIB)) as sender:
            await under_way(caller, 1)
            answer = asyncio.create_task(sender.answer())
            for _ in range(300):
                await clock.advance(5)
                await asyncio.get_running_loop().run_in_executor(None, int)
                if answer.done():
                    break
            assert answer.done(), "it goes on and on"
            status, reply = answer.result()
            assert (status, reply["code"]) == (408, "upload_too_slow")
            assert "less than 1.0 KiB a second of it came for 30 seconds" in reply["message"]
        assert left(tmp_path) == []
        space = scratch_of(caller)._space
        assert space._granted == space._written


async def test_an_upload_that_is_slow_but_steady_goes_on(tmp_path):
    clock = SimClock()
    half = HEAD + open_file() + bytes(70_000)
    async with (
        driving(tmp_path, FakeOrchestrator(then="Running"), machine=clock) as caller,
        Sender(caller, half) as sender,
    ):
        await under_way(caller, 1)
        for _ in range(12):
            await clock.advance(5)
            before = sender_bytes(caller)
            await sender.send(b"x" * 70_000)  # more than a batch, so that it shows on the disk
            for _ in range(2000):
                if sender_bytes(caller) != before:
                    break
                await asyncio.get_running_loop().run_in_executor(None, int)
            assert sender_bytes(caller) > before, "it was cut off"
        await sender.send(b"\r\n--b--\r\n")
        sender.writer.write(b"0\r\n\r\n")
        assert (await sender.answer())[0] == 201


def sender_bytes(caller: ServerClient) -> int:
    folder = scratch_of(caller)._folder
    return sum(path.stat().st_size for path in folder.iterdir())


async def test_archives_wait_for_each_other_and_nobody_for_them(tmp_path, monkeypatch):
    real, may, lock = expand, threading.Event(), threading.Lock()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def slow(archive, filename, *args, **limits):
        with lock:
            now[filename] += 1
            now["all"] += 1
            for name in (filename, "all"):
                most[name] = max(most[name], now[name])
        try:
            assert may.wait(60)
            return real(archive, filename, *args, **limits)
        finally:
            with lock:
                now[filename] -= 1
                now["all"] -= 1

    monkeypatch.setattr("shared.multipart.sinks.expand", slow)
    archive = zipped(("run.sh", RUN))
    async with driving(tmp_path, FakeOrchestrator(then="Completed")) as caller:
        try:
            sent = []
            for number in range(24):
                user = f"u{number // 8}"
                head = field("user_id", user) + field("service", "my_service")
                body = head + part(f"{user}.zip", archive, name="bundle") + b"--b--\r\n"
                sent.append(asyncio.create_task(post(caller, body)))
            while now["all"] < 2:
                await asyncio.get_running_loop().run_in_executor(None, int)
            await under_way(caller, 24)  # all have come
            assert (now["all"], most["u0.zip"]) == (2, 1)
            # Small uploads and downloads go on, and all threads of the loop are free.
            status, _, reply = await post(caller, form(part("run.sh")))
            assert status == 201
            job = int(str(reply["id"]))
            assert (await caller.job(job))["status"] == "Completed"
            assert (await caller.get(f"/download/{job}"))[1] == "application/zip"
            assert now["all"] == 2
        finally:
            may.set()
        assert {answer[0] for answer in await asyncio.gather(*sent)} == {201}
    assert most["all"] == 2
    assert {most[f"u{n}.zip"] for n in range(3)} == {1}


# ---------------------------------------------------------------------------- space


class Disk:
    """A simulated disk under the server's folder; the least that was ever free on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.size, self.least, self.lock = size, size, threading.Lock()
        disk = self

        def free_bytes(scratch: FolderScratch) -> int:
            used = 0
            for path in scratch._folder.parent.rglob("*"):
                try:
                    used += path.stat().st_size if "ferryman.sqlite" not in path.name else 0
                except FileNotFoundError:
                    continue
            with disk.lock:
                disk.least = min(disk.least, disk.size - used)
            return disk.size - used

        monkeypatch.setattr(FolderScratch, "free_bytes", free_bytes)


async def test_a_disk_that_does_not_say_what_is_free_holds_up_nobody_else(tmp_path, monkeypatch):
    asked, release, on_loop = threading.Event(), threading.Event(), []
    free_bytes = FolderScratch.free_bytes

    def hangs(scratch: FolderScratch) -> int:
        if threading.current_thread() is threading.main_thread():
            on_loop.append("statvfs")
        else:
            asked.set()
            release.wait(60)
        return free_bytes(scratch)

    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        monkeypatch.setattr(FolderScratch, "free_bytes", hangs)
        hanging = asyncio.create_task(post(caller, form(part("run.sh"), part("big", bytes(MIB)))))
        giving_up = threading.Timer(10, release.set)  # else the failing test would never end
        giving_up.start()
        try:
            assert await asyncio.to_thread(asked.wait, 10)
            async with Sender(caller, b"", "?service=my_service&user_id=7") as other:
                other.writer.write(b"0\r\n\r\n")
                assert (await other.answer())[0] == 400  # it had no end
            status, _, _ = await caller.get("/health")
            assert status in (200, 503)
            host, port = caller.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n"
                b"Content-Length: 10000000\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
            )
            assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
            writer.close()
            assert not release.is_set(), "all that was answered while the disk was silent"
        finally:
            giving_up.cancel()
            release.set()
        assert (await hanging)[0] == 201
        assert on_loop == []


async def test_a_disk_with_room_again_takes_uploads_at_once(tmp_path, monkeypatch):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        for n, (free, status) in enumerate(((0, 507), (1 << 40, 201)) * 2):
            monkeypatch.setattr(FolderScratch, "free_bytes", lambda _, free=free: free)
            body = form(part("run.sh"), part("other", b"%d" % n))
            assert (await post(caller, body))[0] == status


async def test_uploads_that_fit_one_by_one_do_not_fill_the_disk_together(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, 16 * MIB)
    async with driving(tmp_path, FakeOrchestrator(then="Running"), min_free=4 * MIB) as caller:
        body = form(part("run.sh"), part("big", bytes(7 * MIB)))
        chunks = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]

        async def upload() -> int:
            async with Sender(caller, chunks[0]) as sender:
                try:
                    for chunk in chunks[1:]:
                        await sender.send(chunk)
                    sender.writer.write(b"0\r\n\r\n")
                    await sender.writer.drain()
                except ConnectionError:
                    pass
                status, reply = await sender.answer()
                assert status == 201 or reply["code"] == "disk_full"
                return status

        statuses = Counter(await asyncio.gather(*(upload() for _ in range(4))))
        scratch_of(caller).free_bytes()
        assert statuses[201] <= 1
        assert statuses[201] + statuses[507] == 4
        assert disk.least >= 4 * MIB
        assert len(left(tmp_path)) == statuses[201]
        with scratch_of(caller).file() as file:
            scratch_of(caller)._space.measure()
            file.reserve(scratch_of(caller).available_bytes())  # nothing is held any more


async def test_an_archive_stops_expanding_before_the_disk_is_full(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, 12 * MIB)
    async with driving(tmp_path, FakeOrchestrator(then="Running"), min_free=4 * MIB) as caller:
        packed = zipped(("run.sh", RUN), ("zeros", bytes(12 * MIB)))
        assert len(packed) < 100_000
        status, _, reply = await post(caller, bundle(packed, "b.zip"))
        assert (status, reply["code"]) == (507, "disk_full")
        assert disk.least >= 4 * MIB
        assert left(tmp_path) == []


async def test_a_result_that_does_not_fit_is_not_fetched_to_the_end(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, 6 * MIB)
    client = FakeOrchestrator(then="Completed", result=bytes(4 * MIB))
    async with driving(tmp_path, client, min_free=4 * MIB, agent_timeout=0.1) as caller:
        status, _, reply = await post(caller, form(part("run.sh")))
        assert status == 201
        job = await caller.job(int(str(reply["id"])), until="Unknown")
        assert job["status"] == "Unknown"
        assert disk.least >= 4 * MIB
        status, _, body = await caller.get(f"/download_partial/{reply['id']}")
        assert (status, json.loads(body)["code"]) == (507, "disk_full")
        assert disk.least >= 4 * MIB
        await until_left(tmp_path, 1)  # the bundle


async def test_what_one_of_two_agents_announces_leaves_the_server_healthy(tmp_path, monkeypatch):
    Disk(monkeypatch, 64 * MIB)
    liar, other = FakeAgent(name="liar", ends="Running"), FakeAgent(name="other", ends="Running")
    async with serving(tmp_path, liar, other, min_free=4 * MIB) as caller:
        jobs = [await caller.upload() for _ in range(4)]
        for job_id in jobs:
            await caller.job(job_id, until="Running")
        held = next(iter(liar.payloads.values()))
        held.status = "Completed"
        held.more = {"result": {"size": 63 * MIB, "sha256": "0" * 64}}
        await liar.say(held)
        job = await caller.job(int(held.key.partition(".")[0]), until="Unknown")
        assert "the result waits for room on the server's disk" in job["message"]
        assert (await caller.get("/health"))[0] == 200
        status = json.loads((await caller.get("/api/v1/status"))[2])
        assert status["status"] == "attention"
        assert [(one["kind"], one["about"]) for one in status["troubles"]] == [
            ("agent_unfit", "liar")
        ]
        assert (await post(caller, form(part("run.sh"))))[0] == 201


async def test_a_polled_result_that_does_not_fit_is_not_given_up_and_stops_new_work(
    tmp_path, monkeypatch
):
    """The client has answered: for how long the server's disk is full is not the job's fault."""
    disk = Disk(monkeypatch, 6 * MIB)
    client = FakeOrchestrator(then="Completed", result=bytes(4 * MIB))
    soon: dict[str, Any] = {"agent_timeout": 0.1, "agent_lost_after": 0.2}
    async with driving(tmp_path, client, min_free=4 * MIB, **soon) as caller:
        status, _, reply = await post(caller, form(part("run.sh")))
        assert status == 201
        job = await caller.job(int(str(reply["id"])), until="Unknown")
        assert "the result waits for room on the server's disk: more is needed" in job["message"]
        asked = len(client.asked)
        status, _, refused = await post(caller, form(part("run.sh")))
        assert (status, refused["code"]) == (507, "disk_full")
        assert "1 result waits for room on the server's disk" in str(refused["message"])
        await caller.server.context.clock.sleep(0.5)  # longer than agent_lost_after
        assert (await caller.job(int(str(reply["id"])), until="Unknown"))["status"] == "Unknown"
        assert len(client.asked) == asked, "its result is fetched in vain"
        disk.size = 40 * MIB
        job = await caller.job(int(str(reply["id"])), until="Completed")
        assert (job["status"], job["attempt"]) == ("Completed", 1)
        while caller.server.context.results_waiting:  # the job is written first
            await caller.server.context.clock.sleep(0.01)


@pytest.mark.parametrize("kind", ["ferryman", "polled"])
async def test_a_result_that_the_server_cannot_store_is_not_given_up_and_names_no_folder(
    tmp_path, monkeypatch, kind
):
    """The data folder was mounted for reading only, say."""
    monkeypatch.setattr(poll, "STORE_AGAIN_S", 0.05)
    reserve = FolderScratchFile.reserve

    def fail(file: FolderScratchFile, count: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(file.path))

    soon: dict[str, Any] = {"agent_timeout": 0.1, "agent_lost_after": 0.2}
    agent = FakeAgent(ends="Running")
    polled = FakeOrchestrator(then="Running")
    made = serving(tmp_path, agent) if kind == "ferryman" else driving(tmp_path, polled, **soon)
    async with made as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        monkeypatch.setattr(FolderScratchFile, "reserve", fail)
        if kind == "ferryman":
            monkeypatch.setattr(get, "_RETRY_DELAYS_S", (0.05,))
            await agent.end(agent.held(f"{job_id}.1"))
        else:
            polled.payloads[1].status = "Completed"
        job = await caller.job(job_id, until="Unknown")
        assert job["message"] == "the server cannot store the result: Read-only file system"
        await caller.server.context.clock.sleep(0.5)  # longer than agent_lost_after
        assert (await caller.job(job_id, until="Unknown"))["status"] == "Unknown"
        monkeypatch.setattr(FolderScratchFile, "reserve", reserve)
        job = await caller.job(job_id, until="Completed")
        assert (job["status"], job["attempt"]) == ("Completed", 1)


async def test_a_bundle_over_the_services_disk_is_refused_before_it_has_come(tmp_path):
    own = "[services.my_service]\nlimits = { disk = '8MiB' }\n"
    async with driving(tmp_path, FakeOrchestrator(then="Running"), extra=own) as caller:
        files = part("big", bytes(9 * MIB)) + part("run.sh")
        fields = field("user_id", "7") + field("service", "my_service")
        for body in (fields + files, files + fields):  # as it comes, or once all is known
            status, _, reply = await post(caller, body + b"--b--\r\n")
            assert (status, reply["code"]) == (413, "bundle_over_disk_limit")
            assert "may use 8.0 MiB of disk (limits.disk of service my_" in str(reply["message"])
        zeros = bytes(6 * MIB)
        status, _, reply = await post(
            caller, bundle(zipped(("run.sh", RUN), ("a", zeros), ("b", zeros)), "b.zip")
        )
        assert (status, reply["code"]) == (413, "bundle_over_disk_limit")
        asked = fields + field("disk", "4MiB") + part("big", bytes(5 * MIB)) + part("run.sh")
        status, _, reply = await post(caller, asked + b"--b--\r\n")
        assert (status, reply["code"]) == (413, "bundle_over_disk_limit")
        assert "4.0 MiB of disk (the upload's disk; service my_service allows" in str(
            reply["message"]
        )
        assert left(tmp_path) == []
        assert (await post(caller, form(part("run.sh"), part("a", bytes(7 * MIB)))))[0] == 201
