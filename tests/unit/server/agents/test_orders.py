"""What an order says of a job."""

from __future__ import annotations

from typing import Any

import pytest

from server.agents.orders import order_of
from server.domain.service import Service
from shared.wire import PackTask
from tests.kit.jobs import job


@pytest.mark.parametrize(
    ("of_job", "pack", "wanted"),
    [
        ({"parent_id": 3, "array_index": 0}, 8, PackTask(batch=3, most=8)),
        ({"parent_id": 3, "array_index": 0}, 1, None),
        ({"parent_id": 3}, 8, None),  # the gather
        ({}, 8, None),
    ],
)
def test_only_tasks_of_an_array_are_packed(
    of_job: dict[str, Any], pack: int, wanted: PackTask | None
) -> None:
    order = order_of(job(**of_job), Service("s", pack=pack), "server", 1)
    assert order.pack == wanted
