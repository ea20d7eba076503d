"""Unpacks a ZIP of other files beside those of a bundle. Blocking."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shared.files.archives.zip_content import read_content
from shared.files.archives.zip_directory import ZipEntry, read_entries
from shared.files.bundles.file_writer import FileWriter, in_order
from shared.files.errors import BundleError
from shared.files.names import PathSet, UnsafeName, safe_path

MAX_ENTRIES: Final = 200_000
"""Files and folders; memory used is in proportion to this."""


class InputsReader:
    """An open ZIP of inputs, as a context manager. It is not trusted: its names and its table of
    contents are checked as those of an uploaded archive are.

    Attributes:
        files: path -> its entry.
        size: bytes of all files, unpacked.

    Raises:
        BundleError, OSError
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.files = _checked(read_entries(self._fd, MAX_ENTRIES))
        except BaseException:
            os.close(self._fd)
            raise
        self.size = sum(one.size for one in self.files.values())

    def __enter__(self) -> InputsReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def unpack(self, dir_fd: int, bundle: Iterable[str], uid: int | None, gid: int | None) -> int:
        """Write the files below a folder that holds a bundle's. The bundle's own are kept: a file
        of their name, or in the place of their folder or below their file, is left out.

        Args:
            bundle: paths of the bundle's files.

        Returns:
            How many files were left out.

        Raises:
            BundleError: damaged. The caller removes what was written.
            OSError
        """
        files = set(bundle)
        folders = {above for path in files for above in _folders_above(path)}
        left_out = 0
        with FileWriter(dir_fd, uid, gid, into_existing=True) as writer:
            for path, one in in_order(self.files.items()):
                if path in files or path in folders or not files.isdisjoint(_folders_above(path)):
                    left_out += 1
                else:
                    writer.write(path, read_content(self._fd, one), executable=one.executable)
        return left_out


def _folders_above(path: str) -> list[str]:
    components = path.split("/")
    return ["/".join(components[:count]) for count in range(1, len(components))]


def _checked(entries: list[ZipEntry]) -> dict[str, ZipEntry]:
    """The files by their safe paths. Folders without files are left out."""
    tree, files = PathSet(), dict[str, ZipEntry]()
    try:
        for one in entries:
            path = safe_path(one.name.removesuffix("/") if one.is_folder else one.name)
            if not one.is_folder:
                tree.add(path)
                files[path] = one
        tree.check()
    except UnsafeName as problem:
        raise BundleError.of_name(problem) from None
    return files
