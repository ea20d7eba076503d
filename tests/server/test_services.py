"""Services that operators make, change, pause and retire while the server runs, over HTTP."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import structlog

from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.server_http import ServerClient
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = "hunter2-and-more"
OPERATOR, USER, PORTAL = "an-operator's-token", "a-user's-token-too", "a-portal's-token-too"
PRINCIPALS = {
    OPERATOR: Principal("admin", Role.OPERATOR),
    USER: Principal("ann-laptop", Role.USER, "7"),
    PORTAL: Principal("portal", Role.PORTAL),
}
SERVER = "[services.of_file]\n"


async def ask(
    place: ServerClient,
    method: str,
    path: str = "",
    body: Any = None,
    token: str = OPERATOR,
    **query: str,
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    path = f"/api/v1/services{path}"
    return await place.ask(method, path, json=body, params=query, headers=headers)


async def launched(place: Place) -> tuple[dict[str, str], Any]:
    """The environment of a job of the service, and how it ended."""
    job_id = await place.upload()
    process = await place.process(job_id)
    process.finish()
    return dict(process.launch.env), await place.job(job_id)


async def test_a_service_made_at_run_time_runs_jobs_with_its_variables_and_limits(place):
    name = place.warm.new("gpu")
    limits = {"timeout": "90s", "limits": {"memory": "1GiB"}}
    status, made = await ask(place, "PUT", f"/{name}", limits | {"env": {"A": "1", "KEY": SECRET}})
    assert status == 201, made
    assert (made["source"], made["timeout_s"], made["limits"]["memory"]) == ("api", 90.0, 1 << 30)
    assert (made["settings"], made["env"]) == (limits, ["A", "KEY"])
    place.service = name
    place.does(None)
    environment, job = await launched(place)
    assert (environment["A"], environment["KEY"]) == ("1", SECRET)
    assert (job["status"], job["timeout_s"]) == ("Completed", 90.0)
    assert SECRET not in json.dumps([job, made, await ask(place, "GET")])
    # A change replaces the settings, and keeps the variables that it does not name.
    status, found = await ask(place, "PUT", f"/{name}", {"max_runs": 3})
    assert (status, found["timeout_s"], found["max_runs"]) == (200, 3_600.0, 3)
    assert found["env"] == ["A", "KEY"]
    assert (await launched(place))[0]["KEY"] == SECRET


OF_ENV = [
    ({"FERRYMAN_JOB_ID": "1"}, "FERRYMAN_JOB_ID is reserved"),
    ({"PATH": "/x"}, "PATH is reserved"),
    ({"1A": "x"}, "cannot be the name of a variable"),
    *[(wrong, "an object of texts") for wrong in ({"A": 1}, {"A": {"file": "/x"}}, [SECRET])],
    ({"A": SECRET * 1_100}, "more than 16 KiB"),
    ({"A": f"{SECRET}\0"}, "A has a NUL"),
    ({f"A{n}": "" for n in range(129)}, "at most 128 are taken"),
]
WRONG = [
    *[({"env": env}, "env", says) for env, says in OF_ENV],
    ({"max_rans": 1}, "max_rans", "no such setting; did you mean max_runs?"),
    ({"timeout": "soon"}, "timeout", "'soon' is not a duration"),
    ({"limits": {"memry": 1}}, "limits.memry", "did you mean memory?"),
    ({"retries": -1}, "retries", "greater than or equal to 0"),
    ([SECRET], None, "a JSON object"),
]


@each("body, part, says", WRONG)
async def test_wrong_settings_are_refused_by_name_and_change_nothing(place, body, part, says):
    status, found = await ask(place, "PUT", "/wrong", body)
    assert (status, found.get("part")) == (400, part), found
    assert says in found["detail"]
    assert SECRET not in json.dumps(found)
    assert (await ask(place, "PUT", "/a.b", {}))[1]["code"] == "invalid_name"
    for text, status in ("{", 400), ('{"a": 1, "a": 2}', 400), (f'"{"x" * 300_000}"', 413):
        assert (await place.ask("PUT", "/api/v1/services/wrong", data=text))[0] == status
    assert (await ask(place, "GET", "/wrong"))[0] == 404


async def test_a_retired_service_takes_no_uploads_and_finishes_what_it_has(place):
    name = f"/{place.service}"
    await ask(place, "PUT", name, {"max_runs": 1})
    place.does(None)
    running, queued = [await place.upload() for _ in range(2)]
    process = await place.process(running)
    status, found = await ask(place, "DELETE", name)
    assert (status, found["retired"]) == (200, True)
    with pytest.raises(AssertionError, match="this server has: "):
        await place.upload()
    process.finish()
    (await place.process(queued)).finish()
    assert (await place.job(queued))["status"] == "Completed"
    for query, listed in (({}, False), ({"retired": "1"}, True)):
        items = (await ask(place, "GET", **query))[1]["items"]
        assert (place.service in [one["name"] for one in items]) is listed
    assert (await ask(place, "PUT", name, {}))[1]["retired"] is False
    assert (await ask(place, "DELETE", "/none"))[0] == 404


async def test_only_operators_see_what_is_in_a_service_and_nothing_of_it_is_logged(place, caplog):
    name = f"/{place.service}"
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.DEBUG):
        _, made = await ask(place, "PUT", name, {"env": {"A": "x", "KEY": SECRET}})
        assert made["env"] == ["A", "KEY"]
        for token in (USER, PORTAL):
            status, found = await ask(place, "GET", name, token=token)
            assert (status, found["env"], found["settings"]) == (200, None, None)
    assert any(line["event"] == "service.changed" for line in lines)
    assert SECRET not in json.dumps(lines, default=repr) + caplog.text


async def test_the_file_wins_and_a_pause_outlives_the_server(module_folder):
    """Over three starts."""
    folder, agent = module_folder / "file", FakeAgent()
    folder.mkdir()

    async with serving(folder, agent) as caller:
        for method in ("PUT", "DELETE"):
            status, found = await ask(caller, method, "/my_service", {})
            assert (status, found["code"]) == (409, "service_in_file")
        assert (await ask(caller, "PUT", "/gpu", {"timeout": "1m"}))[0] == 201
        status, found = await ask(caller, "POST", "/my_service/pause?message=new%20disks")
        assert (status, found["paused"], found["paused_message"]) == (200, True, "new disks")
        job = await caller.upload()
        assert (await ask(caller, "POST", "/none/pause"))[0] == 404
        status, found = await ask(caller, "POST", "/my_service/pause?message=a%0Ab")
        assert (status, found["code"]) == (400, "invalid_message")
    agent.url = ""
    async with serving(folder, agent, extra="[services.gpu]\ntimeout = '2m'") as caller:
        _, found = await ask(caller, "GET", "/gpu")
        assert (found["source"], found["timeout_s"], found["settings"]) == ("file", 120.0, None)
        _, found = await ask(caller, "GET", "/my_service")
        assert (found["source"], found["paused"]) == ("file", True)
        assert (found["counts"]["Queued"], found["in_work"]) == (1, 0)
        assert found["oldest_queued_at"].endswith("Z")
        shown = (await caller.job(job, until="Queued"))["queue"]
        paused = ("paused", "service my_service is paused: new disks")
        assert (shown["code"], shown["reason"]) == paused
        status, found = await ask(caller, "POST", "/my_service/resume")
        assert (status, found["paused"], found["paused_message"]) == (200, False, "")
        assert (await caller.job(job))["status"] == "Completed"
    agent.url = ""
    async with serving(folder, agent) as caller:
        _, found = await ask(caller, "GET", "/gpu")
        assert (found["source"], found["timeout_s"]) == ("api", 60.0)


async def test_what_another_server_decided_is_taken_up(place):
    services = place.server.context.services
    held, before = services["of_file"], services.values()
    await services._records.put("other", {"max_runs": 1}, None, 10)
    await services._records.set_paused("of_file", "disks", 20)
    await services._records.put("newer", {"from_the_future": 1}, None, 10)
    await services.run_once()  # its loop may have taken up some
    assert services["other"].max_runs == 1
    assert services["of_file"].paused
    assert services["newer"].retired, "what cannot be read takes no jobs"
    assert not held.paused
    assert held in before, "who goes through it goes on with what was there"
    assert await services.run_once() == 0
