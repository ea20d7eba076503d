"""What a sealed bundle is: one ZIP with stored entries, written once, never changed; its digest.

The root rule: ``run.sh`` lies at the root; or everything lies in exactly one top-level folder that
holds it (a folder dropped by a browser, a zipped folder), and then that folder is stripped. It is a
pure function of the names (:func:`shared.files.names.find_root`). Writer and reader apply it alike,
so the ZIP need not be written again.

The digest does not depend on the ZIP's own metadata. It is the SHA-256, in hex, of the text ::

    ferryman-bundle 1\\n
    <SHA-256 of the content, hex> <bytes, decimal> <path after root stripping>\\n

with one line for each file, sorted by the paths' UTF-8 bytes, in UTF-8. Paths hold no line breaks
(:func:`shared.files.names.safe_path`), so two bundles with one digest hold the same files.

Modes: files are 0644. Those that are executable in the archive they came from, whose name ends in
``.sh``, or that begin with ``#!`` or as an ELF program are 0755, since a form cannot say. Modes are
restored by unpacking but are no part of the digest. Times and empty folders are not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from shared.files.names import BundleError, find_root, shown

ENTRY: Final = "run.sh"
GATHER: Final = "gather.sh"
"""Runs when all children of a batch have completed."""
META: Final = ".ferryman-meta.json"
"""Where ``run.sh`` finds its upload's ``meta``. No result has it, unless the job changed it."""
FILE_MODE: Final = 0o644
PROGRAM_MODE: Final = 0o755

_Content: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class BundleSummary:
    """What is known of a complete bundle."""

    size: int
    """Bytes of the ZIP."""
    digest: str
    """Of the content, hex, as the module's text defines it."""
    files: int
    bytes: int
    """Of all files together, unpacked."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """For people: names that are not for every system."""
    has_gather: bool = field(default=False, compare=False)
    """There is a ``gather.sh`` beside ``run.sh``."""
    has_meta: bool = field(default=False, compare=False)
    """It has a file or folder of its own where the ``meta`` of an upload goes."""
    own_modes: bool = field(default=False, compare=False)
    """A file is executable only because its archive said so: the digest does not tell it from a
    bundle in which it is not."""
    content: _Content | None = field(default=None, compare=False, repr=False)
    """The ZIP, if it was kept in memory; None: it is in a file."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file, as it goes into the digest."""

    path: str
    """After root stripping."""
    size: int
    sha256: str


def digest_of(files: Iterable[FileDigest]) -> str:
    """The digest of a bundle with these files, whatever their order."""
    total = hashlib.sha256(b"ferryman-bundle 1\n")
    for key, file in sorted(((f.path.encode(), f) for f in files), key=lambda pair: pair[0]):
        total.update(b"%s %d %s\n" % (file.sha256.encode(), file.size, key))
    return total.hexdigest()


def is_program(name: str, head: bytes) -> bool:
    """Whether a file looks made to be executed; ``head``: at least its first four bytes."""
    return name.endswith(".sh") or head.startswith((b"#!", b"\x7fELF"))


def root_of(paths: list[str]) -> str:
    """The prefix that the root rule strips from every path: ``""`` or ``"folder/"``.

    Raises:
        BundleError: ``no_file`` or ``no_run_sh``.
    """
    root = find_root(paths, ENTRY)
    if root is not None:
        return root
    if not paths:
        raise BundleError("no_file", "the bundle has no file; it needs at least a run.sh")
    hint = ""
    misplaced = min(
        (p for p in paths if p.rpartition("/")[2].casefold() == ENTRY),
        key=lambda p: (p.count("/"), p),
        default=None,
    )
    if misplaced is not None:
        hint = f"; {shown(misplaced)} is there, but the script must be {ENTRY} at the root"
    elif len(paths) == 1 and paths[0].casefold().endswith((".zip", ".tar", ".tar.gz", ".tgz")):
        hint = "; to have an archive expanded, send it in a form field named bundle"
    raise BundleError("no_run_sh", f"the bundle has no {ENTRY} at its root{hint}")
