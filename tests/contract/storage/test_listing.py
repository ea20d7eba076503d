"""Every stored file is listed once, in the order of the names."""

from __future__ import annotations

from server.domain.jobs import FileKind
from server.ports import Storage
from tests.contract.storage.conftest import SECOND, Place, names, put

B, R = FileKind.BUNDLE, FileKind.RESULT


async def test_an_empty_storage_lists_nothing(storage: Storage) -> None:
    assert await storage.list(B) == await storage.list(R) == []


async def test_each_file_is_listed_once_and_in_order(storage: Storage) -> None:
    put_names = [await put(storage) for _ in range(30)]
    assert await names(storage) == sorted(put_names)
    assert await names(storage, B) == []


async def test_the_list_goes_on_behind_any_name(storage: Storage) -> None:
    put_names = sorted([await put(storage) for _ in range(10)])
    for after in (*put_names, "", "8", "f" * 32):
        page = await storage.list(R, after)
        behind = [name for name in put_names if name > after]
        assert page == behind[: len(page)]
        assert bool(page) == bool(behind)


async def test_files_that_go_and_come_meanwhile_do_not_confuse_the_list(storage: Storage) -> None:
    put_names = sorted([await put(storage) for _ in range(10)])
    page = await storage.list(R)
    await storage.delete([(R, page[-1])])
    rest: list[str] = []
    while more := await storage.list(R, (page + rest)[-1]):
        rest += more
    assert page + rest == put_names


async def test_what_another_run_stored_is_listed_too(place: Place) -> None:
    other = place.run(SECOND)
    both = sorted([await put(place.first), await put(other)])
    assert await names(place.first) == await names(other) == both


async def test_what_somebody_else_put_there_is_not_listed(place: Place) -> None:
    for name in ("notes.txt", "aa/notes.txt", "aa/" + "b" * 32, "zz/" + "z" * 32):
        place.put_stranger(R, name)
    mine = await put(place.first)
    assert await names(place.first) == [mine]
