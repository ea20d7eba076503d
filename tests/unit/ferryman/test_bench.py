"""Arithmetic of the load generator: what is drawn, when it is due, and what the figures say."""

from __future__ import annotations

import io
import itertools
import math
import statistics
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.bench import measures, plots, table
from ferryman.bench.bundles import Bundles, Noise, script
from ferryman.bench.document import BenchDoc, JobRow, Sample
from ferryman.bench.page import page
from ferryman.bench.plan import Kind, Order, Plan, kind_of
from ferryman.bench.quantities import Spread, rate, say_rate, say_time, sizes, times
from ferryman.bench.records import Record, offset_s
from ferryman.bench.samples import sums
from ferryman.bench.verdict import verdicts
from ferryman.clock import seeded
from ferryman.errors import TryLater, Unreachable

SMALL = Kind(Spread(1024, 1024), 1, Spread(0, 0), Spread(0, 0), "example", 1.0)
FLOATS = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


def order(**changes: object) -> Order:
    usual: dict[str, object] = {
        "number": 0,
        "user": "ann",
        "service": "example",
        "size": 1024,
        "files": 1,
        "run_time_s": 0.0,
        "output_size": 0,
    }
    return Order(**{**usual, **changes})  # type: ignore[arg-type]


def record(intended: float, **known: object) -> Record:
    found = Record(order(), intended, intended)
    for name, value in known.items():
        setattr(found, name, value)
    return found


# -- what is drawn


@pytest.mark.parametrize("text", ["1KiB..10MiB", "5MB", "0", "1B..1B"])
def test_sizes_lie_between_their_bounds(text: str) -> None:
    spread, rng = sizes(text), seeded(1)
    drawn = [spread.draw(rng) for _ in range(300)]
    assert spread.low <= min(drawn) <= max(drawn) <= spread.high


def test_a_range_is_uniform_in_its_logarithm_and_its_mean_is_known() -> None:
    spread, rng = sizes("1KiB..1MiB"), seeded(1)
    drawn = [spread.draw(rng) for _ in range(4_000)]
    assert math.log2(statistics.median(drawn)) == pytest.approx(15, abs=0.5)
    assert statistics.fmean(drawn) == pytest.approx(spread.expected(), rel=0.1)


def test_exponential_times_have_their_mean() -> None:
    spread, rng = times("exp:5s"), seeded(1)
    assert statistics.fmean(spread.draw(rng) for _ in range(4_000)) == pytest.approx(5, rel=0.1)
    assert times("exp:0").draw(rng) == 0


@pytest.mark.parametrize("text", ["", "x", "1MiB..", "2MiB..1MiB", "-1", "1..2..3", "exp:1MiB"])
def test_what_is_no_size_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|ends below"):
        sizes(text)


@pytest.mark.parametrize("text", ["20", "0/s", "20/d", "99999/s", "-1/s", "nan/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rate such as|more than 0"):
        rate(text)


def test_rates_and_times_are_read_and_said() -> None:
    assert (rate("20/s"), rate("90/m"), rate("360/h")) == (20, 1.5, 0.1)
    assert [say_rate(one) for one in (20, 1.5, 0.1, 0.001)] == ["20/s", "1.5/s", "6/m", "3.6/h"]
    said = [say_time(one) for one in (0, 0.0042, 0.25, 1.236, 90)]
    assert said == ["0s", "4.2ms", "250ms", "1.24s", "1m 30s"]


def test_kinds_of_a_mix_take_what_they_do_not_say_from_the_options() -> None:
    kind = kind_of("3:size=1MiB,run-time=exp:2s", SMALL)
    assert (kind.weight, kind.size.low, kind.run_time.mean, kind.files) == (3, 1 << 20, 2, 1)
    assert kind_of("2:", SMALL).service == "example"


@pytest.mark.parametrize("text", ["size=1MiB", "0:", "x:", "1:size", "1:colour=red", "1:files=0"])
def test_a_bad_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"kind such as|give each of|should be 1 to"):
        kind_of(text, SMALL)


def test_the_same_seed_gives_the_same_jobs_in_whatever_order_they_are_asked_for() -> None:
    kinds = [kind_of("3:size=1KiB..1MiB", SMALL), kind_of("1:run-time=exp:1s", SMALL)]
    plan, again, other = (Plan(kinds, rate=5, jobs=50, seed=seed) for seed in (7, 7, 8))
    assert [plan.order(n) for n in range(50)] == [again.order(n) for n in range(49, -1, -1)][::-1]
    assert list(plan.arrivals()) == list(again.arrivals()) != list(other.arrivals())


@given(
    a_second=st.floats(0.5, 50),
    ramp_s=st.floats(0, 30),
    seed=st.integers(0, 1_000),
)
def test_arrivals_ascend_and_stop_in_time(a_second: float, ramp_s: float, seed: int) -> None:
    plan = Plan([SMALL], rate=a_second, duration_s=40, ramp_s=ramp_s, seed=seed)
    found = list(plan.arrivals())
    assert found == sorted(found)
    assert all(0 <= at < 40 for at in found)


def test_arrivals_are_a_poisson_process_that_grows_on_the_ramp() -> None:
    found = list(Plan([SMALL], rate=50, duration_s=200, ramp_s=100, seed=1).arrivals())
    on_the_ramp = sum(at < 100 for at in found)
    assert on_the_ramp == pytest.approx(2_500, rel=0.1)
    assert sum(at < 50 for at in found) == pytest.approx(625, rel=0.15)
    gaps = [b - a for a, b in itertools.pairwise(found) if a >= 100]
    assert statistics.fmean(gaps) == pytest.approx(0.02, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.02, rel=0.15)


@given(size=st.integers(0, 5_000), offset=st.integers(0, 999), at=st.integers(0, 6_000))
def test_a_file_without_memory_reads_as_one_that_has_it(size: int, offset: int, at: int) -> None:
    pool = seeded(1).randbytes(1_000)
    whole = (pool * 7)[offset : offset + size]
    file = Noise(pool, size, offset)
    assert file.seek(0, io.SEEK_END) == size
    file.seek(at)
    assert io.BufferedReader(file).read() == whole[at:]


def test_a_bundle_has_its_size_and_differs_between_runs() -> None:
    bundles = Bundles(1)
    wanted = order(size=100_003, files=3)
    files = bundles.files(wanted, "bench-1")
    contents = [one for name, one in files.items() if name != "run.sh"]
    assert sum(len(one) for one in contents if isinstance(one, bytes)) == 100_003
    assert next(name for name in files if name != "run.sh") == "data/00000.bin"
    assert files["run.sh"] != bundles.files(wanted, "bench-2")["run.sh"]
    large = bundles.files(order(size=1 << 33), "bench-1")["data/00000.bin"]
    assert not isinstance(large, bytes | str)


def test_run_sh_sleeps_and_writes_what_it_is_to() -> None:
    text = script(order(run_time_s=0.25, output_size=4096), "bench-1").decode()
    assert "sleep 0.250\nhead -c 4096 /dev/urandom > output.bin\n" in text
    assert "sleep" not in script(order(), "bench-1").decode()


# -- figures


@given(values=FLOATS, share=st.floats(0, 1))
def test_a_percentile_lies_between_the_values_and_grows_with_its_share(
    values: list[float], share: float
) -> None:
    ordered = sorted(values)
    found = measures.percentile(ordered, share)
    assert ordered[0] <= found <= ordered[-1]
    assert measures.percentile(ordered, share / 2) <= found
    below = sum(one <= found for one in ordered) / len(ordered)
    assert below >= share - 1 / len(ordered) - 1e-9


def test_percentiles_are_those_of_the_standard_library() -> None:
    values = [float(one**2) for one in range(101)]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for share in (0.5, 0.9, 0.99):
        assert measures.percentile(values, share) == pytest.approx(cuts[round(share * 100) - 1])


@given(ends=st.lists(st.floats(0, 100), max_size=100), count=st.integers(1, 60))
def test_rates_over_time_count_each_job_once(ends: list[float], count: int) -> None:
    width = 100 / count
    assert sum(measures.by_time(ends, width, count)) * width == pytest.approx(len(ends))


def test_a_stalled_server_does_not_hide_the_time_for_which_uploads_waited() -> None:
    stalled = [record(at / 10, begun_s=4.9, answered_s=5.0, job_id=at + 1) for at in range(50)]
    found = measures.latencies(stalled).upload
    assert found.max_s == 5.0
    assert found.p50_s == pytest.approx(2.55)


def test_times_of_the_server_are_seconds_of_the_run_whatever_its_clock_says() -> None:
    ahead = 86_400.0 + 1e9
    records = [
        record(
            at,
            answered_s=at + 0.2 + 0.1 * (at > 0),
            job_id=1,
            status="Completed",
            server_created=ahead + at + 0.2,
            server_submitted=ahead + at + 0.5,
            server_started=ahead + at + 1.0,
            server_ended=ahead + at + 3.0,
        )
        for at in (0.0, 1.0)
    ]
    assert offset_s(records) == pytest.approx(-ahead)
    found = measures.latencies(records)
    assert found.end_to_end.max_s == pytest.approx(3.0)
    assert found.queued.p50_s == pytest.approx(0.3)
    assert found.to_start.p50_s == pytest.approx(0.8)
    assert found.overhead.p50_s == pytest.approx(2.0)


def test_refusals_errors_and_failures_are_counted_by_kind() -> None:
    refused, away = record(0), record(1)
    refused.fail(TryLater(429, "rate_limited", "slowly", retry_after=3))
    away.fail(Unreachable("http://h", "connection refused"))
    proxy = record(2)
    proxy.fail(TryLater(503, "", "503 Service Unavailable"))
    ended = [
        record(3, job_id=1, status="Failed", reason="timeout", server_ended=5.0),
        record(4, job_id=2, status="Completed", attempt=2, server_ended=6.0),
        record(5, job_id=3, status="Queued"),
    ]
    found = measures.counts([refused, away, proxy, *ended])
    assert (found.uploads, found.accepted, found.completed, found.unended) == (6, 3, 1, 1)
    assert found.refused == {"rate_limited": 1, "http_503": 1}
    assert (found.errors, found.failed, found.retried) == ({"unreachable": 1}, {"timeout": 1}, 1)


def test_metrics_are_summed_over_their_labels() -> None:
    text = '# HELP a x\na{b="1 2"} 1\na{b="3"} 2.5\nprocess_cpu_seconds_total 7\nbroken\nc{} x\n'
    assert sums(text) == {"a": 3.5, "process_cpu_seconds_total": 7.0}


# -- the verdict


def row(number: int, **known: object) -> JobRow:
    usual: dict[str, object] = {"number": number, "intended_s": number, "run_time_s": 0, "size": 1}
    return JobRow.model_validate(usual | known)


BUSY = [
    Sample(at_s=at, queued=9, in_work=4, max_runs=10, running=4, slots=4, agents_up=1)
    for at in range(2, 8)
]
NOTHING = measures.latencies([])


def test_full_slots_are_named_with_the_rate_that_they_can_do() -> None:
    jobs = [
        row(n, job_id=n + 1, accepted_s=n, submitted_s=n, started_s=n, ended_s=n + 2)
        for n in range(9)
    ]
    (found,) = verdicts(jobs, BUSY, NOTHING)
    assert (found.code, found.at_s) == ("slots", 2)
    assert "all 4 slots" in found.text
    assert "held for 2s, so they do at most 2/s" in found.text
    assert "raise slots" in found.advice


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("user_quota", "runs_per_user"),
        ("service_quota", "max_runs"),
        ("no_agent", "ferryman agents"),
        ("paused", "resume"),
        ("next", "CPU and disk"),
    ],
)
def test_what_jobs_wait_for_is_what_is_raised(code: str, advice: str) -> None:
    samples = [Sample(at_s=at, queued=3, slots=8, running=2, waits_for=code) for at in range(4)]
    (found,) = verdicts([], samples, NOTHING)
    assert advice in found.advice


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("rate_limited", "rate_limit"),
        ("queue_full", "queued_per_user"),
        ("too_many_uploads", "uploads"),
        ("upload_quota", "upload_per_user_per_day"),
        ("storage_full", "stored_per_user"),
        ("disk_full", "larger disk"),
        ("unreachable", "log"),
        ("http_418", "docs/api.md"),
    ],
)
def test_each_refusal_has_its_advice(code: str, advice: str) -> None:
    (found,) = verdicts([row(4, why=code), row(5, job_id=1)], [], NOTHING)
    assert (found.code, found.at_s) == (code, 4)
    assert "1 of 2 uploads" in found.text
    assert advice in found.advice


def test_what_was_first_stands_first_and_one_busy_moment_is_no_verdict() -> None:
    refused = [row(3, why="queue_full"), row(4, why="queue_full")]
    assert [one.code for one in verdicts(refused, BUSY, NOTHING)] == ["slots", "queue_full"]
    once = [BUSY[0], *(Sample(at_s=at, queued=0, slots=4, running=1) for at in range(3, 9))]
    assert verdicts([], once, NOTHING) == []


def test_a_busy_server_and_a_late_generator_are_named() -> None:
    busy = [Sample(at_s=at, cpu=0.97, queued=5, slots=4, running=1) for at in range(5)]
    late = measures.latencies([Record(order(), at, at + 0.5) for at in range(10)])
    found = verdicts([row(0, why="not_sent")], busy, late)
    assert {one.code for one in found} == {"server_cpu", "generator"}


# -- plots, tables and the page


def document(**changes: object) -> BenchDoc:
    records = [
        record(
            at / 10,
            answered_s=at / 10 + 0.01,
            job_id=at + 1,
            status="Completed",
            server_created=1e9 + at / 10 + 0.01,
            server_submitted=1e9 + at / 10 + 0.1,
            server_started=1e9 + at / 10 + 0.2,
            server_ended=1e9 + at / 10 + 0.5,
        )
        for at in range(40)
    ]
    listed, counted = measures.rows(records), measures.counts(records)
    usual: dict[str, object] = {
        "version": "1",
        "url": "http://<host>",
        "begun_at": datetime(2026, 1, 1, tzinfo=UTC),
        "tag": "bench-1",
        "plan": "10/s & more",
        "kinds": ["1: <b>"],
        "end": "complete",
        "took_s": 4.5,
        "counts": counted,
        "rates": measures.rates(counted, listed),
        "latencies": measures.latencies(records),
        "verdicts": verdicts(listed, BUSY, NOTHING),
        "samples": [*BUSY, Sample(at_s=9, cpu=0.5, memory_bytes=1 << 27, lag_s=0.002)],
        "uploads": listed,
    }
    return BenchDoc.model_validate(usual | changes)


@given(values=st.lists(st.floats(0, 1e9), min_size=1, max_size=50), log=st.booleans())
def test_an_axis_holds_its_values_and_few_ticks(values: list[float], log: bool) -> None:
    axis = plots.logarithmic(values, str) if log else plots.linear(values)
    assert all(0 <= axis.share(one) <= 1 for one in values)
    assert axis.high >= max(values) * 0.999
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= (330 if log else 8)
    assert [axis.share(one) for one in ticks] == sorted(axis.share(one) for one in ticks)


@given(step=st.floats(1e-9, 1e12))
def test_a_nice_step_is_at_least_the_step_and_at_most_two_and_a_half_times(step: float) -> None:
    assert step * 0.998 <= plots.nice(step) <= step * 2.51


@given(count=st.integers(1, 3_000))
def test_a_line_that_is_thinned_keeps_its_ends(count: int) -> None:
    points = [(float(n), float(n)) for n in range(count)]
    kept = plots.thinned(points)
    assert len(kept) <= plots.MOST_POINTS
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert list(kept) == sorted(set(kept))


def test_a_plot_is_well_formed_and_its_lines_differ_by_more_than_colour() -> None:
    lines = [plots.Line(f"<{n}>", [(0.0, 0.0), (1.0, float(n))]) for n in range(3)]
    drawn = plots.plot("a & b", plots.linear([1]), plots.linear([2]), lines, "s")
    root = ET.fromstring(f"<x>{drawn}</x>")
    styles = [one.get("stroke-dasharray") for one in root.findall("./svg/polyline")]
    assert len(set(styles)) == 3
    (drawing,) = root.findall("./svg")
    assert (drawing.get("role"), drawing.get("aria-label")) == ("img", "a & b: <0>, <1>, <2>")


def test_the_page_is_well_formed_needs_nothing_else_and_escapes() -> None:
    text = page(document())
    body = text.removeprefix("<!doctype html>").replace('<meta charset="utf-8">', "", 1)
    head = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    root = ET.fromstring(body.replace(head, "", 1))
    assert "http://<host>" in "".join(root.itertext())
    assert "src=" not in text
    assert "href" not in text
    assert "@import" not in text
    figures = root.findall(".//figure")
    assert len(figures) >= 5
    with_numbers = [one for one in figures if one.find("./details/table") is not None]
    assert len(with_numbers) == len(figures) - 1  # the distribution has the table before it
    assert "prefers-color-scheme: dark" in text


def test_a_run_without_a_single_job_has_a_page_too() -> None:
    empty = document(
        counts=measures.counts([]),
        rates=measures.rates(measures.counts([]), []),
        latencies=NOTHING,
        verdicts=[],
        samples=[],
        uploads=[],
    )
    assert "no job was accepted" in page(empty)


def test_the_document_comes_back_as_it_was_and_is_compared() -> None:
    before = document()
    assert BenchDoc.model_validate_json(before.model_dump_json()) == before
    rows = {one[0]: one[3] for one in table.compare_rows(before, before)}
    assert set(rows.values()) == {"1.00"}
    assert "completed a second" in rows
