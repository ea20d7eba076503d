"""The pages about services: what they show, what they do, and for whom."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.principals import Principal, Role
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Person
from tests.kit.server_http import ServerClient, driving

PRINCIPALS = {
    "ann": Principal("ann-laptop", Role.USER, "7"),
    "bob": Principal("bob-laptop", Role.USER, "bob"),
    "admin": Principal("admin", Role.OPERATOR),
}
HOSTILE = "<img src=x onerror=alert(1)>"
SECRET = "hunter2-and-more"


@pytest.fixture
async def person(tmp_path: Path) -> AsyncIterator[tuple[ServerClient, Person]]:
    extra = "timeout = '90s'\nretry_on = ['timeout', 'exit:3']\nlimits = {memory = '8GiB'}"
    async with serving(tmp_path, FakeAgent(ends="Running"), extra=extra) as caller:
        yield caller, Person(caller)


async def service(caller: ServerClient, name: str) -> dict[str, Any]:
    async with caller.session.get(f"{caller.url}/api/v1/services/{name}") as answer:
        return dict(await answer.json())


async def put(caller: ServerClient, name: str, settings: dict[str, Any]) -> None:
    url = f"{caller.url}/api/v1/services/{name}"
    async with caller.session.put(url, json=settings) as answer:
        assert answer.status in (200, 201), await answer.text()


def row(page: str, key: str) -> str:
    """The text of a setting's row."""
    found = re.search(rf"<code>{re.escape(key)}</code></th>(.*?)</tr>", page, re.DOTALL)
    assert found, key
    return " ".join(re.sub(r"<[^>]*>", " ", found[1]).split())


async def test_services_are_shown_with_what_waits_and_runs(person) -> None:
    caller, visitor = person
    await caller.job(await caller.upload(), until="Running")
    await visitor.send("/services/my_service/pause", message="new disks")
    await caller.upload()
    page = await visitor.read("/services")
    assert "1 of 10" in page
    assert "Its queued jobs wait: new disks." in page
    assert 'href="/jobs?service=my_service&amp;state=Queued&amp;children=true"' in page
    assert (await service(caller, "my_service"))["counts"]["Queued"] == 1


async def test_every_setting_says_its_value_and_where_it_comes_from(person) -> None:
    _, visitor = person
    page = await visitor.read("/services/my_service")
    assert row(page, "timeout").startswith("1m 30s ")
    assert row(page, "timeout").endswith("settings file default: 1h")
    assert row(page, "limits.memory").startswith("8.0 GiB")
    assert row(page, "limits.memory").endswith("settings file default: 2.0 GiB")
    assert row(page, "retry_on").startswith("exit:3, timeout")
    assert row(page, "expires_after").endswith("default")
    assert row(page, "queue_timeout").startswith("for ever")
    assert "[services.my_service]" in page


async def test_an_operator_pauses_resumes_and_retires_a_service(person) -> None:
    caller, visitor = person
    await put(caller, "gpu", {"timeout": "2h", "env": {"KEY": SECRET}})
    page = await visitor.read("/services/gpu")
    assert row(page, "timeout").endswith("an operator default: 1h")
    assert row(page, "env").startswith("KEY")
    assert SECRET not in page
    assert "PUT /api/v1/services/gpu" in page
    status, page = await visitor.send("/services/gpu/retire")
    assert "Retired" in page
    assert (await service(caller, "gpu"))["retired"]
    assert "gpu" not in re.findall(r'id="service-(\w+)"', await visitor.read("/services"))
    assert "gpu" in re.findall(r'id="service-(\w+)"', await visitor.read("/services?all=1"))
    await visitor.send("/services/my_service/pause")
    assert (await service(caller, "my_service"))["paused"]
    await visitor.send("/services/my_service/resume")
    assert not (await service(caller, "my_service"))["paused"]
    status, page = await visitor.send("/services/my_service/retire")
    assert (status, "settings file" in page) == (409, True)
    assert (await visitor.send("/services/none/pause"))[0] == 404


async def test_users_see_services_and_their_own_numbers_and_change_nothing(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        admin = Person(caller, "admin")
        caller.session.headers["Authorization"] = "Bearer admin"
        body = {"env": {"INNER": "1"}}
        await put(caller, "gpu", body)
        caller.session.headers["Authorization"] = "Bearer ann"
        await caller.upload(not_before="2100-01-01T00:00:00Z")
        del caller.session.headers["Authorization"]
        for token, waiting in (("ann", "1"), ("bob", "0"), ("admin", "1")):
            page = await Person(caller, token).read("/services/my_service")
            assert re.search(rf"<dt>Waiting</dt><dd><a [^>]*>{waiting}</a>", page), token
        for path in ("/services", "/services/gpu"):
            page = await Person(caller, "ann").read(path)
            for hidden in ("/pause", "INNER", "PUT /api"):
                assert hidden not in page, (path, hidden)
        for path in ("/pause", "/resume", "/retire"):
            assert (await Person(caller, "ann").send(f"/services/gpu{path}"))[0] == 403
        page = await admin.read("/services/gpu")
        assert "INNER" in page
