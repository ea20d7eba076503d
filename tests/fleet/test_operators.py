"""What operators see of agents and decide about them, over HTTP, by the command line and on pages;
and what a restart keeps of it.
"""

import html
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from yarl import URL

from ferryman import Client, Conflict, NotFound
from server.settings.tables import AgentTable
from server.web.operators import agents as pages
from shared.clock import SECOND
from tests.fleet.warm_fleet import Fleet
from tests.kit.each import each
from tests.kit.fake_agent import FakeAgent, is_intake, serving
from tests.kit.pages import browsing
from tests.kit.server_http import ServerClient
from tests.kit.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTILE = "<img src=x onerror=alert(1)>"
NOWHERE = AgentTable(url="http://user:secret@[::1]:9/below")


async def get(caller: ServerClient, path: str) -> tuple[int, str]:
    async with browsing(caller.url) as browser:
        page = await browser.ask(str(URL(path)))
        return page.status, page.source


async def read(caller: ServerClient, path: str) -> str:
    status, text = await get(caller, path)
    assert status == 200, (path, text)
    return text


async def send(caller: ServerClient, path: str, **fields: str) -> tuple[int, str]:
    """Send a form, and follow where it leads."""
    async with browsing(caller.url) as browser:
        page = await browser.send("/agents", path, fields.items())
        page = await browser.ask(page.location) if page.location else page
        return page.status, page.source


async def ask(caller: ServerClient, method: str, path: str = "", **query: str) -> tuple[int, Any]:
    """A POST's path ends with what is to be done."""
    given: dict[str, Any] = {"params": query}
    if method == "POST":
        path, _, action = path.rpartition("/")
        given = {"json": {"action": action, **query}}
    return await caller.ask(method, f"/api/v1/agents{path}", **given)


async def agent_of(caller: ServerClient, name: str) -> dict[str, Any]:
    return dict(await caller.api("GET", f"/agents/{name}"))


async def test_an_agent_is_shown_with_all_that_is_known_of_it(fleet: Fleet) -> None:
    agent, job_id = await fleet.busy(FakeAgent("known", "of-known", ends="Running"))
    await fleet.now(known=agent, south=NOWHERE)
    found = await fleet.agents()
    assert list(found) == ["known", "south"]
    north, south = found["known"], found["south"]
    assert north["created_at"].endswith("Z")
    assert north["last_heard_at"].endswith("Z")
    assert (north["name"], north["id"], north["kind"]) == ("known", "of-known", "ferryman")
    assert (north["state"], north["message"], north["in_settings"]) == ("active", "", True)
    assert (north["up"], north["reachable"], north["unreachable_s"]) == (True, True, None)
    assert (north["trouble"], north["warnings"], north["clock_ahead_s"]) == ("", [], 0.0)
    assert (north["address"], north["version"], north["labels"]) == (agent.url, None, {})
    assert (north["jobs"], north["running"], north["slots"], north["load"]) == (1, 1, 4, None)
    assert north["resources"] == {"slots": 4, "services": None}
    own = {"agent": "known", "agent_id": "of-known", "slots": 4, "message": "no sandbox"}
    well = {"status": "ok", "database": "ok", "ready": True, "draining": False, "packs": False}
    assert north["health"] == own | well
    assert (south["id"], south["state"], south["up"]) == ("name:south", "active", False)
    assert (south["unreachable_s"] >= 0, south["last_heard_at"]) == (True, None)
    assert "cannot be reached" in south["trouble"]
    assert south["address"] == "http://[::1]:9/below", "without the password"
    assert (await agent_of(fleet, "of-known"))["name"] == "known"
    for method, path in (("GET", "/no-one"), ("POST", "/no-one/drain")):
        status, problem = await ask(fleet, method, path)
        assert (status, problem["code"]) == (404, "agent_not_found")
    await fleet.now(known=agent)
    code, out, err = await fleet.cli("agents", "list")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "AGENT\tSTATE\tREADY\tJOBS\tRUNNING\tSLOTS\tLOAD\tADDRESS\tWHY",
        f"known\tactive\tyes\t1\t1\t4\t\t{agent.url}\t",
    ]
    code, out, _ = await fleet.cli("agents", "show", "of-known")
    assert code == 0
    assert out.splitlines()[:-1] == [
        "agent known is active",
        "  gets new jobs",
        f"  Ferryman agent at {agent.url}, id of-known",
        "  1 job, 1 running, 4 slots",
    ]
    code, out, err = await fleet.cli("agents", "show", "no-one")
    assert (code, out, "this server knows no agent no-one" in err) == (1, "", True)
    for path in ("/agents", "/agents/known", "/agents/of-known"):
        page = await read(fleet, path)
        assert re.search(r'data-state="good">.*Up</span>', page), path
        assert "1 of 4" in page
        assert f'href="/jobs/{job_id}"' in page


async def test_of_an_agent_with_many_jobs_a_few_are_read_and_their_number_is_shown(
    fleet, monkeypatch
):
    agent = FakeAgent("many", ends="Running")
    await fleet.use(agent)
    found = await fleet.running(4)
    monkeypatch.setattr(pages, "_JOBS_SHOWN", 3)
    monkeypatch.setattr(pages, "_ROWS_SHOWN", 3)
    for path, says in (("/agents", "and 1 more"), ("/agents/many", "The first 3 of 4.")):
        page = await read(fleet, path)
        assert says in page
        assert [f"/jobs/{one}" in page for one in found] == [True, True, True, False]


async def test_the_last_contact_is_what_was_heard_last_not_what_was_stored(fleet: Fleet) -> None:
    """It is asked every ten seconds, and stored once a minute."""
    agent = FakeAgent()
    await fleet.use(agent)
    await fleet.clock.sleep(45)
    shown = datetime.fromisoformat((await agent_of(fleet, agent.name))["last_heard_at"])
    assert fleet.clock.now() / SECOND - shown.timestamp() <= 11


async def test_an_agent_is_drained_resumed_and_retired_by_every_way(fleet):
    agent, job_id = await fleet.busy(FakeAgent("every", "of-every", ends="Running"))

    async def trouble_of_service() -> tuple[bool, str]:
        found = await fleet.api("GET", f"/services/{fleet.service}")
        return found["offered"], found["trouble"]

    code, out, err = await fleet.cli("agents", "drain", "every", "-m", "new disk")
    assert (code, out, err) == (0, "", "agent every is draining; new disk; it has 1 job\n")
    found = await agent_of(fleet, "every")
    assert (found["state"], found["message"]) == ("draining", "new disk")
    assert (found["up"], found["reachable"]) == (False, True)
    assert found["trouble"] == "agent every gets no new jobs: it is draining"
    assert await trouble_of_service() == (True, found["trouble"])
    assert "\tdraining\tno\t1\t" in (await fleet.cli("agents", "list"))[1]
    waiting = await fleet.upload()
    assert "it is draining" in (await fleet.job(waiting, until="Queued"))["queue"]["reason"]

    for action, why, refusal in (
        ("retire", "has 1 job: drain it", "agent_has_jobs"),
        ("lost", "can be reached", "agent_reachable"),
    ):
        status, problem = await ask(fleet, "POST", f"/every/{action}")
        assert (status, problem["code"]) == (409, refusal)
        code, _, err = await fleet.cli("agents", action, "every", "--yes")
        assert (code, why in err) == (1, True), err
        status, page = await send(fleet, f"/agents/every/{action}")
        assert (status, why in page) == (409, True)
        code, out, err = await fleet.cli("agents", action, "every")
        assert (code, out, f"agents {action} asks first: give --yes" in err) == (2, "", True)
    for message in ("x" * 201, "two\nlines"):
        status, problem = await ask(fleet, "POST", "/every/drain", message=message)
        assert (status, problem["code"]) == (400, "invalid_message")
    status, page = await send(fleet, "/agents/every/drain", message="x" * 201)
    assert (status, "at most 200 characters" in page) == (400, True)
    assert (await send(fleet, "/agents/no-one/drain"))[0] == 404
    assert (await get(fleet, "/agents/no-one"))[0] == 404
    async with Client(fleet.url) as client:
        with pytest.raises(Conflict, match="can be reached") as caught:
            await client.change_agent("every", "lost")
        assert (caught.value.status, caught.value.code) == (409, "agent_reachable")
        with pytest.raises(NotFound):
            await client.change_agent("no/body?", "drain")
        assert (await agent_of(fleet, "every"))["message"] == "new disk", "nothing has changed"
        drained = await client.change_agent("of-every", "drain", "for repair")
        assert (drained.name, drained.state, drained.message) == ("every", "draining", "for repair")

    agent.ends = "Completed"
    status, page = await send(fleet, "/agents/every/resume")
    assert (status, "Agent every:" in page) == (200, True)
    found = await agent_of(fleet, "every")
    assert (found["state"], found["message"], await trouble_of_service()) == (
        *("active", ""),
        (True, ""),
    )
    await agent.end(agent.held(f"{job_id}.1"))
    for one in (job_id, waiting):
        assert (await fleet.job(one))["status"] == "Completed"

    status, page = await send(fleet, "/agents/every/retire")
    assert (status, "Retired" in page) == (200, True)
    await agent.until(lambda: agent.streams == 0)
    found = await agent_of(fleet, "every")
    assert (found["message"], found["reachable"]) == ("retired by an operator", False)
    assert await trouble_of_service() == (True, "agent every is retired")
    assert b'ferryman_agent_up{agent="every"}' not in (await fleet.get("/metrics"))[2]
    for action in ("drain", "lost"):
        status, problem = await ask(fleet, "POST", f"/every/{action}")
        assert (status, problem["code"]) == (409, "agent_retired")
    assert await fleet.cli("agents", "resume", "every", "-q") == (0, "", "")
    assert (await agent_of(fleet, "every"))["state"] == "active"
    await agent.followed()


async def test_a_restart_keeps_what_was_decided(tmp_path: Path) -> None:
    drained, retired = FakeAgent("drained", "a", ends="Running"), FakeAgent("retired", "b", slots=0)
    async with drained.listening(), retired.listening():
        async with serving(tmp_path, drained, retired) as caller:
            job_id = await caller.upload()
            await caller.job(job_id, until="Running")
            await retired.followed()
            for path in ("/drained/drain", "/retired/retire"):
                assert (await ask(caller, "POST", path, message="new disk"))[0] == 200
        retired.calls.clear()
        async with serving(tmp_path, drained, retired) as caller:
            await drained.followed(2)
            waiting = await caller.upload()
            why = (await caller.job(waiting, until="Queued"))["queue"]["reason"]
            assert "it is draining" in why
            assert (await agent_of(caller, "drained"))["message"] == "new disk"
            await drained.end(drained.held(f"{job_id}.1"))
            assert (await caller.job(job_id))["status"] == "Completed"
            assert not retired.calls
            assert (await agent_of(caller, "retired"))["trouble"] == "agent retired is retired"
            drained.ends = "Completed"
            for name in ("drained", "retired"):
                status, found = await ask(caller, "POST", f"/{name}/resume")
                assert (status, found["state"], found["message"]) == (200, "active", "")
            assert (await caller.job(waiting))["status"] == "Completed"
            await retired.followed()


async def test_what_a_lost_agent_has_is_tried_again_at_once_or_cancelled(fleet: Fleet) -> None:
    agent, other = FakeAgent(ends="Running"), FakeAgent(slots=0)
    await fleet.use(agent, other, max_runs=9, runs_per_user=9)
    jobs = await fleet.running(3)
    agent.away()
    await agent.asked_twice()
    assert not (await agent_of(fleet, agent.name))["reachable"]
    assert (await fleet.cancel(jobs[2]))[0] == 202
    status, found = await ask(fleet, "POST", f"/{agent.name}/lost", message="its disk burned")
    assert (status, found["state"], found["jobs"]) == (200, "lost", 0)
    assert found["message"] == "its disk burned; 3 attempts ended"
    assert (await agent_of(fleet, agent.name))["message"] == "its disk burned"
    gone = f"agent {agent.name} was declared lost, whether its processes are dead is not known"
    for job_id, state in zip(jobs, ("Queued", "Queued", "Cancelled"), strict=True):
        job = await fleet.job(job_id, until=state)
        assert job["status"] == state
        assert gone in job["message"]
    other.slots = 4
    other.hang_up()
    for job_id in jobs[:2]:
        job = await fleet.job(job_id)
        assert (job["status"], job["agent"], job["attempt"]) == ("Completed", other.name, 2)
    agent.trick = None  # it is back: nothing of what it still runs counts
    await agent.until(lambda: len(agent.killed) == 3)
    assert (await agent_of(fleet, agent.name))["state"] == "active"


async def test_an_agent_that_was_taken_out_of_the_settings_is_declared_lost_and_retires(fleet):
    agent, job_id = await fleet.busy()
    await fleet.now(beside=FakeAgent("beside"))
    found = await agent_of(fleet, agent.name)
    assert (found["state"], found["in_settings"], found["jobs"]) == ("active", False, 1)
    assert found["trouble"] == f"agent {agent.name} is not in the server's settings"
    for action in ("resume", "retire"):
        assert (await ask(fleet, "POST", f"/{agent.name}/{action}"))[0] == 409
    assert (await ask(fleet, "POST", f"/{agent.name}/lost"))[0] == 200
    assert (await fleet.job(job_id))["agent"] == "beside"

    async def listed_later() -> Any:
        await fleet.clock.sleep(10.0)
        return await fleet.agents()

    await eventually(listed_later, lambda found: agent.name not in found)
    listed = (await fleet.api("GET", "/agents", retired="1"))["items"]
    assert [one["state"] for one in listed if one["name"] == agent.name] == ["retired"]
    await fleet.now(**{agent.name: agent})
    await agent.followed()
    assert (await agent_of(fleet, agent.name))["state"] == "active"


async def test_a_delivery_to_an_agent_with_a_new_name_is_found_out_there(tmp_path: Path) -> None:
    """The server stopped before it had the answer: the agent has the job, under its new name."""
    agent = FakeAgent("north", "abc")

    async def taken_without_a_word(request: web.Request) -> web.StreamResponse | None:
        if is_intake(request):
            listeners, agent.model.listeners = agent.model.listeners, []  # nor an event
            await agent.submit(request)
            agent.model.listeners = listeners
            await agent.until(lambda: agent.trick is None)
        return None

    async with agent.listening():
        agent.trick = taken_without_a_word
        async with serving(tmp_path, agent) as caller:
            job_id = await caller.upload()
            await agent.until(lambda: bool(agent.payloads))
        agent.trick, agent.name = None, "south"
        async with serving(tmp_path, agent) as caller:
            job = await caller.job(job_id)
            assert (job["status"], job["attempt"], job["agent"]) == ("Completed", 1, "south")
    assert agent.starts == {f"{job_id}.1": 1}


async def test_a_replaced_agent_is_retired_and_its_jobs_are_tried_again(fleet: Fleet) -> None:
    agent, job_id = await fleet.busy(FakeAgent("replaced", "before", ends="Running"))
    agent.payloads.clear()
    agent.id, agent.ends = "after", "Completed"
    agent.hang_up()
    job = await fleet.job(job_id)
    assert (job["status"], job["attempt"]) == ("Completed", 2)
    assert (await agent_of(fleet, "replaced"))["id"] == "after"
    assert (await agent_of(fleet, "before"))["state"] == "retired"
    status, problem = await ask(fleet, "POST", "/before/resume")
    assert (status, problem["code"]) == (409, "agent_replaced")
    assert [one["id"] for one in (await fleet.agents()).values()] == ["after"]


async def test_of_a_silent_agent_it_is_not_said_what_runs_there_now(fleet: Fleet) -> None:
    agent, _ = await fleet.busy()

    async def shown_after_a_beat() -> dict[str, Any]:
        await agent.beat(running=3, load=99.5)
        return await agent_of(fleet, agent.name)

    found = await eventually(shown_after_a_beat, lambda found: found["load"] == 99.5)
    assert found["trouble"] == ""
    for where in (found, found["health"]):
        assert (where["running"], where["load"]) == (1, 99.5), "one is of this server"
    await fleet.clock.sleep(4.2)
    found = await agent_of(fleet, agent.name)
    for where in (found, found["health"]):
        assert (where.get("running"), where.get("load")) == (None, None)
    assert re.fullmatch(rf"agent {agent.name} has not said anything for \d+ s", found["trouble"])
    assert (found["up"], found["reachable"]) == (True, True)


FULL = "no new bundles are taken: too little space on the agent's disk"
BROKEN = "the sandbox cannot be used: bwrap: No such file or directory"
SOFT = {"enforcement": {"memory": "soft", "pids": "hard"}, "warning": ""}


@each(
    "sick, ready, kind, says",
    [
        ({"says": {"ready": False, "message": FULL}}, "no", "agent_unfit", FULL),
        ({"well": False, "says": {"message": BROKEN}}, "no", "agent_unfit", BROKEN),
        ({"clock_ahead_s": 259_200.0}, "yes", "agent_clock", "ahead of the server's"),
        ({"clock_ahead_s": -3_600.0}, "yes", "agent_clock", "behind the server's"),
        ({"says": {"version": "9.9.0"}}, "yes", "agent_version", "it has version 9.9.0"),
        ({"says": {"sandbox": SOFT}}, "yes", "", "limits that a job can get around: memory"),
    ],
)
async def test_a_sick_agent_looks_sick_wherever_one_looks(fleet, sick, ready, kind, says):
    """Its results are fetched all the same; READY is whether it gets new jobs."""
    agent = FakeAgent(**sick)
    await fleet.use(agent)
    _, listed, _ = await fleet.cli("agents", "list")
    row = listed.splitlines()[1].split("\t")
    assert (row[2], says in row[8]) == (ready, True)
    assert says in (await fleet.cli("agents", "show", agent.name))[1]
    status = await fleet.api("GET", "/status")
    named = [(one["kind"], one["about"]) for one in status["troubles"]]
    assert ((kind, agent.name) in named) == bool(kind), named
    assert status["status"] == ("attention" if kind else "ok")
    code, out, _ = await fleet.cli("doctor")
    assert (code != 0) == (ready == "no"), out
    about = f"agent {agent.name}: "
    (line,) = [one for one in out.splitlines() if says in one and one[9:].startswith(about)]
    assert line.startswith("PROBLEM" if ready == "no" else "warning")
    page = html.unescape((await fleet.get(f"/agents/{agent.name}"))[2].decode())
    assert says.lower() in page.lower()
    up = {agent.name: "up" if ready == "yes" else "down"}
    assert (await fleet.ask("GET", "/health"))[1]["agents"] == up
    counted = f'ferryman_agent_up{{agent="{agent.name}"}} {float(ready == "yes")}'
    assert counted in (await fleet.get("/metrics"))[2].decode()


# -- pages


async def test_whatever_an_agent_says_is_only_text(fleet: Fleet) -> None:
    said: dict[str, Any] = {
        "status": "error",
        "agent": HOSTILE,
        "agent_id": "abc",
        "version": HOSTILE,
        "slots": 2**62,
        "load": 1e300,
        "labels": {HOSTILE: HOSTILE},
        "services": [HOSTILE],
        "message": HOSTILE,
        "sandbox": {
            "backend": HOSTILE,
            "enforcement": {HOSTILE: HOSTILE, "memory": ["soft"]},
            "advice": [HOSTILE, 7],
            "warning": HOSTILE,
            "broken": HOSTILE,
            "check": {"at": HOSTILE, "passed": "yes", "rows": [7, {"limit": "log"}, HOSTILE]},
        },
    }
    agent, _ = await fleet.busy()

    async def answers(request: web.Request) -> web.StreamResponse | None:
        return web.json_response(said, status=503) if request.path == "/health" else None

    async def gone(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text=HOSTILE)

    for trick in (answers, gone):
        agent.away(trick)
        await agent.asked_twice()
        for path in ("/agents", f"/agents/{agent.name}"):
            page = await read(fleet, path)
            assert HOSTILE not in page
            assert trick is gone or "&lt;img src=x" in page
    page = await read(fleet, "/agents")
    assert re.search(r'data-state="bad">.*Down</span>', page)
    assert "away for" in page
    _, page = await send(fleet, f"/agents/{agent.name}/lost", message=HOSTILE)
    assert ("Lost" in page, HOSTILE in page, "&lt;img src=x" in page) == (True, False, True)
    assert (await agent_of(fleet, agent.name))["jobs"] == 0


async def test_an_agent_may_be_called_anything_in_the_settings_and_there_may_be_none(fleet):
    await fleet.apply({f"a/b {HOSTILE}?#": NOWHERE})
    page = await read(fleet, "/agents")
    assert HOSTILE not in page
    (path,) = set(re.findall(r'<h2 class="wrap"><a href="([^"]*)"', page))
    assert "Agent a/b &lt;img" in await read(fleet, path)
    status, page = await send(fleet, f"{path}/drain")
    assert (status, "Draining" in page) == (200, True)
    await fleet.apply({})
    page = await read(fleet, "/agents")
    assert "This server has no agents" in page
    assert "[agents.node-1]" in page
