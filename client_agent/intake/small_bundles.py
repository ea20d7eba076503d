"""Bundles that came together, in memory: checked and stored in one visit to a thread. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from client_agent.intake.orders import check_bundle
from client_agent.intake.refusals import disk_problem, form_problem
from client_agent.payloads.errors import Refused
from client_agent.storage.folders import Folders
from shared.files.errors import BundleError
from shared.multipart.limits import FormRefused
from shared.multipart.parser import FilePart
from shared.multipart.sinks import RawSink
from shared.wire import Order

_PART: Final = FilePart("bundle", "bundle.zip")


def store(folders: Folders, sent: Sequence[tuple[Order, memoryview]]) -> list[str | Refused]:
    """For each bundle its name in the folder of bundles, where it survives a power cut; or why it
    is refused."""
    staged = [_stage(folders, *one) for one in sent]
    paths = [one for one in staged if isinstance(one, Path)]
    try:
        names = iter(folders.seal_bundles(paths))
    except OSError as problem:
        refused = disk_problem(problem)
        return [refused if isinstance(one, Path) else one for one in staged]
    return [next(names) if isinstance(one, Path) else one for one in staged]


def _stage(folders: Folders, order: Order, content: memoryview) -> Path | Refused:
    path = folders.staging()
    sink = RawSink(path, max_bytes=len(content))
    try:
        sink.begin(_PART)
        sink.write(content)
        check_bundle(order, sink.finish())
    except BundleError as problem:
        sink.abort()
        return form_problem(FormRefused.of_bundle(problem))
    except OSError as problem:
        sink.abort()
        return disk_problem(problem)
    except BaseException:
        sink.abort()
        raise
    return path
