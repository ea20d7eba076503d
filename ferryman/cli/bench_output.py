"""What ``ferryman bench`` shows and writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from ferryman.cli import show
from ferryman.errors import BadArgument

if TYPE_CHECKING:
    from ferryman.bench.document import BenchDoc, Sample

_SAY_EVERY_S: Final = 5.0


class Output:
    """What is made of the result."""

    def __init__(
        self, report: Path | None, before: BenchDoc | None, *, keep: bool, quiet: bool, json: bool
    ) -> None:
        self.report, self.before = report, before
        self.keep, self.quiet, self.json = keep, quiet, json
        self._said_s = 0.0

    def say(self, text: str) -> None:
        if not self.quiet:
            show.print_message(text)

    def say_sample(self, sample: Sample, sent: int) -> None:
        """Now and then, how far it is."""
        if sample.at_s - self._said_s < _SAY_EVERY_S:
            return
        self._said_s = sample.at_s
        words = [f"{sample.at_s:.0f}s: {sent} uploads"]
        words += [f"{sample.uploading} under way"] if sample.uploading else []
        words += [f"{sample.queued} waiting"] if sample.queued is not None else ["no answer"]
        words += [f"{sample.running} running"] if sample.running is not None else []
        self.say(", ".join(words))

    def show(self, found: BenchDoc) -> None:
        from ferryman.bench import table
        from ferryman.bench.page import page

        if self.json:
            show.print_json(found)
        else:
            show.print_table(("WHAT", "FIGURE"), table.count_rows(found), drop=())
            typer.echo("")
            show.print_table(table.TIME_HEADS, table.time_rows(found), drop=("MEAN", "COUNT"))
            typer.echo("")
            for line in table.verdict_lines(found):
                typer.echo(show.printable(line))
            if self.before is not None:
                typer.echo("")
                rows = table.compare_rows(self.before, found)
                show.print_table(table.COMPARE_HEADS, rows, drop=())
        if found.end != "complete":
            show.print_message(table.END[found.end])
        if self.report is not None:
            for path, text in _written(self.report, found, page):
                path.write_text(text, encoding="utf-8")
                self.say(f"wrote {path}")


def _is_page(path: Path) -> bool:
    return path.suffix.lower() in {".html", ".htm"}


def prepare(report: Path) -> None:
    """Find out before the run whether the report can be written."""
    folder = report.parent if _is_page(report) else report
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".ferryman-bench"
    probe.touch()
    probe.unlink()


def _written(
    report: Path, found: BenchDoc, page: Callable[[BenchDoc], str]
) -> list[tuple[Path, str]]:
    if _is_page(report):
        return [(report, page(found))]
    return [
        (report / "report.html", page(found)),
        (report / "result.json", found.model_dump_json(indent=1) + "\n"),
    ]


def earlier(path: Path) -> BenchDoc:
    from pydantic import ValidationError

    from ferryman.bench.document import BenchDoc

    try:
        return BenchDoc.model_validate_json(path.read_bytes())
    except OSError as problem:
        raise BadArgument(f"--compare {path}: {problem.strerror or problem}") from problem
    except ValidationError:
        raise BadArgument(
            f"--compare {path}: it is no result of ferryman bench --json or --report"
        ) from None
