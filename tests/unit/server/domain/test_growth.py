"""What the database and the files grow to follows from the last days, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain import growth
from server.domain.growth import DAY_S, EMPTY_BYTES, Arrived, Flow, Kept, Stored
from server.domain.service import Service

WEEK_S = 7 * DAY_S
MANY = Stored(EMPTY_BYTES + 20_000_000, 0, 10_000, 30 * DAY_S)
"""2,000 bytes a job."""
KEPT = Kept(2 * DAY_S, 90 * DAY_S)


def of(jobs: int, **more: object) -> growth.Growth:
    given = {"kept": KEPT, "stored": MANY, "room": 10**12, "files": 0, "over_s": WEEK_S} | more
    found = growth.forecast(
        {"s": Arrived(jobs, given["files"])},  # type: ignore[arg-type]
        {"s": given["kept"]},  # type: ignore[dict-item]
        given["over_s"],  # type: ignore[arg-type]
        given["stored"],  # type: ignore[arg-type]
        given["room"],  # type: ignore[arg-type]
    )
    assert found is not None
    return found


def test_it_settles_at_what_arrives_while_a_job_is_kept():
    found = of(7_000, files=7_000_000)
    assert (found.days, found.jobs_a_day) == (7, 1_000)
    assert found.database_bytes == EMPTY_BYTES + 90 * 1_000 * 2_000
    assert found.file_bytes == 2 * 1_000_000
    assert (found.full_in_days, found.for_ever) == (None, ())


def test_nothing_is_predicted_before_a_day_of_history():
    arrived, kept = {"s": Arrived(5, 5)}, {"s": KEPT}
    assert growth.forecast(arrived, kept, DAY_S - 1, MANY, 1) is None
    assert growth.forecast(arrived, kept, DAY_S, MANY, 1) is not None


def test_without_jobs_it_does_not_grow():
    nothing = growth.forecast({}, {}, WEEK_S, Stored(EMPTY_BYTES, 0, 0, 0), 5)
    assert nothing is not None
    assert (nothing.jobs_a_day, nothing.database_bytes, nothing.file_bytes) == (0, EMPTY_BYTES, 0)
    assert nothing.full_in_days is None
    assert of(0, kept=Kept(0, 0)).for_ever == ()


@pytest.mark.parametrize("expires", [0, 2 * DAY_S])
def test_what_is_never_forgotten_grows_until_the_disk_is_full(expires: float) -> None:
    found = of(7_000, kept=Kept(expires, 0), files=7_000, room=200_000_000)
    assert found.database_bytes is None
    assert (found.file_bytes is None) is (expires == 0)
    assert found.for_ever == ("s",)
    # 2 MB of rows a day; files only while none of them expires.
    assert found.full_in_days == pytest.approx(100, rel=0.001)


def test_a_rate_that_has_fallen_settles_lower_than_it_is():
    found = of(7, stored=replace(MANY, age_s=100 * DAY_S), room=1_000)
    assert found.database_bytes is not None
    assert found.database_bytes < MANY.database_bytes
    assert found.full_in_days is None


def test_it_grows_only_until_the_oldest_job_is_forgotten():
    # 60 days more, 2 MB on each.
    assert of(7_000, room=119_000_000).full_in_days == pytest.approx(59.5)
    assert of(7_000, room=121_000_000).full_in_days is None


def test_free_pages_are_room_too_and_no_part_of_a_job():
    stored = replace(MANY, free_bytes=10_000_000)
    found = of(7_000, stored=stored, room=0)
    assert found.full_in_days == pytest.approx(10)  # a job has 1,000 bytes
    assert of(7_000, room=0).full_in_days == 0


def test_few_jobs_say_nothing_about_what_one_takes():
    few = Stored(EMPTY_BYTES + 10**9, 0, 999, 0)
    assert growth.bytes_of_job(few) == growth.JOB_BYTES
    assert growth.bytes_of_job(replace(few, jobs=1_000)) == 10**6
    assert growth.bytes_of_job(Stored(1, 0, 10**6, 0)) == growth.JOB_BYTES


def test_a_job_is_forgotten_only_after_its_files_were_removed():
    def of_service(expires: float, forget: float) -> Kept:
        return growth.kept(Service("s", expires_after_s=expires, forget_after_s=forget))

    assert of_service(2, 90) == Kept(2, 90)
    assert of_service(90, 2) == Kept(90, 90)
    assert of_service(0, 90) == Kept(0, 0)
    assert of_service(2, 0) == Kept(2, 0)


flows = st.lists(
    st.builds(
        Flow,
        st.integers(0, 10**9),
        st.none() | st.integers(0, 400).map(float),
    ),
    max_size=6,
)


def arrives(flows: list[Flow], days: float) -> float:
    return sum(
        one.bytes_a_day * (days if one.days is None else min(days, one.days)) for one in flows
    )


@given(flows, st.integers(1, 10**12))
def test_the_disk_is_full_when_as_much_has_arrived_as_there_was_room(
    flows: list[Flow], room: int
) -> None:
    found = growth.full_in(flows, room)
    if found is None:
        assert arrives(flows, 3_650) <= room * (1 + 1e-9)
    else:
        assert arrives(flows, found) == pytest.approx(room)
        more = growth.full_in(flows, 2 * room)
        assert more is None or more >= found


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.floats(DAY_S, WEEK_S),
    st.integers(0, 10**12),
    st.floats(0, 100 * DAY_S),
)
def test_more_jobs_never_take_less_and_never_fill_later(
    jobs: int, more: int, over_s: float, room: int, age_s: float
) -> None:
    stored = replace(MANY, age_s=age_s)
    less = of(jobs, over_s=over_s, room=room, stored=stored)
    most = of(jobs + more, over_s=over_s, room=room, stored=stored)
    assert less.database_bytes is not None
    assert most.database_bytes is not None
    assert less.database_bytes <= most.database_bytes
    if less.full_in_days is not None:
        assert most.full_in_days is not None
        assert most.full_in_days <= less.full_in_days + 1e-6
