"""The report as one HTML file that needs nothing else: plots, and the numbers in tables beside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from ferryman.bench import table
from ferryman.bench.document import BenchDoc, JobRow, Sample
from ferryman.bench.measures import by_time
from ferryman.bench.plots import Line, Point, linear, logarithmic, plot
from ferryman.bench.quantities import say_bytes, say_time

_SPANS: Final = 60
"""Spans of time that a plot of rates has, at most."""
_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --text: #16202a; --grid: #c9d1d9; --muted: #55606b;
  --l0: #0b6a95; --l1: #1d7a3e; --l2: #b3261e; --l3: #7a4b00; --l4: #6b3fa0; }
@media (prefers-color-scheme: dark) { :root { --back: #10171d; --text: #d5dde4; --grid: #2b3742;
  --muted: #9aa8b4; --l0: #6cc0e8; --l1: #6fcf97; --l2: #ff9a90; --l3: #f0b860; --l4: #c9a6f5; } }
body { font: 16px/1.5 system-ui, sans-serif; background: var(--back); color: var(--text);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block;
  overflow-x: auto; }
caption { text-align: left; color: var(--muted); }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0;
  border-bottom: 1px solid var(--grid); }
td.n, th.n { text-align: right; }
svg { width: 100%; height: auto; } svg text { fill: var(--muted); font-size: 12px; }
svg .grid { stroke: var(--grid); } polyline { fill: none; stroke-width: 2; }
.l0 { stroke: var(--l0); } .l1 { stroke: var(--l1); } .l2 { stroke: var(--l2); }
.l3 { stroke: var(--l3); } .l4 { stroke: var(--l4); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0.3rem 1.5rem; padding: 0; }
.legend svg { width: 36px; height: 8px; margin-right: 0.5rem; vertical-align: middle; }
summary { cursor: pointer; } dt { font-weight: 600; } dd { margin: 0 0 0.4rem 1rem; }
"""


def page(found: BenchDoc) -> str:
    """The whole file."""
    ends = [one for one in found.uploads if one.ended_s is not None]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Load on {escape(found.url)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>Load on {escape(found.url)}</h1>",
        _about(found),
        "<h2>Verdict</h2><ul>",
        *(f"<li>{escape(line)}</li>" for line in table.verdict_lines(found)),
        "</ul><h2>Counts</h2>",
        _table("What became of uploads and jobs", ("WHAT", "FIGURE"), table.count_rows(found)),
        "<h2>How long it took</h2>",
        _table("Times, by how many took no longer", table.TIME_HEADS, table.time_rows(found)),
        _distributions(found.uploads),
        "<h2>Over time</h2>",
        _rates(found),
        *_samples(found.samples),
        f"<p>{len(ends)} of {len(found.uploads)} uploads became jobs that ended.</p>",
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _about(found: BenchDoc) -> str:
    rows = [
        ("begun", found.begun_at.isoformat(timespec="seconds")),
        ("load", found.plan),
        *(("jobs, by weight", kind) for kind in found.kinds),
        ("took", f"{say_time(found.took_s)}; {table.END[found.end]}"),
        ("versions", f"client {found.version}, server {found.server_version or 'not known'}"),
        ("tag", found.tag),
    ]
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows) + "</dl>"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    marks = ["", *(' class="n"' for _ in heads[1:])] if len(heads) > 2 else ["", ""]
    top = "".join(
        f'<th scope="col"{mark}>{escape(head.capitalize())}</th>'
        for mark, head in zip(marks, heads, strict=True)
    )
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[0])}</th>'
        + "".join(
            f"<td{mark}>{escape(cell)}</td>" for mark, cell in zip(marks[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    )


def _distributions(uploads: Sequence[JobRow]) -> str:
    kinds = {
        "upload": [
            one.accepted_s - one.intended_s for one in uploads if one.accepted_s is not None
        ],
        "accepted until run.sh ran": [
            one.started_s - one.accepted_s
            for one in uploads
            if one.started_s is not None and one.accepted_s is not None
        ],
        "due until the result was there": [
            one.ended_s - one.intended_s for one in uploads if one.ended_s is not None
        ],
    }
    lines = []
    for name, values in kinds.items():
        ordered = sorted(max(1e-4, one) for one in values)
        count = len(ordered)
        points = [(value, (at + 1) / count * 100) for at, value in enumerate(ordered)]
        lines.append(Line(name, points))
    times = [x for line in lines for x, _ in line.points]
    if not times:
        return ""
    x = logarithmic(times, say_time)
    y = linear([100.0], lambda value: f"{value:.0f} %")
    title = "Share of jobs that took no longer"
    return _figure(title, plot(title, x, y, lines, "time, logarithmic"))


def _rates(found: BenchDoc) -> str:
    ends = [one.ended_s for one in found.uploads if one.ended_s is not None]
    accepted = [one.accepted_s for one in found.uploads if one.accepted_s is not None]
    due = [one.intended_s for one in found.uploads]
    length = max([1.0, *ends, *accepted, *due])
    count = min(_SPANS, max(1, int(length)))
    width = length / count
    kinds = {"due": due, "accepted": accepted, "ended": ends}
    values = {name: by_time(times, width, count) for name, times in kinds.items()}
    middles = [(number + 0.5) * width for number in range(count)]
    lines = [Line(name, list(zip(middles, found_, strict=True))) for name, found_ in values.items()]
    rates = [one for line in values.values() for one in line]
    title = "Jobs a second"
    drawing = plot(title, linear([length]), linear(rates), lines, "seconds from the start")
    rows = [
        (f"{at:.1f}", *(f"{values[name][number]:.2f}" for name in values))
        for number, at in enumerate(middles)
    ]
    return _figure(title, drawing, _table(title, ("SECOND", *values), rows))


def _samples(samples: Sequence[Sample]) -> Iterable[str]:
    def line(name: str, field: str) -> Line:
        points: list[Point] = []
        for one in samples:
            value = getattr(one, field)
            if value is not None:
                points.append((one.at_s, float(value)))
        return Line(name, points)

    queue = [
        line("waiting", "queued"),
        line("running", "running"),
        line("slots", "slots"),
        line("uploads under way", "uploading"),
    ]
    yield _over_time("Queue, jobs and slots", [one for one in queue if one.points], "{:g}")
    if any(one.cpu is not None for one in samples):
        yield _over_time("Cores that the server used", [line("CPU", "cpu")], "{:.2f}")
    memory = line("memory", "memory_bytes")
    if memory.points:
        yield _over_time("The server's memory", [memory], "")
    soon = [line("answer about a service", "answer_s"), line("event loop late", "lag_s")]
    soon = [one for one in soon if one.points]
    yield _over_time("How soon the server answers, seconds", soon, "{:.4f}")


def _over_time(title: str, lines: Sequence[Line], say: str) -> str:
    if not any(line.points for line in lines):
        return ""
    x = linear([at for line in lines for at, _ in line.points])
    values = [value for line in lines for _, value in line.points]
    y = linear(values, None if say else say_bytes)
    found = {line.name: dict(line.points) for line in lines}
    rows = [
        (
            f"{at:.1f}",
            *(
                ("" if at not in one else say.format(one[at]) if say else say_bytes(one[at]))
                for one in found.values()
            ),
        )
        for at in sorted({at for one in found.values() for at in one})
    ]
    return _figure(
        title,
        plot(title, x, y, lines, "seconds from the start"),
        _table(title, ("SECOND", *found), rows),
    )


def _figure(title: str, drawing: str, numbers: str = "") -> str:
    inner = f"<details><summary>The numbers</summary>{numbers}</details>" if numbers else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}{inner}</figure>"
