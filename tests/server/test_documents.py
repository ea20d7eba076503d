"""Documents: no field that nothing fills."""

from __future__ import annotations

from typing import Any

import pytest

from server.domain.jobs import Attempt, Event, Result
from server.domain.retry_policy import RetryPolicy
from server.http import documents
from shared.wire import ChildCounts, JobState, Limits
from tests.kit.jobs import job


@pytest.mark.parametrize("counts", [None, ChildCounts(total=2)])
def test_every_field_of_a_job_is_filled_by_something(counts) -> None:
    found = documents.job_doc(job(retry=RetryPolicy()), None, batch=counts)
    of_parents = {"children"} if counts is None else set()
    alone = {"history", "attempts", "webhooks"}  # in the document of a single job
    assert type(found).model_fields.keys() - found.model_fields_set == alone | of_parents
    links = found.links
    assert type(links).model_fields.keys() - links.model_fields_set == of_parents


def test_every_field_of_an_attempt_is_filled_by_something() -> None:
    start: dict[str, Any] = {"timeout_s": 1.0, "limits": Limits(), "state": JobState.COMPLETED}
    found = documents.attempt_doc(
        Attempt(
            job_id=1,
            number=1,
            agent="a",
            claimed_at=0,
            result=Result("f", 1, "0" * 64),
            **start,
        )
    )
    assert type(found).model_fields.keys() == found.model_fields_set
    assert type(found.links).model_fields.keys() == found.links.model_fields_set


def test_every_field_of_an_event_is_filled_by_something() -> None:
    found = documents.event_doc(Event(1, 1, 0, 1, None, JobState.QUEUED, None, "text"))
    assert type(found).model_fields.keys() == found.model_fields_set
