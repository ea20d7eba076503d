"""Charts of the last day or week. Each is drawn by a script from the table beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from aiohttp import web
from markupsafe import Markup

from server.domain.access import Area
from server.domain.errors import BadField
from server.stages.statistics import PERIODS, History, Period, Point
from server.web.formats import number
from server.web.site import PageRoute, Site
from shared.clock import SECOND
from shared.units.durations import say_duration

_PERIODS: Final[dict[str, Period]] = {one: one for one in PERIODS}
_AGAIN_S: Final = 60
"""Until a page without scripts loads itself again."""
_MOST_REASONS: Final = 5
"""With a line of their own."""
_NOTHING: Final = dict.fromkeys(
    ("uploaded", "uploaded_bytes", "completed", "cancelled", "started", "runs", "result_bytes"), 0
)
_EVERY: Final = {600: "ten minutes", 3_600: "an hour"}
_COLOURS: Final = ("bad", "doubt", "go", "good", "primary", "wait")

Unit = Literal["number", "seconds"]
Value = float | None


@dataclass(frozen=True, slots=True)
class Series:
    """A column of a table.

    Attributes:
        colour: a name of ``ferryman.css``.
        shape: how it is drawn. Bars of a chart are on top of one another; steps are counts of
            times that follow one another, where a line joins looks at moments. Empty: not at all.
        unit: None: the chart's.
    """

    label: str
    colour: str
    values: Sequence[Value]
    shape: Literal["line", "steps", "bar", ""] = "line"
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Attributes:
    nothing: what is said in place of a chart without any number; empty: it is shown.
    """

    name: str
    title: str
    unit: Unit
    series: Sequence[Series]
    note: str = ""
    nothing: str = ""

    @property
    def empty(self) -> bool:
        return bool(self.nothing) and not any(any(one.values) for one in self.series)

    def body(self, times: Sequence[tuple[int, str]]) -> Markup:
        """The rows of the table, newest first.

        It is thousands of cells, which a template takes long for. Nothing in them is a text from
        outside: they are numbers.
        """
        columns = [
            [_cell(value, one.unit or self.unit, drawn=bool(one.shape)) for value in one.values]
            for one in self.series
        ]
        rows = [
            f'<tr><th scope="row" data-at="{at}">{text}</th>{"".join(cells)}</tr>\n'
            for (at, text), cells in zip(times, zip(*columns, strict=True), strict=True)
        ]
        return Markup("".join(reversed(rows)))  # noqa: S704 - numbers


def _cell(value: Value, unit: Unit, *, drawn: bool) -> str:
    if value is None:
        return '<td class="number none">–</td>'
    exact = f' data-value="{value:.6g}"' if drawn else ""
    return f'<td class="number"{exact}>{_SAY[unit](value)}</td>'


_SAY: Final[dict[Unit, Callable[[float], str]]] = {
    "number": lambda value: str(number(value)),
    "seconds": say_duration,
}


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """What happened when."""
    text = request.query.get("period") or "day"
    period, service = _PERIODS.get(text), request.query.get("service") or None
    if period is None:
        known = " or ".join(_PERIODS)
        raise BadField("period", "invalid_period", f"period should be {known}, not {text[:32]!r}")
    found = await site.context.stages.statistics.read(period, service)
    times = [one.at // SECOND for one in found.points]
    return site.page(
        request,
        "operators/charts.html",
        title="Charts",
        refresh_s=_AGAIN_S,
        found=found,
        total=_NOTHING | {"failed": {}, "retried": {}} | found.total,
        charts=charts(found),
        times=[(at, datetime.fromtimestamp(at, UTC).strftime("%d %b %H:%M")) for at in times],
        query={"period": period, "service": service},
        every=_EVERY[found.step_s],
        span_s=PERIODS[period][0],
    )


def charts(found: History) -> list[Chart]:
    """Those of the page, each with all its numbers."""
    points, every = found.points, _EVERY[found.step_s]

    def line(label: str, colour: str, value: Callable[[Point], Value]) -> Series:
        return Series(label, colour, [value(one) for one in points])

    def count(label: str, colour: str, name: str) -> Series:
        counted = line(label, colour, lambda one: one.numbers.get(name, 0))
        return replace(counted, shape="bar")

    def mean(label: str, colour: str, name: str) -> Series:
        return line(
            label,
            colour,
            lambda one: one.numbers.get(name, 0) / one.samples if one.samples else None,
        )

    failed = line("Failed", "bad", lambda one: sum(one.numbers.get("failed", {}).values()))
    return [
        Chart(
            "jobs",
            "Queued and running",
            "number",
            [mean("Queued", "wait", "queued"), mean("Running", "go", "running")],
            "Jobs, on average.",
        ),
        Chart(
            "ended",
            "Uploaded and ended",
            "number",
            [
                count("Completed", "good", "completed"),
                replace(failed, shape="bar"),
                count("Cancelled", "doubt", "cancelled"),
                replace(count("Uploaded", "go", "uploaded"), shape="steps"),
            ],
            f"Jobs in {every}.",
        ),
        Chart(
            "waiting",
            "Waiting time",
            "seconds",
            [
                line("Mean", "go", _mean_wait_s),
                line("Longest", "doubt", lambda one: _s(one.numbers.get("longest_wait_us"))),
                replace(count("Starts", "", "started"), shape="", unit="number"),
            ],
            "From when an attempt could be sent until run.sh ran.",
            nothing="No attempt started.",
        ),
        Chart(
            "failures",
            "Failures by reason",
            "number",
            _reasons(found),
            f"Jobs that failed in {every}.",
            nothing="No job failed.",
        ),
    ]


def _mean_wait_s(point: Point) -> float | None:
    started = point.numbers.get("started", 0)
    return _s(point.numbers["waited_us"] / started) if started else None


def _s(micros: float | None) -> float | None:
    return None if micros is None else micros / SECOND


def _reasons(found: History) -> list[Series]:
    """The reasons for which most jobs failed, and all others together."""
    total = Counter[str](found.total.get("failed", {}))
    failed = [one.numbers.get("failed", {}) for one in found.points]
    names = [name for name, _ in total.most_common(_MOST_REASONS)]
    series = [
        Series(name, colour, [one.get(name, 0) for one in failed], "bar")
        for name, colour in zip(names, _COLOURS, strict=False)
    ]
    if len(total) > len(names):
        rest = [sum(n for name, n in one.items() if name not in names) for one in failed]
        series.append(Series("others", _COLOURS[-1], rest, "bar"))
    return series


ROUTES: Final = (PageRoute("GET", "/charts", Area.AGENTS, page),)
