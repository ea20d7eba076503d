"""Batches: parents and children."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "tests/contract/store/test_batches.py::test_"


_WHOLE: Final = "tests/contract/test_batches.py::test_"
_HTTP: Final = "tests/contract/test_batches_http.py::test_"


def _of(protection: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("batches", protection, file, old, new, tests)


MUTANTS: Final = (
    _of(
        "no child of a parent that is to be cancelled is claimed",
        "server/store/moves.py",
        " AND {children.PARENT_GOES_ON}",
        "",
        f"{_STORE}a_cancel_of_many_children_lets_others_in_between_and_goes_on_after_a_crash",
    ),
    _of(
        "a cancel of many children goes on after a crash",
        "server/store/batches.py",
        " OR cancel_requested_at IS NOT NULL) AND EXISTS",
        ") AND EXISTS",
        f"{_STORE}a_cancel_of_many_children_lets_others_in_between_and_goes_on_after_a_crash",
    ),
    _of(
        "children of many parents are cleaned in several transactions",
        "server/store/retention.py",
        "if some and children + own > _CHILDREN_AT_ONCE:",
        "if False:",
        f"{_STORE}parents_with_many_children_are_cleaned_in_transactions_of_their_own",
    ),
    _of(
        "a child that is queued again is counted back",
        "server/store/children.py",
        'changes = [f"{was} = {was} - 1"] if was else []',
        "changes: list[str] = [] if now else [f'{was} = {was}']",
        f"{_STORE}counters_say_what_counting_says",
    ),
    _of(
        "the end of a child lets the next one be sent",
        "server/store/children.py",
        "if now and child.hold is None:",
        "if now and child.hold is not None:",
        f"{_STORE}as_many_children_may_run_as_the_upload_says",
        f"{_STORE}counters_say_what_counting_says",
    ),
    _of(
        "children are made once",
        "server/store/batches.py",
        "WHERE parent_id = :parent AND made = :made AND EXISTS (",
        "WHERE parent_id = :parent AND EXISTS (",
        f"{_STORE}children_are_made_once_whoever_makes_them",
    ),
    _of(
        "a parent ends only as its children were seen",
        "server/store/batches.py",
        "return await make_move(tx, move) if unchanged else None",
        "return await make_move(tx, move)",
        f"{_STORE}a_parent_ends_only_as_its_children_were_seen",
    ),
    _of(
        "children of an ended parent are not retried",
        "server/store/moves.py",
        'only_if += f" AND {children.PARENT_WAITS}"',
        "pass",
        f"{_STORE}a_child_is_not_retried_once_its_parent_has_ended",
    ),
    _of(
        "a parent whose children are being deleted is not retried",
        "server/store/moves.py",
        'only_if += " AND delete_requested_at IS NULL"',
        'only_if += ""',
        f"{_STORE}a_parent_that_is_being_deleted_is_not_retried",
    ),
    _of(
        "children of a retried parent count against the jobs that may wait",
        "server/store/requests.py",
        "SELECT total - completed AS count",
        "SELECT 1 AS count",
        f"{_STORE}children_count_for_the_quotas_when_their_parent_is_retried",
    ),
    _of(
        "cancelled children are counted",
        "server/store/children.py",
        "UPDATE batches SET cancelled = cancelled + :count WHERE",
        "UPDATE batches SET cancelled = cancelled + :count * 0 WHERE",
        f"{_STORE}a_cancel_of_a_parent_cancels_what_waits_and_asks_for_the_rest",
    ),
    _of(
        "a parent that waits for its children holds no slot",
        "server/store/statements.py",
        'HELD: Final = "deferred = 0 AND state IN',
        'HELD: Final = "state IN',
        f"{_STORE}a_parent_is_not_sent_and_holds_no_slot",
    ),
    _of(
        "a report of the attempt that left the children is not used twice",
        "server/domain/outcome.py",
        "    if job.deferred:\n        return False",
        "    if job.deferred and job.gather:\n        return False",
        f"{_WHOLE}the_end_of_an_attempt_that_left_children_counts_once",
    ),
    _of(
        "what gather.sh leaves is not run",
        "server/domain/batch.py",
        "return job.parent_id is None and not job.gather",
        "return job.parent_id is None",
        f"{_WHOLE}a_job_that_leaves_children_waits_for_them",
    ),
    _of(
        "the first failure ends the others",
        "server/stages/batches.py",
        "if batch.gives_up and batch.ended < batch.made:",
        "if False:",
        f"{_WHOLE}the_first_failure_can_end_a_batch",
    ),
    _of(
        "children go after their parent",
        "server/store/retention.py",
        "UPDATE jobs SET expires_at = :at WHERE parent_id IN",
        "UPDATE jobs SET expires_at = expires_at WHERE :at = :at AND parent_id IN",
        f"{_WHOLE}a_batch_is_cleaned_as_a_whole",
    ),
    _of(
        "a paused service begins no batch",
        "server/stages/batches.py",
        "if not service.paused]",
        "]",
        f"{_WHOLE}a_paused_service_begins_no_batch",
    ),
    _of(
        "a child without a result is named in the ZIP of the batch",
        "server/http/results.py",
        "        missing=missing,\n",
        "        missing=[],\n",
        f"{_HTTP}results_that_are_not_there_are_named",
    ),
)
