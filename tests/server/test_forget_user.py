"""``ferryman admin forget-user``: afterwards nothing of the user is found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ferryman import Client
from server.stages import forget_user
from server.stages.tokens import NewToken
from server.store.audit import AuditEntry
from shared.principals import Role
from tests.kit.command_line import ferryman
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.server_http import ServerClient

USER, OTHER = "wilhelmina", "otto"
SECRET = "the-planted-words"
FORGET = ("admin", "forget-user", USER)
SLOW: dict[str, Any] = {"agent_timeout": 3_600.0, "agent_lost_after": 86_400.0}


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent("north", "abc")


@pytest.fixture
async def caller(tmp_path: Path, agent: FakeAgent) -> AsyncIterator[ServerClient]:
    async with serving(tmp_path, agent, **SLOW) as caller:
        yield caller


async def post(
    caller: ServerClient, script: str, user: str = USER, path: str = "/upload", **fields: str
) -> int:
    form = aiohttp.FormData(quote_fields=False)
    for name, text in {"user_id": user, "service": "my_service", **fields}.items():
        form.add_field(name, text)
    form.add_field("file", script.encode(), filename="run.sh")
    key = {"Idempotency-Key": script.replace(" ", "_")} if path == "/upload" else {}
    async with caller.session.post(f"{caller.url}{path}", data=form, headers=key) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


def places(folder: Path) -> list[str]:
    """Files below the folder with words of the user in their name or content."""
    found = []
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if any(word in path.name or word.encode() in content for word in (USER, SECRET)):
            found.append(str(path.relative_to(folder)))
    return found


async def fill(caller: ServerClient, agent: FakeAgent) -> int:
    """What a user leaves behind; the number of a job of somebody else with the same bundle."""
    shared = await post(caller, "echo shared", OTHER)
    await caller.job(shared)
    await caller.job(await post(caller, "echo shared", tags=json.dumps([SECRET])))
    address = f"https://example.org/{SECRET}"
    await caller.job(await post(caller, SECRET, name=SECRET, callback_url=address))
    schedule = {"name": SECRET, "cron": "0 3 * * *"}
    await post(caller, f"echo {SECRET}", path="/api/v1/schedules", **schedule)
    context = caller.server.context
    await context.tokens.create(NewToken(f"{USER}-laptop", Role.USER, USER, (), None, None), "op")
    entry = AuditEntry(1, USER, Role.USER, None, None, "GET /x", "", 200, None, "1.2.3.4", "r", 0)
    context.audit.add(entry)
    context.audit.add(dataclasses.replace(entry, principal="portal", acts_as=USER))
    agent.ends = "Running"
    await caller.job(await post(caller, f"sleep 9; {SECRET}"), until="Running")
    return shared


async def test_nothing_of_the_user_is_found_afterwards(tmp_path, caller, agent, monkeypatch):
    monkeypatch.setattr(forget_user, "_AT_ONCE", 1)  # however many are read at once
    shared = await fill(caller, agent)
    data, url = tmp_path / "data", caller.url
    assert places(data)
    code, _, said = await ferryman(*FORGET, FERRYMAN_URL=url)
    assert code == 2, "without a terminal nobody can say yes"
    assert "give --yes where there is no terminal" in said
    code, _, said = await ferryman(*FORGET, "--dry-run", FERRYMAN_URL=url)
    assert code == 0
    there = said.partition(";")[0].removeprefix(f"{USER}: ")
    assert there.startswith("3 jobs, 1 schedule, ")
    assert " 2 audit entries would be given another name" in said
    async with Client(url) as client:
        before = (await client.forget_user(USER, dry_run=True)).found
    kinds = ("jobs", "schedules", "tokens", "keys")
    assert [before[kind] for kind in kinds] == [3, 1, 1, 3]
    code, _, said = await ferryman(*FORGET, "--yes", FERRYMAN_URL=url)
    assert (code, said.partition(";")[0]) == (0, f"{USER}: removed {there}"), "the same kinds"
    assert agent.killed, "what ran is dead"

    assert places(data) == []
    async with Client(url) as client:
        again = await client.forget_user(USER)
        assert (again.done, again.removed, again.waiting) == (True, {}, [])
        assert not any((await client.forget_user(USER, dry_run=True)).found.values())
        assert [job.id async for job in client.jobs()] == [shared]
    for kind in ("result", "bundle"):
        status, _, content = await caller.get(f"/api/v1/jobs/{shared}/{kind}")
        assert (status, content[:2]) == (200, b"PK"), kind
    for how in ("--dry-run", "--yes"):
        code, out, said = await ferryman("admin", "forget-user", "zeo", how, FERRYMAN_URL=url)
        assert (code, out) == (1, ""), "a mistyped name does not look done"
        assert said.startswith("ferryman: nothing is known of user zeo\nis the name right?")
    for body in ({}, {"user": ""}, {"user": "a/b"}, {"user": "x", "all": True}):
        async with caller.session.post(f"{url}/api/v1/forget-user", json=body) as answer:
            assert answer.status == 400, body


async def test_a_job_whose_agent_is_away_is_named_and_goes_later(caller, agent, monkeypatch):
    monkeypatch.setattr(forget_user, "PATIENCE_S", 0)
    agent.ends = "Running"
    job_id = await post(caller, "sleep 9")
    await caller.job(job_id, until="Running")
    agent.away()
    await agent.asked_twice()
    code, out, _ = await ferryman(*FORGET, "--yes", "--json", FERRYMAN_URL=caller.url)
    report = json.loads(out)
    assert (code, report["done"], report["removed"]["keys"]) == (75, False, 1)
    assert [(one["id"], "agent north" in one["why"]) for one in report["waiting"]] == [
        (job_id, True)
    ]
    code, _, said = await ferryman(*FORGET, "--yes", FERRYMAN_URL=caller.url)
    assert code == 75
    assert f"job {job_id} is not gone yet: agent north has it" in said
    agent.trick = None
    monkeypatch.setattr(forget_user, "PATIENCE_S", 30)
    async with Client(caller.url) as client:
        assert (await client.forget_user(USER)).done
    assert agent.killed
