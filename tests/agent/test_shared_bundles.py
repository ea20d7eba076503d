"""How long a bundle is kept that several payloads use."""

from __future__ import annotations

from pathlib import Path

from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import (
    KEEP_S,
    MAX_UNUSED,
    MAX_UNUSED_BYTES,
    SharedBundles,
)
from tests.kit.agent import numbered
from tests.kit.clock import SimClock

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


async def test_of_unused_ones_only_the_latest_are_kept(tmp_path) -> None:
    world = World(tmp_path)
    for number in range(MAX_UNUSED + 3):
        world.use(f"f{number}", number, ("server", str(number)))
        world.bundles.release(f"f{number}", number)
        await world.clock.advance(0.1)
    assert await world.stored("f0", "f2", "f3") == [False, False, True]
    world.use("large", 1, size=MAX_UNUSED_BYTES)
    world.bundles.release("large", 1)
    assert await world.stored("large", "f10") == [True, False]
    world.use("larger", 1, B, MAX_UNUSED_BYTES + 1)
    world.bundles.release("larger", 1)
    assert world.folders.bundle("larger").exists(), "not removed by the event loop"
    await world.folders.remove_run_files(1, [])
    assert not world.folders.bundle("larger").exists()


async def test_the_same_content_twice_is_found_at_its_newer_file(tmp_path) -> None:
    world = World(tmp_path)
    world.use("f", 0)
    world.use("g", 1)
    with world.bundles.pin(A) as file:
        assert file == "g"
    world.bundles.release("f", 0)
    assert await world.stored("f", "g") == [False, True]
