"""Random files that a job leaves in its directory, and what its result must contain of them."""

import io
import json
import os
import socket
import stat
import tempfile
import unicodedata
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from shared.files.names import shown
from tests.formats import generated_bundles
from tests.formats.desktop_zip import check as check_zip

KINDS: Final = ("file",) * 8 + ("folder", "symlink", "FIFO", "socket", "hard link")
MODES: Final = (0o644, 0o755, 0o600, 0, 0o4711, 0o222)
TIMES: Final = (0, -(10**9), 315_532_799, 10**9, 2**32, 2**33)


class Result:
    """What is in the ZIP of a job that ran, the agent's own files apart; checked to be portable.

    Attributes:
        files: path -> content.
        folders: empty ones.
        modes: path -> permissions.
        receipt: the document in ``ferryman.json``.
        stdout: what the job wrote there.
        skipped: path as it is shown -> why.
    """

    def __init__(self, data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            check_zip(Path(file.name))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            held = {info.filename: archive.read(info) for info in infos}
        assert len(held) == len(infos), "two entries have one name"
        self.receipt = json.loads(held[infos[-1].filename])
        of_agent = {infos[-1].filename, *self.receipt["logs"].values()}
        self.stdout = held[self.receipt["logs"]["stdout"]]
        of_job = [info for info in infos if info.filename not in of_agent]
        self.files = {i.filename: held[i.filename] for i in of_job if not i.is_dir()}
        self.folders = {info.filename[:-1] for info in of_job if info.is_dir()}
        self.modes = {i.filename: i.external_attr >> 16 & 0o7777 for i in of_job if not i.is_dir()}
        self.skipped = {one["path"]: one["why"] for one in self.receipt["skipped"]}
        assert self.receipt["files"] + self.receipt["inputs"] == len(self.files)
        total = sum(map(len, self.files.values()))
        assert self.receipt["bytes"] == total or (
            self.receipt["inputs"] and self.receipt["bytes"] < total
        )


@dataclass(frozen=True)
class FileSpec:
    """Something that ``run.sh`` makes, with the folders above it."""

    parts: tuple[bytes, ...]
    fine: bool
    """Every component of it can be stored anywhere."""
    kind: str
    content: bytes
    mode: int
    modified: int
    """Seconds since 1970."""


@dataclass(frozen=True)
class StoredFile:
    """Something that lies in the directory in the end."""

    raw: bytes
    fine: bool
    mode: int
    content: bytes = b""

    @property
    def path(self) -> str:
        return os.fsdecode(self.raw)

    @property
    def listed_as(self) -> str:
        """As a receipt lists it."""
        return shown(self.path)[1:-1]


_ANY: Final = st.binary(min_size=1, max_size=12).filter(
    lambda raw: not {0, 0x2F} & set(raw) and raw not in {b".", b".."}
)


@st.composite
def _components(draw: st.DrawFn) -> tuple[bytes, bool]:
    way = draw(st.integers(0, 3))
    if way < 2:
        return draw(generated_bundles.fine_components).encode(), True
    if way == 2:
        text = draw(generated_bundles.odd_components.filter(lambda text: text not in {".", ".."}))
        return text.encode("utf-8", "surrogateescape"), False
    return draw(_ANY), False


@st.composite
def things(draw: st.DrawFn) -> list[FileSpec]:
    """Up to eight, some of them in folders of others."""
    found: list[FileSpec] = []
    for _ in range(draw(st.integers(0, 8))):
        drawn = draw(st.lists(_components(), min_size=1, max_size=3))
        parts = tuple(one[0] for one in drawn)
        fine = all(one[1] for one in drawn)
        beside = found[draw(st.integers(0, len(found) - 1))] if found else None
        way = draw(st.integers(0, 3))
        if beside is not None and way == 1:
            parts, fine = (*beside.parts[:-1], *parts), fine and beside.fine
        elif beside is not None and way == 2:
            parts, fine = (*beside.parts[:-1], _twin(beside.parts[-1])), beside.fine
        kind, content = draw(st.sampled_from(KINDS)), draw(generated_bundles.contents)
        mode, modified = draw(st.sampled_from(MODES)), draw(st.sampled_from(TIMES))
        found.append(FileSpec(parts, fine, kind, content, mode, modified))
    return found


def _twin(name: bytes) -> bytes:
    """Another spelling, where there is one."""
    text = os.fsdecode(name)
    decomposed = unicodedata.normalize("NFD", text)
    return os.fsencode(text.swapcase() if decomposed == text else decomposed)


def make(folder: Path, wanted: Sequence[FileSpec]) -> None:
    """Make what can be made."""
    for thing in wanted:
        path = folder.joinpath(*map(os.fsdecode, thing.parts))
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _make(path, thing)
            os.utime(path, (thing.modified, thing.modified), follow_symlinks=False)


def _make(path: Path, thing: FileSpec) -> None:
    match thing.kind:
        case "file":
            with path.open("xb") as file:
                file.write(thing.content)
            path.chmod(thing.mode)
        case "folder":
            path.mkdir()
            path.chmod(thing.mode | 0o700)
        case "symlink":
            path.symlink_to("/etc/passwd")
        case "FIFO":
            os.mkfifo(path)
        case "hard link":
            path.hardlink_to(path.parent / "run.sh")
        case "socket":
            folder = os.open(path.parent, os.O_PATH)
            try:
                with socket.socket(socket.AF_UNIX) as listening:
                    listening.bind(b"/proc/self/fd/%d/%s" % (folder, thing.parts[-1]))
            finally:
                os.close(folder)


def look(folder: Path, wanted: Sequence[FileSpec]) -> list[StoredFile]:
    """Everything that lies below the folder."""
    found: list[StoredFile] = []
    for path in folder.rglob("*"):
        parts, mode = tuple(map(os.fsencode, path.relative_to(folder).parts)), path.lstat().st_mode
        content = path.read_bytes() if stat.S_ISREG(mode) else b""
        # itself, or a folder that a fine thing lies in
        fine = any(one.fine and one.parts[: len(parts)] == parts for one in wanted)
        found.append(StoredFile(b"/".join(parts), fine, mode, content))
    return found


def check(result: Result, made: Sequence[StoredFile]) -> None:
    """Each thing is in the result, whole and under its own name, or listed with the reason."""
    assert result.skipped.keys() <= {one.listed_as for one in made}
    kept: dict[str, StoredFile] = {}
    for one in made:
        if _listed(one, made, result):
            clashes = [x for x in made if x is not one and _rivals(x.path, one.path)]
            assert not (one.fine and stat.S_ISREG(one.mode)) or clashes, one
            continue
        assert stat.S_ISREG(one.mode) or stat.S_ISDIR(one.mode), one
        path = generated_bundles.composed(one.path)
        assert path not in kept, "two of them are one"
        kept[path] = one
    files = {path: one for path, one in kept.items() if stat.S_ISREG(one.mode)}
    assert result.files == {path: one.content for path, one in files.items()}
    programs = {path for path, one in files.items() if one.mode & 0o100}
    assert result.modes == {path: 0o755 if path in programs else 0o644 for path in files}
    empty = {path for path in kept if not any(other.startswith(f"{path}/") for other in kept)}
    assert result.folders == empty - files.keys()


def _listed(one: StoredFile, made: Sequence[StoredFile], result: Result) -> bool:
    """It, or a folder that it lies in."""
    return one.listed_as in result.skipped or any(
        one.raw.startswith(x.raw + b"/") and x.listed_as in result.skipped for x in made
    )


def _rivals(one: str, other: str) -> bool:
    """Whether the two, or folders above them, differ in composition only."""
    for a, b in zip(one.split("/"), other.split("/"), strict=False):
        if generated_bundles.composed(a) != generated_bundles.composed(b):
            return False
        if a != b:
            return True
    return False
