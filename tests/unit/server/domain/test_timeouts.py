"""Which times hold for a job."""

from __future__ import annotations

from typing import Any

import pytest

from server.domain.ending import expires_at, heartbeat_timeout_s, queue_timeout_s
from server.domain.service import Service
from shared.clock import SECOND
from tests.kit.jobs import job


@pytest.mark.parametrize(
    ("own", "most", "holds"),
    [(None, 60.0, 60.0), (5.0, 60.0, 5.0), (90.0, 60.0, 60.0), (5.0, 0.0, 5.0), (0.0, 60.0, 60.0)],
)
def test_a_job_has_its_own_time_and_never_more_than_its_service_allows_now(own, most, holds):
    allows: dict[str, Any] = {"queue_timeout_s": most, "heartbeat_timeout_s": most}
    service, found = Service("s", **allows), job(queue_timeout_s=own, heartbeat_timeout_s=own)
    assert queue_timeout_s(found, service) == heartbeat_timeout_s(found, service) == holds


@pytest.mark.parametrize(
    ("own", "service_s", "at"), [(None, 60.0, 160), (5.0, 60.0, 105), (None, 0.0, None)]
)
def test_files_are_kept_for_a_while_or_for_ever(own, service_s, at):
    service = Service("s", expires_after_s=service_s)
    found = expires_at(job(expires_after_s=own), service, 100 * SECOND)
    assert found == (None if at is None else at * SECOND)
