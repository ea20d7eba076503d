"""Files and logs of attempts that run, over HTTP."""

import asyncio
import contextlib
import os
import unicodedata
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from client_agent.api.files import FOLLOW_S, PACE_S, PER_READER_S
from client_agent.collect.running import RunningTree
from shared.wire import FILE_SIZE, LOG_SIZE
from tests.kit.agent_http import LIMITS, AgentClient
from tests.kit.waiting import eventually, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BIG = bytes(range(256)) * 4_000
ODD = bytes(range(256))


async def listed(agent: AgentClient, payload_id: int, query: str = "") -> tuple[list[str], bool]:
    status, body = await agent.call("GET", f"/payloads/{payload_id}/files?{query}")
    assert status == 200, body
    return [one["path"] for one in body["files"]], body["more"]


async def read(
    agent: AgentClient, payload_id: int, path: str, query: str = ""
) -> tuple[int, bytes]:
    address = f"/payloads/{payload_id}/files/{quote(path, safe='')}?{query}"
    async with agent.http.get(address) as response:
        assert response.status == 200, await response.text()
        return int(response.headers[FILE_SIZE]), await response.read()


async def log(
    agent: AgentClient, payload_id: int, query: str = "", stream: str = "stdout"
) -> bytes:
    async with agent.http.get(f"/payloads/{payload_id}/logs/{stream}?{query}") as response:
        assert response.status == 200, await response.text()
        assert response.headers["X-Accel-Buffering"] == "no"
        return await response.read()


def following(agent: AgentClient, payload_id: int) -> Any:
    return agent.http.get(f"/payloads/{payload_id}/logs/stdout?follow=1")


async def test_the_files_of_an_attempt_that_runs_are_listed_in_pages(agent) -> None:
    payload_id, process = await agent.started()
    process.log(b"hello\n")
    for name in ("b/2.txt", "b/1.txt", "b.txt", "a"):
        process.write(name, name.encode())
    everything = ["a", "b/1.txt", "b/2.txt", "b.txt", "run.sh", "stdout.log", "stderr.log"]
    assert await listed(agent, payload_id) == (everything, False)
    seen, after, more = list[str](), "", True
    while more:
        page, more = await listed(agent, payload_id, f"limit=2&after={quote(after)}")
        seen += page
        after = page[-1]
    assert seen == everything
    assert await listed(agent, payload_id, "after=b/1x") == (everything[2:], False)


async def test_a_file_is_sent_as_it_is_now(agent) -> None:
    payload_id, process = await agent.started()
    process.log(b"hello\n")
    process.write("out/big.bin", BIG)
    process.write(unicodedata.normalize("NFD", "é/ü.txt"), b"found")
    assert "é/ü.txt" in (await listed(agent, payload_id))[0], "stored decomposed"
    query = "offset=1000&stop=600000&key=1.1"
    assert await read(agent, payload_id, "out/big.bin", query) == (len(BIG), BIG[1_000:600_000])
    for path, query, found in (
        ("out/big.bin", "", (len(BIG), BIG)),
        ("out/big.bin", "stop=0", (len(BIG), b"")),
        ("é/ü.txt", "", (5, b"found")),
        ("stdout.log", "", (6, b"hello\n")),
    ):
        assert await read(agent, payload_id, path, query) == found
    process.write("stdout.log", b"the job's own")
    assert await read(agent, payload_id, "stdout.log") == (13, b"the job's own")
    assert await read(agent, payload_id, "stdout.ferryman.log") == (6, b"hello\n")


async def test_nothing_outside_the_directory_is_read(agent, tmp_path) -> None:
    (tmp_path / "token").write_text("planted")
    payload_id, process = await agent.started()
    root = process.workspace.path
    for name, to in (("link", tmp_path / "token"), ("folder", tmp_path), ("loop", "loop")):
        (root / name).symlink_to(to)
    os.mkfifo(root / "fifo")  # nobody writes: who opened it would wait for ever
    (root / "empty").mkdir()
    assert (await listed(agent, payload_id))[0] == ["run.sh", "stdout.log", "stderr.log"]
    paths = ("link", "folder/token", "loop", "fifo", "empty", "nowhere", "run.sh/x")
    strange = ("../secret/token", "/etc/passwd", "a/../run.sh", "x\\y", "a//b", "run.sh/")
    for path in (*paths, *strange):
        address = f"/payloads/{payload_id}/files/{quote(path, safe='')}"
        status, body = await agent.call("GET", address)
        assert (status, body["code"]) == (404, "file_not_found"), path
        assert "planted" not in str(body)


async def test_a_file_that_was_replaced_or_cut_is_not_mixed_with_another(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"other")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    tree = RunningTree(fd, {})
    found = tree.find("a")
    assert tree.read(found, 1, 9) == b"irst"
    (tmp_path / "a").write_bytes(b"f")
    assert tree.read(found, 1, 9) == b""
    (tmp_path / "b").replace(tmp_path / "a")
    assert tree.read(found, 0, 9) == b""
    os.close(fd)


async def test_a_directory_is_read_once_for_a_file_of_many(agent) -> None:
    payload_id, process = await agent.started()
    for name in ("big.bin", unicodedata.normalize("NFD", "é.bin"), "STDOUT.LOG"):
        process.write(name, BIG)
    for number in range(100):
        process.write(f"many/{number}", b"")
    with mock.patch.object(os, "scandir", wraps=os.scandir) as scan:
        assert await read(agent, payload_id, "big.bin") == (len(BIG), BIG)
        assert scan.call_count == 1
        assert await read(agent, payload_id, "é.bin") == (len(BIG), BIG)
        assert scan.call_count == 3


async def test_a_slow_reader_does_not_keep_the_directory_of_an_attempt_that_ends(agent) -> None:
    limits = LIMITS.model_copy(update={"results": 1 << 30})
    payload_id, process = await agent.started(limits=limits)
    process.write("big", bytes(64 << 20))
    async with agent.http.get(f"/payloads/{payload_id}/files/big") as response:
        await response.content.readany()  # and no more
        process.finish()
        assert (await agent.ended(payload_id))["status"] == "Completed"
        await until(lambda: not process.workspace.path.exists())


async def test_what_is_written_so_far_comes_byte_by_byte_from_any_offset(agent) -> None:
    payload_id, process = await agent.started()
    process.log(ODD, b"error")
    assert await log(agent, payload_id) == ODD
    assert await log(agent, payload_id, "offset=200&key=1.1") == ODD[200:]
    assert await log(agent, payload_id, f"offset={2**63 - 1}") == b""
    assert await log(agent, payload_id, stream="stderr") == b"error"
    async with agent.http.get(f"/payloads/{payload_id}/logs/stdout?offset=200") as response:
        assert response.headers[LOG_SIZE] == str(len(ODD)), "the whole log's"
    for offset in ("-1", "x", "1e3", "9" * 30):
        path = f"/payloads/{payload_id}/logs/stdout?offset={offset}"
        status, body = await agent.call("GET", path)
        assert (status, body["code"]) == (400, "invalid_query")


async def test_a_followed_log_goes_on_until_its_end(agent) -> None:
    payload_id, process = await agent.started()
    process.log(b"one\n")
    async with following(agent, payload_id) as response:
        assert await response.content.readany() == b"one\n"
        for data in (b"two\n", ODD):
            await agent.clock.until_asleep(FOLLOW_S)
            process.log(data)
            await agent.clock.until_asleep(PACE_S)
            await agent.clock.advance(PACE_S)
            assert await response.content.readany() == data
        await agent.clock.until_asleep(FOLLOW_S)
        process.log(b"last")
        process.finish()
        assert await response.read() == b"last"
    payload_id, process = await agent.started("2.1")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(60):
            await stack.enter_async_context(following(agent, payload_id))
        process.log(b"one\n")
        await agent.clock.until_asleep(60 * PER_READER_S)  # many get more at a time, less often
        process.finish()
        await agent.ended(payload_id)


async def test_a_quiet_log_ends_with_its_attempt_or_after_a_while(agent) -> None:
    payload_id, process = await agent.started()
    async with following(agent, payload_id) as response:
        await agent.clock.until_asleep(FOLLOW_S)
        await agent.clock.advance(FOLLOW_S - 1)
        process.log(stderr=b"x")
        await agent.clock.advance(1)
        assert await response.read() == b""
    async with following(agent, payload_id) as response:
        await agent.clock.until_asleep(FOLLOW_S)
        process.finish()
        assert await response.read() == b""


async def test_followers_of_one_that_waits_wait_for_its_start(agent) -> None:
    blocking = [(await agent.started(f"{n}.1"))[1] for n in (1, 2)]
    waiting = (await agent.submit("3.1", timeout_s=1e6))[1]["id"]
    assert await log(agent, waiting) == b""
    heard = asyncio.Event()

    async def follow() -> bytes:
        async with following(agent, waiting) as response:
            found = bytes(await response.content.readany())
            heard.set()
            return found + bytes(await response.read())

    followed = asyncio.create_task(follow())
    await agent.clock.until_asleep(FOLLOW_S)
    for process in blocking:
        process.finish()
    process = await agent.sandbox.process("3.1")
    process.log(b"hello from 3")
    # Its log may have been open already: then it hears of this, and waits for more for a moment.
    await eventually(lambda: agent.clock.advance(PACE_S), lambda _: heard.is_set())
    process.finish()
    await eventually(lambda: agent.clock.advance(PACE_S), lambda _: followed.done())
    assert await followed == b"hello from 3"


async def test_a_reader_that_is_stuck_costs_only_itself(agent) -> None:
    payload_id, process = await agent.started()
    async with following(agent, payload_id) as stuck:  # its answer is never read
        process.log(b"x" * (8 << 20))
        assert len(await log(agent, payload_id)) == 8 << 20
        process.finish()
        assert (await agent.ended(payload_id))["status"] == "Completed"
        stuck.close()


async def test_what_is_unknown_or_has_ended_has_neither(agent) -> None:
    payload_id = await agent.completed()
    await agent.until_holds("logs")
    for code, paths in {
        "files_gone": ["files", "files/run.sh"],
        "log_gone": ["logs/stdout", "logs/stdout?follow=1"],
        "payload_not_found": ["files?key=1.2", "files/run.sh?key=1.2", "logs/stdout?key=1.2"],
        "no_such_route": ["logs/other", "logs/..%2f1.stdout"],
    }.items():
        for path in paths:
            status, body = await agent.call("GET", f"/payloads/{payload_id}/{path}")
            assert (status, body["code"]) == (404, code), path
            if code != "no_such_route":
                status, body = await agent.call("GET", f"/payloads/999999/{path}")
                assert (status, body["code"]) == (404, "payload_not_found"), path
