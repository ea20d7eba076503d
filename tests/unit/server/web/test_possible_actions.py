"""What a page of a job offers: only what is possible in its state and allowed to who looks."""

from __future__ import annotations

from typing import Any

import pytest

from server.web.job.frame import possible_actions
from shared.principals import Principal, Role, Scope
from shared.wire import JobState
from tests.kit.jobs import job

S = JobState
ANN = Principal("ann", Role.USER, "ann")
ALWAYS = {"share", "again", "tag"}


@pytest.mark.parametrize(
    ("state", "more"),
    [
        (S.QUEUED, {"cancel"}),
        (S.PROCESSING, {"cancel"}),
        (S.SUBMITTED, {"cancel"}),
        (S.RUNNING, {"cancel"}),
        (S.UNKNOWN, {"cancel"}),
        (S.COMPLETED, {"delete"}),
        (S.FAILED, {"retry", "delete"}),
        (S.CANCELLED, {"retry", "delete"}),
    ],
)
def test_what_can_be_done_follows_the_state(state, more):
    assert possible_actions(job(state=state), ANN) == ALWAYS | more


@pytest.mark.parametrize(
    ("fields", "gone"),
    [
        ({"state": S.RUNNING, "cancel_requested_at": 1}, {"cancel"}),
        ({"state": S.FAILED, "bundle": None}, {"retry", "again"}),
        ({"state": S.FAILED, "parent_id": 3}, {"delete"}),
        ({"state": S.RUNNING, "delete_requested_at": 1}, {"cancel", "tag"}),
    ],
)
def test_what_would_be_refused_is_not_offered(fields, gone: set[str]):
    plain: dict[str, Any] = {"state": fields["state"]}
    before = possible_actions(job(**plain), ANN)
    assert possible_actions(job(**fields), ANN) == before - gone


def test_who_may_only_look_is_offered_nothing_that_changes():
    failed = job(state=S.FAILED)
    link = Principal("ann (link to job 7)", Role.LINK, job_id=7)
    assert possible_actions(failed, link) == frozenset()
    reader = Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ}))
    assert possible_actions(failed, reader) == {"share"}
