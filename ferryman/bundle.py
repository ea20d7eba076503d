"""Which files make up a bundle, and what is checked before a byte is sent.

A folder stands for what is in it, relative to it; single files stand for their base names; a
mapping says the names. One archive alone is sent as it is and expanded by the server.

Symbolic links inside a folder: a link to a regular file inside the same folder is sent as that
file. Every other link is refused: a link to the outside would send what the user did not name, and
a link to a folder can lead in circles. A path that the caller names may itself be a link. Empty
folders are not sent: a form has files only.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ferryman.errors import BadBundle

AnyPath: TypeAlias = str | os.PathLike[str]
Content: TypeAlias = AnyPath | bytes
"""Of a file: where it is, or what is in it."""
Files: TypeAlias = AnyPath | Sequence[AnyPath] | Mapping[str, Content]
"""What can be submitted: a folder, an archive, files, or names with their content."""

ENTRY: Final = "run.sh"
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz")
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]|(^|/)\.{0,2}(/|$)")
"""What no server takes: control characters, backslashes, what was not UTF-8, an absolute path, and
components that are empty, ``.`` or ``..``. Every other rule about names is the server's to apply.
"""


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file to send."""

    name: str
    """Path in the bundle, or the archive's base name."""
    source: Path | bytes
    size: int
    """Bytes."""
    identity: tuple[int, int, int] = (0, 0, 0)
    """Device, inode and mtime (ns) as the size was read: they must be the same when it is sent."""
    field: str = "file"


LeaveOut: TypeAlias = Callable[[str, Path, bool], bool]
"""Whether an entry of a folder is left out: path in the bundle, path here, whether it is a folder.
"""


def gather(files: Files, leave_out: Callable[[Path], LeaveOut] | None = None) -> list[BundleFile]:
    """The parts of a bundle, in the order of their names.

    Args:
        leave_out: folder -> what is left out of it; None: nothing.

    Raises:
        BadBundle: something is missing, cannot be read, is no regular file, has a name that no
            bundle may have, or there is no ``run.sh``.
    """
    if isinstance(files, Mapping):
        parts = [_bundle_file(name, content) for name, content in files.items()]
    else:
        paths = [files] if isinstance(files, str | os.PathLike) else list(files)
        named = [Path(os.fspath(path)) for path in paths]
        if len(named) == 1 and named[0].name.lower().endswith(ARCHIVES) and not named[0].is_dir():
            return [_archive(named[0])]
        parts = [part for path in named for part in _from_path(path, leave_out)]
    if not parts:
        raise BadBundle(f"there is nothing to send: a bundle is files with a {ENTRY}")
    parts.sort(key=lambda part: part.name)
    _check_names(parts)
    return parts


def named_files(files: Files) -> dict[str, Path | bytes]:
    """A bundle as names with their content, which can be sent any number of times.

    Raises:
        BadBundle: as :func:`gather`; an archive.
    """
    parts = gather(files)
    found: dict[str, Path | bytes] = {}
    for part in parts:
        if part.field == "bundle":
            why = "cannot be sent with each job: give a folder, files, or their bytes"
            raise BadBundle(f"{shown(part.name)} {why}", part.name)
        found[part.name] = part.source
    return found


def _bundle_file(name: str, source: object) -> BundleFile:
    name = unicodedata.normalize("NFC", name)  # macOS decomposes
    if _UNSAFE.search(name):
        why = "a name is a relative path without “..”, backslashes and control characters, in UTF-8"
        raise BadBundle(f"{shown(name)} cannot be in a bundle: {why}", name)
    if isinstance(source, bytes):
        return BundleFile(name, source, len(source))
    if isinstance(source, str | os.PathLike):
        path = Path(os.fspath(source))
        return BundleFile(name, path, *_measure(path))
    why = "its content is a path or bytes; of an open file, what its read() gives"
    raise BadBundle(f"{shown(name)}: {why}", name)


def _measure(path: Path) -> tuple[int, tuple[int, int, int]]:
    try:
        info = path.stat()
    except OSError as problem:
        raise BadBundle(f"{path}: {problem.strerror}", path) from problem
    if not stat.S_ISREG(info.st_mode):
        raise BadBundle(f"{path} is {_kind(info.st_mode)}: a bundle holds regular files only", path)
    try:
        with path.open("rb") as file:  # fstat both times: Windows' stat gives other numbers
            info = os.fstat(file.fileno())
    except OSError as problem:
        raise BadBundle(f"{path}: {problem.strerror}", path) from problem
    return info.st_size, (info.st_dev, info.st_ino, info.st_mtime_ns)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "no regular file")


def _archive(path: Path) -> BundleFile:
    """The server checks archives; here only a ZIP's list of names is checked, which is quick."""
    size, identity = _measure(path)
    if path.name.lower().endswith(".zip"):
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as problem:
            raise BadBundle(f"{path} is not a ZIP that can be read: {problem}", path) from problem
        _check_entry(names, f"{path} holds")
    return BundleFile(path.name, path, size, identity, "bundle")


def _from_path(path: Path, leave_out: Callable[[Path], LeaveOut] | None) -> Iterator[BundleFile]:
    if not path.is_dir():
        # resolve: "." and "run.sh/" have no base name of their own
        yield _bundle_file(path.name or path.resolve().name, path)
        return
    root = path.resolve()
    for inside in _walk(root, root, leave_out(root) if leave_out is not None else None):
        yield _bundle_file(inside.relative_to(root).as_posix(), inside)


def _walk(folder: Path, root: Path, leave_out: LeaveOut | None) -> Iterator[Path]:
    """Regular files below, and links to such files, in the order of their names."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as problem:
        raise BadBundle(f"{folder}: {problem.strerror}", folder) from problem
    for entry in entries:
        path = Path(entry.path)
        is_folder = entry.is_dir(follow_symlinks=False)
        name = path.relative_to(root).as_posix()
        if leave_out is not None and leave_out(name, path, is_folder):
            continue
        if entry.is_symlink():
            _check_link(path, root)
            yield path
        elif is_folder:
            yield from _walk(path, root, leave_out)
        else:
            yield path


def _check_link(link: Path, root: Path) -> None:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError) as problem:
        raise BadBundle(f"{link} is a symbolic link that leads nowhere", link) from problem
    if not target.is_relative_to(root):
        why = f"is a symbolic link out of the folder, to {target}: copy the file there instead"
        raise BadBundle(f"{link} {why}", link)
    if target.is_dir():
        why = "is a symbolic link to a folder: copy the folder there instead"
        raise BadBundle(f"{link} {why}", link)


def _check_names(parts: Sequence[BundleFile]) -> None:
    files: set[str] = set()
    for part in parts:
        if part.name in files:
            raise BadBundle(f"{shown(part.name)} is there twice", part.name)
        files.add(part.name)
    for name in files:
        above = name
        while above := above.rpartition("/")[0]:
            if above in files:
                why = f"is a file, so {shown(name)} cannot be in it"
                raise BadBundle(f"{shown(above)} {why}", above)
    _check_entry([part.name for part in parts], "there is")


def _check_entry(names: Sequence[str], holds: str) -> None:
    tops = {name.partition("/")[0] for name in names if not name.startswith("__MACOSX/")}
    in_the_only_folder = len(tops) == 1 and f"{min(tops)}/{ENTRY}" in names
    if ENTRY not in names and not in_the_only_folder:
        some = ", ".join(shown(name) for name in sorted(names)[:3])
        raise BadBundle(
            f"no {ENTRY}: a bundle needs one at its root, it is what gets run; "
            f"{holds} only {some or 'nothing'}{', …' if len(names) > 3 else ''}"
        )


def shown(name: str) -> str:
    """A name in quotes, as it can be printed."""
    return f"“{repr(name)[1:-1]}”"
