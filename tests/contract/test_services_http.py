"""Services that operators make, change, pause and retire while the server runs, over HTTP."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from shared.principals import Principal, Role
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

SECRET = "hunter2-and-more"
PRINCIPALS = {
    "an-operator's-token": Principal("admin", Role.OPERATOR),
    "a-user's-token-too": Principal("ann-laptop", Role.USER, "7"),
    "a-portal's-token-too": Principal("portal", Role.PORTAL),
}


async def ask(
    caller: ServerClient, method: str, path: str = "", body: Any = None, **query: str
) -> tuple[int, Any]:
    url = f"{caller.url}/api/v1/services{path}"
    async with caller.session.request(method, url, json=body, params=query) as answer:
        return answer.status, await answer.json()


async def read(caller: ServerClient, name: str) -> dict[str, Any]:
    status, found = await ask(caller, "GET", f"/{name}")
    assert status == 200, found
    return dict(found)


async def test_a_service_made_at_run_time_runs_jobs_with_its_variables_and_limits(
    tmp_path: Path,
) -> None:
    agent = FakeAgent()
    body = {
        "timeout": "90s",
        "limits": {"memory": "1GiB"},
        "env": {"LICENSE": "a", "KEY": SECRET},
    }
    async with serving(tmp_path, agent) as caller:
        status, made = await ask(caller, "PUT", "/gpu", body)
        assert status == 201, made
        assert (made["source"], made["timeout_s"], made["limits"]["memory"]) == (
            "api",
            90.0,
            1 << 30,
        )
        assert made["settings"] == {"timeout": "90s", "limits": {"memory": "1GiB"}}
        assert made["env"] == ["KEY", "LICENSE"]
        job = await caller.job(await caller.upload(service="gpu"))
        assert (job["status"], job["timeout_s"]) == ("Completed", 90.0)
        assert agent.orders[-1]["env"] == {"LICENSE": "a", "KEY": SECRET}
        assert SECRET not in json.dumps([job, made, await ask(caller, "GET")])


async def test_a_change_replaces_the_settings_and_keeps_the_variables_that_it_does_not_name(
    tmp_path: Path,
) -> None:
    agent = FakeAgent()
    async with serving(tmp_path, agent) as caller:
        body = {"timeout": "90s", "env": {"A": "1", "KEY": SECRET}}
        assert (await ask(caller, "PUT", "/gpu", body))[0] == 201
        status, found = await ask(caller, "PUT", "/gpu", {"max_runs": 3})
        assert status == 200
        assert (found["timeout_s"], found["max_runs"]) == (3_600.0, 3)
        assert found["env"] == ["A", "KEY"]
        await caller.job(await caller.upload(service="gpu"))
        assert agent.orders[-1]["env"] == {"A": "1", "KEY": SECRET}


@pytest.mark.parametrize(
    ("body", "part", "says"),
    [
        ({"max_rans": 1}, "max_rans", "no such setting; did you mean max_runs?"),
        ({"timeout": "soon"}, "timeout", "'soon' is not a duration"),
        ({"limits": {"memry": 1}}, "limits.memry", "did you mean memory?"),
        ({"retries": -1}, "retries", "greater than or equal to 0"),
        ({"env": {"FERRYMAN_JOB_ID": "1"}}, "env", "FERRYMAN_JOB_ID is reserved"),
        ({"env": {"PATH": "/x"}}, "env", "PATH is reserved"),
        ({"env": {"1A": "x"}}, "env", "cannot be the name of a variable"),
        ({"env": {"A": 1}}, "env", "an object of texts"),
        ({"env": {"A": {"file": "/etc/shadow"}}}, "env", "an object of texts"),
        ({"env": [SECRET]}, "env", "an object of texts"),
        ({"env": {"A": SECRET * 1_100}}, "env", "more than 16 KiB"),
        ({"env": {"A": f"{SECRET}\0"}}, "env", "A has a NUL"),
        ({"env": {f"A{n}": "" for n in range(129)}}, "env", "at most 128 are taken"),
        ([SECRET], None, "a JSON object"),
    ],
)
async def test_wrong_settings_are_refused_by_name_and_change_nothing(
    tmp_path: Path, body: Any, part: str | None, says: str
) -> None:
    async with serving(tmp_path, FakeAgent()) as caller:
        status, found = await ask(caller, "PUT", "/gpu", body)
        assert (status, found.get("part")) == (400, part), found
        assert says in found["detail"]
        assert SECRET not in json.dumps(found)
        assert (await ask(caller, "GET", "/gpu"))[0] == 404


async def test_other_bodies_and_names_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeAgent()) as caller:
        url = f"{caller.url}/api/v1/services/gpu"
        for body, status in (("{", 400), ('{"a": 1, "a": 2}', 400), (f'"{"x" * 300_000}"', 413)):
            async with caller.session.put(url, data=body) as answer:
                assert answer.status == status
        status, found = await ask(caller, "PUT", "/a.b", {})
        assert (status, found["code"]) == (400, "invalid_name")


async def test_the_file_wins(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeAgent()) as caller:
        for method in ("PUT", "DELETE"):
            status, found = await ask(caller, method, "/my_service", {})
            assert (status, found["code"]) == (409, "service_in_file")
            assert "the server's settings file" in found["detail"]
        assert (await read(caller, "my_service"))["source"] == "file"
        assert (await ask(caller, "PUT", "/gpu", {"timeout": "1m"}))[0] == 201
    extra = "[services.gpu]\ntimeout = '2m'"
    async with serving(tmp_path, FakeAgent(), extra=extra) as caller:
        found = await read(caller, "gpu")
        assert (found["source"], found["timeout_s"], found["settings"]) == ("file", 120.0, None)
    async with serving(tmp_path, FakeAgent()) as caller:
        found = await read(caller, "gpu")
        assert (found["source"], found["timeout_s"]) == ("api", 60.0)


async def test_a_retired_service_takes_no_uploads_and_finishes_what_it_has(tmp_path: Path) -> None:
    agent = FakeAgent(slots=1, ends="Running")
    async with serving(tmp_path, agent) as caller:
        await ask(caller, "PUT", "/gpu", {"expires_after": "1h"})
        running, queued = [await caller.upload(service="gpu") for _ in range(2)]
        await caller.job(running, until="Running")
        status, found = await ask(caller, "DELETE", "/gpu")
        assert (status, found["retired"]) == (200, True)
        form = aiohttp.FormData({"user_id": "7", "service": "gpu"})
        form.add_field("file", b"echo hello", filename="run.sh")
        async with caller.session.post(f"{caller.url}/upload", data=form) as answer:
            assert answer.status == 400
            assert "this server has: my_service" in (await answer.json())["message"]
        await agent.end(agent.held(f"{running}.1"))
        await caller.job(queued, until="Running")
        await agent.end(agent.held(f"{queued}.1"))
        assert (await caller.job(queued))["status"] == "Completed"
        listed = (await ask(caller, "GET"))[1]["items"]
        assert [one["name"] for one in listed] == ["my_service"]
        every = (await ask(caller, "GET", retired="1"))[1]["items"]
        assert [one["name"] for one in every] == ["my_service", "gpu"]
        assert (await ask(caller, "PUT", "/gpu", {}))[1]["retired"] is False
        assert (await ask(caller, "DELETE", "/none"))[0] == 404


async def test_a_paused_service_sends_nothing_over_a_restart_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    agent = FakeAgent()
    async with serving(tmp_path, agent) as caller:
        status, found = await ask(caller, "POST", "/my_service/pause", message="new disks")
        assert (status, found["paused"], found["paused_message"]) == (200, True, "new disks")
        job = await caller.upload()
    agent.url = ""
    async with serving(tmp_path, agent) as caller:
        found = await read(caller, "my_service")
        assert (found["paused"], found["counts"]["Queued"], found["in_work"]) == (True, 1, 0)
        assert found["oldest_queued_at"].endswith("Z")
        _, _, listed = await caller.get("/api/v1/jobs")
        for shown in (await caller.job(job, until="Queued"), json.loads(listed)["items"][0]):
            assert shown["queue"]["code"] == "paused"
            assert shown["queue"]["reason"] == "service my_service is paused: new disks"
        status, found = await ask(caller, "POST", "/my_service/resume")
        assert (status, found["paused"], found["paused_message"]) == (200, False, "")
        assert (await caller.job(job))["status"] == "Completed"
        assert (await ask(caller, "POST", "/none/pause"))[0] == 404
        status, found = await ask(caller, "POST", "/my_service/pause", message="a\nb")
        assert (status, found["code"]) == (400, "invalid_message")


async def test_only_operators_change_services_or_see_what_is_in_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.DEBUG):
        async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:

            async def call(token: str, method: str, path: str = "", body: Any = None) -> Any:
                url = f"{caller.url}/api/v1/services{path}"
                headers = {"Authorization": f"Bearer {token}"}
                async with caller.session.request(method, url, json=body, headers=headers) as one:
                    return one.status, await one.json()

            operator, *others = PRINCIPALS
            body = {"env": {"A": "x", "KEY": SECRET}}
            for token in others:
                for method, path in (
                    ("PUT", "/gpu"),
                    ("DELETE", "/gpu"),
                    ("POST", "/gpu/pause"),
                    ("POST", "/gpu/resume"),
                ):
                    assert (await call(token, method, path, body))[0] == 403
            assert (await call(operator, "PUT", "/gpu", body))[1]["env"] == ["A", "KEY"]
            for token in others:
                status, found = await call(token, "GET", "/gpu")
                assert status == 200
                assert found["env"] is found["settings"] is None
            service = caller.server.context.services["gpu"]
            assert SECRET not in repr(service)
            assert service.env == {"A": "x", "KEY": SECRET}
    assert any(line["event"] == "service.changed" for line in lines)
    assert SECRET not in json.dumps(lines, default=repr) + caplog.text


async def test_a_service_is_counted_for_whoever_asks(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        operator, user, portal = PRINCIPALS
        for token in (user, portal, portal, operator):  # all for user 7
            caller.session.headers["Authorization"] = f"Bearer {token}"
            await caller.upload(not_before="2100-01-01T00:00:00Z")
        for token, queued in ((operator, 4), (user, 4), (portal, 2)):
            headers = {"Authorization": f"Bearer {token}"}
            url = f"{caller.url}/api/v1/services/my_service"
            async with caller.session.get(url, headers=headers) as answer:
                assert (await answer.json())["counts"]["Queued"] == queued


async def test_what_another_server_decided_is_taken_up(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeAgent()) as caller:
        services = caller.server.context.services
        held, before = services["my_service"], services.values()
        await services._records.put("other", {"max_runs": 1}, None, 10)
        await services._records.set_paused("my_service", "disks", 20)
        await services._records.put("newer", {"from_the_future": 1}, None, 10)
        await services.run_once()  # its loop may have taken up some
        assert services["other"].max_runs == 1
        assert services["my_service"].paused
        assert services["newer"].retired, "what cannot be read takes no jobs"
        assert not held.paused
        assert list(before) == [held], "who goes through it goes on with what was there"
        assert await services.run_once() == 0
