"""What is sent comes back byte for byte under its name, or it is refused by name.

Hypothesis draws bundles, ways to send them and what ``run.sh`` leaves. Forms and archives are read
here as the server reads them; slow: a server and an agent over HTTP. ``make soak`` draws more. What
lies in a real sandbox goes the same way: the bundles res-* of tests/hostile.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from shared.files.names import shown
from shared.multipart.parser import FormLimits, FormRefused
from shared.multipart.receive import receive
from tests.formats import generated_bundles as bundles
from tests.formats import generated_folders as folders
from tests.formats.generated_bundles import Item
from tests.formats.generated_folders import FileSpec, Result
from tests.kit.fake_sandbox import FakeProcess, FakeSandbox
from tests.kit.raw_archives import FORM, in_pieces, unpacked
from tests.kit.server_http import ServerClient
from tests.kit.uploads import left, post
from tests.kit.waiting import until
from tests.kit.warm import together

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

_SOAK = float(os.environ.get("SOAK_SECONDS", "600")) / 50
ODD_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
Files = dict[str, bytes]


class Reading:
    """The server's reader of forms, and of the bundle that it stores."""

    limits = FormLimits(max_bytes=256 << 20)

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        self._folder, self._runner = folder, runner
        self._numbers = itertools.count()

    def take(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Read it, in pieces of another length each time; what is refused leaves nothing."""
        number = next(self._numbers)
        self.staged = self._folder / str(number)
        pieces = in_pieces(body, (1 << 16, 700, 37)[number % 3])
        length = len(body) if number % 2 else None
        reading = receive(pieces, FORM, length, staging=self.staged, limits=self.limits)
        try:
            received = self._runner.run(reading)
        except FormRefused as no:
            assert not self.staged.exists()
            return no.status, {"code": no.code, "part": no.part, "message": no.message}
        return 201, {"files": received.bundle.files}

    def result(self, reply: dict[str, Any]) -> tuple[Files, set[str]]:
        """What a job gets of it, and what of that are programs."""
        out = self.staged.with_suffix(".out")
        files = unpacked(self.staged, out)
        assert reply["files"] == len(files)
        return files, {name for name in files if (out / name).stat().st_mode & 0o111}


class Whole:
    """A server and its agent, called from functions that are not async: Hypothesis's."""

    def __init__(self, runner: asyncio.Runner, caller: ServerClient, data: Path) -> None:
        self.run, self._caller, self._data = runner.run, caller, data

    def take(self, body: bytes) -> tuple[int, dict[str, Any]]:
        return self.run(self._sent(body))

    async def _sent(self, body: bytes) -> tuple[int, dict[str, Any]]:
        before = left(self._data), await self._newest()
        status, _, reply = await post(self._caller, body)
        if status != 201:
            assert (left(self._data), await self._newest()) == before
        return status, reply

    async def _newest(self) -> bytes:
        return (await self._caller.get("/api/v1/jobs?limit=1"))[2]

    def whole_result(self, reply: dict[str, Any]) -> Result:
        return Result(self.run(self._result(reply["id"])))

    async def _result(self, job_id: int) -> bytes:
        job = await self._caller.job(job_id)
        assert job["status"] == "Completed", job
        return (await self._caller.get(f"/api/v1/jobs/{job_id}/result"))[2]

    def result(self, reply: dict[str, Any]) -> tuple[Files, set[str]]:
        found = self.whole_result(reply)
        assert found.skipped == {}
        return found.files, {path for path, mode in found.modes.items() if mode & 0o111}


Reader = Reading | Whole
Driven = tuple[Whole, FakeSandbox]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as found:
        yield found


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[Driven]:
    """In this process, with a fake sandbox."""
    context = together(tmp_path_factory.mktemp("whole"))
    place = runner.run(context.__aenter__())
    warm = place.warm
    try:
        yield Whole(runner, place, warm.data), warm.sandbox
        runner.run(until(lambda: not left_at(warm.agent_data)))  # the server has the results
    finally:
        runner.run(context.__aexit__(None, None, None))


def left_at(agent: Path) -> list[Path]:
    kept = ("agent.sqlite", "lock", "clock.json")
    return [x for x in agent.rglob("*") if x.is_file() and not x.name.startswith(kept)]


SLOW, SOAK = pytest.mark.slow, pytest.mark.soak
WAYS = ["reader", pytest.param("slow", marks=SLOW), pytest.param("soak", marks=SOAK)]


@pytest.fixture(params=WAYS)
def way(request, tmp_path: Path, runner: asyncio.Runner) -> Iterator[tuple[Reader, float]]:
    """Who takes the uploads, and how many times the usual number of examples."""
    if request.param == "reader":
        yield Reading(tmp_path, runner), 1
        return
    found, sandbox = request.getfixturevalue("driven")
    sandbox.script = lambda process: process.finish()
    yield found, _SOAK if request.param == "soak" else 1
    sandbox.script = None


def check(reader: Reader, body: bytes, bundle: Sequence[Item]) -> None:
    """The whole promise, for a bundle packed as ``body``."""
    faulty = list(bundles.at_fault(bundle))
    status, reply = reader.take(body)
    if not faulty:
        assert status == 201, reply
        files, programs = reader.result(reply)
        wanted = bundles.expected(bundle)
        assert files == {path: one.content for path, one in wanted.items()}
        assert programs == {path for path, one in wanted.items() if one.program}
        return
    assert 400 <= status < 500, "this must be refused"
    assert not [c for c in reply["message"] if unicodedata.category(c) in ODD_CATEGORIES], reply
    part = reply.get("part")
    if part is None:  # a form's header that is no UTF-8 can only be counted
        assert any(one.sent != one.name for one in faulty), reply
        assert "UTF-8" in reply["message"], reply
        assert "part " in reply["message"], reply
    else:
        names = {one.sent for one in faulty}
        assert part.removesuffix("/").removeprefix("./") in names, reply
        assert shown(part) in reply["message"], reply


TAR = bundles.TAR_KINDS
KINDS = {"form": (), "zip": bundles.ZIP_KINDS, "gnu tar": TAR, "pax tar": TAR}


def packed(kind: str, bundle: Sequence[Item], choose: Callable[[int], int], dot: str = "") -> bytes:
    if kind == "form":
        return bundles.parts(bundle, extended=bool(choose(2)))
    if kind == "zip":
        return bundles.archived("b.zip", bundles.zipped(bundle, choose))
    mode = ("w", "w:gz")[choose(2)]
    archive = bundles.tarred(bundle, gnu=kind == "gnu tar", mode=mode, prefix=dot)
    return bundles.archived("b.tar", archive)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_comes_back_or_is_refused_by_name(way, kind: str) -> None:
    reader, times = way

    @settings(max_examples=int(30 * times))
    @given(bundles.items(kinds=KINDS[kind]), st.sampled_from(["", "./"]), st.data())
    def run(bundle: list[Item], dot: str, data: st.DataObject) -> None:
        if kind == "form":  # it cannot say what is a program
            bundle = [replace(one, executable=False) for one in bundle]
        body = packed(kind, bundle, lambda most: data.draw(st.integers(0, most - 1)), dot)
        check(reader, body, bundle)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_alone_is_refused_by_name(way: tuple[Reader, float], kind: str) -> None:
    """In a bundle with which nothing else is wrong, so that no other fault hides it."""
    reader, times = way

    # nothing to shrink: the fault is the smallest there is, and its bundle does not matter
    @settings(max_examples=max(1, int(times)), phases=[Phase.generate])
    @given(bundles.items(odd=False), st.integers(0, 5), st.randoms(use_true_random=False))
    def run(fine: list[Item], place: int, chance: Random) -> None:
        assume(not list(bundles.at_fault(fine)))
        top = "top folder/" if fine[0].name.startswith("top folder/") else ""
        for fault in bundles.faults(KINDS[kind], archive=kind != "form"):
            odd = [replace(one, name=top + one.name) for one in fault]
            bundle = [*fine[:place], *odd, *fine[place:]]
            check(reader, packed(kind, bundle, chance.randrange), bundle)

    run()


HELLO = [Item("run.sh", bundles.PROGRAM), Item("data/in é.txt", b"1 2 3\n" * 99), Item("none")]
WHOLE = {
    "zip": bundles.archived("b.zip", bundles.zipped(HELLO, lambda most: most - 1)),
    "zip, streamed": bundles.archived("b.zip", bundles.zipped(HELLO, lambda _: 0)),
    "tar": bundles.archived("b.tar", bundles.tarred(HELLO, gnu=False, mode="w")),
    "tar.gz": bundles.archived("b.tgz", bundles.tarred(HELLO, gnu=True, mode="w:gz")),
    "form": bundles.parts(HELLO, extended=False),
}


def archive_in(kind: str) -> tuple[int, int]:
    """Where it begins and ends; of a form, all of it."""
    body = WHOLE[kind]
    if kind == "form":
        return 0, len(body)
    return body.index(b"\r\n\r\n", body.index(b"filename")) + 4, body.rindex(b"\r\n--")


@pytest.mark.parametrize("kind", WHOLE)
def test_damaged_bytes_are_refused_or_make_a_good_result(way, kind):
    """Never a 500, never a half: of the archives only the archive itself is damaged."""
    reader, times = way
    body, (start, end) = WHOLE[kind], archive_in(kind)

    @settings(max_examples=int(25 * times))
    @given(st.randoms(use_true_random=False))
    def run(chance: Random) -> None:
        damaged = bundles.damaged(body[start:end], chance)
        status, reply = reader.take(body[:start] + damaged + body[end:])
        if status == 201:
            assert reader.result(reply)[0].keys() >= {"run.sh"}
        else:
            assert 400 <= status < 500, reply

    run()


@pytest.mark.parametrize("kind", WHOLE)
def test_every_cut_is_noticed(tmp_path: Path, runner: asyncio.Runner, kind: str) -> None:
    reader, body, (start, last) = Reading(tmp_path, runner), WHOLE[kind], archive_in(kind)
    stop = last = last - 2 * (kind == "form")
    if kind == "tar":  # without its end mark; further padding may be missing
        stop = start + len(body[start:last].rstrip(b"\0")) + 1024
    for end in range(start, stop, 61 if kind == "tar" else 7):
        status, _ = reader.take(body[:end] + body[last:])
        assert 400 <= status < 500, end


LENGTHS = [pytest.param(1, id="short"), pytest.param(_SOAK, id="long", marks=SOAK)]


@pytest.mark.parametrize("times", LENGTHS)
def test_whatever_run_sh_leaves_is_in_the_result_or_listed(driven: Driven, times: float) -> None:
    server, sandbox = driven

    @settings(max_examples=int(20 * times))
    @given(folders.things())
    def run(things: list[FileSpec]) -> None:
        made: list[folders.StoredFile] = []

        def script(process: FakeProcess) -> None:
            folders.make(process.workspace.path, things)
            made.extend(folders.look(process.workspace.path, things))
            process.finish()

        sandbox.script = script
        status, reply = server.take(bundles.parts([Item("run.sh")], extended=False))
        assert status == 201, reply
        folders.check(server.whole_result(reply), made)

    run()
    sandbox.script = None
