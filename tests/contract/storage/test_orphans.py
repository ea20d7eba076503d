"""An orphan is a file that no row refers to, nor will; only orphans are deleted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.domain.jobs import FileKind
from server.ports import Storage
from tests.contract.storage.conftest import FIRST, SECOND, Place, names, put, rows, running, sweep
from tests.kit.stored import chunks

R = FileKind.RESULT


async def test_a_file_with_a_row_stays_and_one_without_goes(storage: Storage) -> None:
    with_row, _ = await put(storage), await put(storage)
    assert await sweep(storage, rows(with_row), running(FIRST)) == 1
    assert await names(storage) == [with_row]


async def test_a_pending_file_is_no_orphan(storage: Storage) -> None:
    async with storage.pending(R) as pending:
        name = await pending.put(chunks(b"x"))
        assert await sweep(storage, rows(), running(FIRST)) == 0
        pending.commit()
    assert await sweep(storage, rows(name), running(FIRST)) == 0
    assert await names(storage) == [name]


async def test_a_row_that_is_written_during_the_sweep_counts(storage: Storage) -> None:
    referred = set[str]()

    async def in_use(asked: Sequence[str]) -> set[str]:
        return referred & set(asked)

    async with storage.pending(R) as pending:
        name = await pending.put(chunks(b"x"))
        listed = await names(storage)

        async def running_servers() -> set[str]:
            referred.add(name)  # meanwhile the row is written
            pending.commit()
            return {FIRST}

        assert await storage.delete_orphans(R, listed, in_use, running_servers) == 0
    assert await names(storage) == [name]


async def test_what_a_run_that_is_alive_stored_is_left_alone(place: Place) -> None:
    """The other server is between the file and the row."""
    other = place.run(SECOND)
    async with other.pending(R) as pending:
        name = await pending.put(chunks(b"x"))
        assert await sweep(place.first, rows(), running(FIRST, SECOND)) == 0
        pending.commit()
    assert await names(other) == [name]


async def test_what_a_dead_run_stored_is_an_orphan_unless_it_has_a_row(place: Place) -> None:
    other = place.run(SECOND)
    with_row, _ = await put(other), await put(other)
    assert await sweep(place.first, rows(with_row), running(FIRST)) == 1
    assert await names(place.first) == [with_row]


async def test_this_run_is_asked_about_its_own_files_not_its_lease(storage: Storage) -> None:
    """A run that has lost its lease for a moment still knows what it is about to refer to."""
    async with storage.pending(R) as pending:
        await pending.put(chunks(b"x"))
        assert await sweep(storage, rows(), running()) == 0
        pending.commit()
    assert await sweep(storage, rows(), running(FIRST)) == 1


async def test_names_of_releases_without_owners_are_judged_by_their_rows(place: Place) -> None:
    other = place.run("123456789abc")  # no run: digits by chance
    with_row, _ = await put(other), await put(other)
    assert await sweep(place.first, rows(with_row), running(FIRST, SECOND)) == 1
    assert await names(place.first) == [with_row]


async def test_what_somebody_else_put_there_stays(place: Place) -> None:
    await put(place.first)
    strangers = ("notes.txt", "aa/notes.txt")
    for name in strangers:
        place.put_stranger(R, name)
    assert await sweep(place.first, rows(), running(FIRST)) == 1
    assert all(place.has_stranger(R, name) for name in strangers)


async def test_if_the_rows_cannot_be_read_nothing_is_deleted(storage: Storage) -> None:
    name = await put(storage)

    async def fails(_: Sequence[str]) -> set[str]:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        await sweep(storage, fails, running(FIRST))
    assert await names(storage) == [name]
