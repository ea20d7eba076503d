"""Jobs that wait for others, over HTTP."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.contract.test_access import FORM, RUN, World, field, serving
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import ServerClient, driving

PAGE = "/api/v1/jobs"


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


async def upload(world: World, name: str, user: str, **fields: str) -> tuple[int, dict[str, Any]]:
    body = field("user_id", user) + field("service", "my_service")
    body += "".join(field(name, value) for name, value in fields.items()) + RUN
    answer = await world.ask(name, "POST", "/upload", body, Content_Type=FORM)
    return answer.status, answer.document


async def graph(caller: ServerClient, job_id: int) -> dict[str, Any]:
    status, _, body = await caller.get(f"{PAGE}/{job_id}/graph")
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


async def test_a_chain_runs_in_its_order(tmp_path):
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:
        first = await caller.upload()
        await caller.job(first, until="Running")
        second = await caller.upload(after=str(first))
        third = await caller.upload(after=f"{first},{second}")
        waiting = await caller.job(second, until="Queued")
        assert (waiting["after"], waiting["inputs_from"]) == ([first], [])
        assert [len(client.payloads), (await caller.job(third, until="Queued"))["status"]] == [
            1,
            "Queued",
        ]
        client.then = client.payloads[1].status = "Completed"
        assert (await caller.job(third))["status"] == "Completed"
        ended = [(await caller.job(one)) for one in (first, second, third)]
        assert all(
            one["ended_at"] <= other["submitted_at"] for one, other in itertools.pairwise(ended)
        )


async def test_a_failure_goes_on_to_all_that_wait(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        first = await caller.upload()
        await caller.job(first, until="Running")
        second = await caller.upload(after=str(first))
        third = await caller.upload(inputs_from=str(second))
        await caller.session.post(f"{caller.url}{PAGE}/{first}/cancel")
        failed = await caller.job(third)
        assert (failed["status"], failed["reason"]) == ("Failed", "dependency_failed")
        assert failed["message"] == (
            f"job {second}, which it waits for, failed (dependency_failed): "
            f"job {first}, which it waits for, was cancelled"
        )
        late = await caller.job(await caller.upload(after=str(second)))
        assert (late["status"], late["reason"]) == ("Failed", "dependency_failed")


@pytest.mark.parametrize("name", ["after", "inputs_from"])
async def test_jobs_of_others_are_as_if_there_were_none(world, name):
    of_bob = await world.job("bob-laptop", "bob")
    by_bob = await world.job("other-portal", "ann")
    own = await world.job("ann-laptop", "ann")
    assert (await upload(world, "ann-laptop", "ann", **{name: str(own)}))[0] == 201
    for who, wanted in (
        ("ann-laptop", 99),
        ("ann-laptop", of_bob),
        ("portal", by_bob),
        ("admin", of_bob),
    ):
        status, refused = await upload(world, who, "ann", **{name: str(wanted)})
        assert (status, refused["code"], refused["part"]) == (400, f"invalid_{name}", name)
        assert refused["message"] == f"Invalid {name}: job {wanted} does not exist"


async def test_a_repeat_is_answered_though_what_it_waited_for_is_gone(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        first = await caller.upload()
        await caller.job(first)

        async def repeat() -> tuple[int, dict[str, Any]]:
            query = f"user_id=7&service=my_service&after={first}"
            body, headers = RUN.encode(), {"Idempotency-Key": "k", "Content-Type": FORM}
            async with caller.session.post(
                f"{caller.url}/upload?{query}", data=body, headers=headers
            ) as answer:
                return answer.status, await answer.json()

        status, made = await repeat()
        assert status == 201, made
        await caller.job(made["id"])
        async with caller.session.delete(f"{caller.url}{PAGE}/{first}") as answer:
            assert answer.status == 204
        assert await repeat() == (201, made | {"status": "Completed"})


async def test_a_job_that_another_waits_for_is_not_deleted(tmp_path):
    client = FakeOrchestrator()
    async with driving(tmp_path, client) as caller:
        first = await caller.upload()
        await caller.job(first)
        client.then = "Running"
        other = await caller.upload()
        await caller.job(other, until="Running")
        third = await caller.upload(after=f"{first},{other}")
        async with caller.session.delete(f"{caller.url}{PAGE}/{first}") as answer:
            refused = await answer.json()
        assert (answer.status, refused["code"]) == (409, "still_needed")
        assert refused["detail"] == f"job {first} is still needed: job {third} waits for it"
        assert (await caller.job(other, until="Running"))["status"] == "Running"


async def test_the_graph_has_all_that_is_connected(tmp_path):
    client = FakeOrchestrator()
    async with driving(tmp_path, client) as caller:
        alone = await caller.upload()
        first = await caller.upload(name='a "step" <1>')
        for job_id in (alone, first):
            await caller.job(job_id)
        client.then = "Running"
        second = await caller.upload(after=str(first))
        third = await caller.upload(inputs_from=str(second), after=str(first))
        await caller.job(second, until="Running")
        found = await graph(caller, second)
        assert found == await graph(caller, third)
        assert [node["id"] for node in found["nodes"]] == [first, second, third]
        assert [node["status"] for node in found["nodes"]] == ["Completed", "Running", "Queued"]
        assert found["nodes"][0]["name"] == 'a "step" <1>'
        assert found["edges"] == [
            {"source": first, "target": second, "kind": "after"},
            {"source": first, "target": third, "kind": "after"},
            {"source": second, "target": third, "kind": "inputs"},
        ]
        assert not found["truncated"]
        assert [node["id"] for node in (await graph(caller, alone))["nodes"]] == [alone]
        status, kind, body = await caller.get(f"{PAGE}/{second}/graph?format=mermaid")
        assert (status, kind) == (200, "text/plain")
        lines = body.decode().splitlines()
        assert lines[0] == "flowchart LR"
        name = "a #34;step#34; #60;1#62;"
        assert f'    j{first}["{first} {name}<br/>Completed"]:::Completed' in lines
        assert f"    j{second} -->|files| j{third}" in lines
        status, _, body = await caller.get(f"{PAGE}/{second}/graph?format=dot")
        assert (status, json.loads(body)["code"]) == (400, "invalid_format")


async def test_a_graph_shows_what_the_caller_may_see(world):
    first = await world.job("portal", "ann")
    status, second = await upload(world, "admin", "ann", after=str(first))
    assert status == 201, second
    seen = {
        name: [
            node["id"]
            for node in (await world.ask(name, "GET", f"{PAGE}/{first}/graph")).document["nodes"]
        ]
        for name in ("portal", "admin", "ann-laptop")
    }
    assert seen == {
        "portal": [first],
        "admin": [first, second["id"]],
        "ann-laptop": [first, second["id"]],
    }
