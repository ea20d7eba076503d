"""What payloads share: sandbox starts of one array, and bundles that are kept."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from client_agent import app
from client_agent.run.sandboxes import PASS_S
from client_agent.storage import shared_bundles
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import KEEP_S, MAX_UNUSED, SharedBundles
from tests.kit.agent_http import AgentClient, calling, numbered
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess


@pytest.fixture
async def agent(tmp_path, monkeypatch) -> AsyncIterator[AgentClient]:
    """With one worker."""
    monkeypatch.setattr(app, "worker_count", lambda _: 1)
    async with calling(tmp_path, slots=1) as caller:
        caller.sandbox.has_packs = True
        yield caller
    assert caller.sandbox.violations == []
    assert all(pack.closed for pack in caller.sandbox.packs)


async def submit(agent: AgentClient, job: int, files=None, **more: Any) -> int:
    """A task of the array, or what ``more`` makes of it."""
    task = {"array": {"index": job}, "pack": {"batch": 7, "most": 10}, "timeout_s": 6e4} | more
    status, payload = await agent.submit(f"{job}.1", files or {"run.sh": b"x"}, **task)
    assert status == 200, payload
    return int(payload["id"])


async def counts(agent: AgentClient, *ids: int) -> list[int]:
    """Once each has ended, attempts in each sandbox start."""
    for one in ids:
        assert (await agent.ended(one))["status"] == "Completed"
    return [pack.count for pack in agent.sandbox.packs]


async def test_tasks_of_one_array_share_a_start_up_to_the_most(agent) -> None:
    first = await submit(agent, 1)
    process = await agent.sandbox.process("1.1")
    rest = [await submit(agent, job) for job in range(2, 24)]
    agent.sandbox.script = FakeProcess.finish
    process.finish()
    assert await counts(agent, first, *rest) == [10, 10, 3]


@each(
    "other",
    [
        *({"user_id": "eve"}, {"server": "another"}, {"service": "docking"}, {"env": {"A": "1"}}),
        *({"pack": {"batch": 8, "most": 10}}, {"timeout_s": 61.0}, {"entry": "other.sh"}),
        *({"files": {"run.sh": b"another"}}, {"pack": None}, {"array": None}),
    ],
)
async def test_what_differs_is_not_packed_together(agent, other) -> None:
    agent.sandbox.packs.clear()
    job = 1 + 2 * len(agent.sandbox.starts)
    first = await submit(agent, job)
    process = await agent.sandbox.process(f"{job}.1")
    second = await submit(agent, job + 1, **other)
    process.finish()
    await agent.ended(first)
    (await agent.sandbox.process(f"{job + 1}.1")).finish()
    alone = None in other.values()
    assert await counts(agent, first, second) == ([1] if alone else [1, 1])


@each("call", ["ptrace", "process_vm"])
async def test_jobs_that_may_control_processes_are_not_packed(tmp_path, monkeypatch, call) -> None:
    monkeypatch.setattr(app, "worker_count", lambda _: 1)
    async with calling(tmp_path / call, slots=1, sandboxing={"allow": [call]}) as agent:
        agent.sandbox.has_packs, agent.sandbox.script = True, FakeProcess.finish
        assert await counts(agent, *[await submit(agent, job) for job in (1, 2)]) == []


async def test_short_tasks_go_on_past_another_payload_and_long_ones_do_not(agent) -> None:
    ids = [await submit(agent, 1), await submit(agent, 2, user_id="eve"), await submit(agent, 3)]
    (await agent.sandbox.process("1.1")).finish()
    long = await agent.sandbox.process("3.1")  # job 2 is passed over
    ids.append(await submit(agent, 4))
    await agent.clock.advance(PASS_S)
    long.finish()
    for key in ("2.1", "4.1"):
        (await agent.sandbox.process(key)).finish()
    assert await counts(agent, *ids) == [2, 1, 1]


async def test_a_sandbox_that_cannot_be_used_again_is_followed_by_another(agent) -> None:
    ids = [await submit(agent, job) for job in (1, 2, 3)]
    first = await agent.sandbox.process("1.1")
    agent.sandbox.packs[0].usable = False
    agent.sandbox.script = FakeProcess.finish
    first.finish()
    assert await counts(agent, *ids) == [1, 2]
    assert agent.sandbox.packs[0].closed


async def test_a_bundle_is_sent_once_for_many_orders(tmp_path) -> None:
    async with calling(tmp_path) as agent:

        async def ordered(*keys: str) -> list[dict[str, Any]]:
            sent = [(agent.sent(key, keep_bundle=True)[0], b"") for key in keys]
            return list((await agent.post(*sent))["answers"])

        agent.sandbox.script = FakeProcess.finish
        await agent.submit("1.1", keep_bundle=True)
        for one in await ordered("2.1", "3.1", "4.1"):
            assert (await agent.ended(one["payload"]["id"]))["status"] == "Completed"
        assert len(agent.names("bundles")) == 1, "more may come"
        again, more = await ordered("2.1", "5.1")
        assert again["payload"]["status"] == "Completed"
        await agent.ended(more["payload"]["id"])
        assert agent.sandbox.starts == {f"{n}.1": 1 for n in range(1, 6)}
        await agent.clock.advance(KEEP_S + 60)
        await agent.until_holds("bundles")
        (missing,) = await ordered("6.1")
        assert (missing["status"], missing["code"]) == (409, "bundle_missing")


@each("left", [None, b""])
async def test_a_shared_bundle_that_is_damaged_is_sent_again(tmp_path, left) -> None:
    """Else each attempt that names it by its digest would be interrupted, also those that follow
    for it."""

    def damage(step: str) -> None:
        if step == "prepare":
            for path in (tmp_path / str(left) / "agent/bundles").iterdir():
                path.unlink() if left is None else path.write_bytes(left)

    async with calling(tmp_path / str(left)) as agent:
        agent.sandbox.hook = damage
        _, first = await agent.submit("1.1", keep_bundle=True)
        assert (await agent.ended(first["id"]))["interrupted"]
        agent.sandbox.hook, agent.sandbox.script = None, FakeProcess.finish
        order, bundle = agent.sent("1.2", keep_bundle=True)
        (missing,) = (await agent.post((order, b"")))["answers"]
        assert missing["code"] == "bundle_missing"
        for content in (bundle, b""):
            order["key"] = f"{order['key']}1"
            (answer,) = (await agent.post((order, content)))["answers"]
            assert (await agent.ended(answer["payload"]["id"]))["status"] == "Completed"


A, B = ("server", "a"), ("server", "b")


class World:
    def __init__(self, home: Path) -> None:
        self.folders, self.clock = Folders(home, numbered()), SimClock()
        self.bundles = SharedBundles(self.folders, self.clock)

    def use(self, name: str, user: int, key: tuple[str, str] = A, size: int = 1) -> None:
        self.folders.bundle(name).write_bytes(b"x")
        self.bundles.use(name, key, size, user)

    async def stored(self, *names: str, after: float = 0) -> list[bool]:
        if after:
            await self.clock.advance(after)
            self.bundles.sweep()
        await self.folders.remove_unneeded()
        return [self.folders.bundle(name).exists() for name in names]


async def test_it_goes_some_time_after_its_last_user(tmp_path) -> None:
    world = World(tmp_path)
    bundles = world.bundles
    assert bundles.release("not shared", 1)
    for user in (1, 2):
        world.use("f", user)
    assert not bundles.release("f", 1)
    assert await world.stored("f", after=10 * KEEP_S) == [True]
    for _ in range(2):
        assert not bundles.release("f", 2)
    await world.clock.advance(KEEP_S - 1)
    with bundles.pin(A) as file, bundles.pin(B) as other:
        assert (file, other) == ("f", None)
        assert await world.stored("f", after=10 * KEEP_S) == [True]
    assert await world.stored("f", after=KEEP_S) == [False]
    with bundles.pin(A) as file:
        assert file is None
    for user, name in enumerate(("g", "h")):
        world.use(name, user)
    with bundles.pin(A) as file:
        assert file == "h", "the same content twice is found at its newer file"
    bundles.release("g", 0)
    assert await world.stored("g", "h") == [False, True]


async def test_of_unused_ones_only_the_latest_are_kept(tmp_path) -> None:
    world = World(tmp_path)
    for number in range(MAX_UNUSED + 3):
        world.use(f"f{number}", number, ("server", str(number)))
        world.bundles.release(f"f{number}", number)
        await world.clock.advance(0.1)
    assert await world.stored("f0", "f2", "f3") == [False, False, True]
    world.use("large", 1, size=shared_bundles.MAX_UNUSED_BYTES)
    world.bundles.release("large", 1)
    assert await world.stored("large", "f10") == [True, False]
    world.use("larger", 1, B, shared_bundles.MAX_UNUSED_BYTES + 1)
    world.bundles.release("larger", 1)
    assert world.folders.bundle("larger").exists(), "not removed by the event loop"
    await world.folders.remove_run_files(1, [])
    assert not world.folders.bundle("larger").exists()
