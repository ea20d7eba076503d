"""How long a bundle is kept that several payloads use."""

from __future__ import annotations

from client_agent.storage import shared_bundles
from client_agent.storage.folders import Folders
from client_agent.storage.shared_bundles import SharedBundles
from tests.kit.agent import numbered
from tests.kit.clock import SimClock

A, B = ("server", "a"), ("server", "b")


async def stored(folders: Folders, name: str) -> bool:
    await folders.remove_unneeded()
    return folders.bundle(name).exists()


async def test_it_goes_some_time_after_its_last_user(tmp_path) -> None:
    folders, clock = Folders(tmp_path, numbered()), SimClock()
    bundles = SharedBundles(folders, clock)
    folders.bundle("f").write_bytes(b"x")
    assert bundles.release("not shared", 1)
    bundles.use("f", A, 1, 1)
    bundles.use("f", A, 1, 2)
    assert not bundles.release("f", 1)
    await clock.advance(10 * shared_bundles.KEEP_S)
    bundles.sweep()
    assert await stored(folders, "f")
    assert not bundles.release("f", 2)
    assert not bundles.release("f", 2)
    await clock.advance(shared_bundles.KEEP_S - 1)
    with bundles.pin(A) as file, bundles.pin(B) as other:
        assert (file, other) == ("f", None)
        await clock.advance(10 * shared_bundles.KEEP_S)
        bundles.sweep()
        assert await stored(folders, "f")
    await clock.advance(shared_bundles.KEEP_S)
    bundles.sweep()
    assert not await stored(folders, "f")
    with bundles.pin(A) as file:
        assert file is None


async def test_of_unused_ones_only_the_latest_are_kept(tmp_path) -> None:
    folders, clock = Folders(tmp_path, numbered()), SimClock()
    bundles = SharedBundles(folders, clock)
    for number in range(shared_bundles.MAX_UNUSED + 3):
        name = f"f{number}"
        folders.bundle(name).write_bytes(b"x")
        bundles.use(name, ("server", name), 1, number)
        bundles.release(name, number)
        await clock.advance(0.1)
    assert [await stored(folders, f"f{n}") for n in (0, 2, 3)] == [False, False, True]
    folders.bundle("large").write_bytes(b"x")
    bundles.use("large", A, shared_bundles.MAX_UNUSED_BYTES, 1)
    bundles.release("large", 1)
    assert [await stored(folders, name) for name in ("large", "f10")] == [True, False]


async def test_the_same_content_twice_is_found_at_its_newer_file(tmp_path) -> None:
    folders, clock = Folders(tmp_path, numbered()), SimClock()
    bundles = SharedBundles(folders, clock)
    for number, name in enumerate("fg"):
        folders.bundle(name).write_bytes(b"x")
        bundles.use(name, A, 1, number)
    with bundles.pin(A) as file:
        assert file == "g"
    bundles.release("f", 0)
    assert (await stored(folders, "f"), await stored(folders, "g")) == (False, True)


async def test_a_large_one_is_not_removed_by_the_event_loop(tmp_path) -> None:
    """That may take long: whoever removes something next does it in a thread."""
    folders = Folders(tmp_path, numbered())
    bundles = SharedBundles(folders, SimClock())
    folders.bundle("f").write_bytes(b"x")
    bundles.use("f", A, shared_bundles.MAX_UNUSED_BYTES + 1, 1)
    bundles.release("f", 1)
    assert folders.bundle("f").exists()
    await folders.remove_run_files(1, [])
    assert not folders.bundle("f").exists()
