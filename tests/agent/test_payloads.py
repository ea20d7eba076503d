"""What an agent says of its payloads, hands out, settles, forgets, and how it says how it is."""

import asyncio
import base64
import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from client_agent.api import bulk, routes
from client_agent.intake.submit import STALLED_S
from client_agent.payloads.payload import NewPayload, Outcome
from client_agent.payloads.store import Payloads, open_database
from client_agent.report.health import CpuLoad, Health
from client_agent.run.retention import INTERVAL_S
from client_agent.storage import folders
from client_agent.storage.folders import Folders
from shared.clock import SECOND, from_iso
from shared.sqlite.database import Database
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import PayloadState
from tests.agent.test_intake import half_sent
from tests.kit.agent_http import LIMITS, SERVER, AgentClient, calling, digest
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.waiting import eventually, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_result_comes_with_its_length_and_digest_and_in_ranges(agent) -> None:
    payload_id = await agent.completed()
    async with agent.http.get(f"/retrieve/{payload_id}") as response:
        data, headers = await response.read(), response.headers
    said = digest(data)
    encoded = base64.b64encode(bytes.fromhex(said["sha256"])).decode()
    assert headers["Repr-Digest"] == f"sha-256=:{encoded}:"
    assert int(headers["Content-Length"]) == len(data)
    more = {"stdout_bytes": 0, "stderr_bytes": 0, "children": 0, "inputs": 1}
    assert (await agent.settle())[1]["payload"]["result"] == said | more
    part = {"Range": "bytes=10-"}
    async with agent.http.get(f"/retrieve/{payload_id}", headers=part) as response:
        assert (response.status, await response.read()) == (206, data[10:])


async def test_retrieve_gives_the_payload_before_its_end_and_the_zip_after_it(agent) -> None:
    for method, path in (("GET", "retrieve"), ("GET", "retrieve_partial"), ("POST", "kill")):
        status, body = await agent.call(method, f"/{path}/999999")
        unknown = {"id": 0, "status": "Unknown", "code": "payload_not_found"}
        assert (status, body) == (404, body | unknown), "with an empty payload"
        assert {"loc", "pid", "killed", "input"} <= set(body)
    payload_id, process = await agent.started()
    running = await agent.doc(payload_id)
    assert (running["status"], running["pid"], running["killed"]) == ("Running", process.pid, False)
    waiting = asyncio.ensure_future(agent.zip(f"/retrieve/{payload_id}?wait=30"))
    await agent.clock.until_asleep(30)
    process.write("out.txt", b"42")
    process.finish()
    assert (await waiting)["out.txt"] == b"42"
    payload_id, process = await agent.started("2.1")
    await agent.started("3.1")
    _, fourth = await agent.submit("4.1")  # it waits, and has no files yet
    assert set(await agent.zip(f"/retrieve_partial/{fourth['id']}")) == {"ferryman.json"}
    waiting = asyncio.ensure_future(agent.call("GET", f"/retrieve/{payload_id}?wait=30"))
    await agent.clock.until_asleep(30)
    await agent.clock.advance(30)
    assert (await waiting)[1]["status"] == "Running"
    process.finish(1)
    await agent.ended(payload_id)
    assert (await agent.doc(payload_id))["status"] == "Failed"


@each("jump_s", [-1000 * 86_400.0, 1000 * 86_400.0])
async def test_results_promises_and_the_order_of_times_are_kept_whoever_sets_the_machines_clock(
    tmp_path, jump_s
) -> None:
    clock = SimClock()
    async with calling(tmp_path / str(jump_s), clock, retention=4 * INTERVAL_S) as agent:
        assert await agent.call("POST", f"/keys/{SERVER}/9.1/settle") == (200, {"payload": None})
        done = await agent.completed()
        payload_id, process = await agent.started("2.1")
        clock.jump(jump_s)
        await clock.advance(59.0)
        process.finish()
        ended = await agent.ended(payload_id)
        took_s = (from_iso(ended["ended_at"]) - from_iso(ended["started_at"])) / SECOND
        assert 58.0 < took_s < 60.0
        await clock.advance(INTERVAL_S - clock.monotonic())
        await clock.until_asleep(INTERVAL_S)  # so it has looked for what expired
        await clock.advance(INTERVAL_S)
        await clock.until_asleep(INTERVAL_S)
        assert "ferryman.json" in await agent.zip(f"/retrieve/{done}")
        status, reply = await agent.submit("9.1")
        assert (status, reply["code"]) == (409, "key_refused")


async def test_every_status_is_one_that_a_job_orchestrator_server_can_read() -> None:
    states = {"Prepared", "Running", "Completed", "Failed", "Invalid", "Killed", "Cleaned"}
    assert {state.value for state in PayloadState} <= states


@contextlib.asynccontextmanager
async def stalled(agent: AgentClient) -> AsyncIterator[Any]:
    """A submit whose body stops in the middle of its bundle."""
    async with half_sent(agent, agent.sent("1.1", {"run.sh": os.urandom(1 << 20)}), 1 << 19) as it:
        await until(lambda: bool(agent.names("staging")))
        yield it


async def test_settling_and_submitting_at_once_agree_on_one_answer(agent) -> None:
    for job in range(1, 12):
        key = f"{job}.1"
        (_, settled), answer = await asyncio.gather(agent.settle(key), agent.post(agent.sent(key)))
        (taken,) = answer["answers"]
        if settled["payload"] is None:
            assert taken["code"] == "key_refused"
        else:
            assert settled["payload"]["id"] == taken["payload"]["id"]


@each("query", [{}, {"kill": "1"}])
async def test_settling_refuses_a_submit_that_has_stalled(agent, query) -> None:
    await agent.fresh_server()

    async def settled() -> Any:
        settling = asyncio.ensure_future(agent.settle("1.1", **query))
        if not query:  # a cancel does not wait
            await agent.clock.until_asleep(STALLED_S)
            await agent.clock.advance(STALLED_S)
        return (await settling)[1]

    async with stalled(agent) as (posting, go_on):
        # Bytes that were on their way when the time passed make it go on for so long again.
        answer = await eventually(settled, lambda one: bool(query) or "code" not in one)
        assert answer == {"payload": None}
        go_on.set()
        status, answer = await posting
    assert (status, answer["answers"][0]["code"]) == (200, "key_refused")
    await until(lambda: agent.names("bundles", "staging") == [])
    assert agent.sandbox.starts == {}


async def test_settling_waits_for_a_submit_that_ends_meanwhile(agent) -> None:
    async with stalled(agent) as (posting, go_on):
        settling = asyncio.ensure_future(agent.settle())
        await agent.clock.until_asleep(STALLED_S)
        go_on.set()
        taken = (await posting)[1]["answers"][0]["payload"]
    assert taken["status"] == "Prepared"
    assert (await settling)[1]["payload"]["id"] == taken["id"]


async def test_settling_does_not_refuse_a_submit_that_goes_on(agent) -> None:
    async with stalled(agent):
        settling = asyncio.ensure_future(agent.settle())
        await agent.clock.until_asleep(STALLED_S)
        await agent.clock.advance(STALLED_S / 2)
        async with stalled(agent):  # the same one once more
            await until(lambda: len(agent.names("staging")) == 2)
            await agent.clock.advance(STALLED_S / 2)
            assert (await settling)[1]["code"] == "submit_in_progress"


async def is_answered(agent: Any, waiting: asyncio.Future[Any]) -> bool:
    """Who waits may begin to sleep after others did."""
    await agent.clock.advance(STALLED_S)
    return waiting.done()


async def test_settling_does_not_refuse_a_submit_that_is_being_stored(agent, monkeypatch) -> None:
    """On a slow disk that may take longer than its server waits for the answer."""
    storing, go_on = threading.Event(), threading.Event()
    real = Folders.seal_bundles

    def slow(self: Folders, staged: Any) -> list[str]:
        storing.set()
        go_on.wait(30)
        return real(self, staged)

    monkeypatch.setattr(Folders, "seal_bundles", slow)
    monkeypatch.setattr(bulk, "MAX_SMALL", 0)
    posting = asyncio.ensure_future(agent.submit())
    try:
        await until(storing.is_set)
        for _ in range(2):
            path = f"/keys/{agent.server}/1.1/settle"
            settling = asyncio.ensure_future(agent.http.post(path))
            await eventually(partial(is_answered, agent, settling), bool)
            async with settling.result() as response:
                code = (await response.json())["code"]
                assert (response.status, code) == (409, "submit_in_progress")
                assert int(response.headers["Retry-After"]) > 0
    finally:
        go_on.set()
    status, taken = await posting
    assert (status, taken["status"]) == (200, "Prepared")
    assert (await agent.settle())[1]["payload"]["id"] == taken["id"]


async def test_a_database_that_is_too_full_for_a_result_says_so(tmp_path) -> None:
    """Small changes succeed all the same, so that more would be taken that cannot end."""
    database = await open_database(tmp_path / "agent.sqlite")
    payloads = await Payloads.open(database, SimClock())
    new = NewPayload(None, None, "example", "1", 60.0, LIMITS, "file", 1, "digest")
    added, _ = await payloads.add(new)
    await payloads.start(added.id, 7, "", {})
    await database.write(lambda tx: tx.rows("PRAGMA max_page_count = 1"))
    how = added.id, PayloadState.RUNNING, Outcome(PayloadState.COMPLETED), bytes(folders.ROW_BYTES)
    with pytest.raises(DatabaseUnavailable):
        await payloads.end(*how)
    for _ in range(2):
        assert await payloads.problem() == "no space left for the database"
    await database.write(lambda tx: tx.rows("PRAGMA max_page_count = 1000000"))
    assert await payloads.problem() is None
    assert await payloads.end(*how) is not None
    assert await payloads.results([added.id]) == {added.id: bytes(folders.ROW_BYTES)}
    await database.close()


# -- what is too old


async def time_passes(agent: AgentClient, done: Callable[[], Awaitable[bool]]) -> None:
    """Until the agent, which cleans up once a minute, has done that."""
    for _ in range(200):
        if await done():
            return
        await agent.clock.advance(20)
    raise AssertionError("it did not happen in an hour")


@each("row_bytes", [0, folders.ROW_BYTES])
async def test_results_go_in_time_rows_later_and_no_number_comes_again(
    tmp_path, monkeypatch, row_bytes
) -> None:
    monkeypatch.setattr(folders, "ROW_BYTES", row_bytes)
    expire, failed = Payloads.expire, list[float]()

    async def failing_once(self: Payloads, retention_s: float) -> list[int]:
        if not failed:
            failed.append(retention_s)
            raise OSError("bad")
        return list(await expire(self, retention_s))

    async def gone(*ids: int) -> bool:
        found = [(await agent.call("HEAD", f"/retrieve/{one}"))[0] for one in ids]
        return set(found) == {404}

    async def kept(*ids: int) -> bool:
        await agent.call("GET", "/")
        return agent.names("results") == [f"{one}.zip" for one in ids]

    async with calling(tmp_path / str(row_bytes), retention="10m") as agent:
        assert (await agent.settle("9.1"))[1] == {"payload": None}
        old, (live, _) = await agent.completed("1.1"), await agent.started("2.1", timeout_s=1e6)
        await agent.clock.advance(360)
        young = await agent.completed("3.1")
        assert await kept(old, young)
        monkeypatch.setattr(Payloads, "expire", failing_once)
        await time_passes(agent, lambda: kept(young))
        assert failed
        assert [(await agent.doc(one))["status"] for one in (old, live)] == ["Cleaned", "Running"]
        assert (await agent.submit("1.1"))[1]["status"] == "Cleaned", "its key is remembered"
        await time_passes(agent, lambda: gone(old, young))
        assert (await agent.submit("9.1"))[1]["code"] == "key_refused", "for a day at least"
        await agent.call("POST", f"/kill/{live}")
        last = (await agent.call("GET", "/payloads"))[1]["seq"]
        await agent.forget(live)
        await time_passes(agent, lambda: gone(live))
    async with calling(tmp_path / str(row_bytes)) as agent:
        fresh = await agent.completed("5.1")
        assert fresh > young
        assert (await agent.call("GET", "/payloads"))[1]["seq"] > last


async def test_the_space_of_deleted_results_is_given_back_in_one_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr("shared.sqlite.database._PAGES_FREED_AT_ONCE", 20)
    monkeypatch.setattr("shared.sqlite.database._FREE_PAGES_KEPT", 30)

    def pages() -> int:
        assert agent.database is not None
        return int(agent.database.execute("PRAGMA page_count").fetchone()[0])

    async with calling(tmp_path) as agent:
        assert agent.database is not None
        agent.database.execute("INSERT INTO results VALUES (99, zeroblob(2000000))")
        agent.database.execute("DELETE FROM results")
        agent.database.commit()
        assert pages() > 400
        await agent.clock.advance(INTERVAL_S)
        await until(lambda: pages() < 100)


async def test_a_disk_that_does_not_answer_holds_up_only_who_removes(agent, monkeypatch) -> None:
    removing, go_on = threading.Event(), threading.Event()
    real = Folders.remove_file

    def slow(self: Folders, path: Path) -> None:
        if path.suffix == ".zip":
            removing.set()
            go_on.wait(30)
        real(self, path)

    monkeypatch.setattr(folders, "ROW_BYTES", 0)
    payload_id = await agent.completed()
    await agent.until_holds("bundles", "logs")
    monkeypatch.setattr(Folders, "remove_file", slow)
    forgetting = asyncio.ensure_future(agent.forget(payload_id))
    await until(removing.is_set)
    assert (await agent.call("GET", "/health"))[0] == 200
    assert not forgetting.done()
    go_on.set()
    await forgetting
    assert agent.names("results") == []


async def listed(agent: AgentClient) -> list[list[int]]:
    pages: list[list[int]] = []
    after: int | None = 0
    while after is not None:
        _, body = await agent.call("GET", f"/payloads?server={agent.server}&after={after}")
        pages.append([one["id"] for one in body["payloads"]])
        after = body["next"]
    return pages


async def test_the_list_comes_in_pages_and_has_what_changes_meanwhile(agent, monkeypatch) -> None:
    ids = [await agent.completed(f"{number}.1") for number in range(1, 6)]
    assert await listed(agent) == [ids]
    with monkeypatch.context() as patch:
        patch.setattr(routes, "_PAGE_BYTES", 10)
        assert await listed(agent) == [[one] for one in ids]
    real, changed = Payloads.changed_after, list[int]()

    async def two_at_a_time(self: Payloads, after: int, server: str | None) -> Any:
        rows = await real(self, after, server, 2)
        if not changed:
            await agent.forget(ids[4])
            changed.append((await agent.submit("9.1"))[1]["id"])
        return rows

    monkeypatch.setattr(routes, "BATCH", 2)
    monkeypatch.setattr(Payloads, "changed_after", two_at_a_time)
    assert await listed(agent) == [ids[:2], ids[2:4], changed]


async def test_what_a_list_says_is_what_is_said_of_the_payload_then(tmp_path, monkeypatch) -> None:
    database = await open_database(tmp_path / "agent.sqlite")
    new = NewPayload(None, None, "example", "1", 60.0, LIMITS, "file", 1, "digest")
    added, _ = await (await Payloads.open(database, SimClock())).add(new)
    payloads = await Payloads.open(database, SimClock())  # lists what was before from the file
    await payloads.start(added.id, 7, "", {})
    run, rows, known = database._writer._execute, Database.rows, asyncio.Event()

    async def committed_and_not_known_yet(*work: Any) -> Any:
        value = await run(*work)
        await known.wait()
        return value

    async def known_after_it_was_read(self: Database, *how: Any) -> Any:
        found = await rows(self, *how)
        asyncio.get_running_loop().call_soon(known.set)
        return found

    monkeypatch.setattr(database._writer, "_execute", committed_and_not_known_yet)
    done = Outcome(PayloadState.COMPLETED)
    end = asyncio.create_task(payloads.end(added.id, PayloadState.RUNNING, done))
    with closing(sqlite3.connect(tmp_path / "agent.sqlite")) as file:
        await until(lambda: file.execute("SELECT state FROM payloads").fetchone() == ("Completed",))
    monkeypatch.setattr(Database, "rows", known_after_it_was_read)
    (listed_state,) = [one.state for one in await payloads.changed_after(0, None)]
    assert listed_state == (await payloads.get(added.id)).state == "Completed"
    await end
    await database.close()


EVERYTHING = {
    "heartbeat_timeout_s": 5.0,
    "folder": "part/",
    "entry": "go.sh",
    "array": {"index": 0, "line": "one"},
    "env": {"TOKEN": "secret"},
    "on_shutdown": "continue",
    "outputs": ["*.txt"],
    "result_files": "changed",
    "try_number": 3,
}


@each("kept", [1, 10_000])
async def test_what_it_says_is_the_same_after_a_restart(tmp_path, monkeypatch, kept) -> None:
    """Whatever it holds in memory says what is stored, as long as it is held there."""
    monkeypatch.setattr("client_agent.payloads.reads.KEPT", kept)

    async def said(agent: AgentClient) -> tuple[Any, ...]:
        _, all_of_them = await agent.call("GET", "/payloads")
        keys = [(await agent.settle(key))[1] for key in ("1.1", "2.1", "3.1", "7.1")]
        return all_of_them["seq"], all_of_them["payloads"], keys

    async with calling(tmp_path / str(kept)) as agent:
        files = {"part/go.sh": b"x", "run.sh": b""}
        _, payload = await agent.submit("1.1", files, **EVERYTHING)
        process = await agent.sandbox.process("1.3")
        process.log(b"::progress value=1,total=2::half\n::output name=a::b\n", b"oh\n")
        process.log(b"::retry-later after=3s::busy\n::warning::hot\n")
        process.finish(3, warnings=("one", "two"))
        await agent.ended(payload["id"])
        done, gone = [await agent.completed(key) for key in ("2.1", "3.1")]
        assert done < gone
        await agent.forget(gone)
        await agent.settle("7.1")
        before = await said(agent)
    with closing(sqlite3.connect(tmp_path / str(kept) / "agent" / "agent.sqlite")) as database:
        for (given,) in database.execute("SELECT given FROM payloads"):
            assert "env" not in json.loads(given), "variables of what has ended are forgotten"
    async with calling(tmp_path / str(kept)) as agent:
        assert await said(agent) == before
        (document,) = [one for one in before[1] if one["key"] == "1.1"]
        assert "secret" not in str(document)
        assert (document["exit_code"], document["warnings"]) == (3, ["one", "two"])
        assert document["retry_later"] == {"after_s": 3.0, "message": "busy"}
        assert document["live"]["output"] == {"a": "b"}


# -- the agent itself


async def test_attempts_are_counted_by_how_they_ended(tmp_path) -> None:
    async with calling(tmp_path, services=["example"]) as agent:
        await agent.completed()
        (agent.data / "quarantine" / "undying").mkdir(parents=True)
        async with agent.http.get("/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
        _, health = await agent.call("GET", "/health")
        assert await agent.call("GET", "/") == (200, {"message": "pong"})
        status, load = await agent.call("GET", "/load")
        assert (status, type(load), 0.0 <= load <= 100.0) == (200, float, True)
    assert (health["services"], health["sandbox"]["backend"]) == (["example"], "fake")
    found = {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in families
        for one in family.samples
    }
    wanted: list[tuple[str, ...]] = [
        ("ferryman_attempts_ended_total", "", "Completed"),
        ("ferryman_payloads", "Completed"),
        ("ferryman_transfers_total", "upload", "ok"),
    ]
    phases = ("sandbox", "unpack", "start", "slot", "run", "pack")
    wanted += [("ferryman_attempt_phase_seconds_count", phase) for phase in phases]
    assert {name: found.get(name) for name in wanted} == dict.fromkeys(wanted, 1)
    assert (found["ferryman_slots",], found["ferryman_unready", "sandbox"]) == (2, 0)
    assert found["ferryman_database_commit_seconds_count",] > 0
    assert found["ferryman_quarantined_attempts",] == 1


async def test_its_sentence_says_what_is_wrong() -> None:
    health: Any = SimpleNamespace(
        unready=AsyncMock(return_value={"sandbox": "no bwrap", "draining": "it drains"}),
        _admission=SimpleNamespace(identity=SimpleNamespace(slots=4)),
        _runner=SimpleNamespace(running=3, waiting=2),
    )
    said = "3 of 4 slots in use, 2 wait; no bwrap; it drains"
    assert await Health.sentence(health) == said


async def test_a_folder_that_its_jobs_need_is_looked_for_each_time(tmp_path) -> None:
    tree = tmp_path / "tree"
    far = {"services": {"far": {"read_only": [f"{tree}:/tree"]}}}
    async with calling(tmp_path, sandboxing=far) as agent:
        for there in (False, True, False):
            tree.mkdir() if there else tree.exists() and tree.rmdir()
            await agent.clock.advance(1.0)  # what was there is not looked for again at once
            status, answer = await agent.submit(f"{1 + there}.1", service="far")
            assert status == (200 if there else 503), answer
            assert (await agent.submit("3.1"))[0] == 200, "others need it not"


@each(
    "ticks, percent",
    [
        ([{"user": 100, "idle": 100}, {"user": 130, "idle": 200}], 23.08),
        ([{"idle": 200}, {"user": 100, "idle": 200}], 100.0),
        ([{}, {"user": 50, "guest": 50, "iowait": 50}], 50.0),  # a disk is no load, guests once
        ([{"user": 1}, {"user": 1}], 0.0),  # no time has passed
        ([None, None], 0.0),  # no such file
    ],
)
async def test_load_is_the_busy_share_since_the_last_call(tmp_path, ticks, percent) -> None:
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")
    path, found = tmp_path / "stat", []
    load = CpuLoad(path if ticks[0] is not None else tmp_path / "missing")
    for one in ticks:
        words = " ".join(str((one or {}).get(name, 0)) for name in names)
        path.write_text(f"cpu  {words} 0\ncpu0 1 2 3\n")
        found.append(load.percent())
    assert found == [0.0, pytest.approx(percent)]
