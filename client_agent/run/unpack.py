"""Unpacks a bundle into the directory of its attempt. Blocking."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from client_agent.payloads.payload import Payload
from client_agent.sandbox.base import HARD, Workspace
from client_agent.storage.shortage import DISK_FULL_ERRNOS
from shared.files.bundles.reader import BundleReader
from shared.units.sizes import say_size


class DoesNotFit(Exception):
    """The bundle alone needs more disk space or files than the attempt may have."""


def unpack(bundle: Path, payload: Payload, workspace: Workspace) -> None:
    """Write the bundle's files into the directory of the attempt. Raises DoesNotFit, BundleError
    if the stored bundle is damaged, or OSError."""
    own_disk = workspace.enforcement.get("disk") == HARD
    with BundleReader(bundle) as reader:
        size = sum(entry.size for entry in reader.entries)
        disk = say_size(payload.limits.disk)
        if size > payload.limits.disk:
            raise DoesNotFit(f"the bundle has {say_size(size)}, the job's disk limit is {disk}")
        names = _count_names(entry.path for entry in reader.entries)
        max_names = os.fstatvfs(workspace.fd).f_favail if own_disk else names
        if names > max_names:
            raise DoesNotFit(
                f"the bundle has {names} files and folders, and the job's disk of {disk} "
                f"can hold {max_names}"
            )
        try:
            reader.unpack(
                workspace.fd, uid=workspace.uid, gid=workspace.gid, digest=payload.bundle_digest
            )
        except OSError as problem:
            if own_disk and problem.errno in DISK_FULL_ERRNOS:
                why = f"the bundle does not fit on the job's disk of {disk}: each file takes blocks"
                raise DoesNotFit(why) from None
            raise


def _count_names(paths: Iterable[str]) -> int:
    """Files, and the folders that hold them."""
    files, folders = 0, set[str]()
    for path in paths:
        files += 1
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return files + len(folders)
