"""Jobs that wait for others, over HTTP."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATOR, PORTAL, OTHER, ANN = (letter * 20 for letter in "opqa")
PRINCIPALS = {
    OPERATOR: Principal("operator", Role.OPERATOR),
    PORTAL: Principal("portal", Role.PORTAL),
    OTHER: Principal("other-portal", Role.PORTAL),
    ANN: Principal("ann-laptop", Role.USER, "ann"),
}


async def posted(
    place: Place, token: str = OPERATOR, key: str = "", **fields: str
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} | ({"Idempotency-Key": key} if key else {})
    return await place.posted(None, headers, **fields)


async def test_a_chain_runs_in_its_order(place: Place) -> None:
    place.does(None)
    first = await place.upload()
    second = await place.upload(after=str(first))
    third = await place.upload(after=f"{first},{second}")
    process = await place.process(first)
    waiting = await place.api("GET", f"/jobs/{second}")
    assert (waiting["status"], waiting["after"], waiting["inputs_from"]) == ("Queued", [first], [])
    assert (await place.api("GET", f"/jobs/{third}"))["status"] == "Queued"
    place.does(lambda process: process.finish())
    process.finish()
    assert (await place.job(third))["status"] == "Completed"
    ended = [await place.job(one) for one in (first, second, third)]
    assert all(one["ended_at"] <= other["submitted_at"] for one, other in itertools.pairwise(ended))


async def test_a_failure_goes_on_to_all_that_wait(place: Place) -> None:
    first = await place.upload(not_before="in 1h")
    second = await place.upload(after=str(first))
    third = await place.upload(inputs_from=str(second))
    await place.api("POST", f"/jobs/{first}/cancel")
    failed = await place.job(third)
    assert (failed["status"], failed["reason"]) == ("Failed", "dependency_failed")
    assert failed["message"] == (
        f"job {second}, which it waits for, failed (dependency_failed): "
        f"job {first}, which it waits for, was cancelled"
    )
    late = await place.job(await place.upload(after=str(second)))
    assert (late["status"], late["reason"]) == ("Failed", "dependency_failed")


async def test_a_job_gets_what_others_left_and_gather_what_its_children_did(place: Place) -> None:
    seen: dict[str, set[str]] = {}

    def script(process: FakeProcess) -> None:
        root = process.workspace.path
        found = [path for top in ("inputs", "children") for path in (root / top).rglob("out")]
        seen[process.launch.env["FERRYMAN_JOB_ID"]] = {
            str(path.relative_to(root)) for path in found
        }
        process.write("out", b"1")
        process.finish()

    place.does(script)
    first = await place.upload()
    array = await place.upload(array="0-1")
    files = {"run.sh": b"true", "gather.sh": b"true"}
    gathered = await place.upload(files, array="0-1", inputs_from=str(first))
    for job_id in (first, array, gathered):
        assert (await place.job(job_id))["status"] == "Completed"
    last = await place.upload(inputs_from=f"{first},{array},{gathered}")
    assert (await place.job(last))["status"] == "Completed"
    assert seen[str(first)] == set()
    given = f"inputs/{first}/out"  # the children got it, too
    of_children = {f"children/{number}/{name}" for number in (0, 1) for name in ("out", given)}
    assert seen[str(gathered)] == {given} | of_children
    of_array = {f"inputs/{array}/{number}/out" for number in (0, 1)}
    assert {given, f"inputs/{gathered}/out"} | of_array <= seen[str(last)]


@each("name", ["after", "inputs_from"])
async def test_jobs_of_others_are_as_if_there_were_none(place: Place, name: str) -> None:
    of_bob, by_other = await place.upload(user_id="bob"), (await posted(place, OTHER))[1]["id"]
    own = await place.upload(user_id="ann")
    assert (await posted(place, ANN, user_id="ann", **{name: str(own)}))[0] == 201
    for token, user, wanted in (
        (ANN, "ann", 99_999),
        (ANN, "ann", of_bob),
        (PORTAL, place.user, by_other),
        (OPERATOR, "ann", of_bob),
    ):
        status, refused = await posted(place, token, user_id=user, **{name: str(wanted)})
        assert (status, refused["code"], refused["part"]) == (400, f"invalid_{name}", name)
        assert refused["message"] == f"Invalid {name}: job {wanted} does not exist"


async def test_a_repeat_is_answered_though_what_it_waited_for_is_gone(place: Place) -> None:
    first = await place.upload()
    await place.job(first)
    status, made = await posted(place, key=place.user, after=str(first))
    assert status == 201, made
    await place.job(made["id"])
    assert (await place.ask("DELETE", f"/api/v1/jobs/{first}"))[0] == 204
    again = await posted(place, key=place.user, after=str(first))
    assert again == (201, made | {"status": "Completed"})


async def test_a_job_that_another_waits_for_is_not_deleted(place: Place) -> None:
    first = await place.upload()
    await place.job(first)
    other = await place.upload(not_before="in 1h")
    third = await place.upload(after=f"{first},{other}")
    status, refused = await place.ask("DELETE", f"/api/v1/jobs/{first}")
    assert (status, refused["code"]) == (409, "still_needed")
    assert refused["detail"] == f"job {first} is still needed: job {third} waits for it"
