"""How jobs go: expired, cleaned and forgotten; deleted by hand; and with their user."""

import asyncio
import dataclasses
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import pytest_asyncio

from ferryman import Client, NotFound
from server.domain.jobs import ROW_BYTES, Bundle, FileKind, Job
from server.domain.service import Service
from server.domain.tokens import TokenRecord
from server.loops import Loop
from server.stages import forget_user
from server.stages.by_hand import Delete
from server.stages.cancel import Cancel
from server.stages.clean import Clean
from server.stages.get import Get
from server.stages.wakeups import JobWakeups
from server.storage.folder import Storage, stored_path
from server.storage.scratch import Scratch
from server.store import webhooks
from server.store.audit import AuditEntry
from server.store.migrations import MIGRATIONS
from server.store.pages import Filter
from shared.clock import SECOND
from shared.principals import LOCAL, Role
from shared.sqlite.database import Database
from shared.wire import JobState
from tests.kit.clock import SimClock
from tests.kit.command_line import ferryman
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.server_http import RUN, ServerClient
from tests.kit.store import Store, core
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")
DAY = 86_400
SERVICES = {
    "short": Service("short", expires_after_s=10.0, forget_after_s=100.0),
    "kept": Service("kept", expires_after_s=10.0, forget_after_s=0.0),
}


class World:
    """A store, its files, and a Cleaner.

    Attributes:
        changed: jobs whose waiting callers were woken.
    """

    def __init__(self, database: Database, storage: Storage, folder: Path) -> None:
        self.storage, self.folder, self.clock = storage, folder, SimClock()
        self.wakeups = JobWakeups()
        self.changed: list[Job] = []
        self.jobs = Store(database, self.changed)
        self.clean = self.cleaner()

    def cleaner(self) -> Clean:
        own = {"storage": self.storage, "clock": self.clock, "wakeups": self.wakeups}
        how = core(jobs=self.jobs, services=SERVICES, **own)
        return Clean(how, Delete(how, Cancel(how, Get(how, 0.0))))

    async def add(self, service: str = "short", key: str | None = None) -> Job:
        """A queued job with its file."""
        async with self.storage.pending(FileKind.BUNDLE) as pending:
            bundle = Bundle(await pending.put(b"bundle"), 6, "digest")
            fields: dict[str, Any] = {"created_at": self.clock.now(), "idempotency_key": key}
            job = await self.jobs.upload(service=service, bundle=bundle, tags=("t",), **fields)
            if job.bundle is not None and job.bundle.file == bundle.file:
                pending.commit()  # else another job's file with the same content is used
        return job

    async def end(self, job: Job) -> Job:
        """It expires in 10 s."""
        at = self.clock.now()
        changes = {"ended_at": at, "expires_at": at + 10 * SECOND}
        return await self.jobs.to(job, JobState.CANCELLED, at, changes=changes)

    async def sweep(self, after_s: float = 0) -> None:
        """Until nothing more is to be done at once."""
        await self.clock.advance(after_s)
        self.wakeups.cleaner.set()
        while self.wakeups.cleaner.is_set():
            self.wakeups.cleaner.clear()
            await self.clean.run_once()

    def lay(self, name: str) -> Path:
        """A file of two days ago that no row refers to."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no row")
        self.age(path, 2)
        return path

    def lay_out(self, count: int) -> list[Path]:
        names = [f"{number:032x}"[::-1] for number in range(count)]
        return [self.lay(str(stored_path(Path(), FileKind.BUNDLE, name))) for name in names]

    def age(self, path: Path, days: float) -> None:
        at = self.clock.now() / SECOND - days * DAY
        os.utime(path, (at, at))

    def stored(self) -> set[str]:
        tops = [self.folder / kind for kind in FileKind]
        found = [path for top in tops for path in top.rglob("*") if not path.is_dir()]
        return {str(path.relative_to(self.folder)) for path in found}


@pytest_asyncio.fixture(loop_scope="module")
async def world(tmp_path: Path) -> AsyncIterator[World]:
    numbers = iter(range(1, 10_000))

    def new_name() -> str:
        return f"{next(numbers) * 0x1234567:032x}"[::-1]

    storage = Storage(tmp_path, Scratch(tmp_path / "staging", new_name), new_name)
    database = await Database.open(tmp_path / "x.sqlite", MIGRATIONS)
    yield World(database, storage, tmp_path)
    await database.close()


async def test_many_expire_in_few_commits_and_a_stop_does_not_wait_for_all(world, monkeypatch):
    for _ in range(80):
        await world.end(await world.add())
    await world.clock.advance(11)
    stop, wakeup = asyncio.Event(), asyncio.Event()

    def more() -> None:
        stop.set()  # while the first sweep is under way
        wakeup.set()

    monkeypatch.setattr(world.wakeups.cleaner, "set", more)
    await Loop("cleaner", world.clean, 60.0, wakeup, world.clock).run(stop)
    assert len(await world.jobs.expired(world.clock.now(), 1_000)) == 30
    commits = Mock(side_effect=world.jobs.database.write)
    monkeypatch.setattr(world.jobs.database, "write", commits)
    assert await world.clean.run_once() >= 30
    assert commits.call_count <= 3
    await world.sweep()
    assert world.stored() == set()
    assert len((await world.jobs.page(Filter(state=JobState.CLEANED), None, 500))[0]) == 80
    assert [job.state for job in world.changed].count(JobState.CLEANED) == 80


STRANGERS = ("bundles/.DS_Store", "bundles/ab", "bundles/aa/aa-notes.txt")


async def test_what_others_put_into_the_folder_stops_nothing_and_is_left_alone(world, monkeypatch):
    await world.add()
    goes = f"bundles/aa/aa{'0' * 30}"
    for name in (goes, f"bundles/bb/bb{'0' * 30}", *STRANGERS):
        world.lay(name)
    (world.folder / "results" / "zz").symlink_to(world.folder / "nowhere")
    listdir = os.listdir

    def refuses(path: Path) -> list[str]:
        if Path(path).name == "bb":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    before = world.stored()
    monkeypatch.setattr("server.storage.folder.os.listdir", refuses)
    for _ in range(2):
        await world.sweep(after_s=3_600)
    assert before - world.stored() == {goes}


async def test_a_cleaned_job_is_forgotten_when_its_service_says_and_others_never(world):
    for service in ("short", "kept", "unknown"):
        await world.end(await world.add(service, key=service))
    queued = await world.add("short")
    states = dict.fromkeys((1, 2, 3), JobState.CLEANED) | {queued.id: JobState.QUEUED}
    for passes_s, left in (
        (99, {1, 2, 3, 4}),
        (2, {2, 3, 4}),
        (89 * DAY, {2, 3, 4}),
        (2 * DAY, {2, 4}),  # 90 days, of a service that is no more
        (1_000 * DAY, {2, 4}),
    ):
        await world.sweep(after_s=passes_s)
        known = (await world.jobs.page(Filter(), None, 10))[0]
        assert {one.id: one.state for one in known} == {id: states[id] for id in left}, passes_s
    assert len(await world.jobs.rows("SELECT * FROM job_tags")) == 2
    assert (len(world.stored()), (await world.add()).id) == (1, 5)


async def test_an_idempotency_key_is_known_for_a_day_unless_its_job_leaves_nothing(world):
    first = await world.add(key="day")
    await world.sweep(after_s=DAY - 1)
    assert (await world.add(key="day")).id == first.id
    await world.sweep(after_s=2)
    assert (await world.add(key="day")).id != first.id
    cleaned = await world.end(await world.add(key="cleaned"))
    await world.sweep(after_s=11)
    assert (await world.add(key="cleaned")).id > cleaned.id


async def test_a_file_without_a_row_goes_a_day_old_in_the_second_sweep(world):
    """Hours are counted steadily; a file's own time may jump."""
    await world.add()
    old, young, future, used = world.lay_out(4)
    world.age(young, 1 - 3_610 / DAY)
    world.age(future, -30)
    for hour in range(4):
        await world.clean.run_once()
        await world.clean.run_once()  # nothing is looked at again within the hour
        assert (old.exists(), young.exists()) == (hour < 1, hour < 3), hour
        assert world.clean.orphans_left == 0, "one goes however few there are"
        if hour == 0:  # between two sweeps, its row comes
            await world.jobs.upload(bundle=Bundle(used.name, 6, "d"))
        await world.clock.advance(3_600)
    assert (future.exists(), used.exists(), len(world.stored())) == (True, True, 3)
    world.age(future, 2)
    for _ in range(3):  # a restart begins to count sweeps again
        await world.cleaner().run_once()
        await world.clock.advance(3_600)
    assert future.exists()


async def test_a_sweep_removes_5_percent_of_the_files_and_100_at_most(world):
    world.lay_out(60)
    await world.sweep()
    left = []
    for _ in range(3):
        await world.sweep(after_s=3_600)
        left.append((world.clean.orphans_left, len(world.stored())))
    assert left == [(57, 57), (55, 55), (53, 53)]
    world.lay_out(2_300)
    await world.sweep(after_s=3_600)
    before = len(world.stored())
    await world.sweep(after_s=3_600)
    assert before - len(world.stored()) == 100
    assert world.clean.orphans_left == len(world.stored())


async def test_a_delete_cancels_and_keeps_what_has_not_ended_and_deletes_what_has(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.stages.cancel.PATIENCE_S", 0.05)
    place.does(None)
    url, before = ("--url", place.url), place.stored()
    large = {"run.sh": RUN, "data": os.urandom(ROW_BYTES)}
    needed, waiting = await place.upload(large), await place.upload(not_before="in 1h")
    assert place.stored() - before, "its bundle is a file"
    child = await place.upload(after=str(needed))
    process = await place.process(needed)
    monkeypatch.setattr(place.warm.sandbox, "obeys_sigterm", False)

    async def delete(job_id: int) -> tuple[int, Any]:
        return await place.ask("DELETE", f"/api/v1/jobs/{job_id}")

    for _ in range(2):  # it is not deleted when it dies; until then a second request cancels it too
        status, job = await delete(needed)
        assert (status, job["ended"]) == (202, False)
        assert "will be terminated" in job["message"]
    process.finish()
    assert (await place.job(needed))["status"] == "Cancelled"
    assert (await place.job(child))["reason"] == "dependency_failed"
    assert await delete(needed) == (204, "")
    assert place.stored() == before

    monkeypatch.setattr("server.stages.cancel.PATIENCE_S", 25.0)
    async with Client(place.url) as client:
        kept = await client.delete(waiting)
        assert kept is not None
        assert (kept.status, kept.message) == ("Cancelled", "cancelled before it was started")
        assert (await client.status(waiting)).ended
        assert await client.delete(waiting) is None
        with pytest.raises(NotFound):
            await client.status(waiting)
    other = await place.upload(not_before="in 1h")
    for said in ("had not ended: it is ", "is deleted"):
        code, _, err = await ferryman("delete", str(other), *url)
        assert (code, err.startswith(f"job {other} {said}")) == (0, True), err
        if said != "is deleted":
            await place.job(other)
    await place.upload(not_before="in 1h")
    _, _, err = await ferryman("delete", "--all", "--yes", "--user", place.user, *url)
    assert re.search("had not ended: it is .*, and kept", err)


# -- with their user

USER, OTHER = "wilhelmina", "otto"
SECRET = "the-planted-words"
FORGET = ("admin", "forget-user", USER)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def north(module_folder: Path) -> AsyncIterator[tuple[ServerClient, FakeAgent]]:
    agent = FakeAgent("north", "abc")
    slow: dict[str, Any] = {"agent_timeout": 3_600.0, "agent_lost_after": 86_400.0}
    async with serving(module_folder, agent, **slow) as caller:
        yield caller, agent


async def post(
    caller: ServerClient, script: str, user: str = USER, path: str = "/upload", **fields: str
) -> int:
    key = {"Idempotency-Key": script.replace(" ", "_")} if path == "/upload" else {}
    fields |= {"user_id": user, "service": "my_service"}
    status, made = await caller.posted({"run.sh": script.encode()}, key, path, **fields)
    assert status == 201, made
    return int(made["id"])


def places(folder: Path) -> list[str]:
    """Files below the folder with words of the user in their name or content."""
    found = []
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if any(word in path.name or word.encode() in content for word in (USER, SECRET)):
            found.append(str(path.relative_to(folder)))
    return found


async def fill(caller: ServerClient, agent: FakeAgent) -> int:
    """What a user leaves behind; the number of a job of somebody else with the same bundle."""
    shared = await post(caller, "echo shared", OTHER)
    await caller.job(shared)
    await caller.job(await post(caller, "echo shared", tags=json.dumps([SECRET])))
    address = f"https://example.org/{SECRET}"
    await caller.job(await post(caller, SECRET, name=SECRET, callback_url=address))
    schedule = {"name": SECRET, "cron": "0 3 * * *"}
    await post(caller, f"echo {SECRET}", path="/api/v1/schedules", **schedule)
    await post(caller, "echo", OTHER, path="/api/v1/schedules", name="theirs", cron="0 3 * * *")
    context = caller.server.context
    by = "UPDATE schedules SET submitted_by = :by WHERE user_id = :of"
    await context.core.database.write(lambda tx: tx.rows(by, {"by": USER, "of": OTHER}))
    await context.stages.schedules.load()
    laptop = TokenRecord("", "", f"{USER}-laptop", Role.USER, USER, (), None, 0, "op")
    await context.access.tokens.create(laptop)
    entry = AuditEntry(1, USER, Role.USER, None, None, "GET /x", "", 200, None, "1.2.3.4", "r", 0)
    context.access.audit.add(entry)
    context.access.audit.add(dataclasses.replace(entry, principal="portal", acts_as=USER))
    agent.ends = "Running"
    await caller.job(await post(caller, f"sleep 9; {SECRET}"), until="Running")
    return shared


async def test_nothing_of_the_user_is_found_afterwards(module_folder, north, monkeypatch):
    caller, agent = north
    monkeypatch.setattr(forget_user, "_AT_ONCE", 1)  # however many are read at once
    shared = await fill(caller, agent)
    await caller.server.context.core.database.write(webhooks.replace, USER, 1)
    data, url = module_folder / "data", caller.url
    assert places(data)
    code, _, said = await ferryman(*FORGET, FERRYMAN_URL=url)
    assert code == 2, "without a terminal nobody can say yes"
    assert "give --yes where there is no terminal" in said
    code, _, said = await ferryman(*FORGET, "--dry-run", FERRYMAN_URL=url)
    assert code == 0
    there = said.partition(";")[0].removeprefix(f"{USER}: ")
    assert there.startswith("3 jobs, 1 schedule, ")
    assert " 2 audit entries would be given another name" in said
    async with Client(url) as client:
        before = (await client.forget_user(USER, dry_run=True)).found
    kinds = ("jobs", "schedules", "tokens", "keys")
    assert [before[kind] for kind in kinds] == [3, 1, 1, 3]
    code, _, said = await ferryman(*FORGET, "--yes", FERRYMAN_URL=url)
    assert (code, said.partition(";")[0]) == (0, f"{USER}: removed {there}"), "the same kinds"
    assert agent.killed, "what ran is dead"

    assert places(data) == []
    ((theirs,), _) = caller.server.context.stages.schedules.page(LOCAL, None, 9, 9)
    assert str(theirs.submitted_by).startswith("forgotten-"), "nor in what its next jobs say"
    async with Client(url) as client:
        again = await client.forget_user(USER)
        assert (again.done, again.removed, again.waiting) == (True, {}, [])
        assert not any((await client.forget_user(USER, dry_run=True)).found.values())
        assert [job.id async for job in client.jobs()] == [shared]
        # The report names a token of somebody else that names the user.
        gate = TokenRecord("", "", "gate", Role.PORTAL, None, ("yan", "zed"), None, 0, "op")
        made, _ = await caller.server.context.access.tokens.create(gate)
        names = f"token gate ({made.id}) of another principal names the user"
        for user, tokens in (("y_n", []), ("yan", [names])):
            kept = (await client.forget_user(user)).kept
            assert [one for one in kept if one[:6] == "token "] == tokens
    for kind in ("result", "bundle"):
        assert (await caller.get(f"/api/v1/jobs/{shared}/{kind}"))[2].startswith(b"PK"), kind
    for how in ("--dry-run", "--yes"):
        code, out, said = await ferryman("admin", "forget-user", "zeo", how, FERRYMAN_URL=url)
        assert (code, out) == (1, ""), "a mistyped name does not look done"
        assert said.startswith("ferryman: nothing is known of user zeo\nis the name right?")
    for body in ({}, {"user": ""}, {"user": "a/b"}, {"user": "x", "all": True}):
        assert (await caller.ask("POST", "/api/v1/forget-user", json=body))[0] == 400, body


async def test_a_job_whose_agent_is_away_is_named_and_goes_later(north, monkeypatch):
    caller, agent = north
    monkeypatch.setattr(forget_user, "PATIENCE_S", 0)
    agent.ends = "Running"
    job_id = await post(caller, "sleep 9")
    await caller.job(job_id, until="Running")
    agent.away()
    await agent.asked_twice()
    code, out, _ = await ferryman(*FORGET, "--yes", "--json", FERRYMAN_URL=caller.url)
    report = json.loads(out)
    assert (code, report["done"], report["removed"]["keys"]) == (75, False, 1)
    (waiting,) = report["waiting"]
    assert (waiting["id"], "agent north" in waiting["why"]) == (job_id, True)
    code, _, said = await ferryman(*FORGET, "--yes", FERRYMAN_URL=caller.url)
    assert code == 75
    assert f"job {job_id} is not gone yet: agent north has it" in said
    agent.trick = None
    monkeypatch.setattr(forget_user, "PATIENCE_S", 30)
    async with Client(caller.url) as client:
        assert (await client.forget_user(USER)).done
    assert f"{job_id}.1" in agent.killed
