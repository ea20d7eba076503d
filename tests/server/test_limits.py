"""What uploads, results and reads may use: places, time, threads, space. Over real sockets."""

import asyncio
import errno
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED

import pytest

from server.http import files, logs, reads
from server.storage.scratch import Scratch, ScratchFile
from shared.files.bundles.expand import expand
from shared.http.protocol import UnreadAnswers
from tests.kit.clock import SimClock
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_archives import BOUNDARY, FORM, file_part, form_of, text_part, zipped
from tests.kit.raw_http import holding
from tests.kit.server_http import RUN, ServerClient, driving
from tests.kit.uploads import FIELDS, left, post
from tests.kit.waiting import eventually, until
from tests.server.access import PRINCIPALS
from tests.server.held_jobs import running

MIB = 1 << 20
HEAD, RUN_SH, HALF = b"".join(FIELDS), file_part("run.sh", RUN), file_part("run.sh")[:-2]
SMALL = form_of(*FIELDS, RUN_SH)
OF_8 = text_part("user_id", "8") + FIELDS[1]

SELDOM: dict[str, Any] = {"getter_interval": 10.0, "sender_interval": 10.0}


async def under_way(data: Path, count: int) -> None:
    """Until so many half uploads have been begun on the disk."""
    await until(lambda: len(list((data / "staging").iterdir())) >= count)


class Disk:
    """A simulated disk under the server's folder; the least that was ever free on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: Path, size: int) -> None:
        self.size, self.least, self.lock = size, size, threading.Lock()

        def free_bytes(_: Scratch) -> int:
            used = 0
            for path in data.rglob("*"):
                with suppress(FileNotFoundError):
                    used += path.stat().st_size if "ferryman.sqlite" not in path.name else 0
            with self.lock:
                self.least = min(self.least, self.size - used)
            return self.size - used

        monkeypatch.setattr(Scratch, "free_bytes", free_bytes)


def begun(body: bytes) -> str:
    """The head of an upload, and what of it has come."""
    head = f"POST /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {FORM}\r\n"
    return f"{head}Content-Length: {9 * MIB}\r\n\r\n{body.decode()}"


def archive(content: bytes) -> bytes:
    return form_of(*FIELDS, file_part("b.zip", content, "bundle"))


def taking(folder: Path, client: FakeOrchestrator | None = None, **more: Any):
    return driving(folder, client or FakeOrchestrator(then="Running"), **more)


async def is_taken(caller: ServerClient, body: bytes) -> None:
    """Soon: what somebody had is given back after the answer."""
    await eventually(lambda: post(caller, body), lambda answer: answer[0] == 201)


async def test_only_so_many_uploads_at_once(tmp_path, monkeypatch):
    data = tmp_path / "data"
    monkeypatch.setattr(reads, "AT_ONCE", 3)
    async with taking(tmp_path, uploads_per_user=2) as caller:
        port, big = int(caller.url.rpartition(":")[2]), HALF + bytes(MIB)
        async with holding(port, begun(HEAD + big)), holding(port, begun(HEAD + big)):
            await under_way(data, 2)
            for body, query in ((SMALL, ""), (b"", "?user_id=7")):
                status, headers, reply = await post(caller, body, f"/upload{query}")
                assert (status, reply["code"]) == (429, "too_many_uploads")
                assert headers["Retry-After"] == "1"
                assert "user 7 has 2 uploads" in reply["message"]
            assert (await post(caller, form_of(OF_8, RUN_SH)))[0] == 201
            async with holding(port, begun(OF_8 + big)):
                await under_way(data, 3)
                status, _, reply = await post(caller, form_of(OF_8, RUN_SH))
                assert (status, reply["code"]) == (429, "too_many_uploads")
                assert "3 uploads are under way" in reply["message"]
        await is_taken(caller, SMALL)
        await until(lambda: len(left(data)) == 1)


async def test_an_upload_that_stalls_is_cut_off_and_one_that_is_slow_but_steady_goes_on(
    tmp_path, monkeypatch
):
    clock, data, sent = SimClock(), tmp_path / "data", asyncio.Queue[bytes]()
    Disk(monkeypatch, data, 6 * MIB)

    async def content() -> AsyncIterator[bytes]:
        while part := await sent.get():
            yield part

    async def send() -> Any:
        kind = {"Content-Type": FORM}
        return await caller.ask("POST", "/upload", data=content(), headers=kind)

    def grows(size: int = 0) -> bool:
        return sum(path.stat().st_size for path in left(data, "staging")) > size

    async with taking(tmp_path, machine=clock, min_free=MIB, **SELDOM) as caller:
        sending = asyncio.create_task(send())
        await sent.put(HEAD + HALF + bytes(140_000))  # two batches, whatever pieces it comes in
        await under_way(data, 1)
        for number in range(12):
            await clock.advance(5)
            await sent.put(b"x" * 70_000)  # more than a batch, so that it shows on the disk
            await until(partial(grows, number * 70_000))
        await sent.put(f"\r\n--{BOUNDARY}--\r\n".encode())
        await sent.put(b"")
        assert (await sending)[0] == 201
        sending = asyncio.create_task(send())
        await sent.put(HEAD + HALF + bytes(MIB))
        await under_way(data, 1)
        with clock.autojump(most_s=300):
            status, reply = await sending
        assert (status, reply["code"]) == (408, "upload_too_slow")
        assert "less than 1.0 KiB a second of it came for 30 seconds" in reply["message"]
        assert left(data, "staging") == set()
        rest = file_part("rest", bytes(7 * MIB // 2))
        await is_taken(caller, form_of(*FIELDS, RUN_SH, rest))  # the room is free again


async def test_archives_wait_for_each_other_and_nobody_for_them(tmp_path, monkeypatch):
    real, may, lock = expand, threading.Event(), threading.Lock()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def slow(archive, filename, *args, **limits):
        with lock:
            now.update([filename, "all"])
            for name in (filename, "all"):
                most[name] = max(most[name], now[name])
        try:
            assert may.wait(60)
            return real(archive, filename, *args, **limits)
        finally:
            with lock:
                now.subtract([filename, "all"])

    monkeypatch.setattr("shared.multipart.sinks.expand", slow)
    async with taking(tmp_path, FakeOrchestrator()) as caller:
        try:
            sent = []
            for number in range(24):
                user = f"u{number // 8}"
                fields = text_part("user_id", user), FIELDS[1]
                body = form_of(*fields, file_part(f"{user}.zip", zipped({"run.sh": RUN}), "bundle"))
                sent.append(asyncio.create_task(post(caller, body)))
            await until(lambda: now["all"] == 2)
            await under_way(tmp_path / "data", 24)  # all have come
            assert (now["all"], {most[f"u{n}.zip"] for n in range(3)}) == (2, {0, 1})
            # Small uploads and downloads go on, and all threads of the loop are free.
            status, _, reply = await post(caller, SMALL)
            assert status == 201
            assert (await caller.job(reply["id"]))["status"] == "Completed"
            assert (await caller.get(f"/download/{reply['id']}"))[1] == "application/zip"
            assert now["all"] == 2
        finally:
            may.set()
        assert {answer[0] for answer in await asyncio.gather(*sent)} == {201}
    assert most["all"] == 2
    assert {most[f"u{n}.zip"] for n in range(3)} == {1}


async def test_a_disk_that_does_not_say_what_is_free_holds_up_nobody_else(tmp_path, monkeypatch):
    asked, release, on_loop = threading.Event(), threading.Event(), []
    free_bytes = Scratch.free_bytes

    def hangs(scratch: Scratch) -> int:
        if threading.current_thread() is threading.main_thread():
            on_loop.append("statvfs")
        else:
            asked.set()
            release.wait(60)
        return free_bytes(scratch)

    async with taking(tmp_path) as caller:
        monkeypatch.setattr(Scratch, "free_bytes", hangs)
        big = form_of(*FIELDS, RUN_SH, file_part("big", bytes(MIB)))
        hanging = asyncio.create_task(post(caller, big))
        giving_up = threading.Timer(10, release.set)  # else the failing test would never end
        giving_up.start()
        try:
            assert await asyncio.to_thread(asked.wait, 10)
            query = "?service=my_service&user_id=7"
            assert (await post(caller, b"", f"/upload{query}"))[0] == 400  # it had no end
            assert (await caller.get("/health"))[0] in (200, 503)
            assert not release.is_set(), "all that was answered while the disk was silent"
        finally:
            giving_up.cancel()
            release.set()
        assert (await hanging)[0] == 201
        assert on_loop == []


async def test_an_archive_stops_expanding_before_the_disk_is_full(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, tmp_path / "data", 12 * MIB)
    async with taking(tmp_path, min_free=4 * MIB) as caller:
        packed = zipped({"run.sh": RUN, "zeros": bytes(12 * MIB)})
        assert len(packed) < 100_000
        status, _, reply = await post(caller, archive(packed))
        assert (status, reply["code"]) == (507, "disk_full")
        assert disk.least >= 4 * MIB
        assert left(tmp_path / "data") == set()


async def test_a_bundle_over_the_services_disk_is_refused_before_it_has_come(tmp_path):
    own = "[services.my_service]\nlimits = { disk = '8MiB' }\n"
    async with taking(tmp_path, extra=own) as caller:
        big, zeros = file_part("big", bytes(9 * MIB)), bytes(6 * MIB)
        asked = text_part("disk", "4MiB"), file_part("big", bytes(5 * MIB))
        service = "may use 8.0 MiB of disk (limits.disk of service my_"
        own_wish = "4.0 MiB of disk (the upload's disk; service my_service allows"
        for body, says in (
            (form_of(*FIELDS, big, RUN_SH), service),  # as it comes
            (form_of(big, RUN_SH, *FIELDS), service),  # or once all is known
            (archive(zipped({"run.sh": RUN, "a": zeros, "b": zeros})), service),
            (form_of(*FIELDS, *asked, RUN_SH), own_wish),
        ):
            status, _, reply = await post(caller, body)
            assert (status, reply["code"]) == (413, "bundle_over_disk_limit")
            assert says in reply["message"]
        assert left(tmp_path / "data") == set()
        fits = form_of(*FIELDS, RUN_SH, file_part("a", bytes(7 * MIB)))
        assert (await post(caller, fits))[0] == 201


TOO_LARGE: dict[str, Any] = {"size": 63 * MIB, "sha256": "0" * 64}


async def test_what_one_of_two_agents_announces_leaves_the_server_healthy(tmp_path, monkeypatch):
    Disk(monkeypatch, tmp_path / "data", 64 * MIB)
    liar, other = FakeAgent(name="liar", ends="Running"), FakeAgent(name="other", ends="Running")
    async with serving(tmp_path, liar, other, min_free=4 * MIB) as caller:
        for job_id in [await caller.upload() for _ in range(4)]:
            await caller.job(job_id, until="Running")
        held = next(iter(liar.payloads.values()))
        held.status = "Completed"
        held.more = {"result": TOO_LARGE}
        await liar.say(held)
        job = await caller.job(int(held.key.partition(".")[0]), until="Unknown")
        assert "the result waits for room on the server's disk" in job["message"]
        assert (await caller.get("/health"))[0] == 200
        status = json.loads((await caller.get("/api/v1/status"))[2])
        assert status["status"] == "attention"
        troubles = [(one["kind"], one["about"]) for one in status["troubles"]]
        assert troubles == [("agent_unfit", "liar")]
        assert (await post(caller, SMALL))[0] == 201


async def test_a_small_result_waits_for_room_too(tmp_path, monkeypatch):
    monkeypatch.setattr("server.stages.get.LOOK_AGAIN_S", 0.05)
    disk = Disk(monkeypatch, tmp_path / "data", 64 * MIB)
    agent = FakeAgent(ends="Running")
    async with serving(tmp_path, agent, min_free=4 * MIB) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        disk.size = 4 * MIB
        await asyncio.to_thread(caller.server.context.core.scratch.measure)
        await agent.end(agent.held(f"{job_id}.1"))
        job = await caller.job(job_id, until="Unknown")
        assert "the result waits for room on the server's disk" in job["message"]
        assert left(tmp_path / "data", "results") == set()
        disk.size = 64 * MIB
        await caller.job(job_id, until="Completed")


async def test_a_job_that_ended_at_once_is_shown_as_started_while_its_result_waits_for_room(
    tmp_path, monkeypatch
):
    Disk(monkeypatch, tmp_path / "data", 64 * MIB)
    agent = FakeAgent(ends="Completed")
    agent.model.listeners.insert(0, lambda held: held.more.update(result=TOO_LARGE))
    async with serving(tmp_path, agent, min_free=4 * MIB) as caller:
        job_id = await caller.upload()
        job = await caller.job(job_id, until="Unknown")
        assert "the result waits for room on the server's disk" in job["message"]
        moves = [one["status"] for one in job["history"]]
        assert moves == ["Queued", "Processing", "Submitted", "Running", "Unknown"]


@pytest.mark.parametrize("kind", ["ferryman", "polled"])
async def test_a_result_that_the_server_cannot_store_is_not_given_up_and_names_no_folder(
    tmp_path, monkeypatch, kind
):
    """The data folder was mounted for reading only, say."""
    reserve = ScratchFile.reserve

    def fail(file: ScratchFile, count: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(file.path))

    clock, agent = SimClock(), FakeAgent(ends="Running")
    client = FakeOrchestrator(then="Running", result=bytes(2 * MIB))
    how: dict[str, Any] = {"machine": clock, **SELDOM}
    soon = {"agent_timeout": 20.0, "agent_lost_after": 60.0}
    own = serving(tmp_path, agent, **how) if kind == "ferryman" else None
    async with own or taking(tmp_path, client, **how, **soon) as caller:
        with clock.autojump():
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
            monkeypatch.setattr(ScratchFile, "reserve", fail)
            if kind == "ferryman":
                held = agent.held(f"{job_id}.1")
                held.status, held.result = "Completed", zipped({"a": bytes(50_000)}, ZIP_STORED)
                await agent.say(held)
            else:
                client.payloads[1].status = "Completed"
            job = await caller.job(job_id, until="Unknown")
            assert job["message"] == "the server cannot store the result: Read-only file system"
            await clock.sleep(100)  # longer than agent_lost_after
            assert (await caller.job(job_id, until="Unknown"))["status"] == "Unknown"
            monkeypatch.setattr(ScratchFile, "reserve", reserve)
            job = await caller.job(job_id, until="Completed")
            assert (job["status"], job["attempt"]) == ("Completed", 1)


ANN, BOB = ({"Authorization": f"Bearer the-token-of-{user}"} for user in ("ann", "bob"))


async def test_reads_of_one_user_do_not_hold_up_those_of_another(tmp_path, monkeypatch) -> None:
    begun, end = threading.Semaphore(0), threading.Event()
    listed = files._list
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        jobs = list[int]()
        for user in ("ann", "ann", "bob"):
            caller.session.headers["Authorization"] = f"Bearer the-token-of-{user}"
            jobs.append(await caller.upload(user_id=user))
            await caller.job(jobs[-1])
        del caller.session.headers["Authorization"]
        ann, other, bob = jobs
        # Whoever has a link to one of ann's jobs takes ann's place.
        by_links = list[str]()
        for path in (f"/api/v1/jobs/{job}" for job in (ann, other)):
            _, made = await caller.ask("POST", f"{path}/links", json={}, headers=ANN)
            by_links.append(f"{path}/files?link={made['link']}")

        def slow(*args: Any) -> Any:
            begun.release()
            assert end.wait(60), "nobody let it end"
            return listed(*args)

        monkeypatch.setattr(files, "_list", slow)
        path = f"/api/v1/jobs/{ann}/files"
        of_ann = [asyncio.create_task(caller.ask("GET", path, headers=ANN)) for _ in range(12)]
        assert await asyncio.to_thread(begun.acquire, timeout=60)
        monkeypatch.setattr(files, "_list", listed)
        assert (await caller.ask("GET", f"/api/v1/jobs/{bob}/files", headers=BOB))[0] == 200
        of_ann += [asyncio.create_task(caller.ask("GET", one)) for one in by_links]
        turns = caller.server.context.pools.reads._each._turns
        await until(lambda: {name: one.callers for name, one in turns.items()} == {"user ann": 14})
        assert not any(one.done() for one in of_ann)
        end.set()
        assert {code for code, _ in await asyncio.gather(*of_ann)} == {200}


async def test_who_reads_no_large_answers_gets_no_more_of_them_until_then(tmp_path, monkeypatch):
    monkeypatch.setattr("server.app.UnreadAnswers", partial(UnreadAnswers, of_one=2_500_000))
    path = "/api/v1/jobs?limit=100"
    async with taking(tmp_path) as caller, AsyncExitStack() as stack:
        await caller.upload(array="0-59", meta=json.dumps({"a": "x" * 16_000}))
        await eventually(lambda: caller.get(path), lambda answer: len(answer[2]) > MIB)
        for _ in range(2):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the kernel keeps less
            line.connect(("127.0.0.1", int(caller.url.rpartition(":")[2])))
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert (await asyncio.to_thread(line.recv, 12)).endswith(b" 200")
        code, reply = await caller.ask("GET", path)
        assert (code, reply["code"]) == (429, "unread_answers")
        assert (await caller.get("/api/v1/jobs?limit=1"))[0] == 200, "little is not counted"
        await stack.aclose()
        await eventually(lambda: caller.get(path), lambda answer: answer[0] == 200)


async def test_one_search_of_a_caller_runs_at_a_time(tmp_path, monkeypatch) -> None:
    """Those that wait for it do not even open the log."""
    end, find, opened = threading.Event(), logs._find, []

    def slow(*args: Any) -> Any:
        opened.append(args)
        assert end.wait(60), "nobody let it end"
        return find(*args)

    monkeypatch.setattr(logs, "_find", slow)
    async with running(tmp_path) as here:
        await here.end("a line\n")
        await here.caller.job(here.job_id)
        url = f"{here.caller.url}/jobs/{here.job_id}/log?search=line"

        async def search() -> tuple[int, str | None]:
            async with here.caller.session.get(url) as answer:
                await answer.read()
                return answer.status, answer.headers.get("Retry-After")

        searches = [asyncio.create_task(search()) for _ in range(12)]
        await until(lambda: sum(one.done() for one in searches) == 3)
        assert {one.result() for one in searches if one.done()} == {(429, "5")}
        assert len(opened) <= 1
        end.set()
        assert [status for status, _ in await asyncio.gather(*searches)].count(200) == 9
