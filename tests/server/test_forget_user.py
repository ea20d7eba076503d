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
from ferryman.models.operators import ForgottenDoc
from server.stages import forget_user
from server.stages.tokens import NewToken
from server.store.audit import AuditEntry
from shared.principals import Role
from tests.fleet.test_agents_http import unreachable
from tests.kit.command_line import ferryman
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.server_http import ServerClient

USER, OTHER = "wilhelmina", "otto"
SECRET = "the-planted-words"
SLOW: dict[str, Any] = {"agent_timeout": 3_600.0, "agent_lost_after": 86_400.0}


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent("north", "abc")


@pytest.fixture
async def caller(tmp_path: Path, agent: FakeAgent) -> AsyncIterator[ServerClient]:
    async with serving(tmp_path, agent, **SLOW) as caller:
        yield caller


async def upload(caller: ServerClient, user: str, script: bytes, **fields: str) -> int:
    form = aiohttp.FormData(quote_fields=False)
    for name, text in {"user_id": user, "service": "my_service", **fields}.items():
        form.add_field(name, text)
    form.add_field("file", script, filename="run.sh")
    async with caller.session.post(f"{caller.url}/upload", data=form) as answer:
        assert answer.status == 201, await answer.text()
        return int((await answer.json())["id"])


async def forget(caller: ServerClient, user: str = USER) -> ForgottenDoc:
    async with Client(caller.url) as client:
        return await client.forget_user(user)


def places(folder: Path, *words: str) -> list[str]:
    """Files below the folder with one of the words in their name or content."""
    found = []
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if any(word in path.name or word.encode() in content for word in words):
            found.append(str(path.relative_to(folder)))
    return found


async def fill(caller: ServerClient, agent: FakeAgent) -> int:
    """What a user leaves behind; the number of a job of somebody else with the same bundle."""
    shared = await upload(caller, OTHER, b"echo shared")
    await caller.job(shared)
    await caller.job(await upload(caller, USER, b"echo shared", tags=json.dumps([SECRET])))
    own = await upload(
        caller, USER, SECRET.encode(), name=SECRET, callback_url=f"https://example.org/{SECRET}"
    )
    await caller.job(own)
    form = aiohttp.FormData()
    for name, text in {
        "user_id": USER,
        "service": "my_service",
        "name": SECRET,
        "cron": "0 3 * * *",
    }.items():
        form.add_field(name, text)
    form.add_field("file", b"echo " + SECRET.encode(), filename="run.sh")
    async with caller.session.post(f"{caller.url}/api/v1/schedules", data=form) as answer:
        assert answer.status == 201, await answer.text()
    context = caller.server.context
    await context.tokens.create(NewToken(f"{USER}-laptop", Role.USER, USER, (), None, None), "op")
    entry = AuditEntry(1, USER, Role.USER, None, None, "GET /x", "", 200, None, "1.2.3.4", "r", 0)
    context.audit.add(entry)
    context.audit.add(dataclasses.replace(entry, principal="portal", acts_as=USER))
    agent.ends = "Running"
    await caller.job(await upload(caller, USER, b"sleep 9; " + SECRET.encode()), until="Running")
    return shared


async def test_nothing_of_the_user_is_found_afterwards(
    tmp_path: Path, caller: ServerClient, agent: FakeAgent
) -> None:
    shared = await fill(caller, agent)
    data = tmp_path / "data"
    assert places(data, USER, SECRET)
    async with Client(caller.url) as client:
        before = (await client.forget_user(USER, dry_run=True)).found
    assert (before["jobs"], before["schedules"], before["tokens"]) == (3, 1, 1)
    report = await forget(caller)
    assert report.done
    assert report.waiting == []
    assert agent.killed, "what ran is dead"

    assert places(data, USER, SECRET) == []
    async with Client(caller.url) as client:
        again = await client.forget_user(USER)
        assert (again.done, again.removed) == (True, {})
        assert not any((await client.forget_user(USER, dry_run=True)).found.values())
    _, _, listed = await caller.get("/api/v1/jobs")
    assert [job["id"] for job in json.loads(listed)["items"]] == [shared]
    status, _, content = await caller.get(f"/api/v1/jobs/{shared}/result")
    assert (status, content[:2]) == (200, b"PK")


async def test_a_bundle_that_others_have_too_stays(
    tmp_path: Path, caller: ServerClient, agent: FakeAgent
) -> None:
    shared = await upload(caller, OTHER, b"echo shared")
    await caller.job(shared)
    await caller.job(await upload(caller, USER, b"echo shared"))
    await forget(caller)
    job = await caller.server.context.jobs.get(shared)
    assert job.bundle is not None
    async with caller.server.context.storage.local_copy("bundles", job.bundle.file) as path:  # type: ignore[arg-type]
        assert path.is_file()


async def test_a_job_whose_agent_is_away_is_named_and_goes_later(
    caller: ServerClient, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget_user, "PATIENCE_S", 0)
    agent.ends = "Running"
    job_id = await upload(caller, USER, b"sleep 9")
    await caller.job(job_id, until="Running")
    await unreachable(caller, agent)
    report = await forget(caller)
    assert not report.done
    assert [(one.id, "agent north" in one.why) for one in report.waiting] == [(job_id, True)]
    agent.trick = None
    monkeypatch.setattr(forget_user, "PATIENCE_S", 30)
    assert (await forget(caller)).done
    assert agent.killed


async def test_all_jobs_go_in_one_call_however_many_are_read_at_once(
    caller: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget_user, "_AT_ONCE", 1)
    for number in range(3):
        await caller.job(await upload(caller, USER, f"echo {SECRET} {number}".encode()))
    report = await forget(caller)
    assert (report.done, report.removed["jobs"]) == (True, 3)


async def test_a_name_that_no_user_can_have_is_refused(caller: ServerClient) -> None:
    for body in ({}, {"user": ""}, {"user": "a/b"}, {"user": "x", "all": True}):
        async with caller.session.post(f"{caller.url}/api/v1/forget-user", json=body) as answer:
            assert answer.status == 400, body


async def test_the_command_asks_says_what_there_is_and_reports(
    tmp_path: Path, caller: ServerClient, agent: FakeAgent
) -> None:
    await fill(caller, agent)
    words, url = ("admin", "forget-user", USER), caller.url
    code, _, said = await ferryman(*words, FERRYMAN_URL=url)
    assert code == 2, "without a terminal nobody can say yes"
    assert "give --yes where there is no terminal" in said
    code, _, said = await ferryman(*words, "--dry-run", FERRYMAN_URL=url)
    assert code == 0
    assert f"{USER}: " in said
    assert "3 jobs, 1 schedule, " in said
    assert " 2 audit entries would be given another name" in said
    there = said.partition(";")[0].removeprefix(f"{USER}: ")
    code, _, said = await ferryman(*words, "--yes", FERRYMAN_URL=url)
    assert (code, said.partition(";")[0]) == (0, f"{USER}: removed {there}"), "the same kinds"
    assert places(tmp_path / "data", USER, SECRET) == []


async def test_the_command_counts_what_went_with_a_job(caller: ServerClient) -> None:
    form = aiohttp.FormData()
    for name, text in {"user_id": USER, "service": "my_service"}.items():
        form.add_field(name, text)
    form.add_field("file", b"echo 1", filename="run.sh")
    headers = {"Idempotency-Key": "one"}
    async with caller.session.post(f"{caller.url}/upload", data=form, headers=headers) as answer:
        assert answer.status == 201
    words = ("admin", "forget-user", USER, "--yes", "--json")
    code, out, _ = await ferryman(*words, FERRYMAN_URL=caller.url)
    report = json.loads(out)
    assert (code, report["done"]) == (0, True)
    assert (report["removed"]["jobs"], report["removed"]["keys"]) == (1, 1)


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
async def test_a_mistyped_name_does_not_look_done(caller: ServerClient, how: str) -> None:
    code, out, said = await ferryman("admin", "forget-user", "zeo", how, FERRYMAN_URL=caller.url)
    assert (code, out) == (1, "")
    assert said.startswith("ferryman: nothing is known of user zeo\nis the name right?")


async def test_the_command_ends_with_75_when_an_agent_is_away(
    caller: ServerClient, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget_user, "PATIENCE_S", 0)
    agent.ends = "Running"
    job_id = await upload(caller, USER, b"sleep 9")
    await caller.job(job_id, until="Running")
    await unreachable(caller, agent)
    words = ("admin", "forget-user", USER, "--yes")
    code, _, said = await ferryman(*words, FERRYMAN_URL=caller.url)
    assert code == 75
    assert f"job {job_id} is not gone yet: agent north has it" in said
