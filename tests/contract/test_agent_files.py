"""The files of attempts that run, over HTTP."""

from __future__ import annotations

import asyncio
import os
import unicodedata
from urllib.parse import quote

import pytest

from client_agent.collect import running
from client_agent.collect.running import RunningTree
from shared.files.names import fold
from shared.wire import FILE_SIZE
from tests.kit.agent import LIMITS
from tests.kit.agent_http import calling

BIG = bytes(range(256)) * 4_000


@pytest.fixture
async def agent(tmp_path):
    async with calling(tmp_path) as caller:
        yield caller
    assert caller.sandbox.violations == []


async def started(agent, key="1.1"):
    _, payload = await agent.submit(key)
    return payload["id"], await agent.sandbox.process(key)


async def listed(agent, payload_id, query=""):
    status, body = await agent.call("GET", f"/payloads/{payload_id}/files?{query}")
    assert status == 200, body
    return [one["path"] for one in body["files"]], body["more"]


async def read(agent, payload_id, path, query=""):
    address = f"/payloads/{payload_id}/files/{quote(path, safe='')}?{query}"
    async with agent.http.get(address) as response:
        assert response.status == 200, await response.text()
        return int(response.headers[FILE_SIZE]), await response.read()


async def test_the_files_of_an_attempt_that_runs_are_listed_in_pages(agent):
    payload_id, process = await started(agent)
    process.log(b"hello\n")
    for name in ("b/2.txt", "b/1.txt", "b.txt", "a"):
        process.write(name, name.encode())
    everything = ["a", "b/1.txt", "b/2.txt", "b.txt", "run.sh", "stdout.log", "stderr.log"]
    assert await listed(agent, payload_id) == (everything, False)
    seen, after = [], ""
    while True:
        page, more = await listed(agent, payload_id, f"limit=2&after={quote(after)}")
        seen += page
        if not more:
            break
        after = page[-1]
    assert seen == everything
    assert await listed(agent, payload_id, "after=b/1x") == (everything[2:], False)
    process.finish()


async def test_a_file_is_sent_as_it_is_now(agent):
    payload_id, process = await started(agent)
    process.log(b"hello\n")
    process.write("out/big.bin", BIG)
    assert await read(agent, payload_id, "out/big.bin") == (len(BIG), BIG)
    part = await read(agent, payload_id, "out/big.bin", "offset=1000&stop=600000&key=1.1")
    assert part == (len(BIG), BIG[1_000:600_000])
    assert await read(agent, payload_id, "out/big.bin", "stop=0") == (len(BIG), b"")
    assert await read(agent, payload_id, "stdout.log") == (6, b"hello\n")
    process.write("stdout.log", b"the job's own")
    assert await read(agent, payload_id, "stdout.log") == (13, b"the job's own")
    assert await read(agent, payload_id, "stdout.ferryman.log") == (6, b"hello\n")
    process.finish()


async def test_a_name_that_is_stored_decomposed_is_found_as_it_is_listed(agent):
    payload_id, process = await started(agent)
    process.write(unicodedata.normalize("NFD", "é/ü.txt"), b"found")
    names, _ = await listed(agent, payload_id)
    assert "é/ü.txt" in names
    assert await read(agent, payload_id, "é/ü.txt") == (5, b"found")
    process.finish()


async def test_nothing_outside_the_directory_is_read(agent, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("planted")
    payload_id, process = await started(agent)
    root = process.workspace.path
    (root / "link").symlink_to(secret / "token")
    (root / "folder").symlink_to(secret)
    (root / "loop").symlink_to("loop")
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
    process.finish()


async def test_a_file_that_was_replaced_or_cut_is_not_mixed_with_another(tmp_path):
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


async def test_the_names_of_a_directory_are_read_once_for_a_file_however_long_it_is(
    agent, monkeypatch
):
    payload_id, process = await started(agent)
    process.log(b"hello\n")
    for name in ("big.bin", unicodedata.normalize("NFD", "é.bin"), "STDOUT.LOG"):
        process.write(name, BIG)
    for number in range(100):
        process.write(f"many/{number}", b"")
        process.write(f"stderr-{number}.txt", b"")
    folded, scanned = [], []
    scandir = os.scandir

    def scan(*args):
        scanned.append(args)
        return scandir(*args)

    def noted(name):
        folded.append(name)
        return fold(name)

    monkeypatch.setattr(os, "scandir", scan)
    monkeypatch.setattr(running, "fold", noted)
    assert await read(agent, payload_id, "big.bin") == (len(BIG), BIG)
    assert len(scanned) == 1
    assert [name for name in folded if len(name) > 1] == ["STDOUT.LOG"]
    assert await read(agent, payload_id, "é.bin") == (len(BIG), BIG)
    assert len(scanned) == 3
    assert await read(agent, payload_id, "stdout.ferryman.log") == (6, b"hello\n")
    process.finish()


async def test_files_of_what_is_unknown_or_does_not_run_are_not_here(agent):
    payload_id = await agent.completed()
    for path, code in (
        (f"{payload_id}/files", "files_gone"),
        (f"{payload_id}/files/run.sh", "files_gone"),
        ("99/files", "payload_not_found"),
        (f"{payload_id}/files?key=1.2", "payload_not_found"),
        (f"{payload_id}/files/run.sh?key=1.2", "payload_not_found"),
    ):
        status, body = await agent.call("GET", f"/payloads/{path}")
        assert (status, body["code"]) == (404, code), path


async def test_a_slow_reader_does_not_keep_the_directory_of_an_attempt_that_ends(agent):
    limits = LIMITS.model_copy(update={"results": 1 << 30})
    _, payload = await agent.submit(limits=limits)
    process = await agent.sandbox.process("1.1")
    process.write("big", bytes(64 << 20))
    async with agent.http.get(f"/payloads/{payload['id']}/files/big") as response:
        await response.content.readany()  # and no more
        process.finish()
        assert (await agent.ended(payload["id"]))["status"] == "Completed"
        async with asyncio.timeout(20):
            while process.workspace.path.exists():
                await agent.call("GET", "/health")


async def test_files_need_a_token_where_the_agent_has_one(tmp_path):
    async with calling(tmp_path, tokens=["a" * 40]) as agent:
        payload_id, process = await started(agent)
        for path in ("files", "files/run.sh"):
            async with agent.http.get(
                f"/payloads/{payload_id}/{path}", headers={"Authorization": ""}
            ) as response:
                assert response.status == 401
        process.finish()
