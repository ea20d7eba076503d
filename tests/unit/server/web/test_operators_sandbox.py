"""What an agent says of its sandbox: whatever it is, a page can show it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from server.web.operators.agents import load_of, sandbox_of
from shared.wire import AgentDoc, AgentState


def agent(health: dict[str, Any] | None) -> AgentDoc:
    return AgentDoc(
        name="north",
        id="abc",
        state=AgentState.ACTIVE,
        up=True,
        reachable=True,
        kind="ferryman",
        address="",
        in_settings=True,
        jobs=0,
        running=0,
        health=health,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_limits_have_their_enforcement_and_their_last_test():
    check = {
        "at": "2026-01-01T10:00:00Z",
        "passed": False,
        "rows": [
            {"limit": "memory", "enforcement": "hard", "passed": False, "seen": "exit code 0"},
            {"limit": "service gpu", "enforcement": "opened", "passed": True, "seen": "has X"},
        ],
    }
    enforcement = {"memory": "hard", "disk": "soft", "network": "none"}
    found = sandbox_of(agent({"sandbox": {"enforcement": enforcement, "check": check}}))
    assert found is not None
    assert (found["checked_at"], found["passed"]) == (datetime(2026, 1, 1, 10, tzinfo=UTC), False)
    assert [(one["name"], one["enforcement"], one["passed"]) for one in found["limits"]] == [
        ("disk", "soft", None),
        ("memory", "hard", False),
        ("network", "none", None),
        ("service gpu", "opened", True),
    ]


@pytest.mark.parametrize("health", [None, {}, {"sandbox": None}, {"sandbox": [1]}])
def test_an_agent_may_say_nothing(health):
    assert sandbox_of(agent(health)) is None


@pytest.mark.parametrize(
    "said",
    [
        {"check": []},
        {"check": {"rows": 7, "at": 5}},
        {"check": {"rows": [7, None, {}, {"limit": []}], "at": "0001-01-01T00:00:00+23:00"}},
        {"check": {"at": "2026-01-01"}, "enforcement": 1},
        {"enforcement": {"memory": ["soft"]}, "advice": {"a": 1}, "broken": 3, "backend": {}},
        {"enforcement": {str(n): "soft" for n in range(1000)}, "advice": ["x" * 9_999] * 1000},
    ],
)
def test_what_makes_no_sense_is_left_out(said):
    found = sandbox_of(agent({"sandbox": said}))
    assert found is not None
    assert found["checked_at"] is None
    assert len(found["limits"]) <= 40
    assert sum(map(len, found["advice"])) <= 40 * 500


@pytest.mark.parametrize(
    ("load", "shown"), [(12.5, 12.5), (1e300, 100.0), (-3, 0.0), ("9", None), (True, None)]
)
def test_a_load_is_between_nothing_and_all(load, shown):
    assert load_of(agent({"load": load})) == shown
