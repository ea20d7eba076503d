"""Results without room on the disk, and what is made of those that are stored."""

import errno
import zipfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from server.domain.errors import NoSuchJob
from server.domain.jobs import Bundle, FileKind, Job, Result
from server.stages import merged_results as merged_module
from server.stages.deferral import children_of
from server.stages.inputs import InputsNotMade, MakeInputs, NoInputs
from server.stages.merged_results import Part, UnusableResult, merged_results
from server.stages.results import NoRoom, Results
from server.stages.wakeups import JobWakeups
from server.storage.folder import Storage
from server.storage.scratch import Scratch
from server.store import batches, bundles
from shared.files.archives.inputs_list import list_line
from shared.files.names import BundleError
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.raw_archives import unzipped, zipped
from tests.kit.store import core, job

MIB: Final = 1 << 20


class Disk:
    """Results of agent "node" that wait for ``available`` bytes, by number."""

    def __init__(self, available: int) -> None:
        self.available, self.wakeups, self.clock = available, JobWakeups(), SimClock()
        self._measured = 0
        scratch: Any = SimpleNamespace(measure=self._measure, available=lambda: self._measured)
        how = {"scratch": scratch, "clock": self.clock, "wakeups": self.wakeups}
        self.results = Results(core(**how))

    def _measure(self) -> None:
        if self.available < 0:
            raise OSError(errno.EIO, "Input/output error")
        self._measured = self.available

    async def asks(self, which: int, size: int, agent: str = "node") -> str:
        """Whether the result may be fetched: empty, or what its job says. It waits then."""
        try:
            await self.results.check((agent, which), size)
        except NoRoom as full:
            return await self.fails(which, size, full, agent)
        return ""

    async def fails(self, which: int, size: int, problem: OSError, agent: str = "node") -> str:
        """The disk does not take it, so it waits. Returns what its job says."""
        return str(await self.results.add((agent, which), problem, size))

    async def fit(self, available: int, *sizes: int) -> list[int]:
        """With so much room, which of those that wait may be fetched."""
        self.available = available * MIB
        asked = [await self.asks(which, size * MIB) for which, size in enumerate(sizes)]
        return [which for which, why in enumerate(asked) if not why]


@pytest.fixture
def disk() -> Disk:
    return Disk(10 * MIB)


FULL = OSError(errno.ENOSPC, "No space left on device")


async def test_the_oldest_are_tried_first_all_that_fit_at_once(disk: Disk) -> None:
    sizes = 50, 60, 20, 25
    assert await disk.fit(10, *sizes) == []
    assert await disk.fit(49, *sizes) == [2, 3], "what fits is not held up by what does not"
    for which in (2, 3):
        disk.results.done(("node", which))
    assert await disk.fit(105, *sizes[:2]) == [0], "what is given to one is not given to the next"
    assert await disk.fit(120, *sizes[:2]) == [0, 1]
    assert disk.wakeups.calls == 2, "jobs are sent again to an agent whose results wait no more"


async def test_a_newer_result_that_would_fit_does_not_go_before_one_that_waits(disk: Disk) -> None:
    assert not await disk.asks(1, 10 * MIB)
    said = await disk.asks(1, 11 * MIB)
    assert said == "the server's disk: 11.0 MiB needed, 10.0 MiB may be used"
    disk.available = 15 * MIB
    assert await disk.asks(2, 10 * MIB)
    assert await disk.asks(3, 5 * MIB), "nor before one that waits for another"
    disk.results.done(("node", 1))
    assert not await disk.asks(2, 10 * MIB)


async def test_of_very_many_that_wait_not_each_is_compared_with_all_before_it(disk: Disk) -> None:
    looked_at = list[Any]()

    class Waiting(dict[Any, Any]):
        def items(self) -> Any:
            for one in super().items():
                looked_at.append(one)
                yield one

    disk.results._waiting = Waiting()
    for _ in range(2):
        for which in range(100):
            assert await disk.asks(which, 11 * MIB)
    assert len(looked_at) <= 200


async def test_what_an_agent_announces_holds_up_only_that_agent(disk: Disk) -> None:
    hold = disk.results.hold
    assert not hold([]), "nobody is held"
    await disk.asks(1, 50 * MIB)
    assert hold(["node"])
    assert not hold(["node", "other"]), "another agent can work"
    disk.available = 50 * MIB
    await disk.asks(1, MIB, "other")
    assert not hold(["other"]), "its result fits, and only waits for its turn"
    await disk.asks(2, 51 * MIB, "other")
    assert hold(["node", "other"])
    disk.results.done(("other", 2))
    assert not hold(["other"])


async def test_what_waits_is_told_with_its_numbers_until_it_is_wanted_no_more(disk: Disk) -> None:
    assert disk.results.sentence() == ""
    said = await disk.fails(1, 50 * MIB, FULL)
    assert said == "the server's disk: 50.0 MiB needed, 10.0 MiB may be used"
    await disk.clock.advance(90.0)
    assert disk.results.sentence() == (
        "1 result waits for room on the server's disk: 50.0 MiB needed, 10.0 MiB may be used, "
        "the oldest waits for 1m 30s"
    )
    disk.available = 15 * MIB
    assert await disk.asks(1, 50 * MIB)
    disk.available = -1
    assert await disk.asks(1, 50 * MIB), "the disk does not answer"
    assert "15.0 MiB may be used" in disk.results.sentence()
    disk.results.done(("node", 1))
    assert (disk.results.sentence(), len(disk.results)) == ("", 0)


async def test_what_fits_and_is_refused_is_told_so_and_tried_again(disk: Disk) -> None:
    """Its inodes are used up: nothing says when there are some again."""
    assert await disk.fails(1, MIB, FULL) == "the server's disk: No space left on device"
    assert "the server's disk: No space left on device, the oldest" in disk.results.sentence()
    assert disk.results.hold(["node"])
    assert not await disk.asks(1, MIB)


GONE = Result("f" * 32, 10, "")


class Place:
    """A folder of results, and some jobs that have them."""

    def __init__(self, folder: Path) -> None:
        numbers = count(1)

        def new_name() -> str:
            return f"{next(numbers):032}"

        self.folder, self.staging = folder, folder / "staging"
        self.scratch = Scratch(self.staging, new_name)
        self.storage = Storage(folder, self.scratch, new_name)
        shared = core(database=self, storage=self.storage, scratch=self.scratch)
        self.contents, self.inputs = shared.contents, MakeInputs(shared)
        self.known: dict[int, Job] = {}

    async def read(self, work: object, job_id: int) -> Job | None:
        """None of them is a parent, and all contents are files."""
        if work in (batches.get, bundles.content):
            return None
        if job_id not in self.known:
            raise NoSuchJob(job_id)
        return self.known[job_id]

    async def stored(self, content: bytes | Mapping[str, bytes], inputs: int = 0) -> Result:
        """A result."""
        whole = content if isinstance(content, bytes) else zipped(content)
        async with self.storage.pending(FileKind.RESULT) as pending:
            name = await pending.put(whole)
            pending.commit()
        return Result(name, len(whole), "", inputs)

    async def bundle(self, files: Mapping[str, bytes]) -> Bundle:
        content = zipped(files)
        async with self.storage.pending(FileKind.BUNDLE) as pending:
            name = await pending.put(content)
            pending.commit()
        return Bundle(name, len(content), "")

    async def merged(self, parts: list[Part], note: str | None = None) -> dict[str, bytes]:
        async with merged_results(self.contents, self.scratch, parts, note=note) as whole:
            data = b"".join([chunk async for chunk in whole.chunks()])
            assert len(data) == whole.size
        assert not list(self.staging.iterdir())
        return unzipped(data)

    async def given_inputs(self) -> list[str]:
        """Make what a job gets that wants those of job 1; the names of its files."""
        async with self.inputs.of(job(inputs_from=(1,))) as made:
            assert made is not None
            return zipfile.ZipFile(made.file.path).namelist()

    async def children(self, result: bytes | Mapping[str, bytes]) -> None:
        """Read whom it brings, of 3 and 1000 bytes at most."""
        stored = await self.stored(result)
        with self.scratch.file() as to:
            try:
                await children_of(self.contents, stored, to, most=3, max_bytes=1000)
                to.path.rename(self.folder / "bundle")
            finally:
                assert not to.path.exists()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_each_result_has_a_folder_and_what_is_not_usable_is_named(place: Place) -> None:
    good = await place.stored({"out": b"1", "deep/er": b"2"})
    bad = await place.stored({"../out": b"2"})
    parts = [Part("bad/", bad), Part("b/", good), Part("a/", good), Part("gone/", GONE)]
    files = await place.merged(parts, "left-out.txt")
    note = files.pop("left-out.txt").decode().splitlines()
    assert list(files.items()) == [
        ("b/out", b"1"),
        ("b/deep/er", b"2"),
        ("a/out", b"1"),
        ("a/deep/er", b"2"),
    ]
    assert note[0] == "These results are left out:"
    assert note[1].startswith("bad/: ")
    assert note[2:] == ["gone/: its result is gone"]
    assert "left-out.txt" not in await place.merged([Part("a/", good)], "left-out.txt")
    many = [Part(f"{number}/", GONE) for number in range(1_003)]
    note = (await place.merged(many, "note.txt"))["note.txt"].decode().splitlines()
    assert (len(note), note[-1]) == (1_002, "and 3 more")


async def test_files_of_the_bundle_that_are_as_they_were_sent_are_given_on(place: Place) -> None:
    sent = {"run.sh": b"x", "child/in": b"input", "child/gone": b"", "other/in": b""}
    left = {"out": b"1", "inputs.sha256": list_line("0" * 64, "in")}
    result, bundle = await place.stored(left, inputs=1), await place.bundle(sent)
    parts = [Part("a/", result, bundle, "child/"), Part("b/", result)]
    expected = {"a/in": b"input", "a/out": b"1", "b/out": b"1"}
    assert await place.merged(parts) == expected
    known = {"id": 1, "result": result, "bundle": bundle, "bundle_folder": "child/"}
    place.known = {1: job(**known)}
    assert await place.given_inputs() == ["inputs/1/in", "inputs/1/out"]
    place.known = {1: job(result_files="changed", **known)}
    assert await place.given_inputs() == ["inputs/1/out"], "it has asked for no more"


async def test_what_a_job_was_to_get_and_cannot_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = await place.stored(zipped({"out": b"1"})[:-1])
    unusable = "what it was to get below inputs/1/ cannot be used: "
    gone = "the result of job 1, which it was to get, is gone"
    cases: list[tuple[dict[int, Job], str]] = [
        ({}, gone),
        ({1: job(id=1, result=None)}, gone),
        ({1: job(id=1, result=GONE)}, f"{unusable}its result is gone"),
        ({1: job(id=1, result=cut)}, f"{unusable}.*cut short"),
    ]
    for place.known, why in cases:
        with pytest.raises(NoInputs, match=why):
            await place.given_inputs()
        assert not list(place.staging.iterdir())
    with pytest.raises(UnusableResult, match=r"x/: .*cut short"):
        await place.merged([Part("x/", cut)])  # a note would say so
    monkeypatch.setattr("server.stages.inputs.MAX_MERGED", 1)
    place.known = {1: job(id=1, result=await place.stored({"a": b"", "b": b""}))}
    with pytest.raises(NoInputs, match="have 2 files and folders, more than 1"):
        await place.given_inputs()


async def test_a_full_disk_is_no_fault_of_a_job_and_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is small is put together all the same, so that results can be fetched."""
    result = await place.stored({"children/a/run.sh": b"x"})
    place.known = {1: job(id=1, result=result)}
    place.scratch.free_bytes = lambda: 0  # type: ignore[method-assign]
    assert await place.merged([Part("a/", result)])
    monkeypatch.setattr(merged_module, "_IN_MEMORY", 50)
    with pytest.raises(OSError, match="No space left"):
        await place.merged([Part("a/", result)])
    with pytest.raises(InputsNotMade, match="No space left"):
        await place.given_inputs()
    with place.scratch.file() as to, pytest.raises(OSError, match=r".") as problem:
        await children_of(place.contents, result, to, most=3, max_bytes=1 << 20)
    assert (problem.value.errno, to.path.exists()) == (errno.ENOSPC, False)
    assert not list(place.staging.iterdir())


CHILD = zipped({"children/a/run.sh": b"echo it is deflated, and long enough for that"})
AT = CHILD.index(b"run.sh") + 10


@each(
    "files, code, says",
    [
        (CHILD[:AT] + bytes([CHILD[AT] ^ 255]) + CHILD[AT + 1 :], "", ""),
        (CHILD[:-5], "", "cut short"),
        ({"out": b""}, "no_children", "no children/NAME/run.sh"),
        ({"children/../run.sh": b""}, "unsafe_name", "'..'"),
        ({"children/a/x\\y": b""}, "unsafe_name", "backslash"),
        ({"children/b/run.sh": b"", "children/list": b""}, "not_in_a_child", "“children/list”: it"),
        ({"children/b/run.sh": b"", "children/a/x": b""}, "no_run_sh", "“children/a”: it has no"),
        ({"children/a b/run.sh": b""}, "bad_child_name", "1 to 64 of A-Z a-z 0-9 . _ -"),
        ({"children/.x/run.sh": b""}, "bad_child_name", "not “.x”"),
        ({"children/run.sh/run.sh": b""}, "bad_child_name", "not “run.sh”"),
        ({f"children/{n}/run.sh": b"" for n in range(4)}, "too_many_children", "more than 3"),
        ({"children/a/run.sh": b"x" * 2000}, "too_large", "limit of 1000 bytes"),
    ],
)
async def test_what_is_wrong_with_the_folders_of_children_is_said(
    place: Place, files: bytes | Mapping[str, bytes], code: str, says: str
) -> None:
    with pytest.raises(BundleError) as refused:
        await place.children(files)
    assert refused.value.code == (code or refused.value.code)
    assert says in str(refused.value)
