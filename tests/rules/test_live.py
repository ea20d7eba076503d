"""What the bundle of a running attempt says: an agent may report anything."""

from __future__ import annotations

from server.domain.live import live_of, progress_event_due
from shared.clock import SECOND, iso
from shared.wire import LiveDoc, Progress
from tests.kit.each import each

NOW = 1_000_000 * SECOND


def test_a_report_is_taken_within_bounds() -> None:
    line = {"level": "warning", "text": "a\0b" * 9_999, "at": "never"}
    said = {
        "progress": {"current": float("nan"), "total": 1},
        "message": "x\n" * 9_999,
        "output": {f"{number}": "v" * 9_999 for number in range(999)},
        "heartbeat_at": "9999-12-31T23:59:59Z",
        "notices": [line] * 999,
    }
    live = live_of(LiveDoc.model_validate(said), NOW)
    assert (live.progress, len(live.message), len(live.output)) == (None, 1_023, 100)
    assert live.heartbeat_at == NOW
    assert len(live.notices) == 200
    assert {len(value) for value in live.output.values()} == {4_096}
    assert all(len(one.message) == 4_096 and "\0" not in one.message for one in live.notices)


@each(
    "said, progress, heartbeat_at",
    [
        ({"progress": {"current": 3, "total": 3}}, Progress(current=3, total=3), None),
        ({"progress": {"current": 3, "total": float("inf")}}, None, None),
        ({"heartbeat_at": "soon"}, None, None),
        ({"heartbeat_at": iso(NOW - 5)}, None, NOW - 5),
    ],
)
def test_numbers_are_numbers_and_times_are_past(
    said: dict[str, object], progress: Progress | None, heartbeat_at: int | None
) -> None:
    live = live_of(LiveDoc.model_validate(said), NOW)
    assert (live.progress, live.heartbeat_at) == (progress, heartbeat_at)


def test_no_event_of_a_bundle_has_the_name_of_one_of_the_servers() -> None:
    lines = [{"level": "notice", "text": "x", "at": "", "event": name} for name in NAMES]
    live = live_of(LiveDoc.model_validate({"notices": lines}), NOW)
    assert [one.event for one in live.notices] == [NAMES[0], *["job.notice"] * 3]


NAMES = ("pages.done", "job.completed", "", "no event")


def test_events_about_progress_stay_few_however_long_an_attempt_runs() -> None:
    at: list[int] = []
    for second in range(20_000):
        if progress_event_due(second, second - at[-1] if at else None):
            at.append(second)
    assert at[:3] == [0, 5, 10]
    assert 200 < len(at) < 500
