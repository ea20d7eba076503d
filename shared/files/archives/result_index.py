"""Finds files of a result, and of its bundle as far as the result refers to them, without reading
both tables of contents into memory. New ones come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Final

from shared.files.archives.inputs_list import not_there, read_list
from shared.files.archives.merge import Source
from shared.files.archives.zip_reader import ListedFile, ZipEntry, ZipIndex, size_of, spellings

_ENTRY: Final = "run.sh"
_MAX_SIMILAR: Final = 3


class ResultIndex:
    """Its methods block.

    Args:
        source: its prefix does not count.

    Attributes:
        count, weight: as those of :class:`ZipIndex`.

    Raises:
        BundleError: one of them is no ZIP, or cut short.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._new = ZipIndex(source.result)
        self._list = self._new.last() if source.inputs else None
        self._bundle = None
        if source.inputs and source.bundle is not None:
            self._bundle = ZipIndex(source.bundle)
        both = [self._new] if self._bundle is None else [self._new, self._bundle]
        self.count = sum(one.count for one in both)
        self.weight = sum(one.weight for one in both)

    @cached_property
    def _inputs(self) -> frozenset[str]:
        """Those of the bundle that it refers to, as they are called in the result."""
        source = self._source
        assert self._list is not None, "it refers to some"
        assert source.bundle is not None, "of this"
        return read_list(source.result, self._list.check(), source.inputs, size_of(source.bundle))

    @cached_property
    def _folder(self) -> str:
        """What files of the bundle lose of their names."""
        assert self._bundle is not None
        root = ""
        if self._bundle.search(_ENTRY) is None:  # then all lie in one folder
            first = next(self._bundle.scan(), None)
            top = "" if first is None else first.path.partition("/")[0]
            if self._bundle.search(f"{top}/{_ENTRY}") is not None:
                root = f"{top}/"
        return root + self._source.folder

    def files(self, at: int = 0) -> Iterator[tuple[ZipEntry, int, bool]]:
        """The files from a position on, for each the position behind it, and whether it is as it
        was sent.

        Raises:
            BundleError: damaged; or no file begins at the position.
        """
        if at < self._new.length:
            for one, behind in self._new.files(at):
                if self._list is None or one.at != self._list.at:
                    yield one, behind, False
        if self._bundle is not None:
            for one, behind in self._bundle.files(max(0, at - self._new.length)):
                if (name := self._as_input(one.name)) is not None:
                    yield replace(one, name=name), self._new.length + behind, True

    def scan(self) -> Iterator[ListedFile]:
        """All files, with only what a list shows of them."""
        hidden = None if self._list is None else self._list.name
        new = (one for one in self._new.scan() if one.path != hidden)
        if self._bundle is None:
            return new
        sent = (
            one._replace(path=name, is_input=True)
            for one in self._bundle.scan()
            if (name := self._as_input(one.path)) is not None
        )
        return chain(new, sent)

    def _as_input(self, name: str) -> str | None:
        """A file of the bundle, as it is called in the result; None: it does not refer to it."""
        path = name.removeprefix(self._folder)
        return path if name.startswith(self._folder) and path in self._inputs else None

    def search(self, path: str) -> tuple[ZipEntry, bool] | None:
        """The file that is listed under this very path, and whether it is as it was sent, so that
        it is in the bundle.

        Raises:
            BundleError: it is damaged, encrypted, or compressed in a way that is not read.
        """
        entry = self._new.search(path)
        if entry is not None and not self._is_list(entry):
            return entry, False
        names = () if self._bundle is None else spellings(path) & self._inputs
        for name in names:
            assert self._bundle is not None
            if (entry := self._bundle.search(self._folder + name)) is None:
                raise not_there(name)
            return entry, True
        return None

    def find(self, path: str) -> tuple[tuple[ZipEntry, bool] | None, list[str]]:
        """The file with this path, and if there is none, some with the same name elsewhere.

        Raises:
            BundleError: as :meth:`search`.
        """
        if (found := self.search(path)) is not None:
            return found, []
        entry, similar = self._new.find(path)
        if entry is not None and not self._is_list(entry):
            return (entry, False), []
        if self._bundle is not None:
            ending = "/" + path.rpartition("/")[2]
            similar += [one for one in sorted(self._inputs) if f"/{one}".endswith(ending)]
        return None, similar[:_MAX_SIMILAR]

    def _is_list(self, entry: ZipEntry) -> bool:
        return self._list is not None and entry.name == self._list.name
