"""Metrics, ``/livez``, ``/readyz``, ``/health``, the log's lines of jobs, and the watchdog."""

import asyncio
import gzip
import sqlite3
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read
from structlog.testing import capture_logs

from client_agent.run.runner import EndRequests
from client_agent.storage.folders import Folders
from server.domain.troubles import Trouble, TroubleKind
from server.health import Health
from server.loops import Loop, Supervisor
from server.storage.scratch import Scratch
from server.store import queue, webhooks
from shared import probe
from shared.clock import SECOND
from shared.principals import Principal, Role, Scope
from shared.probe import PATIENCE_S, Heartbeats
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable
from tests.kit.agent_http import calling
from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.server_http import driving
from tests.kit.store import core
from tests.kit.waiting import eventually
from tests.kit.warm import SLOTS, Place
from tests.server.front import SHOWN, Program, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPERATOR = "an-operators-token"
PRINCIPALS = {
    OPERATOR: Principal("admin", Role.OPERATOR),
    "ann": Principal("ann", Role.USER, "7"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "node": Principal("node", Role.AGENT),
    "scraper": Principal("scraper", Role.OPERATOR, scopes=frozenset({Scope.READ})),
    "uploader": Principal("uploader", Role.OPERATOR, scopes=frozenset({Scope.SUBMIT})),
}


async def scraped(place: Place, token: str = OPERATOR, **headers: str) -> tuple[int, str, str]:
    headers["Authorization"] = f"Bearer {token}"
    async with place.session.get(f"{place.url}/metrics", headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def samples(place: Place) -> dict[tuple[str, ...], float]:
    """Name and values of labels, in their order -> value."""
    status, _, text = await scraped(place)
    assert status == 200
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in read(text)
        for one in family.samples
    }


async def test_jobs_are_counted_by_service_and_state_and_made_up_names_are_no_labels(place):
    before = await samples(place)
    for _ in range(3):
        await place.job(await place.upload())
    found = await samples(place)
    grew = {name: value - before.get(name, 0) for name, value in found.items()}
    assert found["ferryman_jobs_uploaded_total", place.service] == 3
    assert found["ferryman_jobs_ended_total", place.service, "Completed"] == 3
    assert found["ferryman_jobs_ended_total", place.service, "Failed"] == 0
    assert found["ferryman_jobs", place.service, "Queued"] == 0
    assert grew["ferryman_dispatches_total", "local", "accepted"] == 3
    assert grew["ferryman_transfers_total", "upload", "ok"] == 3
    assert grew["ferryman_transfers_total", "bundle", "ok"] == 3
    assert grew["ferryman_transfer_bytes_total", "result"] > 0
    assert grew["ferryman_http_requests_total", "POST", "/upload", "2xx"] == 3
    assert grew["ferryman_database_commit_seconds_count",] > 3
    assert found["ferryman_store_readable",] == 1
    assert found["process_open_fds",] > 0
    before = found
    for number in range(20):
        await place.get(f"/made-up-{number}")
        await place.get(f"/api/v1/jobs/{1_000 + number}")
        await place.get(f"/api/v1/jobs?madeup{number}=1")
        assert (await place.ask("PROPFIND", "/health"))[0] == 405
    found = await samples(place)
    assert found["ferryman_http_requests_total", "GET", "other", "4xx"] == 20
    assert found["ferryman_http_requests_total", "other", "other", "4xx"] == 20
    assert found["ferryman_http_requests_total", "GET", "/api/v1/jobs/{id}", "4xx"] == 20
    assert len(found) - len(before) < 40


async def test_the_text_comes_as_it_was_asked_for_to_who_may_read_services_and_agents(place):
    """An operator's token with the scope read is enough; none at all is not."""
    refused = {"": 401, "wrong": 401} | dict.fromkeys(("ann", "portal", "node", "uploader"), 403)
    for token, status in {**refused, "scraper": 200, OPERATOR: 200}.items():
        assert (await scraped(place, token))[0] == status, token
    kind = (await scraped(place, Accept="text/html, */*"))[1]
    assert kind.startswith("text/plain; version=0.0.4")
    asks = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    _, kind, text = await scraped(place, Accept=asks)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert any(family.name == "ferryman_jobs" for family in read_open(text))
    for hostile in ("text/plain;version=x.y", "application/openmetrics-text;version=;;"):
        assert (await scraped(place, Accept=hostile))[0] == 200
    for encoding in ("gzip", "gzip;q=0"):
        async with place.session.get(
            f"{place.url}/metrics", headers={"Accept-Encoding": encoding}, auto_decompress=False
        ) as answer:
            packed = answer.headers.get("Content-Encoding")
            sent = await answer.read()
        assert packed == ("gzip" if encoding == "gzip" else None)
        assert b"ferryman_jobs{" in (gzip.decompress(sent) if packed else sent)


async def test_jobs_that_wait_are_counted_and_the_store_may_be_unreadable(place, monkeypatch):
    before = await samples(place)
    await place.upload(not_before="in 1h")
    await place.api("POST", f"/services/{place.service}/pause")
    await place.upload()
    place.warm.clock.forward(40)
    found = await samples(place)
    assert before["ferryman_jobs", place.service, "Queued"] == 0
    assert found["ferryman_jobs", place.service, "Queued"] == 2
    assert 40 <= found["ferryman_oldest_waiting_seconds", place.service] < 600
    since = place.warm.clock.now() - 30 * SECOND
    monkeypatch.setattr(webhooks, "oldest", Mock(return_value=since))
    assert 30 <= (await samples(place))["ferryman_webhooks_oldest_seconds",] < 600
    broken = DatabaseUnavailable(sqlite3.OperationalError("disk I/O error"))
    monkeypatch.setattr(queue, "waits_since", Mock(side_effect=broken))
    found = await samples(place)
    assert found["ferryman_store_readable",] == 0
    of_store = {"ferryman_jobs", "ferryman_oldest_waiting_seconds"}
    assert of_store.isdisjoint(name for name, *_ in found)
    assert ("ferryman_agent_up", "local") in found


SAID = ("event", "state", "attempt", "agent", "reason", "exit_code")


async def test_each_attempt_and_each_end_is_one_line_that_can_be_charged_and_explained(place):
    """The array's children never end."""
    await place.configure(retries=1, retry_delays=["0s"], retry_on=["exit_code"])
    codes = iter((3, 4, 0))

    def script(process: FakeProcess) -> None:
        if not process.launch.env.get("FERRYMAN_ARRAY_INDEX"):
            process.finish(next(codes))

    place.does(script)
    with capture_logs() as logs:
        failed = await place.upload()
        assert (await place.job(failed))["status"] == "Failed"
        done = await place.upload()
        result = (await place.job(done))["attempts"][0]["result_size"]
        waiting, array = await place.upload(not_before="in 1h"), await place.upload(array="0-9")
        listed = partial(place.api, "GET", "/jobs", parent=str(array))
        children = (await eventually(listed, lambda page: len(page["items"]) == 10))["items"]
        await place.job(children[-1]["id"], until="Running")
        for job_id in (waiting, array):
            await place.api("POST", f"/jobs/{job_id}/cancel")
            await place.job(job_id)

    def lines_of(job_id: int) -> list[Any]:
        ends = ("job.ended", "job.requeued")
        return [one for one in logs if one["event"] in ends and one["job_id"] == job_id]

    first, second = lines_of(failed)
    assert [first[name] for name in SAID] == ["job.requeued", "Queued", 1, "local", "exit_code", 3]
    assert [second[name] for name in SAID] == ["job.ended", "Failed", 2, "local", "exit_code", 4]
    assert second["message"] == "run.sh ended with exit code 4"
    assert (second["user_id"], second["service"]) == (place.user, place.service)
    times = [line[name] for line in (first, second) for name in ("run_s", "wait_s")]
    assert all(0 <= seconds < 60 for seconds in times), times
    (end,) = lines_of(done)
    assert (end["state"], end["exit_code"], end["result_bytes"]) == ("Completed", 0, result)
    (end,) = lines_of(waiting)
    assert (end["state"], end["agent"], end["attempt"]) == ("Cancelled", None, 0)
    assert (end["run_s"], end["wait_s"], end["result_bytes"]) == (None, 0, None)
    ended = [line for one in children for line in lines_of(one["id"])] + lines_of(array)
    assert [one["state"] for one in ended] == ["Cancelled"] * 11
    assert len([one for one in ended if one["run_s"] is not None]) <= SLOTS


PROBES = ("/livez", "/readyz", "/health")


async def test_where_all_is_well_each_says_so_to_everybody(guarded, monkeypatch):
    """And no more than that to who shows no token."""
    said = {path: (await guarded.timed("GET", path)).document for path in PROBES}
    assert said["/livez"] == {"status": "ok"}
    assert said["/readyz"] == {"status": "ok", "reasons": []}
    full = {key: value for key, value in said["/health"].items() if value not in (None, "", {}, 0)}
    assert full.pop("ready", True) is True
    assert full == {"status": "ok", "database": "ok"}
    assert (await guarded.timed("GET", "/health", **SHOWN)).document["version"]
    for path in PROBES:
        head = await guarded.timed("HEAD", path)
        assert (head.status, head.body) == (200, b"")
    looks = Mock(return_value=None)
    for kind in (Folders, Scratch):
        monkeypatch.setattr(kind, "check_writable", looks)
    for _ in range(20):
        assert (await guarded.ask("GET", "/health")).status == 200
    assert looks.call_count <= 3, "asking often does not look at the disk often"


async def test_a_failure_of_the_database_is_a_reason_and_its_words_are_the_operators(
    guarded, monkeypatch
):
    """Until it is over."""

    # Each time a new one: a traceback grows when it is raised again.
    def failure(*_: object) -> DatabaseUnavailable:
        return DatabaseUnavailable(sqlite3.OperationalError("disk I/O error"))

    with monkeypatch.context() as broken, capture_logs():  # each loop logs it at each sweep
        broken.setattr(Database, "failure", property(failure))
        broken.setattr(Database, "write", AsyncMock(side_effect=failure()))
        for _ in range(2):  # it does not come and go
            stranger = await guarded.timed("GET", "/health")
            operator = await guarded.timed("GET", "/health", **SHOWN)
            assert (stranger.status, operator.status) == (503, 503)
            assert (stranger.document["status"], b"I/O" in stranger.body) == ("error", False)
            assert stranger.document["database"] == "error"
            assert "disk I/O error" in str(operator.document["message"])
            ready = await guarded.timed("GET", "/readyz", **SHOWN)
            (reason,) = ready.document["reasons"]
            assert (ready.status, b"I/O" in ready.body) == (503, False)
            assert int(ready.headers.get("retry-after", "0")) > 0
            assert reason.startswith("database")
            assert (await guarded.timed("GET", "/livez")).status == 200
    assert (await guarded.timed("GET", "/health")).status == 200


async def test_a_full_disk_is_a_reason_and_one_that_does_not_answer_delays_nothing(
    name, tmp_path, monkeypatch
):
    async with serving(name, tmp_path / "full", min_free=1 << 60) as program:
        answer = await program.timed("GET", "/readyz")
        assert (answer.status, answer.document["reasons"]) == (503, ["disk_full"])
        assert (await program.timed("GET", "/livez")).status == 200
    release = threading.Event()
    async with serving(name, tmp_path / "silent") as program:
        for kind in (Folders, Scratch):
            monkeypatch.setattr(kind, "check_writable", lambda _: release.wait(60))
        try:
            async with asyncio.timeout(20):
                assert (await program.timed("GET", "/livez")).status == 200
                ready = await program.timed("GET", "/readyz")
                assert ready.status == 503
                assert ready.document["reasons"] in (["data_folder_silent"], ["data_folder"])
                await program.timed("GET", "/health")
        finally:
            release.set()


async def test_a_server_without_an_agent_that_answers_takes_uploads_until_it_stops(tmp_path):
    """And an agent that drains takes nothing new."""
    asked = EndRequests()
    (tmp_path / "agent").mkdir()
    async with calling(tmp_path / "agent", asked=asked) as caller:
        asked.drain.set()
        timed = Program(caller, "agent").timed
        answer = await eventually(lambda: timed("GET", "/readyz"), lambda it: it.status == 503)
        assert answer.document["reasons"] == ["draining"]
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        program = Program(caller)
        answer = await program.ask("GET", "/readyz")
        assert (answer.status, answer.document["status"]) == (200, "ok")
        caller.server.context.core.wakeups.close()
        stopping = await program.ask("GET", "/readyz")
        assert (stopping.status, stopping.document["reasons"]) == (503, ["stopping"])


async def test_users_see_neither_agents_nor_what_is_wrong(tmp_path):
    given: dict[str, Any] = {"principals": PRINCIPALS, "min_free": 1 << 60}
    async with driving(tmp_path, FakeOrchestrator(), **given) as caller:
        (agent,) = caller.server.context.fleet.clients
        for token in ("", *PRINCIPALS):
            shown = {"Authorization": f"Bearer {token}"} if token else {}
            answers = [await Program(caller).ask("GET", path, **shown) for path in PROBES]
            text = b" ".join(one.body for one in answers)
            is_operator = token == OPERATOR
            assert (agent.encode() in text) == is_operator, token
            assert (b"the disk is full" in text) == is_operator, token
            assert str(tmp_path).encode() not in text


# -- what is for the watchdog


async def test_a_loop_whose_sweep_does_not_end_is_for_the_watchdog_unless_a_disk_is_silent(
    monkeypatch: pytest.MonkeyPatch,
):
    """Sweeps that fail are not: they do for as long as a disk is full."""
    clock, goes_on = SimClock(), asyncio.Event()
    troubles: list[Trouble] = []
    goes_on.set()

    async def sweep() -> int:
        await goes_on.wait()
        raise RuntimeError("the disk is full")

    loop = Loop("cleaner", SimpleNamespace(run_once=sweep), 10.0, asyncio.Event(), clock)
    supervisor, other = Supervisor(), cast(Any, None)
    health = Health(core(clock=clock), supervisor, other, other)
    monkeypatch.setattr(health, "troubles", AsyncMock(side_effect=lambda: troubles))
    supervisor.start([loop], [])
    with capture_logs():  # to show all failures costs more than the rest
        await clock.advance(2 * PATIENCE_S)
    assert await health.alive()
    goes_on.clear()
    await clock.advance(PATIENCE_S)
    assert await health.alive()
    await clock.advance(60)
    with capture_logs() as lines:
        troubles = [Trouble(TroubleKind.DATA_FOLDER_SILENT, "a start does not help it")]
        assert await health.alive()
        troubles = [Trouble(TroubleKind.DISK_FULL, "the disk is full")]
        assert not await health.alive()
        assert not await health.alive()
    assert lines == 3 * [{"event": "loop.stuck", "loops": ["cleaner"], "log_level": "error"}]
    goes_on.set()
    with capture_logs():
        await supervisor.stop([])


async def test_a_heartbeat_that_stops_and_a_task_that_has_ended_are_found() -> None:
    clock = SimClock()
    beats = Heartbeats(clock)
    tick = beats.add("retention", 60)
    beats.check("workers", lambda: clock.monotonic() < 900)
    await clock.advance(60 + PATIENCE_S)
    assert beats.stuck() == []
    await clock.advance(1)
    assert beats.stuck() == ["retention"]
    tick()
    assert beats.stuck() == []
    await clock.advance(900)
    assert beats.stuck() == ["retention", "workers"]


async def test_what_keeps_it_from_new_work_is_logged_when_it_begins_changes_and_is_over() -> None:
    clock, stop = SimClock(), asyncio.Event()
    found: dict[str, str] = {"draining": "as its operator asked"}

    async def look() -> dict[str, str]:
        if "defect" in found:
            raise RuntimeError
        return dict(found)

    with capture_logs() as lines:
        watching = asyncio.create_task(probe.watch(look, stop, clock))
        await clock.advance(60)
        found["disk_full"] = "the disk is full"
        await clock.advance(60)
        found["defect"] = ""
        await clock.advance(probe.LOOK_EVERY_S)
        found.clear()
        await clock.advance(60)
        stop.set()
        await watching
    lost, unknown, regained = lines
    assert (lost["event"], lost["log_level"]) == ("readiness.lost", "error")
    assert (lost["reasons"], lost["why"]) == (["disk_full"], "the disk is full")
    assert unknown["event"] == "readiness.unknown"
    assert (regained["event"], regained["log_level"]) == ("readiness.regained", "info")
