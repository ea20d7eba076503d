"""Unpacks a result."""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
from pathlib import Path, PurePath, PureWindowsPath
from typing import BinaryIO

from ferryman.errors import NotUnderstood


def unpack(file: BinaryIO, folder: Path) -> None:
    """Write the files of a ZIP into a folder; files of the same names are replaced.

    Raises:
        NotUnderstood: it is no ZIP that can be read, or has a name that leads elsewhere.
        OSError: something cannot be written.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            targets = [(entry, _target(folder, entry.filename)) for entry in archive.infolist()]
            for entry, target in targets:
                if entry.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    _write(archive, entry, target)
    except (zipfile.BadZipFile, NotImplementedError) as problem:
        raise NotUnderstood("the server", f"its ZIP cannot be read: {problem}") from problem


def leads_elsewhere(name: str, here: type[PurePath] = PurePath) -> bool:
    """Whether a file of this name would not be in the folder that the name is added to.

    Args:
        here: how this system reads names. On Windows, ``C:x`` is a file of another drive, ``a:b``
            a hidden part of ``a``, and blanks and dots at the end of a component are left out.
    """
    windows = isinstance(here(), PureWindowsPath)
    for part in name.removesuffix("/").split("/"):
        if part in ("", ".", "..") or here(part).parts != (part,):
            return True
        if windows and (":" in part or not part.strip(" .")):
            return True
    return False


def _target(folder: Path, name: str) -> Path:
    if leads_elsewhere(name):
        raise NotUnderstood("the server", f"its ZIP has the name {name!r}, which leads elsewhere")
    return folder.joinpath(*name.removesuffix("/").split("/"))


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with archive.open(entry) as source, partial.open("xb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
            if entry.external_attr >> 16 & 0o100 and os.name == "posix":
                mode = os.fstat(out.fileno()).st_mode
                os.fchmod(out.fileno(), mode | (mode & 0o444) >> 2)  # whoever may read may run it
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
