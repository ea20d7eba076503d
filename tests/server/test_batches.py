"""Jobs that belong together: arrays, children that a job leaves, and jobs that wait for others."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.stages import batches
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.raw_archives import unzipped
from tests.kit.server_http import RUN
from tests.kit.waiting import eventually
from tests.kit.warm import Place
from tests.server.access import OPERATOR, PRINCIPALS, Crowd, crowd

__all__ = ["OPERATOR", "PRINCIPALS", "crowd"]
pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = "[server]\ncleaner_interval = '50ms'\nsender_interval = '50ms'\n"
GATHERED = {"run.sh": RUN, "gather.sh": RUN}


def fails_first(index: str) -> Any:
    """A script that fails in this task, the first time."""
    left = {index}

    def script(process: FakeProcess) -> None:
        index = process.launch.env.get("FERRYMAN_ARRAY_INDEX", "")
        process.finish(3 if index in left else 0)
        left.discard(index)

    return script


async def children(place: Place, parent: int, **query: str) -> list[dict[str, Any]]:
    """In their order."""
    page = await place.api("GET", "/jobs", parent=str(parent), limit="200", **query)
    return [*reversed(page["items"])]


async def there(place: Place, parent: int, count: int) -> list[dict[str, Any]]:
    return await eventually(lambda: children(place, parent), lambda found: len(found) == count)


async def history(place: Place, job_id: int) -> list[str]:
    events = (await place.api("GET", f"/jobs/{job_id}/events"))["items"]
    return [one["event"] for one in events if one["event"] != "job.tagged"]


async def test_an_array_from_its_upload_until_it_is_cleaned(place: Place) -> None:
    await place.configure(expires_after="1h")
    files = {"run.sh": RUN, "params.txt": b"one\ntwo\n\nfour\n"}
    other = await place.upload(not_before="in 9h")
    parent = await place.upload(files, array_file="params.txt", name="scan")
    job = await place.job(parent)
    assert (job["status"], job["message"]) == ("Completed", "all 4 children completed")
    counts = {"total": 4, "queued": 0, "active": 0, "completed": 4, "failed": 0, "cancelled": 0}
    assert (job["children"], job["progress"]) == (counts, {"current": 4.0, "total": 4.0})
    assert job["links"]["children"] == f"/api/v1/jobs?parent={parent}"
    assert await history(place, parent) == ["job.queued", "job.children_queued", "job.completed"]
    for query, chosen in (({"state": "Completed"}, [parent]), ({"state": "Failed"}, [])):
        page = await place.api("GET", "/jobs", batch="true", user=place.user, **query)
        assert [one["id"] for one in page["items"]] == chosen
    status, problem = await place.ask("GET", f"/api/v1/jobs/{other}/result?children=1")
    assert (status, problem["code"]) == (404, "no_batch")

    page = await place.api("GET", "/jobs", parent=str(parent), limit="3")
    rest = await place.api("GET", "/jobs", parent=str(parent), limit="3", cursor=page["next"])
    found = page["items"] + rest["items"]
    assert [one["array_index"] for one in found] == [3, 2, 1, 0]
    assert (found[0]["name"], found[0]["parent_id"]) == ("scan[3]", parent)
    assert found[0]["links"]["parent"] == f"/api/v1/jobs/{parent}"
    assert await children(place, parent, state="Failed") == []
    for path in (f"/api/v1/jobs/{parent}/result?children=1", f"/download/{parent}"):
        status, kind, body = await place.get(path)
        assert (status, kind) == (200, "application/zip")
        assert {name.partition("/")[0] for name in unzipped(body)} == {"0", "1", "2", "3"}
    async with place.session.get(f"{place.url}/download/{parent}") as answer:
        assert f'"batch-{parent}.zip"' in answer.headers["Content-Disposition"]

    async def states() -> set[str]:
        of_parent = (await place.api("GET", f"/jobs/{parent}"))["status"]
        return {of_parent, *(one["status"] for one in await children(place, parent))}

    place.warm.clock.forward(2 * 3_600)
    assert await eventually(states, lambda found: found == {"Cleaned"})


@each(
    "name, content, why",
    [
        ("other.txt", b"a\n", "no such file"),
        ("params.txt", b"", "no lines"),
        ("params.txt", b"a\n" + b"x" * 70_000, "line 2 is longer than 65536 bytes"),
        ("params.txt", b"\xc3\xbc\n\xff", "line 2 is not UTF-8"),
        ("params.txt", b"a\nb\0c\n", "line 2 has a NUL character"),
    ],
)
async def test_an_array_file_that_is_no_list_of_tasks_is_refused(
    place: Place, name: str, content: bytes, why: str
) -> None:
    status, problem = await place.posted({"run.sh": RUN, name: content}, array_file="params.txt")
    assert (status, problem["code"]) == (400, "invalid_array_file")
    assert problem["part"] == "array_file"
    assert why in problem["message"]
    assert (await place.api("GET", "/jobs", user=place.user))["items"] == []


async def test_an_array_has_no_more_tasks_than_allowed_and_no_more_lines_are_counted(place: Place):
    await place.configure(max_children=3)
    for lines, status in ((b"a\n" * 3, 201), (b"a\n" * 4, 400), (b"a\n" * 9 + b"\xff", 400)):
        found, reply = await place.posted({"run.sh": RUN, "p": lines}, array_file="p")
        assert found == status, reply
        assert status == 201 or f"4 tasks, service {place.service} allows 3" in reply["message"]
    found, reply = await place.posted(array="0-8")
    assert (found, reply["code"], "9 tasks" in reply["message"]) == (400, "invalid_array", True)


@each(
    "content, lines",
    [
        (b"a", ["a"]),
        (b"a b\n\n\xc3\xbc", ["a b", "", "ü"]),
        (b"\n", [""]),
        (b"a\r\nb\r\n", ["a", "b"]),
    ],
)
async def test_each_line_is_a_task_of_a_service_that_is_not_paused(
    place: Place, monkeypatch, content: bytes, lines: list[str]
) -> None:
    monkeypatch.setattr(batches, "_CHILDREN_AT_ONCE", 2)
    found = dict[str, str]()

    def script(process: FakeProcess) -> None:
        env = process.launch.env
        found[env["FERRYMAN_ARRAY_INDEX"]] = env["FERRYMAN_ARRAY_LINE"]
        process.finish()

    place.does(script)
    await place.api("POST", f"/services/{place.service}/pause")
    parent = await place.upload({"run.sh": RUN, "p": content}, array_file="p")
    assert not (await place.api("GET", f"/jobs/{parent}"))["ended"]
    assert found == {}
    await place.api("POST", f"/services/{place.service}/resume")
    job = await place.job(parent)
    assert (job["status"], job["children"]["total"]) == ("Completed", len(lines))
    assert found == {str(number): line for number, line in enumerate(lines)}


async def test_a_parent_fails_once_all_have_ended_and_gathers_what_completed(place: Place) -> None:
    place.does(fails_first("1"))
    parent = await place.upload(GATHERED, array="0-4")
    job = await place.job(parent)
    assert (job["status"], job["reason"]) == ("Failed", "child_failed")
    states = [one["status"] for one in await children(place, parent)]
    assert states == ["Completed", "Failed", *["Completed"] * 3]
    failed = parent + 2
    assert job["message"] == f"1 of 5 children failed: 1 (job {failed}, exit_code 3)"
    # A child is not retried by itself any more; its parent runs again what has not completed.
    status, problem = await place.ask("POST", f"/api/v1/jobs/{failed}/retry")
    assert (status, f"job {parent}" in problem["detail"]) == (409, True)
    await place.api("POST", f"/jobs/{parent}/retry")
    job = await place.job(parent)
    assert (job["status"], job["message"][:21]) == ("Completed", "gather.sh ended well ")
    assert [one["status"] for one in job["attempts"]] == ["Completed"]
    assert [one["attempt"] for one in await children(place, parent)] == [1, 2, 1, 1, 1]
    gathered = ["job.gather_queued", "job.processing", "job.submitted", "job.running"]
    assert (await history(place, parent))[-5:] == [*gathered, "job.completed"]


async def test_a_child_is_retried_by_itself_while_its_parent_waits_or_ends_the_batch(
    place: Place,
) -> None:
    await place.configure(max_runs=1)
    place.does(None)
    parent = await place.upload(array="0-1")
    first, second = await there(place, parent, 2)
    (await place.process(first["id"])).finish(3)
    assert (await place.job(first["id"]))["status"] == "Failed"
    running = await place.process(second["id"])
    await place.api("POST", f"/jobs/{first['id']}/retry")
    running.finish()
    (await place.process(first["id"], 2)).finish()
    assert (await place.job(parent))["status"] == "Completed"
    parent = await place.upload(array="0-1")
    first, second = await there(place, parent, 2)
    await place.terminate(first["id"])
    (await place.process(second["id"])).finish()
    job = await place.job(parent)
    assert (job["status"], job["message"]) == ("Failed", "1 child cancelled")
    place.does(fails_first("1"))
    job = await place.job(await place.upload(array="0-9", batch_policy="fail_fast"))
    assert (job["status"], job["reason"]) == ("Failed", "child_failed")
    cancelled = job["children"]["cancelled"]
    assert 6 <= cancelled <= 8, "one or two more may be under way"
    assert f"; {cancelled} children cancelled because of that (fail_fast)" in job["message"]
    _, _, body = await place.get(f"/api/v1/jobs/{job['id']}/result?children=1")
    left_out = unzipped(body)["left-out.txt"].count(b"/: there is none")
    assert 6 <= left_out <= cancelled, "who was under way may have left a result"


async def test_children_keep_what_is_executable_though_others_have_the_same_files(place: Place):
    modes, found = [0o755, 0o644], list[int]()

    def script(process: FakeProcess) -> None:
        folder = process.workspace.path
        if process.read("run.sh") == RUN:
            process.write("children/a/run.sh", b"exit 1\n")
            process.write("children/a/tool", b"")
            (folder / "children/a/tool").chmod(modes[len(found)])
        else:
            found.append((folder / "tool").stat().st_mode & 0o777)
        process.finish()

    place.does(script)
    for _ in (1, 2):
        assert (await place.job(await place.upload()))["status"] == "Completed"
    assert [mode & 0o100 for mode in found] == [0o100, 0]


@each("names, says", [("abc", ""), ("abcd", "more than 3")])
async def test_a_job_that_leaves_children_waits_for_them_unless_they_cannot_be_run(
    place: Place, names: str, says: str
) -> None:
    found = list[bytes]()

    def script(process: FakeProcess) -> None:
        if process.read("run.sh") == RUN:
            for name in names:
                process.write(f"children/{name}/run.sh", b"exit 1\n")
                process.write(f"children/{name}/deep/data", name.encode())
        else:
            found.append(process.read("run.sh") + process.read("deep/data"))
            process.write("children/more/run.sh", b"exit 1\n")
        process.write("output.txt", b"")
        process.finish(warnings=("its own",))

    await place.configure(max_children=3)
    place.does(script)
    with capture_logs() as logs:
        parent = await place.upload(outputs="output.txt")
        job, made = await place.job(parent), await children(place, parent)
    if says:
        assert (job["status"], job["reason"], made) == ("Failed", "invalid_bundle", [])
        assert says in job["message"]
        assert (await place.get(f"/download_partial/{parent}"))[0] == 200, "what it left stays"
        return
    assert (job["status"], job["message"]) == ("Completed", "all 3 children completed")
    assert sorted(found) == [b"exit 1\na", b"exit 1\nb", b"exit 1\nc"], "each runs in its folder"
    assert [one["child_name"] for one in made] == [*names]
    assert made[1]["outputs"] == ["output.txt"], "though children are not asked for"
    own, warning = made[1]["warnings"]
    assert (own, "a child of a batch leaves no further ones" in warning) == ("its own", True)
    assert (await history(place, parent))[4:] == ["job.deferred", "job.completed"]
    lines = [one for one in logs if one.get("job_id") == parent and "run_s" in one]
    ran = [(one["event"], one["run_s"] is not None) for one in lines]
    assert ran == [("job.deferred", True), ("job.ended", False)]
    _, _, body = await place.get(f"/api/v1/jobs/{made[1]['id']}/bundle")
    sent = unzipped(body)
    assert (sent["b/deep/data"], "output.txt" in sent) == (b"b", False)
    assert sent["run.sh"].endswith(b"exit 64\n")


async def test_a_cancelled_parent_ends_when_its_last_child_is_dead(place: Place) -> None:
    await place.configure(max_runs=1)
    place.does(None)
    parent = await place.upload(array="0-9")
    first, *_ = await there(place, parent, 10)
    await place.job(first["id"], until="Running")
    process = await place.process(first["id"])
    place.warm.sandbox.obeys_sigterm = False
    try:
        cancel = asyncio.create_task(place.ask("POST", f"/api/v1/jobs/{parent}/cancel"))
        await eventually(lambda: children(place, parent), lambda _: process.asked_to_stop)
    finally:
        place.warm.sandbox.obeys_sigterm = True
    states = [one["status"] for one in await children(place, parent)]
    assert (states[0], {*states[1:]}) == ("Running", {"Cancelled"})
    assert (await place.api("GET", f"/jobs/{parent}"))["status"] == "Running"
    process.finish(143)
    assert (await cancel)[0] == 200
    assert (await place.job(parent))["status"] == "Cancelled"
    assert {one["status"] for one in await children(place, parent)} == {"Cancelled"}


# -- jobs that wait for others


async def test_a_job_gets_what_others_left_and_gather_what_its_children_did(place: Place) -> None:
    seen: dict[str, set[str]] = {}

    def script(process: FakeProcess) -> None:
        root = process.workspace.path
        found = [path for top in ("inputs", "children") for path in (root / top).rglob("out")]
        names = {str(path.relative_to(root)) for path in found}
        seen[process.launch.env["FERRYMAN_JOB_ID"]] = names
        process.write("out", b"1")
        process.finish()

    place.does(script)
    first = await place.upload()
    array = await place.upload(array="0-1")
    gathered = await place.upload(GATHERED, array="0-1", inputs_from=str(first))
    last = await place.upload(inputs_from=f"{first},{array},{gathered}")
    *ended, job = [await place.job(one) for one in (first, array, gathered, last)]
    assert {one["status"] for one in (*ended, job)} == {"Completed"}
    assert all(one["ended_at"] <= job["submitted_at"] for one in ended)
    assert seen[str(first)] == set()
    given = f"inputs/{first}/out"  # the children got it, too
    of_children = {f"children/{number}/{name}" for number in (0, 1) for name in ("out", given)}
    assert seen[str(gathered)] == {given} | of_children
    of_array = {f"inputs/{array}/{number}/out" for number in (0, 1)}
    assert {given, f"inputs/{gathered}/out"} | of_array <= seen[str(last)]


@each("name", ["after", "inputs_from"])
async def test_jobs_of_others_are_as_if_there_were_none(crowd: Crowd, name: str) -> None:
    user = crowd.place.user
    of_bob, by_other = await crowd.made("admin", "bob"), await crowd.made("stranger", user)
    await crowd.made("ann", "ann", **{name: str(await crowd.made("admin", "ann"))})
    for who, of, wanted in (
        ("ann", "ann", 99_999),
        ("ann", "ann", of_bob),
        ("portal", user, by_other),
        ("admin", "ann", of_bob),
    ):
        said = await crowd.upload(who, of, **{name: str(wanted)})
        assert (said.status, said.code) == (400, f"invalid_{name}"), said
        assert said.document["part"] == name
        assert said.document["message"] == f"Invalid {name}: job {wanted} does not exist"


async def test_what_is_waited_for_is_not_deleted_and_no_repeat_needs_it(place: Place) -> None:
    first = await place.upload()
    await place.job(first)
    key = {"Idempotency-Key": place.user}
    status, made = await place.posted(None, key, after=str(first))
    assert status == 201, made
    await place.job(made["id"])
    other = await place.upload(not_before="in 1h")
    third = await place.upload(after=f"{first},{other}")
    job = await place.api("GET", f"/jobs/{third}")
    assert (job["status"], job["after"], job["inputs_from"]) == ("Queued", [first, other], [])
    status, refused = await place.ask("DELETE", f"/api/v1/jobs/{first}")
    assert (status, refused["code"]) == (409, "still_needed")
    assert refused["detail"] == f"job {first} is still needed: job {third} waits for it"
    await place.api("POST", f"/jobs/{third}/cancel")
    assert (await place.ask("DELETE", f"/api/v1/jobs/{first}"))[0] == 204
    again = await place.posted(None, key, after=str(first))
    assert again == (201, made | {"status": "Completed"})
