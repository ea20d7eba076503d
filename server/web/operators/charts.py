"""Charts of the last hour, day or week. Each is drawn by a script from the table beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from aiohttp import web
from markupsafe import Markup

from server.domain.access import Area
from server.http.statistics import STATISTICS, asked_for
from server.web.site.formats import number
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import StatisticsDoc, StatisticsPoint

_AGAIN_S: Final = 60
"""Until a page without scripts loads itself again."""
_MOST_REASONS: Final = 5
"""With a line of their own."""
_SPAN_S: Final = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400}
_EVERY: Final = {60: "a minute", 600: "ten minutes", 3_600: "an hour"}
_COLOURS: Final = ("bad", "doubt", "go", "good", "primary", "wait")

Unit = Literal["number", "seconds", "bytes"]
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
    "bytes": lambda value: say_size(round(value)),
}


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """What happened when."""
    period, service = asked_for(request)
    found = await site.context.statistics.read(period, service)
    shown = "%H:%M" if period == "hour" else "%d %b %H:%M"
    return site.page(
        request,
        "operators/charts.html",
        title="Charts",
        refresh_s=_AGAIN_S,
        found=found,
        charts=charts(found) if found.points else [],
        times=[(int(one.at.timestamp()), one.at.strftime(shown)) for one in found.points],
        query={"period": period, "service": service},
        every=_EVERY[found.resolution_s],
        others="*",
        span_s=_SPAN_S[period],
    )


def charts(found: StatisticsDoc) -> list[Chart]:
    """Those of the page, each with all its numbers."""
    points = found.points

    def line(label: str, colour: str, value: Callable[[StatisticsPoint], Value]) -> Series:
        return Series(label, colour, [value(one) for one in points])

    def bar(label: str, colour: str, value: Callable[[StatisticsPoint], Value]) -> Series:
        return replace(line(label, colour, value), shape="bar")

    def column(
        label: str, value: Callable[[StatisticsPoint], Value], unit: Unit | None = None
    ) -> Series:
        return replace(line(label, "", value), shape="", unit=unit)

    every = _EVERY[found.resolution_s]
    of_jobs = [
        Chart(
            "jobs",
            "Queued and running",
            "number",
            [
                line("Queued", "wait", lambda one: one.queued),
                line("Under way", "doubt", lambda one: one.under_way),
                line("Running", "go", lambda one: one.running),
            ],
            "Jobs, on average. Those under way hold a slot: being sent, at an agent, or running.",
        ),
        Chart(
            "ended",
            "Uploaded and ended",
            "number",
            [
                bar("Completed", "good", lambda one: one.completed),
                bar("Failed", "bad", lambda one: sum(one.failed.values())),
                bar("Cancelled", "doubt", lambda one: one.cancelled),
                replace(line("Uploaded", "go", lambda one: one.uploaded), shape="steps"),
            ],
            f"Jobs in {every}.",
        ),
        Chart(
            "waiting",
            "Waiting time",
            "seconds",
            [
                line("p50", "go", lambda one: one.waiting.p50_s),
                line("p95", "doubt", lambda one: one.waiting.p95_s),
                column("Mean", lambda one: one.waiting.mean_s),
                column("Starts", lambda one: one.waiting.count, "number"),
            ],
            "From when an attempt could be sent until run.sh ran. Half are below p50, 95 % below "
            "p95.",
            nothing="No attempt started.",
        ),
        Chart(
            "run",
            "Run time",
            "seconds",
            [
                line("p50", "go", lambda one: one.run.p50_s),
                line("p95", "doubt", lambda one: one.run.p95_s),
                column("Mean", lambda one: one.run.mean_s),
                column("Ends", lambda one: one.run.count, "number"),
            ],
            "From the start of run.sh until the server had the result.",
            nothing="No attempt ended.",
        ),
        Chart(
            "failures",
            "Failures by reason",
            "number",
            _reasons(points),
            f"Jobs that failed in {every}.",
            nothing="No job failed.",
        ),
        Chart(
            "bytes",
            "Uploads and results",
            "bytes",
            [
                bar("Uploaded", "go", lambda one: one.uploaded_bytes),
                bar("Results", "good", lambda one: one.result_bytes),
            ],
            f"Bytes in {every}.",
        ),
    ]
    if found.service is not None:
        return of_jobs
    return [
        *of_jobs,
        Chart(
            "slots",
            "Slots and agents",
            "number",
            [
                line("Slots", "wait", lambda one: one.slots),
                line("Taken", "go", lambda one: one.under_way),
                line("Agents", "good", lambda one: one.agents_up),
            ],
            "Of the agents that may get new jobs, on average.",
        ),
        Chart(
            "disk",
            "Free disk",
            "bytes",
            [line("Free", "good", lambda one: one.disk_free_bytes)],
            "Where bundles and results are stored.",
        ),
        Chart(
            "database",
            "Database",
            "bytes",
            [line("Size", "go", lambda one: one.database_bytes)],
            "The jobs with their histories.",
        ),
    ]


def _reasons(points: Sequence[StatisticsPoint]) -> list[Series]:
    """The reasons for which most jobs failed, and all others together."""
    total = Counter[str]()
    for one in points:
        total.update(one.failed)
    names = [name for name, _ in total.most_common(_MOST_REASONS)]
    found = [
        Series(name, colour, [one.failed.get(name, 0) for one in points], "bar")
        for name, colour in zip(names, _COLOURS, strict=False)
    ]
    if len(total) > len(names):
        rest = [
            sum(count for name, count in one.failed.items() if name not in names) for one in points
        ]
        found.append(Series("others", _COLOURS[-1], rest, "bar"))
    return found


ROUTES: Final = (PageRoute("GET", "/charts", Area.AGENTS, page, query=STATISTICS),)
