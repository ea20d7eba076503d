"""What pages show of values, jobs, services and agents, as rules."""

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain.service import Service
from server.settings.tables import ServiceTable
from server.web.formats import relative, sentence
from server.web.job.frame import possible_actions
from server.web.job.shown import ADVICE, pieces, took_s
from server.web.operators.agents import load_of, sandbox_of
from server.web.operators.services import MEANINGS, settings_of, values_of
from shared.principals import Principal, Role, Scope
from shared.settings.limits import LimitsTable
from shared.wire import AgentDoc, AgentState, HistoryEntry, Reason
from shared.wire import JobState as S
from tests.kit.each import each
from tests.kit.store import job

AT = datetime(2026, 1, 1, tzinfo=UTC)


SENTENCES = {
    "the agent is draining": "The agent is draining.",
    "no agent offers it": "No agent offers it.",
    "run.sh ended with exit code 3": "run.sh ended with exit code 3.",
    "portable_names: 1 name is odd": "portable_names: 1 name is odd.",
    "node-1: it is used again": "node-1: it is used again.",
    "local: it is used again": "local: it is used again.",
    "is it?": "Is it?",
    "<b>": "&lt;b&gt;.",
    "": "",
}


def test_a_message_becomes_a_sentence_and_names_stay_as_they_are():
    assert {text: sentence(text) for text in SENTENCES} == SENTENCES


def test_times_are_relative_and_every_reason_says_what_to_do():
    assert set(ADVICE) == set(Reason)
    assert all(text.endswith(".") for text in ADVICE.values())
    found = [relative(seconds) for seconds in (0, -59, -60, -86_399, 90_000)]
    assert found == ["just now", "59 s ago", "1 min ago", "23 h ago", "in 1 d"]


def entry(state: S, seconds: float, attempt: int = 1) -> HistoryEntry:
    return HistoryEntry(status=state, at=AT, seconds=seconds, attempt=attempt)


def test_pieces_are_as_long_as_the_states_lasted_and_each_is_visible():
    found = pieces([entry(S.QUEUED, 0.001), entry(S.RUNNING, 75), entry(S.UNKNOWN, 25)])
    queued, running, unknown = (one.width for one in found)
    assert running / unknown == pytest.approx(3, rel=0.2)
    assert 2 < queued < 4
    assert [one.room for one in found] == ["shape", "long", "word"]
    assert [one.going_on for one in found] == [False, False, True]
    # How long ago it ended takes no room, and a state that follows itself is one piece.
    history = [entry(S.RUNNING, 10), entry(S.COMPLETED, 1e6)]
    ran, end = pieces(history)
    assert end.width < 4 < ran.width
    assert (end.going_on, took_s(history)) == (False, 10)
    (one,) = pieces([entry(S.RUNNING, 1), entry(S.RUNNING, 2)])
    assert (one.entry.seconds, one.going_on) == (3, True)
    assert len(pieces([entry(S.RUNNING, 1), entry(S.RUNNING, 2, attempt=2)])) == 2


ENTRIES = st.builds(entry, st.sampled_from(list(S)), st.floats(0, 1e9), st.integers(0, 300))


@given(st.lists(ENTRIES, max_size=200))
def test_any_history_fits_into_the_drawing(history):
    found = pieces(history)
    assert len(found) <= 30
    assert bool(found) is bool(history)
    for one, after in itertools.pairwise(found):
        assert one.x + one.width <= after.x + 0.1
    assert all(one.x >= 0 and one.x + one.width <= 100.1 and one.width > 0 for one in found)


ANN = Principal("ann", Role.USER, "ann")
READER = Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ}))
LINK = Principal("ann (link to job 7)", Role.LINK, job_id=7)
ALWAYS = {"share", "again", "tag"}


@each(
    "fields, who, offered",
    [
        *(
            ({"state": state}, ANN, ALWAYS | {"cancel"})
            for state in (S.QUEUED, S.PROCESSING, S.SUBMITTED, S.RUNNING, S.UNKNOWN)
        ),
        ({"state": S.COMPLETED}, ANN, ALWAYS | {"delete"}),
        ({"state": S.FAILED}, ANN, ALWAYS | {"retry", "delete"}),
        ({"state": S.CANCELLED}, ANN, ALWAYS | {"retry", "delete"}),
        # What would be refused is not offered.
        ({"state": S.RUNNING, "cancel_requested_at": 1}, ANN, ALWAYS),
        ({"state": S.FAILED, "bundle": None}, ANN, {"share", "tag", "delete"}),
        ({"state": S.FAILED, "parent_id": 3}, ANN, ALWAYS | {"retry"}),
        ({"state": S.RUNNING, "delete_requested_at": 1}, ANN, {"share", "again"}),
        ({"state": S.FAILED}, READER, {"share"}),
        ({"state": S.FAILED}, LINK, set()),
    ],
)
def test_what_can_be_done_follows_the_state_and_who_looks(fields, who, offered):
    assert possible_actions(job(**fields), who) == offered


def test_every_setting_of_the_file_is_shown_with_its_default():
    limits = {f"limits.{name}" for name in LimitsTable.model_fields}
    known = {key.partition(".")[0] for key in MEANINGS} | {"env"}
    assert known == ServiceTable.model_fields.keys()
    assert {key for key in MEANINGS if "." in key} == limits
    rows = settings_of(ServiceTable().service("x"))
    assert values_of(ServiceTable().service("x")) == {one[0]: one[3] for one in rows}
    assert not any(one[4] for one in rows)
    assert [one[3] for one in settings_of(Service("x"))] == [one[3] for one in rows]


# -- what an agent says of its sandbox: whatever it is, a page can show it


def agent(**health: Any) -> AgentDoc:
    how: dict[str, Any] = {"state": AgentState.ACTIVE, "up": True, "reachable": True}
    how |= {"kind": "ferryman", "address": "", "in_settings": True, "jobs": 0, "running": 0}
    return AgentDoc(name="north", id="abc", created_at=AT, **how, **health)


def test_limits_have_their_enforcement_and_their_last_test_or_nothing_is_said():
    rows = [
        {"limit": "memory", "enforcement": "hard", "passed": False, "seen": "exit code 0"},
        {"limit": "service gpu", "enforcement": "opened", "passed": True, "seen": "has X"},
    ]
    check = {"at": "2026-01-01T10:00:00Z", "passed": False, "rows": rows}
    enforcement = {"memory": "hard", "disk": "soft", "network": "none"}
    found = sandbox_of(agent(health={"sandbox": {"enforcement": enforcement, "check": check}}))
    assert found is not None
    assert (found["checked_at"], found["passed"]) == (datetime(2026, 1, 1, 10, tzinfo=UTC), False)
    limits = [(one["name"], one["enforcement"], one["passed"]) for one in found["limits"]]
    rest = [("network", "none", None), ("service gpu", "opened", True)]
    assert limits == [("disk", "soft", None), ("memory", "hard", False), *rest]
    for health in (None, {}, {"sandbox": None}, {"sandbox": [1]}):
        assert sandbox_of(agent(health=health)) is None


@each(
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
    found = sandbox_of(agent(health={"sandbox": said}))
    assert found is not None
    assert found["checked_at"] is None
    assert len(found["limits"]) <= 40
    assert sum(map(len, found["advice"])) <= 40 * 500


@each("load, shown", [(12.5, 12.5), (1e300, 100.0), (-3, 0.0), ("9", None), (True, None)])
def test_a_load_is_between_nothing_and_all(load, shown):
    assert load_of(agent(health={"load": load})) == shown
