"""Reads over HTTP: nobody waits behind another's, and what is not read is bounded."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import aiohttp

from server.http import files, logs
from shared.http.protocol import UnreadAnswers
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving
from tests.kit.waiting import until
from tests.server.held_jobs import running
from tests.server.job_pages import PRINCIPALS, serving

ANN, BOB = ({"Authorization": f"Bearer the-token-of-{user}"} for user in ("ann", "bob"))


async def status(caller: ServerClient, path: str, shown: dict[str, str] | None = None) -> int:
    async with caller.session.get(f"{caller.url}{path}", headers=shown) as answer:
        await answer.read()
        return answer.status


async def posted(caller: ServerClient, path: str, who: dict[str, str], **how: Any) -> Any:
    async with caller.session.post(f"{caller.url}{path}", headers=who, **how) as answer:
        return await answer.json()


async def ended(caller: ServerClient, user: str, who: dict[str, str]) -> int:
    """A job of the user."""
    data = aiohttp.FormData({"user_id": user, "service": "my_service"})
    data.add_field("file", RUN, filename="run.sh")
    job_id = int((await posted(caller, "/upload", who, data=data))["id"])
    await status(caller, f"/api/v1/jobs/{job_id}/result?wait=20", who)
    return job_id


async def test_reads_of_one_user_do_not_hold_up_those_of_another(tmp_path, monkeypatch) -> None:
    begun, end = threading.Semaphore(0), threading.Event()
    listed = files._list
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        ann, other = [await ended(caller, "ann", ANN) for _ in range(2)]
        bob = await ended(caller, "bob", BOB)
        # Whoever has a link to one of ann's jobs takes ann's place.
        links = [
            (job, (await posted(caller, f"/api/v1/jobs/{job}/links", ANN, json={}))["link"])
            for job in (ann, other)
        ]

        def slow(*args: Any) -> Any:
            begun.release()
            assert end.wait(60), "nobody let it end"
            return listed(*args)

        monkeypatch.setattr(files, "_list", slow)
        path = f"/api/v1/jobs/{ann}/files"
        of_ann = [asyncio.create_task(status(caller, path, ANN)) for _ in range(12)]
        assert await asyncio.to_thread(begun.acquire, timeout=60)
        monkeypatch.setattr(files, "_list", listed)
        of_bob = status(caller, f"/api/v1/jobs/{bob}/files", BOB)
        assert await asyncio.wait_for(of_bob, 60) == 200
        of_ann += [
            asyncio.create_task(status(caller, f"/api/v1/jobs/{job}/files?link={link}"))
            for job, link in links
        ]
        turns = caller.server.context.reads._each._turns
        await until(lambda: {name: one.callers for name, one in turns.items()} == {"user ann": 14})
        assert not any(one.done() for one in of_ann)
        end.set()
        assert set(await asyncio.gather(*of_ann)) == {200}


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


async def test_answers_that_are_not_read_are_bounded(tmp_path) -> None:
    async with serving(tmp_path) as world:
        world.caller.server.gate._unread = unread = UnreadAnswers(of_one=1)
        for _ in range(100):
            await world.new(meta='{"text": "' + "x" * 40_000 + '"}')
        path = "/api/v1/jobs?limit=500"
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", int(world.url.rpartition(":")[2])))
            reader.setblocking(False)
            token = "Authorization: Bearer the-token-of-ann"
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n\r\n"
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(reader, request.encode())
            assert await loop.sock_recv(reader, 8) == b"HTTP/1.1"
            for who in ("ann", "a-reader"):  # two tokens of one user
                shown = {"Authorization": f"Bearer the-token-of-{who}"}
                async with world.caller.session.get(f"{world.url}{path}", headers=shown) as answer:
                    assert (answer.status, answer.headers["Retry-After"]) == (429, "5")
                    assert (await answer.json())["code"] == "unread_answers"
            assert (await world.ask("/api/v1/jobs?limit=1")).status == 200
            admin = {"Authorization": "Bearer the-token-of-admin"}
            assert (await world.ask(path, **admin)).status == 200
        await until(lambda: not unread._of)
        assert (await world.ask("/api/v1/jobs?limit=1")).status == 200
