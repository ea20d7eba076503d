"""Each refusal that docs/troubleshooting.md quotes of uploads and other requests, provoked."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shared.principals import Principal, Role
from tests.contract.test_upload_http import HEAD
from tests.contract.test_upload_limits import MIB, Sender, open_file, under_way
from tests.docs.symptoms import said
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import RUN, ServerClient, driving
from tests.support.sim_clock import SimClock

FILES = {"run.sh": RUN}


async def refusal(
    caller: ServerClient, files: dict[str, bytes] | None = None, **fields: str
) -> tuple[int, str]:
    """Status and sentence of an upload that is refused."""
    form = aiohttp.FormData(quote_fields=False)
    for field, text in {"user_id": "ann", "service": "my_service", **fields}.items():
        form.add_field(field, text)
    for name, content in (files or FILES).items():
        form.add_field("file", io.BytesIO(content), filename=name)
    async with caller.session.post(f"{caller.url}/upload", data=form) as answer:
        reply = await answer.json()
        return answer.status, f"{answer.status} {reply.get('code')}: {reply['message']}"


async def text(caller: ServerClient, method: str, path: str, **more: Any) -> str:
    async with caller.session.request(method, caller.url + path, **more) as answer:
        try:
            reply = json.loads(await answer.read())
        except ValueError:
            return f"{answer.status} {await answer.text()}"
        code, words = reply.get("code"), reply.get("detail") or reply.get("message")
        return f"{answer.status} {code}: {words}" if code else f"{answer.status}: {words}"


@pytest.fixture
async def plain(tmp_path: Path):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        yield caller


async def test_what_is_wrong_with_a_bundle(plain: ServerClient) -> None:
    said("no-run-sh", (await refusal(plain, {"main.sh": RUN}))[1])
    said("unsafe-name", (await refusal(plain, FILES | {"../x": b""}))[1])
    said(
        "duplicate-name", (await refusal(plain, FILES | {"o\u0308.txt": b"", "\u00f6.txt": b""}))[1]
    )
    said("unknown-service", (await refusal(plain, service="my_servise"))[1])
    said("unknown-field", (await refusal(plain, timeuot="5s"))[1])
    said("no-user", (await refusal(plain, user_id=""))[1])
    said("bad-user", (await refusal(plain, user_id="ann smith"))[1])


async def test_what_is_too_much(tmp_path: Path) -> None:
    users = '[users.bob]\nupload_per_user_per_day = "10B"\n[users.dan]\nstored_per_user = "10B"\n'
    users += "[users.eve.services.my_service]\nqueued_per_user = 1\n"
    more = '[services.my_service]\nlimits = { disk = "4MiB" }\n' + users
    settings: dict[str, Any] = {"max_upload": 6 * MIB, "max_files": 2}
    async with driving(tmp_path, FakeOrchestrator(), gone=True, extra=more, **settings) as caller:
        big = FILES | {"big": bytes(7 * MIB)}
        said("upload-too-large", (await refusal(caller, big))[1])
        said("bundle-over-disk-limit", (await refusal(caller, FILES | {"b": bytes(5 * MIB)}))[1])
        said("too-many-files", (await refusal(caller, FILES | {"a": b"", "b": b""}))[1])
        said("upload-over-quota", (await refusal(caller, user_id="bob"))[1])
        said("storage-full", (await refusal(caller, user_id="dan"))[1])
        assert (await refusal(caller, user_id="eve"))[0] == 201
        said("queue-full", (await refusal(caller, user_id="eve"))[1])


async def test_too_many_at_once(tmp_path: Path) -> None:
    more: dict[str, Any] = {"uploads": 3, "uploads_per_user": 1}
    async with (
        driving(tmp_path, FakeOrchestrator(then="Running"), **more) as caller,
        Sender(caller, HEAD + open_file() + bytes(MIB)),
    ):
        await under_way(caller, 1)
        said("too-many-uploads", (await refusal(caller, user_id="7"))[1])


async def test_no_room(tmp_path: Path) -> None:
    more: dict[str, Any] = {"min_free": 1 << 60}
    async with driving(tmp_path, FakeOrchestrator(then="Running"), **more) as caller:
        said("disk-full", (await refusal(caller))[1])
        said("disk-full-health", await text(caller, "GET", "/health"))


async def test_a_slow_upload(tmp_path: Path) -> None:
    clock = SimClock()
    async with (
        driving(tmp_path, FakeOrchestrator(then="Running"), machine=clock) as caller,
        Sender(caller, HEAD + open_file() + bytes(MIB)) as sender,
    ):
        await under_way(caller, 1)
        answer = asyncio.create_task(sender.answer())
        while not answer.done():
            await clock.advance(5)
            await asyncio.get_running_loop().run_in_executor(None, int)
        status, reply = answer.result()
        said("upload-too-slow", f"{status} {reply['code']}: {reply['message']}")


async def test_who_may_not(tmp_path: Path) -> None:
    principals = {
        "the-token-of-ann": Principal("ann", Role.USER, "ann"),
        "the-token-of-root": Principal("root", Role.OPERATOR),
    }
    more: dict[str, Any] = {"rate_limit": "4/h"}
    async with driving(
        tmp_path, FakeOrchestrator(then="Running"), principals=principals, **more
    ) as caller:
        said("no-token", await text(caller, "GET", "/api/v1/jobs"))
        wrong = {"Authorization": "Bearer ferryman_nobody_nothing"}
        said("wrong-token", await text(caller, "GET", "/api/v1/jobs", headers=wrong))
        ann = {"Authorization": "Bearer the-token-of-ann"}
        said("not-allowed", await text(caller, "POST", "/api/v1/agents/x/drain", headers=ann))
        form = aiohttp.FormData({"user_id": "bob", "service": "my_service"})
        form.add_field("file", io.BytesIO(RUN), filename="run.sh")
        said("another-user", await text(caller, "POST", "/upload", data=form, headers=ann))
        said("not-yours", await text(caller, "GET", "/api/v1/jobs/17", headers=ann))
        limited = ""
        for _ in range(3):
            limited = await text(caller, "GET", "/api/v1/whoami", headers=ann)
        said("rate-limit", limited)


async def test_names_and_pages_of_others(plain: ServerClient) -> None:
    other = {"Host": "jobs.example.org"}
    said("wrong-host", await text(plain, "GET", "/api/v1/jobs", headers=other))
    html = other | {"Accept": "text/html,application/xhtml+xml"}
    shown = await text(plain, "GET", "/", headers=html)
    said("wrong-host-page", " ".join(re.findall(r"<h1>(.*?)</h1>", shown)))
    page = {"Origin": "https://portal.example.org"}
    said("foreign-page", await text(plain, "POST", "/upload", headers=page))
