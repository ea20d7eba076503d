"""Unpacks bundle and inputs into the directory of an attempt. Blocking."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from client_agent.collect.selection import Given
from client_agent.payloads.payload import Payload
from client_agent.sandbox.base import HARD, Workspace
from client_agent.storage.folders import Folders
from client_agent.storage.open_beneath import DISK_FULL_ERRNOS
from shared.files.bundles.format import META
from shared.files.bundles.reader import BundleReader, InputsReader
from shared.files.durable import write_all
from shared.files.names import BundleError, shown
from shared.files.opened import closing_fd
from shared.units.sizes import say_size


class DoesNotFit(Exception):
    """What is unpacked needs more disk space or files than the attempt may have."""


class CannotStart(Exception):
    """The order asks for something that its bundle or inputs do not have: not this host's fault."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What the attempt gets of its files besides themselves."""

    warnings: tuple[str, ...] = ()
    given: Given = field(default_factory=Given)
    """Files that its result refers to where they are as they were."""


def unpack(folders: Folders, payload: Payload, workspace: Workspace) -> Unpacked:
    """Write the bundle's files, or those of one of its folders, and then the inputs into the
    directory of the attempt. Raises DoesNotFit, CannotStart, BundleError if the stored bundle is
    damaged, or OSError."""
    own_disk = workspace.enforcement.get("disk") == HARD
    with ExitStack() as stack:
        reader = stack.enter_context(BundleReader(folders.bundle(payload.bundle_file)))
        files = reader.inside(payload.folder)
        if payload.folder and not files:
            raise CannotStart(f"the bundle has no folder {shown(payload.folder)}")
        inputs = _open_inputs(folders, payload, stack)
        paths, size = list(files), sum(one.size for one in files.values())
        what = "the bundle"
        if inputs is not None:
            paths += inputs.files
            size += inputs.size
            what = "the bundle with its inputs"
        _check_room(payload, workspace, what, size, paths if own_disk else None)
        ids, given = (workspace.uid, workspace.gid), Given()
        # A server without keys does not know of lists, and gives out what it gets.
        note = given.add if payload.key is not None else None
        try:
            reader.unpack(
                workspace.fd,
                uid=workspace.uid,
                gid=workspace.gid,
                digest=payload.bundle_digest,
                folder=payload.folder,
                note=note,
            )
            note = partial(given.add, listed=False) if payload.result_files == "changed" else None
            left_out = 0 if inputs is None else inputs.unpack(workspace.fd, files, *ids, note)
            if payload.meta:
                _write_meta(payload, workspace, given)
        except OSError as problem:
            if own_disk and problem.errno in DISK_FULL_ERRNOS:
                disk = say_size(payload.limits.disk)
                why = f"{what} does not fit on the job's disk of {disk}: each file takes blocks"
                raise DoesNotFit(why) from None
            raise
    return Unpacked((_left_out(left_out),) if left_out else (), given)


def _write_meta(payload: Payload, workspace: Workspace, given: Given) -> None:
    content = payload.meta.encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(META, flags, 0o644, dir_fd=workspace.fd)
    except FileExistsError:
        raise CannotStart(f"the bundle has {META}, and that is where its meta goes") from None
    with closing_fd(fd):
        write_all(fd, content)
        if workspace.uid is not None and workspace.gid is not None:
            os.fchown(fd, workspace.uid, workspace.gid)
        given.add(META, sha256(content).hexdigest(), os.fstat(fd), listed=False)


def _open_inputs(folders: Folders, payload: Payload, stack: ExitStack) -> InputsReader | None:
    if not payload.inputs_file:
        return None
    try:
        return stack.enter_context(InputsReader(folders.bundle(payload.inputs_file)))
    except BundleError as problem:
        raise CannotStart(f"the inputs cannot be used: {problem}") from None


def _check_room(
    payload: Payload, workspace: Workspace, what: str, size: int, paths: Iterable[str] | None
) -> None:
    """Raises DoesNotFit.

    Args:
        paths: given where the attempt has a disk of its own, whose files are counted, too.
    """
    disk = say_size(payload.limits.disk)
    if size > payload.limits.disk:
        raise DoesNotFit(f"{what} has {say_size(size)}, the job's disk limit is {disk}")
    if paths is None:
        return
    names, most = _count_names(paths), os.fstatvfs(workspace.fd).f_favail
    if names > most:
        raise DoesNotFit(
            f"{what} has {names} files and folders, and the job's disk of {disk} can hold {most}"
        )


def _left_out(count: int) -> str:
    what = "1 file of the inputs is" if count == 1 else f"{count} files of the inputs are"
    return f"{what} not there, because the bundle has files of these names"


def _count_names(paths: Iterable[str]) -> int:
    """Files, and the folders that hold them."""
    files, folders = 0, set[str]()
    for path in paths:
        files += 1
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return files + len(folders)
