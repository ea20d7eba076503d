"""A batch: how its children are made, and how it ends."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.domain import ending
from server.domain.jobs import BatchRequest, Bundle, Job, Move, Step
from server.domain.service import Service
from shared.clock import Micros
from shared.wire import JobState, Reason

_OF_THE_END: Final = frozenset({"ended_at", "expires_at", "dead_letter"})
NAMED: Final = 3
"""How many of the failed children the parent's message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(BatchRequest):
    """The children of a job, as they are counted.

    Attributes:
        total: 0: it has no children, and may leave some.
        made: so many of them are jobs by now, from the first one on.
        bundle: of the children that the parent left; None: they have the parent's.
        rest_after: the parent is retried: the children behind this number that did not complete are
            still to be queued again; None: none are.
    """

    parent_id: int
    total: int
    made: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    bundle: Bundle | None = None
    rest_after: int | None = None

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.cancelled

    @property
    def gives_up(self) -> bool:
        """A child has failed, and that ends all."""
        return self.fail_fast and self.failed > 0


@dataclass(frozen=True, slots=True)
class NewChild:
    """A child that is to be made."""

    name: str
    array_index: int | None = None
    array_line: str | None = None
    folder: str = ""
    """Of the bundle, ending in "/"."""


@dataclass(frozen=True, slots=True)
class Child:
    """What a list of many children shows of one."""

    id: int
    name: str
    state: JobState
    reason: Reason | None = None


def tasks(batch: Batch, first: int, count: int, lines: Iterable[str] = ()) -> list[NewChild]:
    """Tasks of an array, from its ``first`` one on, counted from 0; at most ``count``. ``lines``:
    theirs, where the array has a file.
    """
    indices = itertools.chain.from_iterable(
        range(start, last + 1, step) for start, last, step in batch.ranges
    )
    chosen = itertools.islice(indices, first, first + count)
    each = itertools.chain(lines, itertools.repeat(None))
    return [NewChild(str(index), index, line) for index, line in zip(chosen, each, strict=False)]


def folders(names: Iterable[str]) -> list[NewChild]:
    """The children of a parent that left these folders."""
    return [NewChild(name, folder=f"{name}/") for name in names]


def begun(parent: Job, batch: Batch, now: Micros) -> Move:
    """A queued parent may run: its children are queued."""
    children = _children(batch.total)
    message = f"{children} queued"
    if parent.run > 1:
        message = f"of its {children}, those that have not completed are queued again"
    changes, fields = {"started_at": parent.started_at or now}, {"children": batch.total}
    event = "job.children_queued"
    return ending.move(parent, JobState.RUNNING, now, message, None, changes, event, fields)


def may_fan_out(job: Job) -> bool:
    """Whether children that an attempt of the job left are run.

    One generation: what a child leaves, or a gather.sh, is part of its result only.
    """
    return job.parent_id is None and not job.gather


def left_children(
    job: Job, service: Service, now: Micros, ended: Move, children: int, problem: str
) -> Move:
    """What follows in place of ``ended`` for a job that has ended well and left children.

    Args:
        problem: why they cannot be run; empty: they can.
    """
    if not may_fan_out(job):
        if job.gather:
            return ended  # The folders in children/ are what its children left.
        note = "the folders in children/ are not run: a child of a batch leaves no further ones"
        warnings = [*ended.facts.get("warnings", ()), note]
        return dataclasses.replace(ended, facts={**ended.facts, "warnings": warnings})
    if job.cancel_requested_at is not None:
        message = "cancelled; the children that it left are not run"
        return _ends_otherwise(job, service, now, ended, JobState.CANCELLED, message)
    if problem:
        message, why = f"the children that it left cannot be run: {problem}", Reason.INVALID_BUNDLE
        return _ends_otherwise(job, service, now, ended, JobState.FAILED, message, why)
    return _deferred(job, ended, children)


def _deferred(job: Job, ended: Move, children: int) -> Move:
    through = list(ended.through)
    if (through[-1].to if through else job.state) is not JobState.RUNNING:
        through.append(Step(JobState.RUNNING, ended.at, "run.sh started"))
    return dataclasses.replace(
        ended,
        to=JobState.RUNNING,
        message=f"run.sh left {_children(children)}, now queued",
        changes=_without_end(ended) | {"deferred": True, "agent": None, "payload_id": None},
        through=tuple(through),
        event="job.deferred",
        fields={"children": children},
    )


def _ends_otherwise(
    job: Job, service: Service, now: Micros, ended: Move, to: JobState, message: str, *why: Reason
) -> Move:
    seen = ending.behind(job, ended.through)
    move = ending.end(seen, service, now, to, message, *why)
    changes = _without_end(ended)
    return ending.reported(job, move, ended.through, changes, ended.facts, ended.live)


def _without_end(ended: Move) -> dict[str, Any]:
    """What the move changes apart from the end of the job."""
    return {name: ended.changes[name] for name in ended.changes if name not in _OF_THE_END}


def over(
    parent: Job, batch: Batch, service: Service, now: Micros, failed: Sequence[str]
) -> Move | None:
    """What follows when no child is under way; None: there are still children to make. ``failed``:
    the first ones of the children that failed, by name and reason.
    """
    completed = f"{batch.completed} of {_children(batch.total)} completed"
    if batch.completed == batch.total:
        completed = f"{'its' if batch.total == 1 else 'all'} {_children(batch.total)} completed"
    if parent.cancel_requested_at is not None:
        return ending.end(parent, service, now, JobState.CANCELLED, f"cancelled; {completed}")
    if batch.made < batch.total and not batch.gives_up:
        return None
    if batch.failed or batch.cancelled:
        message, reason = _failures(batch, failed), Reason.CHILD_FAILED
        return ending.end(parent, service, now, JobState.FAILED, message, reason)
    if not batch.has_gather:
        return ending.end(parent, service, now, JobState.COMPLETED, completed)
    changes = ending.queued_again(now) | {"deferred": False, "gather": True, "result": None}
    message, event = f"{completed}, gather.sh runs next", "job.gather_queued"
    return ending.move(parent, JobState.QUEUED, now, message, None, changes, event)


def _failures(batch: Batch, failed: Sequence[str]) -> str:
    parts = []
    if batch.failed:
        total = _children(batch.total)
        more = "" if batch.failed <= len(failed) else ", …"
        parts.append(f"{batch.failed} of {total} failed: {', '.join(failed)}{more}")
    if batch.cancelled:
        because = " because of that (fail_fast)" if batch.gives_up else ""
        children = _children(batch.cancelled)
        parts.append(f"{children} cancelled{because}")
    return "; ".join(parts)


def _children(count: int) -> str:
    return "1 child" if count == 1 else f"{count} children"


def why_cancelled(parent: Job, batch: Batch) -> str:
    """Why the children of a parent are cancelled; empty: they are not."""
    if parent.cancel_requested_at is not None:
        return f"cancelled with its parent, job {parent.id}"
    if batch.gives_up:
        return f"cancelled because another child of job {parent.id} failed (fail_fast)"
    return ""
