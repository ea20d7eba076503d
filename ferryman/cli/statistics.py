"""``ferryman statistics``: what happened in the last hour, day or week."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from ferryman.cli import show
from ferryman.cli.options import Json, on_server
from ferryman.units import say_duration, say_size

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.statistics_models import StatisticsDoc, StatisticsPoint

_HEADS: Final = ("WHAT", "ALL", "LATEST", "TREND")
_BARS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 42
"""Most characters of a trend."""


@on_server
async def statistics(
    period: Annotated[
        Literal["hour", "day", "week"],
        typer.Option("--period", "-p", metavar="PERIOD", help="How far back: hour, day or week."),
    ] = "hour",
    service: Annotated[
        str | None,
        typer.Option("--service", "-s", metavar="NAME", help="Of this one only."),
    ] = None,
    json: Json = False,
    *,
    client: Client,
) -> None:
    """Show how many jobs waited, ran and failed over time."""
    found = await client.statistics(period, service)
    if json:
        show.print_json(found)
    elif not found.points:
        show.print_message("nothing was counted in this time yet")
    else:
        show.print_table(_HEADS, _rows(found), drop=("ALL",))
        ever = found.ever
        show.print_message(
            f"ever: {ever.uploaded:,} uploaded, {ever.completed:,} completed, "
            f"{sum(ever.failed.values()):,} failed, {ever.cancelled:,} cancelled"
        )
        if service is None:
            from ferryman.statistics_models import say_growth  # not for help

            show.print_message(f"size: {say_growth(found.growth)}")


def _rows(found: StatisticsDoc) -> list[tuple[str, ...]]:
    points, total = found.points, found.total

    def row(
        what: str,
        value: Callable[[StatisticsPoint], float | None],
        whole: float | None = None,
        say: Callable[[float], str] = _say_number,
    ) -> tuple[str, ...]:
        values = [value(one) for one in points]
        latest = next((one for one in reversed(values) if one is not None), None)
        return (
            what,
            "" if whole is None else say(whole),
            "" if latest is None else say(latest),
            _trend(values),
        )

    rows = [
        row("queued", lambda one: one.queued),
        row("running", lambda one: one.running),
        row("uploaded", lambda one: one.uploaded, total.uploaded),
        row("completed", lambda one: one.completed, total.completed),
        row("failed", lambda one: sum(one.failed.values()), sum(total.failed.values())),
    ]
    for reason, count in sorted(total.failed.items(), key=lambda item: -item[1]):
        rows.append(row(f"  {reason}", functools.partial(_failed, reason), count))
    rows += [
        row("cancelled", lambda one: one.cancelled, total.cancelled),
        row("waiting p50", lambda one: one.waiting.p50_s, total.waiting.p50_s, say_duration),
        row("waiting p95", lambda one: one.waiting.p95_s, total.waiting.p95_s, say_duration),
        row("run p50", lambda one: one.run.p50_s, total.run.p50_s, say_duration),
        row("run p95", lambda one: one.run.p95_s, total.run.p95_s, say_duration),
        row("bundles", lambda one: one.uploaded_bytes, total.uploaded_bytes, _say_bytes),
        row("results", lambda one: one.result_bytes, total.result_bytes, _say_bytes),
    ]
    if found.service is None:
        rows += [
            row("agents", lambda one: one.agents_up),
            row("slots", lambda one: one.slots),
            row("free disk", lambda one: one.disk_free_bytes, say=_say_bytes),
            row("database", lambda one: one.database_bytes, say=_say_bytes),
        ]
    return rows


def _failed(reason: str, one: StatisticsPoint) -> float:
    return one.failed.get(reason, 0)


def _trend(values: Sequence[float | None]) -> str:
    """A drawing of the values on one line; several share a character where there are many."""
    each = -(-len(values) // _WIDTH)
    parts = [values[at : at + each] for at in range(0, len(values), each)]
    known = [[one for one in part if one is not None] for part in parts]
    means = [sum(part) / len(part) if part else 0.0 for part in known]
    most = max(means) or 1.0
    steps = len(_BARS) - 1
    return "".join(_BARS[-(-round(mean / most * steps * 100) // 100)] for mean in means)


def _say_number(value: float) -> str:
    return f"{value:g}" if value < 1_000 else f"{value:.0f}"


def _say_bytes(value: float) -> str:
    return say_size(round(value))
