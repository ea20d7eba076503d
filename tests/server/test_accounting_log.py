"""The log alone says who used what, and why a job failed."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from ferryman import Client
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.warm import SLOTS, together

SERVICES = """
[services.example]
retries = 1
retry_delays = ["0s"]
retry_on = ["exit_code"]
"""
SAID = ("event", "state", "attempt", "agent", "reason", "exit_code")


def script(process: FakeProcess) -> None:
    """The array's children never end; the first other job fails twice, later ones end well."""
    if process.launch.env.get("FERRYMAN_ARRAY_INDEX"):
        return
    if process.job.startswith("1."):
        process.finish(3 if process.job == "1.1" else 4)
    else:
        process.write("answer.txt", b"42")
        process.finish(0)


def lines_of(lines: list[Any], job_id: int) -> list[Any]:
    ends = ("job.ended", "job.requeued")
    return [one for one in lines if one["event"] in ends and one["job_id"] == job_id]


async def test_each_attempt_and_each_end_is_one_line_that_can_be_charged_and_explained(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "run.sh").write_text("true\n")
    with capture_logs() as lines:
        async with together(tmp_path, SERVICES) as system, Client(system.url, user="ann") as client:
            system.warm.sandbox.script = script
            failed = (await client.submit(folder, service="example")).id
            await client.wait(failed)
            done = (await client.submit(folder, service="example")).id
            await client.wait(done)
            result = ((await client.status(done)).attempts or [])[0].result_size
            waiting = (await client.submit(folder, service="example", not_before="in 1h")).id
            await client.cancel(waiting)
            array = (await client.submit(folder, service="example", array="0-9")).id
            async for event in client.all_events(0):
                if event.event == "job.running" and (event.job_id or 0) > array:
                    break
            await client.cancel(array)
            children = [one.id async for one in client.jobs(parent=array)]
            for child in children:
                await client.wait(child)
            await client.wait(array)
    first, second = lines_of(lines, failed)
    assert [first[name] for name in SAID] == ["job.requeued", "Queued", 1, "local", "exit_code", 3]
    assert [second[name] for name in SAID] == ["job.ended", "Failed", 2, "local", "exit_code", 4]
    assert second["message"] == "run.sh ended with exit code 4"
    assert (second["user_id"], second["service"]) == ("ann", "example")
    for line in (first, second):
        assert 0 <= line["run_s"] < 60
        assert 0 <= line["wait_s"] < 60
    (end,) = lines_of(lines, done)
    assert (end["state"], end["exit_code"], end["result_bytes"]) == ("Completed", 0, result)
    (end,) = lines_of(lines, waiting)
    assert (end["state"], end["agent"], end["attempt"]) == ("Cancelled", None, 0)
    assert (end["run_s"], end["wait_s"], end["result_bytes"]) == (None, 0, None)
    assert len(children) == 10
    for one in (array, *children):
        (end,) = lines_of(lines, one)
        assert (end["event"], end["state"], end["user_id"]) == ("job.ended", "Cancelled", "ann")
    ran = [one for child in children for one in lines_of(lines, child) if one["run_s"] is not None]
    assert len(ran) <= SLOTS
