"""What is uploaded comes back byte for byte under its name, or it was refused by name.

Hypothesis draws bundles, ways to send them and what ``run.sh`` leaves; they pass through a real
server and a real agent over HTTP. ``make soak`` draws more of them.
"""

from __future__ import annotations

import base64
import os
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from shared.files.names import shown
from tests.kit import generated_bundles as bundles
from tests.kit import generated_folders as folders
from tests.kit import generated_uploads as uploads
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.generated_bundles import Item
from tests.kit.generated_folders import FileSpec
from tests.kit.in_process_system import Driver, calling, driven
from tests.kit.program_pair import Pair
from tests.kit.result_zip import Result
from tests.kit.waiting import until

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

_SOAK = float(os.environ.get("SOAK_SECONDS", "600"))
LENGTHS = [pytest.param(1, id="short"), pytest.param(_SOAK / 50, id="long", marks=pytest.mark.soak)]
ODD_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driven(tmp_path_factory.mktemp("fuzz")) as found:
        yield found
        home = found.system.sandbox.work.parent
        found.run(until(lambda: not left_at(home)))  # the server has the results


def left_at(agent: Path) -> list[Path]:
    kept = ("agent.sqlite", "lock", "clock.json")
    return [x for x in agent.rglob("*") if x.is_file() and not x.name.startswith(kept)]


@pytest.fixture(autouse=True)
def _forget(driver: Driver) -> Iterator[None]:
    yield
    driver.system.sandbox.script = None


def upload(driver: Driver, body: bytes) -> tuple[int, dict[str, Any]]:
    """Send it; whatever is refused leaves nothing, and its message is fit for a terminal."""
    system = driver.system

    async def sent() -> tuple[int, dict[str, Any]]:
        before = system.stored(), await system.jobs()
        status, reply = await system.upload(body)
        if status != 201:
            assert 400 <= status < 500, reply
            assert (system.stored(), await system.jobs()) == before
            odd = [c for c in reply["message"] if unicodedata.category(c) in ODD_CATEGORIES]
            assert not odd, reply
        return status, reply

    return driver.run(sent())


def check(driver: Driver, body: bytes, bundle: list[Item]) -> None:
    """The whole promise, for a bundle packed as ``body``."""
    faulty = list(bundles.at_fault(bundle))
    status, reply = upload(driver, body)
    if not faulty:
        assert status == 201, reply
    if status != 201:
        assert faulty, reply
        names = {one.sent for one in faulty}
        part = reply.get("part")
        if part is None:  # a form's header that is no UTF-8 can only be counted
            assert any(one.sent != one.name for one in faulty), reply
            assert "UTF-8" in reply["message"], reply
            assert "part " in reply["message"], reply
        else:
            assert part.removesuffix("/").removeprefix("./") in names, reply
            assert shown(part) in reply["message"], reply
        return
    assert not faulty, "this must be refused"
    result = Result(driver.run(driver.system.result(reply["id"])))
    wanted = bundles.expected(bundle)
    assert result.files == {path: one.content for path, one in wanted.items()}
    assert result.skipped == {}
    assert {path for path, mode in result.modes.items() if mode & 0o111} == {
        path for path, one in wanted.items() if one.program
    }


def finishing(driver: Driver) -> None:
    driver.system.sandbox.script = lambda process: process.finish()


@pytest.mark.parametrize("times", LENGTHS)
def test_files_of_a_form_come_back_or_are_refused_by_name(driver: Driver, times: float) -> None:
    @settings(max_examples=int(25 * times))
    @given(bundles.items(), st.booleans())
    def run(bundle: list[Item], extended: bool) -> None:
        bundle = [replace(one, executable=False) for one in bundle]  # a form cannot say it
        check(driver, uploads.parts(bundle, extended=extended), bundle)

    finishing(driver)
    run()


@pytest.mark.parametrize("times", LENGTHS)
def test_entries_of_a_zip_come_back_or_are_refused_by_name(driver: Driver, times: float) -> None:
    @settings(max_examples=int(40 * times))
    @given(bundles.items(kinds=uploads.ZIP_KINDS), st.data())
    def run(bundle: list[Item], data: st.DataObject) -> None:
        archive = uploads.zipped(bundle, lambda most: data.draw(st.integers(0, most - 1)))
        check(driver, uploads.archived("b.zip", archive), bundle)

    finishing(driver)
    run()


@pytest.mark.parametrize("times", LENGTHS)
def test_members_of_a_tar_come_back_or_are_refused_by_name(driver: Driver, times: float) -> None:
    @settings(max_examples=int(40 * times))
    @given(
        bundles.items(kinds=uploads.TAR_KINDS),
        st.booleans(),
        st.sampled_from(["w", "w:gz"]),
        st.sampled_from(["", "./"]),
    )
    def run(bundle: list[Item], gnu: bool, mode: str, prefix: str) -> None:
        archive = uploads.tarred(bundle, gnu=gnu, mode=mode, prefix=prefix)
        check(driver, uploads.archived("b.tar", archive), bundle)

    finishing(driver)
    run()


@pytest.mark.parametrize("times", LENGTHS)
@pytest.mark.parametrize("way", ["form", "zip", "gnu tar", "pax tar"])
def test_each_fault_alone_is_refused_by_name(driver: Driver, way: str, times: float) -> None:
    """In a bundle with which nothing else is wrong, so that no other fault hides it."""
    kinds = {"form": (), "zip": uploads.ZIP_KINDS}.get(way, uploads.TAR_KINDS)

    # nothing to shrink: the fault is the smallest there is, and its bundle does not matter
    @settings(max_examples=max(1, int(times)), phases=[Phase.generate])
    @given(bundles.items(odd=False), st.integers(0, 5), st.data())
    def run(fine: list[Item], place: int, data: st.DataObject) -> None:
        assume(not list(bundles.at_fault(fine)))
        top = "top folder/" if fine[0].name.startswith("top folder/") else ""
        for fault in bundles.faults(kinds, archive=way != "form"):
            odd = [replace(one, name=top + one.name) for one in fault]
            bundle = [*fine[:place], *odd, *fine[place:]]
            if way == "form":
                body = uploads.parts(bundle, extended=data.draw(st.booleans()))
            elif way == "zip":
                choose = data.draw(st.randoms(use_true_random=False)).randrange
                body = uploads.archived("b.zip", uploads.zipped(bundle, choose))
            else:
                archive = uploads.tarred(bundle, gnu=way == "gnu tar", mode="w:gz")
                body = uploads.archived("b.tar", archive)
            check(driver, body, bundle)

    run()


# ---------------------------------------------------------------------------- what run.sh leaves


@pytest.mark.parametrize("times", LENGTHS)
def test_whatever_run_sh_leaves_is_in_the_result_or_listed(driver: Driver, times: float) -> None:
    @settings(max_examples=int(40 * times))
    @given(folders.things())
    def run(things: list[FileSpec]) -> None:
        made: list[folders.StoredFile] = []

        def script(process: FakeProcess) -> None:
            folders.make(process.workspace.path, things)
            made.extend(folders.look(process.workspace.path, things))
            process.finish()

        driver.system.sandbox.script = script
        status, reply = upload(driver, uploads.parts([Item("run.sh")], extended=False))
        assert status == 201, reply
        folders.check(Result(driver.run(driver.system.result(reply["id"]))), made)

    run()


# ---------------------------------------------------------------------------- in the real sandbox

SETTINGS = """
[services.example]
limits = { disk = "32MiB", memory = "64MiB" }
"""
MAKE = r"""#!/bin/bash
while IFS= read -r -d '' line; do
    path=${line:1}
    mkdir -p -- "${path%/*}"
    case $line in
        f*) printf %s "$path" > "$path" ;;
        d*) mkdir -- "$path" ;;
        l*) ln -s /etc/passwd "$path" ;;
        p*) mkfifo -- "$path" ;;
    esac
done < <(base64 -d wanted)
find . -mindepth 1 -printf '%y %m %P\0' | base64
"""
LETTERS = {"file": "f", "folder": "d", "symlink": "l", "FIFO": "p"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Two processes, and bubblewrap."""
    pair = Pair(tmp_path_factory.mktemp("real"), SETTINGS)
    with pair.running(), calling(pair.server.url, pair.server.data) as found:
        yield found


@pytest.mark.parametrize("times", LENGTHS)
def test_bundles_come_back_from_the_real_sandbox(real: Driver, times: float) -> None:
    @settings(max_examples=int(10 * times))
    @given(bundles.items(kinds=["folder"]), st.sampled_from(["w", "w:gz"]))
    def run(bundle: list[Item], mode: str) -> None:
        archive = uploads.tarred(bundle, gnu=True, mode=mode)
        check(real, uploads.archived("b.tar", archive), bundle)

    run()


@pytest.mark.parametrize("times", LENGTHS)
def test_names_made_in_the_real_sandbox_are_in_the_result_or_listed(
    real: Driver, times: float
) -> None:
    @settings(max_examples=int(10 * times))
    @given(folders.things())
    def run(things: list[FileSpec]) -> None:
        wanted = b"".join(
            LETTERS.get(one.kind, "f").encode() + b"./" + b"/".join(one.parts) + b"\0"
            for one in things
        )
        bundle = [Item("run.sh", MAKE.encode()), Item("wanted", base64.b64encode(wanted))]
        status, reply = upload(real, uploads.parts(bundle, extended=False))
        assert status == 201, reply
        result = Result(real.run(real.system.result(reply["id"])))
        contents = {one.raw: one.content for one in bundle}
        made = []
        for line in base64.b64decode(result.stdout).split(b"\0")[:-1]:
            letter, mode, path = line.split(b" ", 2)
            kind = {b"f": stat.S_IFREG, b"d": stat.S_IFDIR}.get(letter, stat.S_IFLNK)
            content = contents.get(path, b"./" + path) if letter == b"f" else b""
            fine = folders.is_fine(path, things)
            made.append(folders.StoredFile(path, fine, kind | int(mode, 8), content))
        assert len(made) >= len(bundle)
        folders.check(result, made)

    run()


# ---------------------------------------------------------------------------- damage

HELLO = [
    Item("run.sh", bundles.PROGRAM),
    Item("data/in é.txt", b"1 2 3\n" * 99),
    Item("none"),
]
WHOLE = {
    "zip": uploads.archived("b.zip", uploads.zipped(HELLO, lambda most: most - 1)),
    "zip, streamed": uploads.archived("b.zip", uploads.zipped(HELLO, lambda _: 0)),
    "tar": uploads.archived("b.tar", uploads.tarred(HELLO, gnu=False, mode="w")),
    "tar.gz": uploads.archived("b.tgz", uploads.tarred(HELLO, gnu=True, mode="w:gz")),
    "form": uploads.parts(HELLO, extended=False),
}


@pytest.mark.parametrize("times", LENGTHS)
@pytest.mark.parametrize("kind", WHOLE)
def test_damaged_bytes_are_refused_or_make_a_good_result(
    driver: Driver, kind: str, times: float
) -> None:
    """Never a 500, never a half: of the archives only the archive itself is damaged."""
    body = WHOLE[kind]
    start = 0 if kind == "form" else body.index(b"\r\n\r\n", body.index(b"filename")) + 4
    end = len(body) if kind == "form" else body.rindex(b"\r\n--")

    @settings(max_examples=int(25 * times))
    @given(st.randoms(use_true_random=False))
    def run(chance: Random) -> None:
        damaged = uploads.damaged(body[start:end], chance)
        status, reply = upload(driver, body[:start] + damaged + body[end:])
        if status == 201:
            result = Result(driver.run(driver.system.result(reply["id"])))
            assert result.files.keys() >= {"run.sh"}
            assert result.skipped == {}

    finishing(driver)
    run()
