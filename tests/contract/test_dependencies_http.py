"""Jobs that wait for others, over HTTP."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.kit.access import BOUNDARY, LATER, PRINCIPALS, formed
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

PAGE = "/api/v1/jobs"


async def upload(
    caller: ServerClient, who: str, user: str, **fields: str
) -> tuple[int, dict[str, Any]]:
    body = formed({"user_id": user, "service": "my_service", **fields})
    headers = BOUNDARY | {"Authorization": f"Bearer the-token-of-{who}"}
    async with caller.session.post(f"{caller.url}/upload", data=body, headers=headers) as answer:
        return answer.status, await answer.json()


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
async def test_jobs_of_others_are_as_if_there_were_none(tmp_path, name):
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        pairs = (("bob", "bob"), ("stranger", "ann"), ("ann", "ann"))
        made = [(await upload(caller, *pair, **LATER))[1]["id"] for pair in pairs]
        of_bob, by_stranger, own = made
        assert (await upload(caller, "ann", "ann", **{name: str(own)}))[0] == 201
        for who, wanted in (
            ("ann", 99),
            ("ann", of_bob),
            ("portal", by_stranger),
            ("admin", of_bob),
        ):
            status, refused = await upload(caller, who, "ann", **{name: str(wanted)})
            assert (status, refused["code"], refused["part"]) == (400, f"invalid_{name}", name)
            assert refused["message"] == f"Invalid {name}: job {wanted} does not exist"


async def test_a_repeat_is_answered_though_what_it_waited_for_is_gone(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        first = await caller.upload()
        await caller.job(first)

        async def repeat() -> tuple[int, dict[str, Any]]:
            query = f"user_id=7&service=my_service&after={first}"
            body, headers = formed({}), BOUNDARY | {"Idempotency-Key": "k"}
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
